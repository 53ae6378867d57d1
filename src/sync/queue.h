// SPDX-License-Identifier: Apache-2.0
//
// The queue of one range of memory: parts in the order in which they were appended, and the list of views of
// the host (ordinary code). A part is granted when no earlier part that conflicts is unfinished. Ops may wait
// for the views of the host, too. A view that has outlived its lease has a part of its own (EndedPart).
//
// The queue has two modes. While every part covers all of the memory, the granted parts are at the front, and
// three words tell which part may be granted next. The first part that covers only some of the memory, that
// must wait for views, whose work is on a stream, or that is an ended one, makes the queue counted until it
// is empty: each part then counts the parts that it waits for. A long counted queue has an index of its parts
// by their bytes.
//
// A part whose work has been submitted to a stream does not keep other parts of such work from being granted,
// because their stream waits for its event. All other parts wait until it has left the queue.
//
// A caller that holds a view or owns ended parts does not wait for parts that wait for these: its own part is
// inserted before the first of them.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/ref.h"
#include "sync/failure.h"
#include "sync/holder.h"
#include "sync/queue_lock.h"
#include "sync/request.h"

namespace tenon::impl {

class Gate;
class PartIndex;

// Bytes that an op failed to write. Owned by its queue.
struct FailedRange {
  Extent extent;
  Ref<Failure> failure;
  FailedRange* next = nullptr;
  uint64_t sequence = 0;  // of the part that failed
};

// The lock is the first member, so that it leads to its queue.
struct QueueBase {
  [[no_unique_address]] QueueLock lock;
};

// Threads: the lock guards everything that is not marked as shared. No function waits or calls other code:
// requests that become ready are put on the caller's list. Only append() may allocate, for the index; without
// memory the queue has none.
// Invariants: two parts that conflict are both granted only if one acts under the other, if the earlier one
// is submitted and the other one is on a stream, if both are ended parts of one lease, or if one is an
// ended part and the other one ignores it (waits_for): that of an op that ignores views, or of its owner.
// What a part waits for is an earlier part, one that was granted before it was inserted, or, for an op, a
// view of the host.
class Queue : public QueueBase {
 public:
  // Shared. A hint for callers without the lock, after their wait: if true, they must check with the lock.
  std::atomic<bool> has_failures{false};

  // All of these require the lock.

  // The memory that a part must cover so that the queue need not be counted.
  void set_bounds(Extent bounds) noexcept { bounds_ = bounds; }
  const Extent& bounds() const noexcept { return bounds_; }
  // The op whose body created the memory; 0: none. kAnyOp: every body may use it undeclared.
  static constexpr uint64_t kAnyOp = UINT64_MAX;
  void set_birth(uint64_t op) noexcept { birth_ = op; }
  uint64_t birth() const noexcept { return birth_; }
  // The kind of memory. Gone: it was moved out, so each request is refused. Sent: it belongs to an item of a
  // channel that was sent, likewise. On a device: the host can neither read nor write it, so views that are
  // not on a stream are refused.
  enum class Memory : uint8_t { kHost, kDevice, kGone, kSent };
  void set_memory(Memory memory) noexcept { memory_ = memory; }
  bool is_gone() const noexcept { return memory_ == Memory::kGone; }
  bool is_sent() const noexcept { return memory_ == Memory::kSent; }
  bool is_plain() const noexcept { return memory_ == Memory::kHost; }
  // The gate of memory that is shared with other processes (gate.h); null: not shared. Constant while a part
  // or view with a grant is here, so that its owner may read it without the lock.
  Gate* gate() const noexcept { return gate_; }
  void set_gate(Gate* gate) noexcept {
    if (gate_ != gate) gate_ = gate;
  }

