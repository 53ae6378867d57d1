// SPDX-License-Identifier: Apache-2.0
//
// Memory that other processes use, too. What its queue grants to this process has then to pass the gate,
// where the processes take turns.
//
// A request first gets its turn in all of its queues, then passes their gates one by one, in an order that is
// the same in every process. So a request that waits at a gate waits for requests that are at this gate or a
// later one, or run: never for one that waits in a queue. Of one memory a request asks for everything at
// once: with another process between two turns at one gate, it and the request would wait for each other.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "sync/requests.h"

namespace tenon::impl {

// What a request wants of one gate. overwrites: every byte will be written, none is read.
struct Asked {
  Extent extent;
  Access access = Access::kRead;
  bool overwrites = false;
};

// All that a request uses of the memory of one of its parts.
Asked asked_of(const Request& request, const RequestPart& part) noexcept;

// One for each shared storage. Lives as long as the process.
// Threads: any. No function is called with a queue's lock held, but share().
class Gate {
 public:
  // Waits until this process may use the bytes of asked_of(request, part); then part.grant is set, with one
  // reference. Else the conflict's reason and holder say why not. owner: of the request, for the search for
  // deadlocks. While it sleeps it has to deal with wait_hooks(), and to help() in slices where the executor
  // has no threads (wait.h).
  virtual bool enter(const Request& request, RequestPart& part, const Deadline& deadline,
                     Conflict* conflict) noexcept = 0;

  // The same without waiting. kWaiting: arrive_at_gates() is called once, later, from a thread of the gate's,
  // not from inside of a function of a gate; only then part.grant is set. With an executor that has no
  // threads it runs what has become ready. kRefused as enter().
  virtual Appended submit(Request& request, RequestPart& part, Conflict* conflict) noexcept = 0;
  // Takes back what submit() has left waiting. False: arrive_at_gates() is called, or will be at once.
  virtual bool cancel(RequestPart& part) noexcept = 0;

  // Another reference to a grant.
  virtual void share(GrantId grant) noexcept = 0;
  // Gives a reference back; with the last one other processes may use the bytes. Never waits for them.
  // has_written: what held it was a part or a view for writing.
  virtual void leave(GrantId grant, bool has_written) noexcept = 0;
  // A view has outlived its lease, and keeps its grant.
  virtual void note_kept_view() noexcept {}
  // A request with a gate_quota has left all of its gates, and takes none of it any more.
  virtual void return_quota(Request&) noexcept {}
  // What holds it has no owner from now on: any thread may end it.
  virtual void disown(GrantId grant) noexcept = 0;

  // A request that has to pass several gates does so in this order, which is the same in every process.
  virtual bool precedes(const Gate& other) const noexcept = 0;

  // Calls visit for everything of other processes that holds some of these bytes, or waits for them.
  virtual void visit_others(const Extent&, void (*)(const Holder&, void* context), void*) noexcept {}

  // What of other processes is in the way of such a request. Asks the system, so it is for reports and
  // errors. False: nothing is.
  virtual bool describe_holder(const Asked&, Holder*) noexcept { return false; }

  // Moves with every write of every process.
  virtual uint64_t version() noexcept = 0;
  // Moves it: an open view of this process may have written.
  virtual void note_write() noexcept = 0;

  // All of these bytes, which this process holds for writing, were written: a dead writer left nothing there.
  virtual void heal(const Extent&) noexcept {}
  // The caller says that these bytes hold values. Waits for other processes that have them; false: the
  // conflict says why it could not.
  virtual bool clear_deaths(const Extent&, const Deadline&, Conflict*) noexcept { return true; }

 protected:
  ~Gate() = default;
};

// How long calls wait at gates, and leases of which nothing else is said; < 0: for ever. At first 5 s.
int64_t gate_timeout_ns() noexcept;
int64_t set_gate_timeout_ns(int64_t timeout_ns) noexcept;  // returns what it was

// For a gate: what submit() has left waiting has its part's grant, or (with a conflict) will get none. The
// request may have ended when this returns.
void arrive_at_gates(Request& request, const Conflict* conflict) noexcept;

// What follows requires that the request is gated and has been granted in its queues.

// Takes a request through its gates without waiting. True: it has passed all of them, or has been refused,
// and may become ready. False: arrive_at_gates() will tell it so; it may have ended by now.
bool pass_gates(Request& request) noexcept;

// The same, and waits. False: the conflict says why not; it stands in its queues still, without a grant.
bool enter_gates(Request& request, const Deadline& deadline, Conflict* conflict) noexcept;

// Gives all grants back. No view or lease can be taken under the request from then on.
void leave_gates(Request& request, bool has_written) noexcept;

// What of other processes keeps the request from passing a gate, if it waits at one without a thread.
bool describe_at_gates(Request& request, Holder* holder) noexcept;

// In a forked child, under the lock of all queues: nothing of the request is the child's, and no other thread
// is at work on it.
void forget_gates(Request& request) noexcept;

// True: it was waiting at a gate, and become_ready() will not be called. False: it will be, or has been; it
// does not wait at another gate then.
bool cancel_at_gates(Request& request) noexcept;

}  // namespace tenon::impl
