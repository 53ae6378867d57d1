// SPDX-License-Identifier: Apache-2.0
//
// Waiting, and the wait-for graph. A caller that cannot continue at once registers its wait in the graph and
// sleeps a moment. Then it walks through the graph: from its parts to the earlier parts that conflict, and
// from a granted lease to what its owner waits for. If the walk returns to a lease of the caller, there is a
// deadlock, and the caller gets kDeadlock instead of sleeping. It registers before it walks: else two callers
// could both walk before either is registered.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "base/futex.h"
#include "base/spin_budget.h"
#include "base/spin_lock.h"
#include "base/trace.h"
#include "sync/requests.h"
#include "sync/waiter.h"

namespace tenon::impl {

// The functions of the engine that waits need. Without a runner there are no ops.
struct Runner {
  bool (*help)() noexcept;             // runs one ready op in this thread; false: there is none
  bool (*has_own_threads)() noexcept;  // ops run without help()
};
// The runner lives as long as the process; set once, by the engine.
void set_runner(const Runner& runner) noexcept;

// A thread or task, and what it waits for. Registered in the graph while it waits; does not move meanwhile.
struct WaitNode {
  Actor actor;
  bool is_thread = true;       // a thread that sleeps in a call; else a suspended task
  Request* request = nullptr;  // it waits for this request, or
  bool waits_for_all = false;  // for all ops
  bool is_pusher = false;      // with waits_for_all: until there is room for another op

  // Guarded by the graph's lock.
  bool is_entered = false;
  WaitNode* next = nullptr;
  WaitNode* previous = nullptr;
  uint64_t seen_by = 0;           // the last walk that visited it
  WaitNode* next_seen = nullptr;  // of that walk
};

// One for the process, never destroyed. Threads: any.
class WaitGraph {
 public:
  static WaitGraph& instance() noexcept;

  void enter(WaitNode* node) noexcept;
  void leave(WaitNode* node) noexcept;  // does nothing if it is not registered

  // True if this waiter, an actor of this thread, waits for itself; holder is its own lease or ended part
  // that is in the way. is_through_views: the walk went through an ended part, to whose view perhaps no
  // object refers. Does not walk if the thread holds nothing, because each of hundreds of threads that wait
  // for one array would visit all others.
  bool is_deadlock(const WaitNode& node, Holder* holder, bool* is_through_views = nullptr) noexcept;
  // True if this waiter waits, directly or through others, for the end of a view: holder. is_certain: only
  // views that no other library has. Does not walk if no request waits for views.
  bool is_behind_host(const WaitNode& node, bool is_certain, Holder* holder) noexcept;

  void lock_for_fork() noexcept { lock_.lock(); }
  void unlock_after_fork() noexcept { lock_.unlock(); }
  // In a forked child: removes the waits of the other threads, which do not exist there.
  void clear_after_fork() noexcept;

 private:
  class Walk;
  WaitGraph() = default;
  bool has_cycle(const WaitNode& node, Holder* holder, bool* is_through_views);
  bool finds_host(const WaitNode& node, bool is_certain, Holder* holder);

  // A hash table of the waiters. The key of a sleeping thread is the thread; that of a suspended task is the
  // thread and the task.
  static constexpr size_t kChains = 1024;
  WaitNode*& chain_of(uint32_t thread, uint64_t task) noexcept {
    return chains_[(thread + (task * 0x9E3779B97F4A7C15u >> 32)) % kChains];
  }
  WaitNode*& chain_of(const WaitNode& node) noexcept {
    return chain_of(node.actor.thread, node.is_thread ? 0 : node.actor.task);
  }

  SpinLock lock_;
  // Guarded by lock_.
  std::array<WaitNode*, kChains> chains_{};
  uint64_t walks_ = 0;
};

// Runs one ready op if the executor has no threads of its own. False: there is none.
bool help() noexcept;

// True if the wait is over; else sets the reason of the conflict.
bool is_over(WaitEnd end, Conflict* conflict) noexcept;

namespace detail {
// The holder at the end of the path from a node.
void describe_holder(const WaitNode& node, Holder* holder) noexcept;

// A sleep that looks for cycles.
class CycleSleep {
 public:
  CycleSleep(const WaitNode& node, const Deadline& deadline) noexcept
      : node_(node), deadline_(deadline), waiter_(deadline) {}

  // Sleeps for a slice while word == value. kOver: check the word again. Sets holder with kDeadlock.
  WaitEnd while_equal(const std::atomic<uint32_t>& word, uint32_t value, Holder* holder) noexcept;

 private:
  bool is_cycle(Holder* holder) noexcept;
  bool is_held_by_views(Holder* holder) noexcept;

