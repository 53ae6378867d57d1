// SPDX-License-Identifier: Apache-2.0
//
// The lock of a shared storage, by which processes take turns: shared locks for reads, exclusive locks for
// writes, in the order of the requests. Accesses to different bytes do not conflict. Each process writes the
// grants that it holds and waits for into its own place. A process grants its own request as soon as no
// earlier request of another process conflicts. The process that notices the death of another one drops its
// grants. There is no mutex: a stopped process blocks only requests for the same bytes, and their errors name
// it.
//
// A process has a limited number of grants in a segment. Once half of them are in use, a reader shares the
// grant of an earlier reader of its process that covers its bytes, if that waits, or if no writer of another
// process waits for them. So a writer waits for the readers that have joined until the grant was given, and
// for no later ones. A shared grant has no owner, because it could show only one.
//
// A request is announced (kArriving) before it takes its ticket, and shows the ticket afterwards. So of two
// requests that conflict, the later one sees the earlier one and waits for it.
#pragma once

#include <atomic>

#include "base/bytes.h"
#include "ipc/deaths.h"
#include "ipc/segment.h"
#include "sync/gate.h"

namespace tenon::impl {

// One for each block in each process. Threads: any.
class ProcessLock : public Gate {
 public:
  ProcessLock(Segment& segment, uint32_t block);  // fails with std::bad_alloc
  ProcessLock(const ProcessLock&) = delete;
  ProcessLock& operator=(const ProcessLock&) = delete;
  virtual ~ProcessLock() = default;

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
  void note_outlived_view() noexcept override;
  void return_quota(Request& request) noexcept override;
  void heal(const Extent& extent) noexcept override;
  bool clear_deaths(const Extent& extent, const Deadline& deadline, Conflict* conflict) noexcept override;

  Block& block() const noexcept { return segment_.block(index_); }
  Segment& segment() const noexcept { return segment_; }

  enum class GrantResult { kGranted, kBlocked, kDied };
  // Processes that block a request, and the words on which it sleeps meanwhile.
  struct Blockers {
    size_t count = 0;
    uint32_t participants[os::kMostWords - 1];  // the first is the one that the conflict names
    os::Sleep words[os::kMostWords];  // the changes of the block, then the lives of the participants

    size_t word_count() const noexcept { return count + 1; }
  };

  // Writes a request into this process' place, as a waiting grant, or shares one. kNoGrant: no grant is free,
  // or too many ops have requests. Then it must be tried again when a grant was freed, and when the proxy
  // waiter is called.
  GrantId begin(Request& request, const RequestPart& part) noexcept;
  // Grants the request if no other one blocks it. kBlocked: sets the blockers, and the conflict's holder to
  // one of them. kDied: the grant is free again, and the conflict names the process that died.
  GrantResult try_grant(const Request& request, const RequestPart& part, GrantId grant, Blockers* blockers,
                        Conflict* conflict) noexcept {
    return try_grant(grant, grant_request_of(request, part).ignores_death, blockers, conflict);
  }
  // Gives back a reference to a grant that waits or was given. The last one frees it.
  void free_grant(GrantId grant) noexcept;
  // Reaps the blockers that have died. True: there was one, so try again. Asks the kernel about each blocker;
  // with only_marked, only about those that it has marked.
  bool reap_dead(const Blockers& blockers, bool only_marked = false) noexcept;
  // A blocker has begun to end. Its end wakes no thread, so waiting threads must poll.
  static bool is_ending(const Blockers& blockers) noexcept;

 private:
  // What a request needs of the block.
  struct GrantRequest {
    ByteRange bytes;
    Access access = Access::kRead;
    bool ignores_death = false;
    Actor owner;
  };
  GrantRequest grant_request_of(const Request& request, const RequestPart& part) const noexcept;
  ByteRange bytes_of(const Extent& extent) const noexcept;
  Conflict::Reason no_grant_reason() const noexcept;
  GrantId begin(const GrantRequest& wanted, bool is_brief) noexcept;
  GrantId begin(const GrantRequest& wanted, const Deadline& deadline, Conflict* conflict) noexcept;
  GrantId join(const GrantRequest& wanted) noexcept;
  // is_brief: it does not wait.
  void write_request(const GrantRequest& wanted, GrantId grant, bool is_brief) noexcept;
  GrantId enter(const GrantRequest& wanted, const Deadline& deadline, Conflict* conflict) noexcept;
  GrantResult try_grant(GrantId grant, bool ignores_death, Blockers* blockers, Conflict* conflict) noexcept;
  void end_wait(GrantId ended, uint64_t state) noexcept;
  void describe_full(Conflict* conflict) const noexcept;
  bool describe_holder(const ByteRange& bytes, Access access, Holder* holder) const noexcept;
  template <class Visit>
  void visit_leases_of_others(const ByteRange& bytes, Visit visit) const noexcept;
  bool has_other_place(uint32_t pid, uint32_t participant) const noexcept;
  void describe_state(uint32_t participant, Holder* holder) const noexcept;

  Segment& segment_;
  const uint32_t index_;
};

}  // namespace tenon::impl
