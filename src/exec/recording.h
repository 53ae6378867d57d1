// SPDX-License-Identifier: Apache-2.0
//
// Bodies that are recorded once and run together as one op, any number of times. The op claims what the
// bodies use together, so that leases, views, failures and deadlocks concern the op as a whole. Inside of
// it, the order of the bodies was computed when they were recorded: a body costs one call, and one counter
// for each later body whose use of memory conflicts with its own.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/fork_mark.h"
#include "base/ref.h"
#include "base/spin_lock.h"
#include "exec/executor.h"
#include "exec/op.h"
#include "exec/step_graph.h"
#include "sync/queue.h"

namespace tenon::impl {

// A body, as of tenon_work. It ends with complete() or fail() of the op that it gets, before it returns.
struct RecordedBody {
  void* context = nullptr;
  void (*run)(void* context, tenon_op* op) = nullptr;
};

// Counted: the owners of handles, and each op until it is done.
// Threads: one at a time until the first make_op() has returned; then any.
// Invariant: its ops run one after another, because each claims for writing what its bodies write or, if they
// write nothing, a queue of the recording.
class Recording final : public Bodies {
 public:
  // What the recording keeps: drop(object) is called once, when the last owner is gone.
  struct Kept {
    void* object;
    void (*drop)(void* object);
  };

  // Throws std::bad_alloc.
  static Ref<Recording> create();

  // Adds a body, which runs once in each op, after the earlier bodies whose use of memory conflicts:
  // begin_add(), add_use() for each use, keep() for each object, and end_add(). texts are copied. Throw
  // std::bad_alloc; begin_add() fails with kValue after the first make_op().
  void begin_add(const RecordedBody& body, const BodyTexts& texts);
  void add_use(const StepUse& use) { graph_.use(use); }
  void keep(const Kept& kept) { kept_.push_back(kept); }
  void end_add() noexcept { is_incomplete_ = false; }
  // A body needs the lock of a language, so each op does (Request::kNeedsLock).
  void set_needs_lock() noexcept { needs_lock_ = true; }

  // True at the first call with an object, and possibly at later ones.
  bool is_new(const void* object) noexcept;

  // A new op that runs all bodies, to be pushed. name and site are copied. Throws std::bad_alloc, and fails
  // with kNoMemory if an add() did.
  Ref<Op> make_op(const char* name, const char* site);

  uint32_t size() const noexcept { return graph_.size(); }
  std::span<const Kept> kept() const noexcept { return kept_; }

  void retain() noexcept { owners_.increment(); }
  void release() noexcept;

  void end_body(const Op& op, Ref<Failure> failure) noexcept override;
  BodyTexts texts() const noexcept override;
  void retain_memory() noexcept override { refs_.increment(); }
  void end_op(const Op& op) noexcept override;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  // A body and its state during an op. All but the body is set by prepare().
  struct Step {
    RecordedBody body;
    uint32_t n_before = 0;        // steps that it waits for
    uint32_t waits_for = 0;       // unfinished ones; n_before when none of them has run. Atomic during an op
    uint32_t next_ready = kNone;  // in the list of ready steps
    uint32_t edges_end = 0;       // its edges begin where those of the step before end
  };
  // Posted if there are ready steps that no thread runs: a thread that runs it takes some. Several threads
  // may run it at a time, or late: within a later op, or when there is none.
  class Helper final : public Task {
   public:
    explicit Helper(Recording& recording) noexcept : recording_(recording) {}
    Task* run() noexcept override;

   private:
    Recording& recording_;
  };
  struct Turn {
    Queue queue;
    Home home{&queue};
  };
  class InOp;
  struct Runner;
  // The parts of an op, one for each claim, which follow in memory.
  struct alignas(RequestPart) Parts {
    Parts* next = nullptr;  // in spare_
    RequestPart* first() noexcept { return reinterpret_cast<RequestPart*>(this + 1); }
  };
  // The most bytes of parts that are kept for later ops.
  static constexpr size_t kMostSpare = 4 << 20;

  Recording() = default;
  ~Recording();
  void release_memory() noexcept;
  size_t parts_nbytes() const noexcept { return sizeof(Parts) + claims_.size() * sizeof(RequestPart); }
  RequestPart* take_parts();
  void keep_parts(Parts* first, Parts* last) noexcept;
  const char* copy(const char* text, const char* last);
  BodyTexts texts_of(uint32_t step) const noexcept;
  void prepare();
  void start_anew() noexcept;
  static void run(void* context, Op* op);
  static void drop(void* context);
  void work() noexcept;
  void run_steps(Runner* runner);
  bool find_step(Runner* runner) noexcept;
  void run_step(Runner* runner);
  void end_step(Runner* runner) noexcept;
  bool claim_roots(Runner* runner) noexcept;
  void push_ready(uint32_t step) noexcept;
  uint32_t pop_ready() noexcept;
  void call_helper() noexcept;
  void fail_step(Runner* runner, const char* message) noexcept;
  void note_failure(Ref<Failure> failure) noexcept;

  // Written by add(), then constant, but for the state of the steps.
  StepGraph graph_;
  std::vector<Step> steps_;
  // The texts of the bodies from a number on, until the next entry.
  struct TextsFrom {
    uint32_t step;
    BodyTexts texts;
  };
  std::vector<TextsFrom> texts_;
  BodyTexts last_texts_;
  std::vector<Kept> kept_;
  std::vector<std::unique_ptr<char[]>> copies_;  // of texts
  std::array<const void*, 256> recent_{};        // of is_new()
  bool is_incomplete_ = false;                   // an add() had no memory
  bool needs_lock_ = false;

  // Written by the first make_op(), then constant.
  bool is_prepared_ = false;
  uint32_t n_threads_ = 0;       // that may run steps
  std::unique_ptr<Turn> turn_;   // of bodies that write nothing
  std::vector<StepUse> claims_;  // in the order of their queues
  std::vector<uint32_t> roots_;  // steps that wait for no other
  std::vector<uint32_t> edges_;  // the steps that wait for each step, one after the other

  // Of the op that runs. A thread that has taken a step sees the step's op.
  Op* op_ = nullptr;
  ForkMark process_;  // in which the last op began
  Ref<Failure> failure_;
  std::atomic<bool> has_failed_{false};
  std::atomic<Op*> last_kept_{nullptr};  // the last op that is never destroyed (Op::keep_for_ever)

  // Shared. Steps that are ready and that no thread has taken: the roots from next_root_ on, and a list.
  alignas(64) std::atomic<uint32_t> next_root_{kNone};
  SpinLock ready_lock_;
  std::atomic<uint32_t> ready_{kNone};  // written under ready_lock_; without it a hint
  std::atomic<bool> is_helper_posted_{false};
  Helper helper_{*this};
  alignas(64) std::atomic<uint32_t> unfinished_{0};

  // Shared. Parts of ops that were destroyed, as the claims say, for later ops. Without a lock, because a
  // fork does not wait for threads that are here.
  std::atomic<Parts*> spare_{nullptr};
  std::atomic<size_t> spare_nbytes_{0};

  RefCount owners_;
  RefCount refs_;  // of the memory: all owners together, ops that are not destroyed, the posted helper
};

}  // namespace tenon::impl
