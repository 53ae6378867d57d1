// SPDX-License-Identifier: Apache-2.0
//
// Requests and views as their owners use them: taken over several queues at once, waited for, given back.
//
// All queues of a request are locked together, in the order of their addresses, while it is appended: two
// requests over the same queues stand in the same order in all of them.
#pragma once

#include "base/error.h"
#include "sync/queue.h"
#include "sync/request.h"

namespace tenon::impl {

// What a request of an op does about conflicting views of the host. Other requests do not conflict with them.
enum class OnHost : uint8_t {
  kRaise,   // it is not appended
  kWait,    // it waits until they are closed
  kIgnore,  // the caller promises that they are not used meanwhile
};

enum class Appended : uint8_t {
  kGranted,
  kWaiting,  // become_ready() will be called
  kRefused,  // nothing has happened; the holder says why
};

// Why something was refused.
struct Conflict {
  enum class Reason : uint8_t {
    kHostView,      // a view of the host conflicts
    kOwnLease,      // the actor's own lease or op allows less: reading, or other bytes
    kUndeclared,    // the body of an op touches what the op has not declared
    kWaitsForHost,  // the host would wait for work that waits for the host
    kInBody,        // the body of an op would have to wait
    kMoved,         // the memory was moved out
    kHeld,          // it cannot be moved out: it is held
    kShared,        // it cannot be moved out: another import uses the same bytes
    kOnDevice,      // the host cannot read or write the memory
    kTimeout,
    kDeadlock,
    kInterrupted,
    // Of memory that other processes use, too:
    kNoPossession,  // a view needs a lease that covers it
    kOwnerDied,     // a process died while it was writing, and may have left half of it
    kInherited,     // a forked child's views from before the fork live
    kTooMany,       // the process holds as many leases of this memory as there is room for
  };
  Reason reason = Reason::kHostView;
  const RequestPart* part = nullptr;  // of the request: the one that was refused, if it was one
  Holder holder;
  int64_t timeout_ns = -1;  // with kTimeout: the time that was given; < 0: it is not known
};

// Appends all parts of a request, or none. Parts that act under one of the same actor's are granted there.
// Requires: every part has home, extent, access; extents are not empty.
Appended append(Request& request, OnHost on_host, Conflict* conflict) noexcept;

// Gives a granted request back, or one for which no caller waits. True if a view that was taken under it
// lives on: under a lease it is bound then, and others wait for it. has_written: false if nothing was written
// under it, so that the version of its memory stays.
bool release(Request& request, bool has_written = true) noexcept;

// The same; what becomes ready is put on the list instead of being told.
bool release(Request& request, ReadyList* ready, bool has_written = true) noexcept;

// Takes back a request that waits. False if it has been granted meanwhile: then it is to be released.
bool cancel(Request& request) noexcept;

// Takes out a request that has been granted in its queues, but not used.
void withdraw(Request& request) noexcept;

// Takes the owner from a lease: any thread may end it.
void detach(Request& request) noexcept;

// This thread, whose actor waits for a request (null: for all ops), holds no lease, no call and no bound
// view: it is in no cycle of waits. False also where that is not known.
bool has_empty_hands(const Request* awaited) noexcept;

// Opens a view if nothing is in its way. may_weaken: under a lease for reading a writable view becomes one
// for reading instead of being refused. kWaiting: nothing has happened; it has to take its turn (wait.h).
Appended try_open_view(View& view, bool may_weaken, Conflict* conflict) noexcept;

// Takes back an open view. Any thread.
void close_view(View& view) noexcept;

// A view or a lease that was taken under one of the request's parts lives.
bool has_views(const Request& request) noexcept;

// Why bytes of this extent hold no value; null: they do.
Ref<Failure> failure_of(Home& home, const Extent& extent) noexcept;
// They hold a value, because the caller says so. False: where other processes use them they could not be had
// in time, as the conflict says, and the next reader is told of the death once more.
bool clear_failures(Home& home, const Extent& extent, Conflict* conflict) noexcept;
// Of the first part that reads bytes without a value.
Ref<Failure> failure_of(const Request& request) noexcept;

// Says of the bytes that a granted request writes that they hold no value, or (without a failure) that those
// which it has written as a whole hold one again.
void settle(const Request& request, const Ref<Failure>& failure) noexcept;

// Runs what has become ready.
void notify(ReadyList& ready) noexcept;

// The lock of the queue that a home leads to, held.
Queue& lock_home(Home& home) noexcept;

}  // namespace tenon::impl
