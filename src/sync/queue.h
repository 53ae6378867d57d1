// SPDX-License-Identifier: Apache-2.0
//
// The queue of one stretch of memory: parts in the order in which they were appended, granted when no
// earlier part that conflicts is unfinished; and the views of the host, which stand beside it. Ops may wait
// for all views, leases and calls wait for the bound views of others (request.h).
//
// Two ways of counting. While every part covers all of the memory, the granted ones are a run at the front,
// and three words say what may be next. The first part that covers a part of the memory, or that has to wait
// for views, makes the queue a counted one until it is empty: each part then counts the ones that it waits
// for.
//
// A caller that holds a view does not wait for parts that wait for that view: its own part is put before
// the first of them.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/ref.h"
#include "base/spin_lock.h"
#include "sync/failure.h"
#include "sync/holder.h"
#include "sync/request.h"

namespace tenon::impl {

class Gate;

// Bytes that an op failed to write. Owned by the queue in which it lies.
struct FailedRange {
  Extent extent;
  Ref<Failure> failure;
  FailedRange* next = nullptr;
};

// Threads: the lock guards everything but what is marked as shared. Nothing here waits, allocates or calls
// other code: requests that become ready are put on the caller's list.
// Invariants: among unfinished parts that conflict, only the first is granted, but for parts that act
// under another one of the same actor; a part that waits, waits for an earlier part or for the host.
class Queue {
 public:
  SpinLock lock;

  // Shared. A hint for callers without the lock, which have waited for what may have failed: look under it.
  std::atomic<bool> has_failures{false};

  // All of these require the lock.

  // The memory that a part must cover to be counted in the simple way.
  void set_bounds(Extent bounds) noexcept { bounds_ = bounds; }
  // The op in whose body the memory was made; 0: none. kAnyOp: every body may use it undeclared.
  static constexpr uint64_t kAnyOp = UINT64_MAX;
  void set_birth(uint64_t op) noexcept { birth_ = op; }
  uint64_t birth() const noexcept { return birth_; }
  // What kind of memory it is. Gone: it was moved out, so each request is refused. On a device: the host can
  // neither read nor write it, so that views are refused that are not on a stream.
  enum class Memory : uint8_t { kHost, kDevice, kGone };
  void set_memory(Memory memory) noexcept { memory_ = memory; }
  bool is_gone() const noexcept { return memory_ == Memory::kGone; }
  bool is_plain() const noexcept { return memory_ == Memory::kHost; }
  // Of memory that other processes use, too (gate.h); null: of all other. Stays while a part or view with a
  // grant stands here: their owners may ask for it without the lock.
  Gate* gate() const noexcept { return gate_; }
  void set_gate(Gate* gate) noexcept {
    if (gate_ != gate) gate_ = gate;
  }

  bool has_parts() const noexcept { return head_ != nullptr; }
  bool has_views() const noexcept { return views_ != nullptr; }
  bool has_bound_views() const noexcept { return bound_views_ != 0; }
  // Views of both kinds.
  uint32_t readers() const noexcept { return readers_; }
  uint32_t writers() const noexcept { return writers_; }
  RequestPart* first() const noexcept { return head_; }
  View* first_view() const noexcept { return views_; }

  // Puts a part at the end. True if it is granted.
  bool append(RequestPart* part, ReadyList* ready) noexcept;
  // Puts a part before one that waits for views. True if it is granted.
  bool insert_before(RequestPart* part, RequestPart* place) noexcept;
  // Puts a granted part right behind the one that it acts under.
  void insert_under(RequestPart* part, RequestPart* under, ReadyList* ready) noexcept;
  // Takes a part out, granted or not, and grants what it was in the way of. Views that were taken under it
  // become the host's; under a lease also bound. True if there is such a view.
  bool remove(RequestPart* part, ReadyList* ready) noexcept;

  // The granted part of this actor, or of the op that runs in this thread, that overlaps with extent: the
  // innermost that allows the access if there is one. Null: none overlaps.
  RequestPart* own_part_for(const Extent& extent, Access access) const noexcept;
  static bool allows(const RequestPart& under, const Extent& extent, Access access) noexcept {
    return includes(under.access, access) && under.extent.contains(extent);
  }