  // Forks, waits for all ops and reports must find it: it has parts or views with a grant.
  bool must_be_listed() const noexcept { return head_ != nullptr || (gate_ != nullptr && views_ != nullptr); }
  bool has_parts() const noexcept { return head_ != nullptr; }
  // Memory of the host and of this process alone where nothing is in the way of a lease, a call or a view.
  bool is_idle() const noexcept { return head_ == nullptr && is_plain() && gate_ == nullptr; }
  // Memory of the host and of this process alone where only other parts are in the way of this part of an op,
  // and three words tell whether they are (append_next).
  bool is_simple_for(const RequestPart& part) const noexcept {
    if (!is_plain() || gate_ != nullptr || views_ != nullptr) return false;
    return head_ == nullptr || (!is_counted_ && view_requests_ == 0 && is_whole(part));
  }
  bool has_views() const noexcept { return views_ != nullptr; }
  bool has_ended_parts() const noexcept { return ended_ != 0; }
  bool has_view_requests() const noexcept { return view_requests_ != 0; }
  // Views of both kinds.
  uint32_t readers() const noexcept { return readers_; }
  uint32_t writers() const noexcept { return writers_; }
  RequestPart* first() const noexcept { return head_; }
  View* first_view() const noexcept { return views_; }

  // Appends a part that has begun. True if it is granted.
  bool append(RequestPart* part, ReadyList* ready) noexcept;
  // Begins and appends a part that is not on a stream, in a queue without parts; no view is in its way. It is
  // granted.
  void append_first(RequestPart* part, Request* request) noexcept {
    begin_part(part, request, true);
    head_ = tail_ = part;
    if (!is_whole(*part)) {
      is_counted_ = true;
      index_ = nullptr;
      waiting_ = 0;
      length_ = 1;
    } else {
      ++(part->access == Access::kWrite ? active_writers_ : active_readers_);
    }
  }
  // Begins and appends a part of an op that is not on a stream. Requires is_simple_for(). True if it is
  // granted.
  bool append_next(RequestPart* part, Request* op) noexcept {
    bool is_granted = true;
    if (head_ == nullptr) {
      append_first(part, op);
    } else {
      is_granted = first_waiting_ == nullptr && active_writers_ == 0 &&
                   (part->access == Access::kRead || active_readers_ == 0);
      begin_part(part, op, is_granted);
      part->previous = tail_;
      tail_ = tail_->next = part;
      if (is_granted) {
        ++(part->access == Access::kWrite ? active_writers_ : active_readers_);
      } else if (first_waiting_ == nullptr) {
        first_waiting_ = part;
      }
    }
    hold_memory(part);
    return is_granted;
  }
  // Inserts a part that has begun before one that waits for views. True if it is granted.
  bool insert_before(RequestPart* part, RequestPart* place, ReadyList* ready) noexcept;
  // Inserts a part that has begun right behind the part under which it acts. It is granted.
  void insert_under(RequestPart* part, RequestPart* under, ReadyList* ready) noexcept;
  // Removes a part, granted or not, and grants the parts that waited only for it. A view that was taken
  // under it goes under a part of the same actor around it, if that allows the view. Else the view of a
  // lease gets an ended part, and that of a call or an op becomes one of the host. True if there is a view
  // without such a part around it. Of an ended part, the view must have been unlinked.
  bool remove(RequestPart* part, ReadyList* ready) noexcept {
    if (!is_only_part(*part)) return remove_among(part, ready);
    remove_only_part(part);
    return false;
  }
  // The queue has no other part, and this one is in no count and has no views.
  bool is_only_part(const RequestPart& part) const noexcept {
    if (head_ != &part || part.next != nullptr || part.views != nullptr) return false;
    return !part.is_ended && !part.is_ahead && !part.holds_memory && !part.waits_for_host &&
           !part.request->is_for_view();
  }
  // Removes a part that is alone.
  void remove_only_part(RequestPart* part) noexcept {
    part->is_queued = false;
    head_ = tail_ = nullptr;
    is_counted_ = false;
    first_waiting_ = nullptr;
    active_readers_ = active_writers_ = 0;
  }

  // The work of a granted part has been submitted to a stream: grants the parts that wait only for this.
  void mark_submitted(RequestPart* part, ReadyList* ready) noexcept;
  // Inserts a part that has begun before all others, as a submitted one: its work was submitted before they
  // came.
  void insert_submitted(RequestPart* part, ReadyList* ready) noexcept;

  // The granted part of this actor, or of the op that runs in this thread, that overlaps extent, but no ended
  // part: the innermost one that allows the access if there is one. Null: none overlaps.
  RequestPart* own_part_for(const Extent& extent, Access access) const noexcept;
  // The same among the parts of one granted request.
  RequestPart* part_of(const Request& request, const Extent& extent, Access access) const noexcept;
  static bool allows(const RequestPart& under, const Extent& extent, Access access) noexcept {
    return includes(under.access, access) && under.extent.contains(extent);
  }

