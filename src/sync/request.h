// SPDX-License-Identifier: Apache-2.0
//
// Requests, their parts in queues, and the views of the ordinary code of the process.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "base/access.h"
#include "base/spin_lock.h"
#include "device/device.h"
#include "sync/actor.h"
#include "tenon/core.h"

namespace tenon::impl {

class Queue;
class Request;
struct Conflict;
struct RequestPart;
struct View;

// The right of this process to use some bytes of shared memory (gate.h): a number that the gate returns, with
// a count of references, one for each part and view that relies on it.
using GrantId = uint32_t;
constexpr GrantId kNoGrant = 0;
// Of memory that this process possesses (Gate::Right::kHeld): it is not counted, so share() and disown() have
// no effect, and leave() only notes a write.
constexpr GrantId kUncountedGrant = UINT32_MAX;

// The bytes begin..end of the address space.
struct Extent {
  uintptr_t begin = 0;
  uintptr_t end = UINTPTR_MAX;

  bool overlaps(const Extent& other) const noexcept { return begin < other.end && other.begin < end; }
  bool contains(const Extent& other) const noexcept { return begin <= other.begin && other.end <= end; }
  friend bool operator==(const Extent&, const Extent&) noexcept = default;
};

// Two accesses conflict when they share bytes and one of them writes.
inline bool in_conflict(Access a, const Extent& in_a, Access b, const Extent& in_b) noexcept {
  return in_conflict(a, b) && in_a.overlaps(in_b);
}

// The pointer to the queue of some memory. Changes when the memory is bridged with other memory, which
// happens only while at most one of the two queues is in use; so a part or view stays in its queue.
using Home = std::atomic<Queue*>;

// The state of a part while its request is appended. Guarded by the lock of the queue.
struct PartState {
  uint32_t blockers = 0;     // in a counted queue: parts that conflict and are earlier, or later and granted
  uint32_t index_place = 0;  // in a queue with an index
  // In a gated queue: it has no grant yet, so that nothing may act under it.
  bool needs_grant = false;
  bool is_queued = false;
  bool is_granted = false;
  bool waits_for_host = false;
  bool is_overwriting = false;  // it acts under a part that writes every byte
  bool is_ahead : 1 = false;    // it was inserted before earlier parts (Queue::insert_before)
  bool is_ended : 1 = false;    // it is an EndedPart
  bool is_nested : 1 = false;   // an ended part of its owner allows it; not: a lease inside of a lease
  bool holds_memory = false;    // of an op, on memory that is not small
  bool is_submitted = false;    // its work is on a stream and ends with the event of the request
  // Its neighbours in the queue. Before it is linked, one may be set: it will be inserted beside that one.
  RequestPart* next = nullptr;
  RequestPart* previous = nullptr;
  View* views = nullptr;  // taken under this part; of an ended part: its view alone
  uint64_t sequence = 0;  // does not decrease along the queue
};

// The place of a request in one queue. Owned by the request; never moves while it is in a queue.
struct RequestPart : PartState {
  // Set by the request before it is appended.
  Home* home = nullptr;
  Extent extent;
  Access access = Access::kRead;
  bool is_overwrite = false;  // every byte will be written, none is read: heals earlier failures
  bool is_for_host = false;   // of a request on a stream: the host uses these bytes, so no event suffices

  // Set by append(); constant while the request is appended. False: the request acts without this part.
  bool is_appended = false;
  // Other threads may read it with the lock of the queue and if needs_grant is false. Set before the part is
  // appended if this process has the grant already.
  GrantId grant = kNoGrant;

  // Guarded by the lock of the queue.
  Request* request = nullptr;
  Queue* queue = nullptr;  // set before begin()

  // Before each use of the part: forgets the state of the last use.
  void begin(Request* user) noexcept {
    static_cast<PartState&>(*this) = PartState{};
    is_appended = true;
    request = user;
  }
};

// A view of the ordinary code of the process. It is open as long as a NumPy array or a tensor lives. Views of
// one process do not exclude each other. Never moves while it is open.
//
// When a lease ends, each view that was taken under it and is still open gets an ended part in the queue
// (EndedPart). So the others wait for the view as they waited for the lease.
struct View {
  // Set before it is opened.
  Home* home = nullptr;
  Extent extent;
  Access access = Access::kRead;
  // Another library has the memory, and may close the view on a thread that is not known here. So no wait for
  // it is certain to be endless.
  bool is_exported = false;
  // It is in no list: this process was forked, and does not have its thread. Set while there is one thread.
  bool is_lost = false;
  const char* site = nullptr;  // "train.py:12"; lives as long as the view; may be null

  // Guarded by the queue's lock.
  Queue* queue = nullptr;
  View* next = nullptr;
  View* previous = nullptr;
  // The part under which it was taken, or its own ended part; null: a view of the host.
  RequestPart* under = nullptr;
  void* room = nullptr;         // memory for its ended part; not null if it was taken under a part
  bool is_overwriting = false;  // under a part that writes every byte
  bool is_reported = false;     // that it outlived its lease and is in the way of others
  bool is_inherited = false;    // by a forked child, which has no grant for it
  GrantId grant = kNoGrant;     // in a gated queue
  uint32_t thread = 0;          // the id of the thread that opened it
  uint32_t number = 0;          // the kernel number of that thread
  int64_t opened_ms = 0;

