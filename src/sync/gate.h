// SPDX-License-Identifier: Apache-2.0
//
// Memory that is shared with other processes. A request that is granted in the queue of this process must
// then pass the gate, where the processes take turns, unless it has a grant already.
//
// A request is first granted in all of its queues, then passes their gates one by one, in an order that is
// the same in every process. So a request that waits at a gate waits only for requests that run or that are
// at this gate or a later one, never for one that waits in a queue. A request asks for all bytes of one
// memory at once: if another process got its turn between two turns of the request at one gate, they would
// wait for each other.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "sync/requests.h"

namespace tenon::impl {

// What a request asks of one gate. overwrites: every byte will be written, none is read.
struct Asked {
  Extent extent;
  Access access = Access::kRead;
  bool overwrites = false;
};

// Everything that a request uses of the memory of one of its parts.
Asked asked_of(const Request& request, const RequestPart& part) noexcept;

// One for each shared storage. Lives as long as the process.
// Threads: any. Only right_to() and share() may be called with the lock of a queue held.
class Gate {
 public:
  // Waits until this process may use the bytes of asked_of(request, part), then sets part.grant, with one
  // reference. False: the reason and the holder of the conflict say why. The owner of the request is used in
  // the search for deadlocks. While it sleeps, it must call wait_hooks(), and help() between slices if the
  // executor has no threads (wait.h).
  virtual bool enter(const Request& request, RequestPart& part, const Deadline& deadline,
                     Conflict* conflict) noexcept = 0;

  // The same without waiting. kWaiting: the gate calls arrive_at_gates() once, later, on a thread of its own
  // and outside of its functions; part.grant is set only then. With an executor that has no threads it runs
  // what has become ready. kRefused: as enter().
  virtual Appended submit(Request& request, RequestPart& part, Conflict* conflict) noexcept = 0;
  // Takes back a part that waits after submit(). False: arrive_at_gates() runs, or will run at once.
  virtual bool cancel(RequestPart& part) noexcept = 0;

  // The right of this process to such an access to these bytes. Called with the lock of a queue held.
  enum class Right : uint8_t {
    kByRequest,  // a request must pass
    kHeld,       // ordinary code may act, and each request passes: the grant is kUncountedGrant
    kNone,       // no request passes, however long it waits
  };
  virtual Right right_to(Access, const Extent&) const noexcept { return Right::kByRequest; }

  // Adds a reference to a grant.
  virtual void share(GrantId grant) noexcept = 0;
  // Releases a reference. After the last one, other processes may use the bytes. Never waits for them.
  // has_written: the reference was that of a part or view for writing.
  virtual void leave(GrantId grant, bool has_written) noexcept = 0;
  // A view has outlived its lease, and keeps its grant.
  virtual void note_outlived_view() noexcept {}
  // A request with a gate_quota has left all of its gates: takes the quota back.
  virtual void return_quota(Request&) noexcept {}
  // The lease of the grant has no owner from now on: any thread may end it.
  virtual void disown(GrantId grant) noexcept = 0;

  // The order in which a request passes several gates. It is the same in every process.
  virtual bool precedes(const Gate& other) const noexcept = 0;

  // Calls visit for each grant of another process that holds some of these bytes or waits for them.
  virtual void visit_others(const Extent&, void (*)(const Holder&, void* context), void*) noexcept {}

  // The grant of another process that is in the way of such a request. It makes system calls, so it is only
  // for reports and errors. False: there is none.
  virtual bool describe_holder(const Asked&, Holder*) noexcept { return false; }

  // Changes with every write of every process.
  virtual uint64_t version() noexcept = 0;
  // Changes the version: an open view of this process may have written.
  virtual void note_write() noexcept = 0;

  // This process holds these bytes for writing and has written all of them: clears the death of a writer.
  virtual void heal(const Extent&) noexcept {}
  // The caller declares that these bytes hold values. Waits for other processes that hold them. False: the
  // conflict says why it failed.
  virtual bool clear_deaths(const Extent&, const Deadline&, Conflict*) noexcept { return true; }

 protected:
  ~Gate() = default;
};

// How long calls, and leases without a timeout of their own, wait at gates; < 0: no limit. Initially 5 s.
int64_t gate_timeout_ns() noexcept;
int64_t set_gate_timeout_ns(int64_t timeout_ns) noexcept;  // returns what it was

// Called by a gate for a request that waits after submit(): its part has a grant or, with a conflict, will
// not get one. The request may have ended when this returns.
void arrive_at_gates(Request& request, const Conflict* conflict) noexcept;

// The following functions require that the request is gated and has been granted in its queues.

// Takes a request through its gates without waiting. True: it has passed all of them or was refused, and may
// become ready. False: it waits for arrive_at_gates(), and may have ended by now.
bool pass_gates(Request& request) noexcept;

// The same, and waits. False: the conflict says why. The request then stays in its queues without a grant.
bool enter_gates(Request& request, const Deadline& deadline, Conflict* conflict) noexcept;

// Releases all grants that are counted. From then on, no view or lease can be taken under their parts.
void leave_gates(Request& request, bool has_written) noexcept;

// If the request waits at a gate without a thread: the grant of another process that is in its way.
bool describe_at_gates(Request& request, Holder* holder) noexcept;

// In a forked child, with the locks of the queues in use: the child has none of the grants, and no other
// thread uses the request.
void forget_gates(Request& request) noexcept;

// True: it was waiting at a gate, and become_ready() will not be called. False: become_ready() was called or
// will be called; the request does not wait at another gate then.
bool cancel_at_gates(Request& request) noexcept;

}  // namespace tenon::impl