  // In a gated queue: the lease without an owner, so that all of the process may act under it.
  RequestPart* detached_part_for(const Extent& extent, Access access) const noexcept;
  // A view of the host with a grant that covers extent and allows access, or null.
  const View* granted_view(Access access, const Extent& extent) const noexcept;
  // After a fork, in the child: all views here, which are the host's, are inherited ones.
  void mark_views_inherited() noexcept;
  const View* inherited_view() const noexcept;

  // After a fork, in the child: views of threads that are not there are unbound.
  void unbind_views_of_others(uint32_t thread) noexcept;

  // The host's view that conflicts, or null.
  View* host_conflict(Access access, const Extent& extent) const noexcept;
  // A bound view that conflicts, or null.
  const View* bound_conflict(Access access, const Extent& extent) const noexcept;
  // A call that is to open a view that conflicts, or null.
  const RequestPart* view_request(Access access, const Extent& extent) const noexcept;
  // The view that keeps this part, whose turn among the parts has come, from being granted; null: none.
  View* view_in_the_way(const RequestPart& part) const noexcept;
  // Calls visit for each bound view for which this part waits.
  template <class Visit>
  void visit_bound_views(const RequestPart& part, Visit visit) const {
    if (bound_views_ == 0 || !heeds_bound_views(part)) return;
    for (View* v = views_; v != nullptr; v = v->next) {
      if (!v->is_bound || !in_conflict(v->access, v->extent, part.access, part.extent)) continue;
      if (part.waits_for_host || v->access == Access::kRead || !v->actor.includes(part.request->owner))
        visit(*v);
    }
  }
  // A view for writing that overlaps, of the host or under a part; or null.
  const View* first_writer(const Extent& extent) const noexcept;
  // A view covers extent and allows access: one that is bound to the actor; for the host also one
  // that is not bound.
  bool is_covered(Actor actor, bool is_host, Access access, const Extent& extent) const noexcept;
  // The first part that conflicts and waits for a view of those that is_covered() looks at; or null.
  RequestPart* first_kept(Actor actor, bool is_host, Access access, const Extent& extent) const noexcept;
  // The first part that conflicts and waits for such a view, or for a part here that does; or null.
  RequestPart* first_behind_kept(Actor actor, bool is_host, Access access,
                                 const Extent& extent) const noexcept;
  // The first part that conflicts, or null.
  RequestPart* first_conflict(Access access, const Extent& extent) const noexcept;
  // Both parts cover all of the memory.
  bool are_whole(const RequestPart& a, const RequestPart& b) const noexcept {
    return is_whole(a) && is_whole(b);
  }

  // For a walk through the graph of waits: all parts before this one have been visited. 0 at its begin.
  uint64_t& seen_to(uint64_t walk) noexcept {
    if (seen_by_ != walk) seen_to_ = 0;
    seen_by_ = walk;
    return seen_to_;
  }

  // Adds an open view: under under, or (null) of the host.
  void add_view(View* view, RequestPart* under) noexcept;
  // Takes a view out and grants what waited for it.
  void remove_view(View* view, ReadyList* ready) noexcept;

  void note_write() noexcept { version_.fetch_add(1, std::memory_order_relaxed); }
  // Moves at every call while a writable view is open, because its writes are not seen.
  uint64_t version() noexcept {
    if (writers_ != 0) note_write();
    return version_.load(std::memory_order_relaxed);
  }

  // A part waits, or has waited, for views of ordinary code, or there are bound views: in any queue.
  static bool may_wait_for_views() noexcept { return kept_by_views.load(std::memory_order_relaxed) != 0; }

  // Bytes of all memory that unfinished ops hold, each counted once; memory of less than kSmall bytes not.
  static uint64_t held_nbytes() noexcept { return held_by_ops.load(std::memory_order_relaxed); }
  static constexpr uint64_t kSmall = 64 * 1024;

