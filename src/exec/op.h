// SPDX-License-Identifier: Apache-2.0
//
// An op: work that runs when all of its parts are granted, and its outcome.
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

// The work of an op. run is called once, on any thread; then or later, any thread calls Op::complete or
// Op::fail. run is not called if an input of the op has failed. drop is called once in every case, before the
// op counts as done. Neither throws.
struct Work {
  void* context = nullptr;
  void (*run)(void* context, Op* op) = nullptr;
  void (*drop)(void* context) = nullptr;  // may be null
};

// Called once when an op is done, or at once if it is done already.
struct DoneCall {
  void (*call)(void* context) = nullptr;
  void* context = nullptr;
  DoneCall* next = nullptr;
};

// Counted. References: owners of handles, the engine until it is done, the executor while it is posted.
// Threads: any; wait() not from inside of a body.
class Op final : public Request, public Task {
 public:
  // With n_parts parts, which the caller fills in. context_size: bytes for the context of the work in the
  // memory of the op; 0: the context is elsewhere. name and site are copied. Throws std::bad_alloc.
  static Ref<Op> create(const Work& work, size_t n_parts, const char* name, const char* site,
                        size_t context_size = 0);

  bool is_done() const noexcept {
    // pairs with: Op::finish, "an op's result"
    return (state_.load(std::memory_order_acquire) & kStateBits) == kDone;
  }

  // The body has ended. Exactly one of these two is called, once, from any thread.
  void complete() noexcept { end_body(1); }
  void fail(Ref<Failure> failure) noexcept;

  // For the body of an op on a stream (Request::kOnStream), instead of complete() or fail(): its work has
  // been submitted, and ends with the event of completion, which lives until the op is done. Other ops on
  // streams continue. completion->done is called after the body has returned and the event has come. It ends
  // the op with end_submitted(), after those ops whose events the stream of this one has waited for.
  void submit(device::Completion* completion) noexcept;
  // status: of the event. If memory that the op reads holds no value by now, the op fails in the same way.
  void end_submitted(device::Status status) noexcept;

  // Waits until it is done. Without a deadline, runs it in this thread if it is ready and no other thread
  // runs it. False: the conflict says why.
  bool wait(const Deadline& deadline, Conflict* conflict) noexcept;

  // The body has begun and not ended; a hint.
  bool is_running() const noexcept {
    return (state_.load(std::memory_order_relaxed) & kStateBits) == kRunning;
  }

  // Requires is_done(). Null: it succeeded.
  const Ref<Failure>& failure() const noexcept { return failure_; }

  // call must live until it has been called.
  void call_when_done(DoneCall* call) noexcept;

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
  // Again, if the body has ended its thread: in the thread that takes the place of that one. Then the op
  // fails, unless it was ended before. Another thread may still have it and end it later, without effect.
  Task* run() noexcept override;
  void hold() noexcept override { retain(); }
  void drop() noexcept override { release(); }
  void* context() const noexcept { return work_.context; }
  // For an op that was not pushed: returns its context to the caller.
  void* give_up() noexcept { return std::exchange(work_.context, nullptr); }
  // Before it is pushed: the span that records its progress. The key of the span is the number of the op.
  void set_span(trace::Span span) noexcept { span_ = span; }
  trace::Span span() const noexcept { return span_; }
  // After a fork: ends an op that will never run and that no other thread uses.
  void abandon(Ref<Failure> failure) noexcept;

 private:
  friend class Engine;
  // The states, and two bits: a thread sleeps on the word, and calls_ is not empty.
  static constexpr uint32_t kQueued = 0;
  static constexpr uint32_t kReady = 1;
  static constexpr uint32_t kRunning = 2;
  static constexpr uint32_t kDone = 3;
  static constexpr uint32_t kStateBits = 3;
  static constexpr uint32_t kHasWaiters = 4;
  static constexpr uint32_t kHasCalls = 8;

  Op(const Work& work, std::span<RequestPart> op_parts) noexcept;
  ~Op() = default;

  // The result of execute(): an op that became ready and runs next, and whether this op is done.
  struct Outcome {
    Task* next = nullptr;
    bool is_done = false;
  };
  bool begin_running() noexcept;
  [[gnu::noinline]] Outcome run_with_lock() noexcept;
  // Ends the process.
  [[noreturn]] void end_forked_child() const noexcept;
  // Of the body, which does not return. has_lock: this thread has entered.
  [[noreturn, gnu::cold]] void end_thread(bool has_lock) noexcept;
  [[gnu::cold]] Outcome end_unreturned() noexcept;
  Outcome end_run() noexcept;
  bool set_bit(uint32_t bit) noexcept;
  Outcome execute(void* token = nullptr) noexcept;
  void end_body(uint32_t part) noexcept;
  [[gnu::cold]] void note_end() const noexcept;
  Task* finish() noexcept;

  // Constant once pushed.
  Work work_;
  uint64_t number_ = 0;
  uint32_t size_ = 0;  // of its block
  // Used by the thread that runs the body, then by the one that finishes the op.
  bool has_ended_in_place_ = false;
  bool has_ended_thread_ = false;  // then also used by the thread that takes the place
  Ref<Failure> failure_;
  // Written by the body before its parts are submitted, then constant.
  device::Completion* submitted_ = nullptr;

  // Shared.
  std::atomic<uint32_t> state_{kQueued};
  // Counts the return of run() and the end of the work, if they are on two threads; or kGivenUp, forever.
  // kFailing: a thread other than that of the body has begun to fail it.
  static constexpr uint32_t kFailing = 4;
  static constexpr uint32_t kGivenUp = 8;
  std::atomic<uint32_t> parts_{2};
  SpinLock calls_lock_;
  trace::Span span_ = trace::kNoSpan;  // constant once pushed; here, to fill a gap
  DoneCall* calls_ = nullptr;          // guarded by calls_lock_
  RefCount refs_;
};

}  // namespace tenon::impl
