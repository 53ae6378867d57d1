// SPDX-License-Identifier: Apache-2.0
//
// The lock of a shared storage, by which processes take turns: reads together, a write alone, in the order in
// which they came; accesses to different bytes do not conflict. Each process writes what it holds and awaits
// into its own place. The process that makes a request grants it, as soon as no earlier one of another
// process is in its way. What a dead process held is dropped by the one that finds it dead. There is no
// mutex: a process that stops at any point is in the way of requests for the same bytes alone, which name
// it when their time is over.
//
// A request announces itself, takes a ticket, and is then seen with it. A ticket is announced before it is
// taken, so of two requests that conflict the later one sees the earlier one, and waits for it.
#pragma once

#include <atomic>

#include "ipc/deaths.h"
#include "ipc/segment.h"
#include "sync/gate.h"

namespace tenon::impl {

// One for each block in each process. Threads: any.
class ProcessLock final : public Gate {
 public:
  ProcessLock(Segment& segment, uint32_t block);  // fails with std::bad_alloc
  ProcessLock(const ProcessLock&) = delete;
  ProcessLock& operator=(const ProcessLock&) = delete;

  bool enter(const Request& request, RequestPart& part, const Deadline& deadline,
             Conflict* conflict) noexcept override;
  Appended submit(Request& request, RequestPart& part, Conflict* conflict) noexcept override;
  bool cancel(RequestPart& part) noexcept override;
  void share(GrantId grant) noexcept override;
  void leave(GrantId grant, bool has_written) noexcept override;
  void disown(GrantId grant) noexcept override;
  bool precedes(const Gate& other) const noexcept override;
  void visit_others(const Extent& extent, void (*visit)(const Holder&, void* context),
                    void* context) noexcept override;
  bool describe_holder(const Asked& asked, Holder* holder) noexcept override;
  uint64_t version() noexcept override { return block().version.load(std::memory_order_relaxed); }
  void note_write() noexcept override;
  void note_kept_view() noexcept override;
  void return_quota(Request& request) noexcept override;
  void heal(const Extent& extent) noexcept override;
  bool clear_deaths(const Extent& extent, const Deadline& deadline, Conflict* conflict) noexcept override;

  // What is signaled whenever nothing of this process holds the block any more: a channel's.
  void set_idle_event(SharedEvent* event) noexcept { idle_event_ = event; }
  // No process holds or awaits any of its bytes. Reaps those that have died.
  bool is_idle() noexcept;

  Block& block() const noexcept { return segment_.block(index_); }
  Segment& segment() const noexcept { return segment_; }

  enum class Look { kGranted, kBlocked, kDied };
  // The processes in the way of a request, and the words on which it sleeps meanwhile.
  struct Blockers {
    size_t count = 0;
    uint32_t participants[os::kMostWords - 1];  // first the one that the conflict names
    os::Sleep words[os::kMostWords];  // the changes of the block, then the lives of the participants

    size_t word_count() const noexcept { return count + 1; }
  };

  // Enters a request into this process' place, as a grant that waits. kNoGrant: no grant is free, or too many
  // ops have requests already; then it is to be tried again when a grant has been given back, and after a
  // call of the proxy waiter.
  GrantId begin(Request& request, const RequestPart& part) noexcept;
  // Gives the grant if nothing is in its way. kBlocked: the blockers are set, and the conflict's holder is
  // one of them. kDied: the grant is free again, and the conflict names the process that has died.
  Look try_grant(const Request& request, const RequestPart& part, GrantId grant, Blockers* blockers,
                 Conflict* conflict) noexcept {
    return try_grant(grant, wanted_of(request, part).ignores_death, blockers, conflict);
  }
  // Takes a grant back that waits, or was given.
  void free_grant(GrantId grant) noexcept;
  // Reaps those in the way that have died. True: one has, so look again. The kernel is asked about each; with
  // only_marked, about those alone that it has marked.
  bool reap_dead(const Blockers& blockers, bool only_marked = false) noexcept;
  // One of those in the way has begun to end: a thread that sleeps has to look itself whether it has ended.
  static bool is_ending(const Blockers& blockers) noexcept;

 private:
  struct Wanted {
    Span bytes;  // of the block
    Access access = Access::kRead;
    bool ignores_death = false;
    Actor owner;
  };
  Wanted wanted_of(const Request& request, const RequestPart& part) const noexcept;
  Span bytes_of(const Extent& extent) const noexcept;
  GrantId take_grant(const Deadline& deadline, Conflict* conflict) noexcept;
  // is_brief: it waits for no time.
  void write_request(const Wanted& wanted, GrantId grant, bool is_brief) noexcept;
  GrantId enter(const Wanted& wanted, const Deadline& deadline, Conflict* conflict) noexcept;
  Look try_grant(GrantId grant, bool ignores_death, Blockers* blockers, Conflict* conflict) noexcept;
  void wake_others() noexcept;
  void end_wait(GrantId ended, uint64_t state) noexcept;
  bool is_cycle(GrantId grant) noexcept;
  template <class Visit>
  void visit_leases_of_others(const Span& bytes, Visit visit) const noexcept;
  bool has_other_place(uint32_t pid, uint32_t participant) const noexcept;
  void describe_state(uint32_t participant, Holder* holder) const noexcept;

  Segment& segment_;
  const uint32_t index_;
  SharedEvent* idle_event_ = nullptr;  // constant from the first use of the block on
};

}  // namespace tenon::impl