  // Takes over the node.
  void add_failure(FailedRange* node) noexcept;
  // Where there is no memory for a node: bytes of this extent hold no value, until all of it is healed.
  void add_failure_without_node(const Extent& extent) noexcept;
  // Takes out what lies inside of extent; the caller deletes it, without the lock. spare: for one that is cut
  // in two; set to null if it was used; without one that stays as it is.
  FailedRange* heal(const Extent& extent, FailedRange** spare = nullptr) noexcept;
  Ref<Failure> failure_in(const Extent& extent) const noexcept;

  // For a merge: everything that `other`, which holds no parts and views, knows.
  void take_over(Queue& other) noexcept;

 private:
  bool is_whole(const RequestPart& part) const noexcept { return part.extent.contains(bounds_); }
  static bool conflicts(const RequestPart& a, const RequestPart& b) noexcept {
    return a.request != b.request && in_conflict(a.access, a.extent, b.access, b.extent);
  }
  // No view is in the way of this part, whose turn among the parts has come.
  bool views_allow(const RequestPart& part) const noexcept {
    return views_ == nullptr || view_in_the_way(part) == nullptr;
  }
  bool heeds_bound_views(const RequestPart& part) const noexcept;
  bool is_kept(const RequestPart& part, Actor actor, bool is_host) const noexcept;
  void link_behind(RequestPart* part, RequestPart* place) noexcept;
  void unlink(RequestPart* part) noexcept;
  void mark_granted(RequestPart* part) noexcept;
  void grant(RequestPart* part, ReadyList* ready) noexcept;
  void advance(ReadyList* ready) noexcept;
  void begin_counting(ReadyList* ready) noexcept;
  void grant_behind(const RequestPart& removed, RequestPart* next, ReadyList* ready) noexcept;
  // What has become of the views under a part that ends: some are the host's own now, and some of those
  // keep a part waiting.
  struct Moved {
    bool is_any = false;
    bool is_in_the_way = false;
  };
  Moved move_views_to_host(RequestPart* part) noexcept;
  bool is_large() const noexcept {
    const uint64_t nbytes = bounds_.end - bounds_.begin;
    return nbytes >= kSmall && nbytes <= PTRDIFF_MAX;  // more: the bounds have not been set
  }
  void count_holder() noexcept;
  void uncount_holder() noexcept;

  static void note_kept(int64_t n) noexcept { kept_by_views.fetch_add(n, std::memory_order_relaxed); }

  static constinit inline std::atomic<uint64_t> held_by_ops{0};
  static constinit inline std::atomic<int64_t> kept_by_views{0};  // such parts and bound views

  Extent bounds_;
  Gate* gate_ = nullptr;
  uint64_t next_sequence_ = 1;

  RequestPart* head_ = nullptr;
  RequestPart* tail_ = nullptr;
  uint32_t holders_ = 0;      // parts that hold memory
  uint64_t held_nbytes_ = 0;  // what was added to held_by_ops for them
  bool is_counted_ = false;
  Memory memory_ = Memory::kHost;
  // Means something only in a queue that is not counted.
  RequestPart* first_waiting_ = nullptr;
  uint32_t active_readers_ = 0;
  uint32_t active_writers_ = 0;

  uint32_t ahead_ = 0;          // parts that are ahead
  uint32_t view_requests_ = 0;  // parts of calls that are to open a view

  View* views_ = nullptr;  // the host's
  uint32_t bound_views_ = 0;
  uint32_t readers_ = 0;
  uint32_t writers_ = 0;
  uint32_t inherited_views_ = 0;

  uint64_t birth_ = 0;
  uint64_t seen_by_ = 0;
  uint64_t seen_to_ = 0;

  std::atomic<uint64_t> version_{0};  // a plain counter
  bool has_failed(const Extent& extent) const noexcept {
    return unnoted_.end != 0 && unnoted_.overlaps(extent);
  }

  FailedRange* failed_ = nullptr;
  Extent unnoted_{0, 0};  // what add_failure_without_node() was given; end == 0: nothing
};

}  // namespace tenon::impl
