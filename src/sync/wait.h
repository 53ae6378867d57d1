// SPDX-License-Identifier: Apache-2.0
//
// Waiting, and the graph of what waits for what. A caller that cannot go on at once registers what it waits
// for and sleeps a moment; *then* it walks from there: along the earlier parts that conflict, from a
// granted lease to what its owner waits for. A way back to a lease of the caller's own is a deadlock, and the
// caller is told instead of sleeping on. In the other order two callers could both look before either was to
// be seen.
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

// Calls visit with every queue that may hold parts; set once by the owner of the queues.
using QueueVisitor = void (*)(void (*visit)(Queue& queue, void* context), void* context);
void set_queue_visitor(QueueVisitor visitor) noexcept;
void visit_queues(void (*visit)(Queue& queue, void* context), void* context);

// What runs ops, as waits need it. Without one there are no ops.
struct Runner {
  bool (*help)() noexcept;  // runs one op that is ready in this thread; false: there is none to run
  bool (*has_own_threads)() noexcept;  // ops run without help
};
// The runner lives as long as the process; set once, by the engine.
void set_runner(const Runner& runner) noexcept;

// A thread or task, and what it waits for. Registered in the graph while it waits; never moves meanwhile.
struct WaitNode {
  Actor actor;
  bool is_thread = true;       // sleeps in a call; else a task that its thread has put aside
  Request* request = nullptr;  // one of both
  bool waits_for_all = false;  // for all ops
  bool is_pusher = false;      // with waits_for_all: until there is room for another op

  // Guarded by the graph's lock.
  bool is_entered = false;
  WaitNode* next = nullptr;
  WaitNode* previous = nullptr;
  uint64_t seen_by = 0;           // the last walk that came here
  WaitNode* next_seen = nullptr;  // of that walk
};

// One for the process, never destroyed. Threads: any.
class WaitGraph {
 public:
  static WaitGraph& instance() noexcept;

  void enter(WaitNode* node) noexcept;
  void leave(WaitNode* node) noexcept;  // nothing happens if it is not there

  // This waiter, an actor of this thread, waits for itself; holder is the lease or
  // bound view of its own in the way. is_through_views: the way led over a bound view, which may be one to
  // which no object refers. Does not walk if the thread holds nothing: hundreds of threads that wait for one
  // array would each go through all of the others.
  bool is_deadlock(const WaitNode& node, Holder* holder, bool* is_through_views = nullptr) noexcept;
  // Something, on whose end this waiter's wait depends, waits for a view to be closed: holder. Does not
  // walk if nothing waits for views.
  bool is_behind_host(const WaitNode& node, Holder* holder) noexcept;

  void lock_for_fork() noexcept { lock_.lock(); }
  void unlock_after_fork() noexcept { lock_.unlock(); }
  // In a forked child: the other threads are gone, and what they waited for.
  void clear_after_fork() noexcept;

 private:
  class Walk;
  WaitGraph() = default;
  bool has_cycle(const WaitNode& node, Holder* holder, bool* is_through_views);
  bool finds_host(const WaitNode& node, Holder* holder);

  // Of the waiters: those whose thread sleeps are found by the thread, tasks that were put aside by both.
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

// Runs one op that is ready, where the executor has no threads that would. False: there is none.
bool help() noexcept;

// True if the wait is over; else the conflict says why not.
bool is_over(WaitEnd end, Conflict* conflict) noexcept;

namespace detail {
// What a node waits for in the end, or has waited for when it gives up.
void describe_holder(const WaitNode& node, Holder* holder) noexcept;

// A sleep that looks for cycles.
class CycleSleep {
 public:
  CycleSleep(const WaitNode& node, const Deadline& deadline) noexcept
      : node_(node), deadline_(deadline), waiter_(deadline) {}

  // Sleeps a slice while word == value. kOver: look again. With kDeadlock holder is set.
  WaitEnd while_equal(const std::atomic<uint32_t>& word, uint32_t value, Holder* holder) noexcept;

 private:
  bool is_cycle(Holder* holder) noexcept;
  bool is_kept_by_views(Holder* holder) noexcept;

  static constexpr int64_t kWalkNs = 1'000'000;  // most waits are over before that

  const WaitNode& node_;
  const Deadline& deadline_;
  Waiter waiter_;
  // How long the wait had lasted then.
  int64_t next_look_ns_ = kWalkNs;
  int64_t walked_ns_ = 0;  // 0: not yet
};

// A thread's wait in the timeline.
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

// Waits until is_over(value) holds for the value of word. Each change of word is followed by a wake-up.
// holder: with kDeadlock the lease in the way.
template <class IsOver>
WaitEnd wait(WaitNode& node, const std::atomic<uint32_t>& word, IsOver is_over, const Deadline& deadline,
             Holder* holder) noexcept {
  const detail::WaitSpan note(node);
  // pairs with: the code that changes the word, "what was waited for"
  if (spin(kBriefLooks, [&] { return is_over(word.load(std::memory_order_acquire)); })) return WaitEnd::kOver;
  // Without time to wait it is in no cycle of others, though it may find one of its own.
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

// Of a task that goes on when its request is granted. Lives until then, or until the request was taken back.
struct PendingRequest {
  void (*done)(void* context) = nullptr;
  void* context = nullptr;

  WaitNode node;                        // of the request
  std::atomic<uint32_t> steps_left{2};  // the end of submit() and the grant
  bool is_refused = false;              // by a gate, when it is done; then conflict says why
  Conflict conflict;
};

// A request of synchronous code: what it waits for is waited for here.
class BlockingRequest final : public Request {
 public:
  BlockingRequest(HolderKind request_kind, std::span<RequestPart> request_parts) noexcept
      : Request(request_kind, request_parts) {}
  void become_ready() noexcept override;
  void refuse_at_gates(const Conflict& conflict) noexcept override;

  // Appends and waits until it is granted; else nothing has happened. Without a deadline it waits at gates
  // for gate_timeout_ns() if it heeds that. Requires: parts and owner are set.
  bool heeds_gate_timeout = false;
  bool acquire(const Deadline& deadline, Conflict* conflict) noexcept;
  // Set before that: the span in which the grant is noted, with the address of the request as its key.
  trace::Span span = trace::kNoSpan;

  // Appends and does not wait. kWaiting: pending->done is called once, when it is granted, as the last thing
  // that is done to the request, perhaps before this returns; unless cancel() takes it back, after which
  // pending->node has to leave the graph. Else it is not called. A gate may have refused what was granted:
  // pending->is_refused; then it is not to be released. Requires as acquire.
  Appended submit(PendingRequest* pending, Conflict* conflict) noexcept;

 private:
  bool pass_or_withdraw(const Deadline& deadline, Conflict* conflict) noexcept;

  std::atomic<uint32_t> is_ready_{0};
  PendingRequest* pending_ = nullptr;
};

// As try_open_view(); what is in its way it waits for, as a call does. False: it is not open.
bool open_view(View& view, bool may_weaken, const Deadline& deadline, Conflict* conflict) noexcept;

}  // namespace tenon::impl