  // In a gated queue: a lease without an owner, under which the whole process may act.
  RequestPart* detached_part_for(const Extent& extent, Access access) const noexcept;
  // A view of the host, or one with an ended part, with a grant that covers extent and allows access; or
  // null.
  const View* granted_view(Access access, const Extent& extent) const noexcept;
  // Only work on streams and exports to other libraries use the grant. They end by themselves, or on any
  // thread, so that nobody owns the grant.
  bool is_grant_of_others(GrantId grant) const noexcept;
  // After a fork, in the child: marks the views with a grant as inherited.
  void mark_views_inherited() noexcept;
  const View* inherited_view() const noexcept;
  // Lost views are in nobody's way, but they keep the memory.
  bool has_lost_views() const noexcept { return inherited_views_ != 0; }

  // After a fork, in the child: the views under a part that other threads have opened are lost. They are in
  // nobody's way, and may be closed.
  void lose_views_of_others(RequestPart* part, uint32_t thread) noexcept;
  // The same for views that have outlived leases of other threads. In a gated queue all such views become
  // inherited ones of the host.
  void end_parts_after_fork(uint32_t thread) noexcept;

  // A view of the host that conflicts, or null.
  View* host_conflict(Access access, const Extent& extent) const noexcept;
  // An ended part that conflicts, or null.
  const RequestPart* ended_conflict(Access access, const Extent& extent) const noexcept;
  // A call that will open a view that conflicts, or null.
  const RequestPart* view_request(Access access, const Extent& extent) const noexcept;
  // The view of the host for which this part must wait although no other part is in its way; null: none.
  View* view_in_the_way(const RequestPart& part) const noexcept {
    return part.waits_for_host ? host_conflict(part.access, part.extent) : nullptr;
  }
  // This part must wait for the other one if that comes before it, or was granted before.
  static bool waits_for(const RequestPart& later, const RequestPart& earlier) noexcept {
    return conflicts(later, earlier) &&
           !(earlier.is_submitted && later.request->is_on_stream() && !later.is_for_host) &&
           !(earlier.is_ended && ignores_ended(later, earlier));
  }
  // A view of these bytes was taken under a part of this thread, also if that part has ended.
  bool has_views_of(uint32_t thread, const Extent& extent) const noexcept;
  // An overlapping view for writing, of the host or under a part; or null.
  const View* first_writer(const Extent& extent) const noexcept;
  // An ended part of this actor allows the access.
  bool is_in_ended(Actor actor, Access access, const Extent& extent) const noexcept;
  // A view of the host covers extent and allows access.
  bool is_in_view(Access access, const Extent& extent) const noexcept;
  // The first part that conflicts and waits for views of the host; or null.
  RequestPart* first_behind_host(Access access, const Extent& extent) const noexcept;
  // The first part that conflicts and waits for an ended part of the actor (with only_exported: of an
  // exported view) or, with is_host, for views of the host, or for a part that waits for one of these; or
  // null.
  RequestPart* first_behind_own(Actor actor, bool is_host, Access access, const Extent& extent,
                                bool only_exported = false) const noexcept;
  // A part or a view uses some of these bytes.
  bool is_used(const Extent& extent) const noexcept {
    return (head_ != nullptr && has_conflict(Access::kWrite, extent)) ||
           (views_ != nullptr && host_conflict(Access::kWrite, extent) != nullptr);
  }
  // A part conflicts.
  bool has_conflict(Access access, const Extent& extent) const noexcept;
  // The same without those that are submitted.
  bool has_unsubmitted_conflict(Access access, const Extent& extent) const noexcept;
  // Both parts cover all of the memory.
  bool are_whole(const RequestPart& a, const RequestPart& b) const noexcept {
    return is_whole(a) && is_whole(b);
  }

  // For a walk through the wait-for graph: the parts before this sequence number were visited. Initially 0.
  uint64_t& seen_to(uint64_t walk) noexcept {
    if (seen_by_ != walk) seen_to_ = 0;
    seen_by_ = walk;
    return seen_to_;
  }

