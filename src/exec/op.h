// SPDX-License-Identifier: Apache-2.0
//
// An op: work that runs when all of its parts are granted, and what became of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "base/ref.h"
#include "base/trace.h"
#include "device/completions.h"
#include "exec/executor.h"
#include "sync/requests.h"
#include "sync/wait.h"

namespace tenon::impl {

class Op;

// What an op does. run is called once, on any thread, and calls Op::complete or Op::fail then or later, from
// any thread; not called when something that the op reads has failed. drop is called once in every case,
// before the op counts as done. Neither throws.
struct Work {
  void* context = nullptr;
  void (*run)(void* context, Op* op) = nullptr;
  void (*drop)(void* context) = nullptr;  // may be null
};

// Called once when an op is done, or at once if it is.
struct DoneCall {
  void (*call)(void* context) = nullptr;
  void* context = nullptr;
  DoneCall* next = nullptr;
};

// Counted: by the owners of handles, by the engine until it is done, by the executor while it is posted.
// Threads: any; wait() not from inside of a body.
class Op final : public Request, public Task {
 public:
  // With room for n parts, which the caller fills in. context_size: room for the work's context in the op's
  // own memory; 0: the context is elsewhere. name and site are copied. Throws std::bad_alloc.
  static Ref<Op> create(const Work& work, size_t n_parts, const char* name, const char* site,
                        size_t context_size = 0);

  bool is_done() const noexcept {
    // pairs with: Op::finish, "an op's result"
    return (state_.load(std::memory_order_acquire) & kStateBits) == kDone;
  }

  // The body has ended. Once; from any thread.
  void complete() noexcept;
  void fail(Ref<Failure> failure) noexcept;
  // The body has ended its thread and will not return; within run. It has failed, unless another thread has
  // ended it. Another thread may hold the op to end it later, which does nothing then: the op is kept for
  // ever.
  void fail_without_return(Ref<Failure> failure) noexcept;

  // For the body of an op on a stream (Request::kOnStream), instead of complete() or fail(): its work has
  // been submitted, and ends with the event of completion, which lives until the op is done. Other ops on
  // streams go on. completion->done is called when the body has returned and the event has come, and ends the
  // op: by end_submitted(), and not before those whose events this one's stream has waited for.
  void submit(device::Completion* completion) noexcept;
  // status: of the event. What the op reads may hold no value meanwhile: then it has failed in the same way.
  void end_submitted(device::Status status) noexcept;

  // Waits until it is done; without a deadline it runs it here if it is ready and no other thread does.
  // False: the conflict says why.
  bool wait(const Deadline& deadline, Conflict* conflict) noexcept;

  // The body has begun and not ended; a hint.
  bool is_running() const noexcept {
    return (state_.load(std::memory_order_relaxed) & kStateBits) == kRunning;
  }

  // Requires is_done(). Null: it succeeded.
  const Ref<Failure>& failure() const noexcept { return failure_; }

  // call must live until it has been called.
  void call_when_done(DoneCall* call) noexcept;

  const char* op_name() const noexcept { return name; }
  uint64_t number() const noexcept override { return number_; }
  device::Event* event() const noexcept override {
    return submitted_ != nullptr ? submitted_->event.get() : nullptr;
  }

  void retain(uint64_t n = 1) noexcept { refs_.increment(n); }
  void release(uint64_t n = 1) noexcept;

  // For the engine.
  void begin_ready() noexcept {
    trace::mark(span_, number_, trace::kReady);
    state_.store(kReady, std::memory_order_relaxed);
  }
  void become_ready() noexcept override;
  void refuse_at_gates(const Conflict& conflict) noexcept override;
  Task* run() noexcept override;
  void hold() noexcept override { retain(); }
  void drop() noexcept override { release(); }
  void* context() const noexcept { return work_.context; }
  // Of an op that was not pushed: its context stays the caller's, and is returned.
  void* give_up() noexcept { return std::exchange(work_.context, nullptr); }
  // Before it is pushed: the span in which it notes how it goes on, whose key is its number.
  void set_span(trace::Span span) noexcept { span_ = span; }
  trace::Span span() const noexcept { return span_; }
  // Ends an op that will never run, of which only this thread knows: after a fork.
  void abandon(Ref<Failure> failure) noexcept;

 private:
  friend class Engine;
  // The states, and a bit that says that a thread sleeps on the word.
  static constexpr uint32_t kQueued = 0;
  static constexpr uint32_t kReady = 1;
  static constexpr uint32_t kRunning = 2;
  static constexpr uint32_t kDone = 3;
  static constexpr uint32_t kStateBits = 3;
  static constexpr uint32_t kHasWaiters = 4;
  static constexpr uint32_t kHasCalls = 8;  // calls_ is not empty

  Op(const Work& work, std::span<RequestPart> op_parts) noexcept;
  ~Op() = default;

  // What came of it: ops that became ready, of which one is to run next; and whether the op is done.
  struct Outcome {
    Task* next = nullptr;
    bool is_done = false;
  };
  bool begin_running() noexcept;
  bool set_bit(uint32_t bit) noexcept;
  Outcome execute() noexcept;
  [[noreturn]] void end_forked_child() const noexcept;
  void end_body(uint32_t part) noexcept;
  [[gnu::cold]] void note_end() const noexcept;
  Task* finish() noexcept;

  // Constant once pushed.
  Work work_;
  uint64_t number_ = 0;
  uint32_t size_ = 0;  // of its block
  // Of the thread that runs the body, then of the one that finishes the op.
  bool has_ended_in_place_ = false;
  Ref<Failure> failure_;
  // Written by the body before its parts are submitted, then constant.
  device::Completion* submitted_ = nullptr;

  // Shared.
  std::atomic<uint32_t> state_{kQueued};
  // The return of run() and the end of the work, when they are on two threads; or kGivenUp, for ever.
  // kFailing: another thread than that of the body has begun to fail it.
  static constexpr uint32_t kFailing = 4;
  static constexpr uint32_t kGivenUp = 8;
  std::atomic<uint32_t> parts_{2};
  SpinLock calls_lock_;
  trace::Span span_ = trace::kNoSpan;  // constant once pushed; here, where there is room
  DoneCall* calls_ = nullptr;          // guarded by calls_lock_
  RefCount refs_;
};

}  // namespace tenon::impl
