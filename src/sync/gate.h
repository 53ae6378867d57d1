// SPDX-License-Identifier: Apache-2.0
//
// Memory that other processes use, too. What its queue grants to this process has then to pass the gate,
// where the processes take turns.
//
// A claim first gets its turn in all of its queues, then passes their gates one by one, in an order that is
// the same in every process. So whoever waits at a gate waits for claims that are at this gate or a later
// one, or run: never for one that waits in a queue. Of one memory a claim asks for everything at once: with
// another process between two turns at one gate, it and the claim would wait for each other.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "sync/claims.h"

namespace tenon::impl {

// What a claim wants of one gate. overwrites: every byte will be written, none is read.
struct Asked {
  Extent extent;
  Access access = Access::kRead;
  bool overwrites = false;
};

// All that a claim uses of the memory of one of its entries.
Asked asked_of(const Claim& claim, const Entry& entry) noexcept;

// One for each shared storage. Lives as long as the process.
// Threads: any. No function is called with a queue's lock held, but share().
class Gate {
 public:
  // Waits until this process may use the bytes of asked_of(claim, entry); then entry.pass is set, with one
  // reference. Else the refusal's reason and obstacle say why not. owner: of the claim, for the search for
  // deadlocks. While it sleeps it has to deal with wait_hooks(), and to help() in slices where the executor
  // has no threads (wait.h).
  virtual bool enter(const Claim& claim, Entry& entry, const Deadline& deadline,
                     Refusal* refusal) noexcept = 0;

  // The same without waiting. kWaiting: arrive_at_gates() is called once, later, from a thread of the gate's,
  // not from inside of a function of a gate; only then entry.pass is set. With an executor that has no
  // threads it runs what has become ready. kRefused as enter().
  virtual Appended request(Claim& claim, Entry& entry, Refusal* refusal) noexcept = 0;
  // Takes back what request() has left waiting. False: arrive_at_gates() is called, or will be at once.
  virtual bool cancel(Entry& entry) noexcept = 0;

  // Another reference to a pass.
  virtual void share(Pass pass) noexcept = 0;
  // Gives a reference back; with the last one other processes may use the bytes. Never waits for them.
  // has_written: what held it was an entry or a view for writing.
  virtual void leave(Pass pass, bool has_written) noexcept = 0;
  // A view has outlived its lease, and keeps its pass.
  virtual void note_kept_view() noexcept {}
  // A claim with a gate_share has left all of its gates, and takes none of it any more.
  virtual void dismiss(Claim&) noexcept {}
  // What holds it belongs to nobody from now on: any thread may end it.
  virtual void disown(Pass pass) noexcept = 0;

  // A claim that has to pass several gates does so in this order, which is the same in every process.
  virtual bool precedes(const Gate& other) const noexcept = 0;

  // Calls visit for everything of other processes that holds some of these bytes, or waits for them.
  virtual void visit_others(const Extent&, void (*)(const Obstacle&, void* context), void*) noexcept {}

  // What of other processes is in the way of such a request. Asks the system, so it is for reports and
  // errors. False: nothing is.
  virtual bool describe_obstacle(const Asked&, Obstacle*) noexcept { return false; }

  // Moves with every write of every process.
  virtual uint64_t version() noexcept = 0;
  // Moves it: an open view of this process may have written.
  virtual void note_write() noexcept = 0;

  // All of these bytes, which this process holds for writing, were written: a dead writer left nothing there.
  virtual void heal(const Extent&) noexcept {}
  // The caller says that these bytes hold values. Waits for other processes that have them; false: the
  // refusal says why it could not.
  virtual bool clear_deaths(const Extent&, const Deadline&, Refusal*) noexcept { return true; }

 protected:
  ~Gate() = default;
};

// How long calls wait at gates, and leases of which nothing else is said; < 0: for ever. At first 5 s.
int64_t gate_timeout_ns() noexcept;
int64_t set_gate_timeout_ns(int64_t timeout_ns) noexcept;  // returns what it was

// For a gate: what request() has left waiting has its entry's pass, or (with a refusal) will get none. The
// claim may have ended when this returns.
void arrive_at_gates(Claim& claim, const Refusal* refusal) noexcept;

// What follows requires that the claim is gated and has been granted in its queues.

// Takes a claim through its gates without waiting. True: it has passed all of them, or has been refused, and
// may become ready. False: arrive_at_gates() will tell it so; it may have ended by now.
bool pass_gates(Claim& claim) noexcept;

// The same, and waits. False: the refusal says why not; it stands in its queues still, without a pass.
bool enter_gates(Claim& claim, const Deadline& deadline, Refusal* refusal) noexcept;

// Gives all passes back. No view or lease can be taken under the claim from then on.
void leave_gates(Claim& claim, bool has_written) noexcept;

// What of other processes keeps the claim from passing a gate, if it waits at one without a thread.
bool describe_at_gates(Claim& claim, Obstacle* obstacle) noexcept;

// In a forked child, under the lock of all queues: nothing of the claim's is the child's, and no other thread
// is at work on it.
void forget_gates(Claim& claim) noexcept;

// True: it was waiting at a gate, and become_ready() will not be called. False: it will be, or has been; it
// does not wait at another gate then.
bool cancel_at_gates(Claim& claim) noexcept;

}  // namespace tenon::impl