  // Adds an open view under a part, or (null) a view of the host.
  void add_view(View* view, RequestPart* under) noexcept;
  // Removes a view and grants the parts that waited only for it.
  void remove_view(View* view, ReadyList* ready) noexcept;

  void note_write() noexcept { ++version_; }
  // Changes at every call while a writable view is open, because its writes are not observed.
  uint64_t version() noexcept {
    if (writers_ != 0) note_write();
    return version_;
  }

  // True if, in any queue, a part waits or has waited for views of the host, or there is an ended part.
  static bool may_wait_for_views() noexcept { return behind_views.load(std::memory_order_relaxed) != 0; }

  // In all queues: how many views of detached leases got an owner when their lease ended. This may close a
  // cycle of waits that have begun before.
  static uint64_t new_owners() noexcept { return owned_views.load(std::memory_order_relaxed); }

  // Bytes of all memory that unfinished ops hold, each counted once. Memory of less than kSmall bytes does
  // not count.
  static uint64_t held_nbytes() noexcept { return held_by_ops.load(std::memory_order_relaxed); }
  static constexpr uint64_t kSmall = 64 * 1024;

  // Takes ownership of the node.
  void add_failure(FailedRange* node) noexcept;
  // If there is no memory for a node: bytes of this extent hold no value until all of it is healed.
  void add_failure_without_node(const Extent& extent) noexcept;
  // Removes the failures inside of extent; the caller deletes the nodes without the lock. spare: for a range
  // that is cut in two; set to null if it was used. Without a spare such a range stays as it is.
  FailedRange* heal(const Extent& extent, FailedRange** spare = nullptr) noexcept;
  // before: only of parts with a smaller sequence number.
  Ref<Failure> failure_in(const Extent& extent, uint64_t before = UINT64_MAX) const noexcept;

  // For a merge: takes the version and the failures of `other`, which has no parts and views.
  void take_over(Queue& other) noexcept;

 private:
  // Of a part that is put in without a look at other parts.
  void begin_part(RequestPart* part, Request* request, bool is_granted) noexcept {
    part->begin(request);
    part->sequence = next_sequence_++;
    part->is_queued = true;
    part->is_granted = is_granted;
  }
  // Of an op that is appended: its memory counts as held, unless it is small.
  void hold_memory(RequestPart* part) noexcept {
    if (is_large()) count_holder(part);
  }
  bool has_waiting() const noexcept { return is_counted_ ? waiting_ != 0 : first_waiting_ != nullptr; }
  bool is_whole(const RequestPart& part) const noexcept { return part.extent.contains(bounds_); }
  static bool conflicts(const RequestPart& a, const RequestPart& b) noexcept {
    return a.request != b.request && in_conflict(a.access, a.extent, b.access, b.extent);
  }
  // Ops that ignore views do, and the owner of an ended part for writing, whose turn it continues. Beside one
  // for reading, the owner writes only in another ended part.
  static bool ignores_ended(const RequestPart& later, const RequestPart& ended) noexcept {
    if (later.request->kind == HolderKind::kOp) return !later.request->heeds_views;
    return (ended.access == Access::kWrite || later.is_nested) &&
           ended.request->owner.includes(later.request->owner);
  }
  bool is_granted_at_once(RequestPart* part) noexcept;
  void note_traits(const RequestPart& part, ReadyList* ready) noexcept;
  // No view is in the way of this part, which waits for no other part.
  bool views_allow(const RequestPart& part) const noexcept {
    return views_ == nullptr || view_in_the_way(part) == nullptr;
  }
  bool is_behind_host(const RequestPart& part) const noexcept;
  void link_behind(RequestPart* part, RequestPart* place) noexcept;
  // In a counted queue.
  void link_counted(RequestPart* part, RequestPart* place) noexcept;
  void unlink(RequestPart* part) noexcept;
  bool remove_among(RequestPart* part, ReadyList* ready) noexcept;
  void mark_granted(RequestPart* part) noexcept;
  void lose(View* view, View*& list) noexcept;
  void grant(RequestPart* part, ReadyList* ready) noexcept;
  void advance(ReadyList* ready) noexcept;
  void begin_counting(ReadyList* ready) noexcept;
  RequestPart* first_of_last_waiting() const noexcept;
  void grant_behind(const RequestPart& removed, RequestPart* next, ReadyList* ready) noexcept;
  void grant_from(RequestPart* first, const RequestPart& removed, ReadyList* ready) noexcept;
  // With the index, which exists.
  [[gnu::noinline]] void append_by_index(RequestPart* part) noexcept;
  [[gnu::noinline]] bool grant_behind_by_index(const RequestPart& removed, ReadyList* ready) noexcept;
  template <class Condition>
  bool grant_by_index(const RequestPart& part, ReadyList* ready, Condition condition) noexcept;
  [[gnu::noinline]] void add_to_index(RequestPart* part) noexcept;
  [[gnu::noinline]] void remove_from_index(RequestPart* part) noexcept;
  [[gnu::noinline]] void make_index(size_t room) noexcept;
  template <class Visit>
  bool visit_near(const Extent& extent, Visit visit) const noexcept;
  template <class Condition>
  RequestPart* any_near(const Extent& extent, Condition condition) const noexcept;
  static bool is_outer(const RequestPart& part, const Actor& owner, const Request& ended) noexcept;
  RequestPart* outer_part_for(const View& view, const Actor& owner, const Request& ended,
                              RequestPart* last) const noexcept;
  bool move_views_out(RequestPart* part, ReadyList* ready) noexcept;
  bool is_shown_to_ops(const View& view) noexcept;
  void insert_ended(View* views, RequestPart* lease, ReadyList* ready) noexcept;
  void note_ended(const RequestPart& part, int n) noexcept;
  bool is_large() const noexcept {
    const uint64_t nbytes = bounds_.end - bounds_.begin;
    return nbytes >= kSmall && nbytes <= PTRDIFF_MAX;  // more: the bounds have not been set
  }
  void count_holder(RequestPart* part) noexcept;
  void uncount_holder() noexcept;

