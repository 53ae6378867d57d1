// SPDX-License-Identifier: Apache-2.0
//
// Claims and views as their owners use them: taken over several queues at once, waited for, given back.
//
// All queues of a claim are locked together, in the order of their addresses, while it is appended: two
// claims over the same queues stand in the same order in all of them.
#pragma once

#include "base/error.h"
#include "sync/claim.h"
#include "sync/queue.h"

namespace tenon::impl {

// What a claim of an op does about conflicting views of the host. Other claims do not conflict with them.
enum class OnHost : uint8_t {
  kRaise,   // it is not appended
  kWait,    // it waits until they are closed
  kIgnore,  // the caller promises that nobody touches them meanwhile
};

enum class Appended : uint8_t {
  kGranted,
  kWaiting,  // become_ready() will be called
  kRefused,  // nothing has happened; the obstacle says why
};

// Why something was refused.
struct Refusal {
  enum class Reason : uint8_t {
    kHostView,      // a view of the host conflicts
    kOwnLease,      // the actor's own lease or op allows less: reading, or other bytes
    kUndeclared,    // the body of an op touches what the op has not declared
    kWaitsForHost,  // the host would wait for work that waits for the host
    kInBody,        // the body of an op would have to wait
    kMoved,         // the memory was moved out
    kHeld,          // it cannot be moved out: somebody holds it
    kShared,        // it cannot be moved out: another import uses the same bytes
    kTimeout,
    kDeadlock,
    kInterrupted,
    // Of memory that other processes use, too:
    kNoPossession,  // a view needs a lease that covers it
    kOwnerDied,     // who wrote it has died, and may have left half of it
    kInherited,     // a forked child's views from before the fork live
    kTooMany,       // the process holds as many leases of this memory as there is room for
  };
  Reason reason = Reason::kHostView;
  const Entry* entry = nullptr;  // of the claim: the one that was refused, if it was one
  Obstacle obstacle;
};

// Appends all entries of a claim, or none. Entries that act under one of the same actor's are granted there.
// Requires: every entry has home, extent, access; extents are not empty.
Appended append(Claim& claim, OnHost on_host, Refusal* refusal) noexcept;

// Gives a granted claim back, or one that is waited for by nobody. True if a view that was taken under it
// lives on: under a lease it is bound then, and others wait for it.
bool release(Claim& claim) noexcept;

// The same; what becomes ready is put on the list instead of being told.
bool release(Claim& claim, ReadyList* ready) noexcept;

// Takes back a claim that waits. False if it has been granted meanwhile: then it is to be released.
bool cancel(Claim& claim) noexcept;

// Takes out a claim that has been granted in its queues, but not used.
void withdraw(Claim& claim) noexcept;

// Says of a lease that it belongs to nobody from now on.
void detach(Claim& claim) noexcept;

// This thread, whose actor waits for a claim (null: for all ops), holds no lease, no call and no bound view:
// it is in no circle of waits. False also where that is not known.
bool has_empty_hands(const Claim* awaited) noexcept;

// Opens a view if nothing is in its way. may_weaken: under a lease for reading a writable view becomes one
// for reading instead of being refused. kWaiting: nothing has happened; it has to take its turn (wait.h).
Appended try_open_view(View& view, bool may_weaken, Refusal* refusal) noexcept;

// Takes back an open view. Any thread.
void close_view(View& view) noexcept;

// A view or a lease that was taken under one of the claim's entries lives.
bool has_views(const Claim& claim) noexcept;

// Why bytes of this extent hold no value; null: they do.
Ref<Failure> failure_of(Home& home, const Extent& extent) noexcept;
// They hold a value, because the caller says so. False: where other processes use them they could not be had
// in time, as the refusal says, and the next reader is told of the death once more.
bool clear_failures(Home& home, const Extent& extent, Refusal* refusal) noexcept;
// Of the first entry that reads bytes without a value.
Ref<Failure> failure_of(const Claim& claim) noexcept;

// Says of the bytes that a granted claim writes that they hold no value, or (without a failure) that those
// which it has written as a whole hold one again.
void settle(const Claim& claim, const Ref<Failure>& failure) noexcept;

// Runs what has become ready.
void notify(ReadyList& ready) noexcept;

// The lock of the queue that a home leads to, held.
Queue& lock_home(Home& home) noexcept;

}  // namespace tenon::impl