  static constexpr int64_t kWalkNs = 1'000'000;  // most waits end before that

  const WaitNode& node_;
  const Deadline& deadline_;
  Waiter waiter_;
  // Times since the begin of the wait.
  int64_t next_look_ns_ = kWalkNs;
  int64_t walked_ns_ = 0;    // of the last walk; 0: none yet
  uint64_t new_owners_ = 0;  // then (Queue)
};

// The wait of a thread in the timeline.
class WaitSpan {
 public:
  explicit WaitSpan(const WaitNode& node) noexcept {
    if (trace::is_on()) [[unlikely]]
      open(node);
  }
  WaitSpan(const WaitSpan&) = delete;
  WaitSpan& operator=(const WaitSpan&) = delete;
  ~WaitSpan() { trace::close(span_, trace::key_of(this), trace::SpanOutcome::kDone); }

 private:
  [[gnu::cold]] void open(const WaitNode& node) noexcept;

  trace::Span span_ = trace::kNoSpan;
};
}  // namespace detail

// Waits until is_over(value) holds for the value of word. Requires that each change of word is followed by a
// wake-up. holder: with kDeadlock the lease in the way.
template <class IsOver>
WaitEnd wait(WaitNode& node, const std::atomic<uint32_t>& word, IsOver is_over, const Deadline& deadline,
             Holder* holder) noexcept {
  const detail::WaitSpan note(node);
  // pairs with: the code that changes the word, "what was waited for"
  const auto is_over_now = [&] { return is_over(word.load(std::memory_order_acquire)); };
  if (spin(deadline.leaves_no_time() ? 1 : kBriefLooks, is_over_now)) return WaitEnd::kOver;
  // A caller without time to wait is not registered, so it is in no cycle that others find.
  if (!deadline.has_passed()) WaitGraph::instance().enter(&node);
  WaitEnd end = WaitEnd::kOver;
  {
    detail::CycleSleep sleep(node, deadline);
    while (end == WaitEnd::kOver) {
      // pairs with: the code that changes the word, "what was waited for"
      const uint32_t value = word.load(std::memory_order_acquire);
      if (is_over(value)) break;
      if (deadline.has_passed() || !help()) end = sleep.while_equal(word, value, holder);
    }
  }
  WaitGraph::instance().leave(&node);
  if (end != WaitEnd::kOver && end != WaitEnd::kDeadlock) detail::describe_holder(node, holder);
  return end;
}

// The request of a task that continues when the request is granted. Lives until then, or until the request is
// cancelled.
struct PendingRequest {
  void (*done)(void* context) = nullptr;
  void* context = nullptr;

  WaitNode node;                        // of the request
  std::atomic<uint32_t> steps_left{2};  // the end of submit(), and the grant
  bool is_refused = false;              // by a gate; then conflict says why. Valid when it is done
  Conflict conflict;
};

// A request of synchronous code, with the wait for its grant.
class BlockingRequest final : public Request {
 public:
  BlockingRequest(HolderKind request_kind, std::span<RequestPart> request_parts) noexcept
      : Request(request_kind, request_parts) {}
  void become_ready() noexcept override;
  void refuse_at_gates(const Conflict& conflict) noexcept override;

  // Appends and waits until it is granted. False: nothing has changed. Without a deadline, it waits at gates
  // for gate_timeout_ns() if heeds_gate_timeout is set. Requires: parts and owner are set.
  bool heeds_gate_timeout = false;
  bool acquire(const Deadline& deadline, Conflict* conflict) noexcept;
  // The same in two steps, so that the usual case needs no conflict. False: the queues are locked, and
  // acquire_locked() must follow.
  bool acquire_idle() noexcept { return append_to_idle(*this); }
  bool acquire_locked(const Deadline& deadline, Conflict* conflict) noexcept;
  // Set before that: the span that gets the time of the grant; its key is the address of the request.
  trace::Span span = trace::kNoSpan;

  // Appends without waiting. kWaiting: pending->done is called once when the request is granted, perhaps
  // before this returns, and is the last access to the request. It is not called if cancel() removes the
  // request; then the caller must remove pending->node from the graph. If a gate refused the request, then
  // pending->is_refused is set, and the request must not be released. Requires: as acquire().
  Appended submit(PendingRequest* pending, Conflict* conflict) noexcept;

 private:
  bool pass_or_withdraw(const Deadline& deadline, Conflict* conflict) noexcept;

  std::atomic<uint32_t> is_ready_{0};
  PendingRequest* pending_ = nullptr;
};

// As try_open_view(), but waits as a call does. False: the view is not open.
bool open_view(View& view, bool may_weaken, const Deadline& deadline, Conflict* conflict) noexcept;

}  // namespace tenon::impl