  static void note_behind_views(int64_t n) noexcept { behind_views.fetch_add(n, std::memory_order_relaxed); }

  static constinit inline std::atomic<uint64_t> held_by_ops{0};
  static constinit inline std::atomic<uint64_t> owned_views{0};
  static constinit inline std::atomic<int64_t> behind_views{0};  // such parts, and ended ones

  bool has_failed(const Extent& extent) const noexcept {
    return unnoted_.end != 0 && unnoted_.overlaps(extent);
  }

  static constexpr size_t kLong = 64;   // a counted queue with more parts has the index
  static constexpr size_t kShort = 16;  // with fewer parts it is dropped

  // A region has three cache lines. The first line has the lock and what rarely changes. Threads that wait
  // for the lock read this line, so what the holder of the lock writes is in the second line. The third line
  // is rarely used.
  bool is_counted_ = false;
  Memory memory_ = Memory::kHost;
  uint32_t view_requests_ = 0;  // parts of calls that will open a view
  Extent bounds_;
  Gate* gate_ = nullptr;
  uint64_t birth_ = 0;
  uint32_t ended_ = 0;            // ended parts
  uint32_t inherited_views_ = 0;  // with those that are lost
  uint32_t ahead_ = 0;            // parts with is_ahead
  uint32_t holders_ = 0;          // parts that hold memory

  RequestPart* head_ = nullptr;
  RequestPart* tail_ = nullptr;
  union {
    RequestPart* first_waiting_ = nullptr;  // while the queue is not counted
    PartIndex* index_;                      // while it is counted; null: none
  };
  union {
    uint32_t active_readers_ = 0;  // while the queue is not counted
    uint32_t waiting_;             // while it is counted: parts that are not granted
  };
  union {
    uint32_t active_writers_ = 0;  // while the queue is not counted
    uint32_t length_;              // while it is counted: all parts
  };
  uint64_t next_sequence_ = 1;
  View* views_ = nullptr;  // of the host
  uint64_t version_ = 0;
  uint32_t readers_ = 0;
  uint32_t writers_ = 0;

  uint64_t held_nbytes_ = 0;  // what was added to held_by_ops for the holders
  uint64_t seen_by_ = 0;
  uint64_t seen_to_ = 0;
  FailedRange* failed_ = nullptr;
  Extent unnoted_{0, 0};  // of add_failure_without_node(); end == 0: none
};

}  // namespace tenon::impl
