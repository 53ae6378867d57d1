// SPDX-License-Identifier: Apache-2.0
//
// The functions for owners of requests and views: append to several queues at once, release, open and close.
//
// While a request is appended, all of its queues are locked together, in the order of their addresses: two
// requests over the same queues have the same order in all of them.
#pragma once

#include <vector>

#include "base/error.h"
#include "sync/queue.h"
#include "sync/request.h"

namespace tenon::impl {

// The behaviour of an op if views of the host conflict. Other requests do not conflict with them.
enum class OnHost : uint8_t {
  kRaise,   // it is not appended
  kWait,    // it waits until they are closed
  kIgnore,  // the caller promises that the views are not used until the op is done
};

enum class Appended : uint8_t {
  kGranted,
  kWaiting,  // become_ready() will be called
  kRefused,  // nothing has changed; the conflict says why
};

// Why a request or view was refused.
struct Conflict {
  enum class Reason : uint8_t {
    kHostView,      // a view of the host conflicts
    kNoMemory,      // for the ended part of a view
    kOwnLease,      // the actor's own lease or op allows less: reading, or other bytes
    kUndeclared,    // the body of an op uses memory that the op has not declared
    kWaitsForHost,  // the host would wait for work that waits for a view of the host
    kInBody,        // the body of an op would have to wait
    kMoved,         // the memory was moved out
    kHeld,          // it cannot be moved out: it is in use
    kShared,        // it cannot be moved out: another import uses the same bytes
    kOnDevice,      // the host cannot read or write the memory
    kTimeout,
    kDeadlock,
    kInterrupted,
    // For memory that is shared with other processes:
    kNoPossession,  // a view needs a lease that covers it
    kOwnerDied,     // a process died while it was writing; the bytes may be partly written
    kMemoryDied,    // the process that had allocated the memory on a device has ended
    kNotHeld,       // the item of a channel was sent, or another process has it
    kInherited,     // a forked child still has views from before the fork
    kTooMany,       // the process has as many leases of this memory as there is room for; holder: of another
                    // process, behind which some of them wait
    kNoPlace,       // it is a forked child, and there was no room for another process
    kNoFile,        // it is a forked child without a right to it: its parent had lost the descriptor
  };
  Reason reason = Reason::kHostView;
  const RequestPart* part = nullptr;  // the refused part, if one was
  Holder holder;
  int64_t timeout_ns = -1;  // with kTimeout: the timeout; < 0: not known
};

// Appends all parts of a request, or none. Parts that act under a part of the same actor are granted there.
// Requires: every part has home, extent, access; extents are not empty.
Appended append(Request& request, OnHost on_host, Conflict* conflict) noexcept;

// The same in two steps for a lease or a call. True: it is granted, because it has no parts, or one on memory
// that nothing else holds or waits for. False: its queues are locked, and append_locked() must follow.
bool append_to_idle(Request& request) noexcept;
Appended append_locked(Request& request, OnHost on_host, Conflict* conflict) noexcept;

// Releases a request that is granted, or that waits and has no waiting caller. True if a view that was taken
// under it is still open: a view of a lease has an ended part then, and others wait for it. has_written:
// false if nothing was written under it, so that the version of its memory does not change.
bool release(Request& request, bool has_written = true) noexcept;

// The same, but adds requests that become ready to the list instead of calling become_ready().
bool release(Request& request, ReadyList* ready, bool has_written = true) noexcept;

// Removes a request that waits. False if it has been granted meanwhile: then the caller must release it.
bool cancel(Request& request) noexcept;

// Removes a request that has been granted in its queues, but not used.
void withdraw(Request& request) noexcept;

// Removes the owner of a lease: any thread may end it then.
void detach(Request& request) noexcept;

// True if this thread, whose actor waits for a request (null: for all ops), holds no lease, no call and no
// ended part, so that it is not part of a cycle of waits. False also if that is not known.
bool has_empty_hands(const Request* awaited) noexcept;

// Opens a view if nothing is in its way. may_weaken: under a lease for reading, a writable view becomes one
// for reading instead of being refused. kWaiting: nothing has changed; the view must wait (open_view,
// wait.h). conflict: may be null.
Appended try_open_view(View& view, bool may_weaken, Conflict* conflict) noexcept;

// Closes an open view. Any thread.
void close_view(View& view) noexcept;

// Work on streams.

// The work of a granted request, which is on a stream, has been submitted, and its event is the end of it.
void mark_submitted(Request& request) noexcept;

// Closes an open view whose memory a stream still uses: the one part of rest, which is on a stream and has no
// owner, takes its place until rest is released.
void close_view(View& view, Request& rest) noexcept;

// Adds the events of submitted parts for which the stream of a granted request has to wait. Throws
// std::bad_alloc.
using Events = std::vector<Ref<device::Event>>;
void add_events_before(const Request& request, Events* events);
// The same for a use of these bytes that has no part of its own in the queue, or that is a view.
void add_events_in(Home& home, Access access, const Extent& extent, Events* events);

// The streams on which open views use these bytes, except the view `self` (may be null). Throws
// std::bad_alloc.
struct UsedStream {
  device::Device* device;
  device::Stream stream;
  uint32_t thread;  // that opened the view
};
std::vector<UsedStream> streams_of_views(Home& home, Access access, const Extent& extent, const View* self);

// True if a view or a lease that was taken under a part of the request still exists.
bool has_views(const Request& request) noexcept;

// Why bytes of this extent hold no value; null: all hold one.
Ref<Failure> failure_of(Home& home, const Extent& extent) noexcept;
// The caller declares that these bytes hold a value. False: the bytes are shared and were not available in
// time, as the conflict says; the next reader still gets the death of the writer.
bool clear_failures(Home& home, const Extent& extent, Conflict* conflict) noexcept;
// The failure of the first part that reads bytes without a value; null: there is none.
Ref<Failure> failure_of(const Request& request) noexcept;
// The same for a request with submitted parts: only failures of earlier parts count, because later ones may
// have failed since.
Ref<Failure> failure_before(const Request& request) noexcept;

// With a failure: the bytes that a granted request writes hold no value. Without: the bytes that it has
// overwritten hold a value again.
void note_outcome(const Request& request, const Ref<Failure>& failure) noexcept;

// Calls become_ready() for each request of the list.
void notify(ReadyList& ready) noexcept;

// Locks the queue to which a home points, and returns it.
inline Queue& lock_home(Home& home) noexcept {
  while (true) {
    // pairs with: KnownMemory::merge, "a home and its queue"
    Queue* const queue = home.load(std::memory_order_acquire);
    queue->lock.lock();
    // pairs with: KnownMemory::merge, "a home and its queue"
    if (home.load(std::memory_order_acquire) == queue) [[likely]]
      return *queue;
    queue->lock.unlock();
  }
}

namespace detail {

// A thread has or may have a request that another thread made for it, so the counts of threads are
// incomplete.
extern constinit std::atomic<bool> has_requests_of_others;

// Of a lease or a call.
inline void count_in(Request& request) noexcept {
  request.is_counted = request.owner.thread == this_thread_id();
  if (request.is_counted) [[likely]] {
    ++this_thread.requests;
  } else {
    has_requests_of_others.store(true, std::memory_order_relaxed);
  }
}

// Of a request without parts, or with several. False: it has none.
bool lock_parts(Request& request) noexcept;

}  // namespace detail

[[gnu::always_inline]] inline bool append_to_idle(Request& request) noexcept {
  if (request.parts.size() != 1) [[unlikely]]
    return !detail::lock_parts(request);
  RequestPart& part = request.parts[0];
  Queue& queue = lock_home(*part.home);
  part.queue = &queue;
  if (!queue.is_idle() || this_thread.running != 0) return false;
  if (request.is_for_view() || request.is_on_stream()) [[unlikely]]
    return false;
  queue.append_first(&part, &request);
  request.born_in = 0;
  request.is_gated = false;
  request.missing.store(0, std::memory_order_relaxed);
  detail::count_in(request);
  queue.lock.unlock();
  return true;
}

}  // namespace tenon::impl