  // Set before it is opened. Of a view whose memory is used on a stream; null: the host uses it. Without a
  // stream: its users order their work themselves.
  device::Device* device = nullptr;
  device::Stream stream = nullptr;
};

// The kind of user that holds memory or waits for it.
enum class HolderKind : uint8_t {
  kView = TENON_HOLDER_VIEW,
  kOp = TENON_HOLDER_OP,            // pushed work
  kLease = TENON_HOLDER_LEASE,      // a block of code that holds memory
  kCall = TENON_HOLDER_CALL,        // a synchronous call while it runs
  kProcess = TENON_HOLDER_PROCESS,  // another process
};

// Parts that are appended to their queues at once, and granted one by one. The request is granted when the
// last part is. Owned by the code that appended it, which keeps it until it has been released or cancelled.
class Request {
 public:
  Request(HolderKind request_kind, std::span<RequestPart> request_parts) noexcept
      : parts(request_parts), kind(request_kind) {}
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  // Called without locks when the last part has been granted outside of append(), and again when it has
  // passed a gate at which it was waiting, or was refused there.
  virtual void become_ready() noexcept = 0;

  // A gate has refused it. become_ready() follows, without a grant. Called without the lock of a queue.
  virtual void refuse_at_gates(const Conflict& conflict) noexcept = 0;

  // The number of an op; 0 for other requests.
  virtual uint64_t number() const noexcept { return 0; }

  // The end of work on a stream, if parts are submitted; constant from then on until it is released.
  virtual device::Event* event() const noexcept { return nullptr; }

  // Keep an op alive for a moment; called with the lock of a queue. Other requests are kept alive by the code
  // that waits for them.
  virtual void hold() noexcept {}
  virtual void drop() noexcept {}

  // For a request that is used again: forgets what append() and the gates have set in its last use.
  void begin_again() noexcept {
    missing.store(0, std::memory_order_relaxed);
    is_detached.store(false, std::memory_order_relaxed);
    is_gated = waits_at_gate = is_withdrawn = is_refused = false;
  }

  // Constant while appended.
  std::span<RequestPart> parts;
  const char* name = nullptr;  // for messages; lives as long as the request; may be null
  const char* site = nullptr;
  Actor owner;  // of a lease; of a call: the caller
  int64_t since_ms = 0;
  const HolderKind kind;            // kOp, kLease or kCall
  bool heeds_views = false;         // an op that must not run beside conflicting views of the host
  bool ignores_dead_owner = false;  // it accepts bytes whose writer died
  // kForView: a call that opens a view as soon as it is granted. kOnStream: it uses its memory on a stream,
  // so it does not wait for parts that are submitted. kNeedsLock: an op whose body needs the lock of a
  // language.
  enum Trait : uint8_t { kForView = 1, kOnStream = 2, kNeedsLock = 4 };
  uint8_t traits = 0;
  bool is_for_view() const noexcept { return (traits & kForView) != 0; }
  bool is_on_stream() const noexcept { return (traits & kOnStream) != 0; }

  // Set by append(): some of its parts are on memory that is shared with other processes.
  bool is_gated = false;
  bool is_counted = false;  // in ThisThread::requests; used by the code that appends or removes it

  // Shared: parts that are not granted yet.
  std::atomic<uint32_t> missing{0};
  // Shared: a lease without an owner.
  std::atomic<bool> is_detached{false};

  // Used while it passes the gates without waiting; guarded by gates_lock.
  SpinLock gates_lock;
  bool waits_at_gate = false;
  bool is_withdrawn = false;  // its owner has taken it back
  bool is_refused = false;
  uint32_t gate_quota = 0;  // the part of the quota for ops that a gate has reserved for it

  uint64_t born_in = 0;           // the op whose body made it; 0: none
  uint64_t seen_by = 0;           // the last walk through the wait-for graph that visited it
  Request* next_ready = nullptr;  // in a list of requests that have become ready

 protected:
  ~Request() = default;
};

// The place in the queue of a view that has outlived its lease: a part of a granted lease with the access and
// the bytes of the view, until the view is closed. Others wait for it. Its owner, that of the lease, acts
// beside it, and pushes are refused instead of waiting for it (Queue::waits_for).
struct EndedPart : RequestPart {
  class Ended final : public Request {
   public:
    explicit Ended(RequestPart& part) noexcept : Request(HolderKind::kLease, {&part, 1}) {}
    void become_ready() noexcept override {}
    void refuse_at_gates(const Conflict&) noexcept override {}
  };
  Ended lease{*this};

  EndedPart() noexcept = default;
  EndedPart(const EndedPart&) = delete;
  EndedPart& operator=(const EndedPart&) = delete;
};

// Requests that have become ready while a lock is held. become_ready() is called after the lock is released.
class ReadyList {
 public:
  void add(Request* request) noexcept {
    request->next_ready = nullptr;
    *end_ = request;
    end_ = &request->next_ready;
  }
  bool is_empty() const noexcept { return first_ == nullptr; }
  // In the order in which they became ready.
  Request* take_all() noexcept {
    Request* const all = first_;
    first_ = nullptr;
    end_ = &first_;
    return all;
  }

 private:
  Request* first_ = nullptr;
  Request** end_ = &first_;
};

}  // namespace tenon::impl
