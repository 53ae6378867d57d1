// SPDX-License-Identifier: Apache-2.0
//
// The workers of a feed: what the thread of each worker runs. A thread is one of the feed, or one that the
// generator has started (ThreadWorker). Worker processes run ProcessWorker, and need no thread here.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/ref.h"
#include "base/timed_mutex.h"
#include "base/trace.h"
#include "data/fill_loop.h"
#include "data/fill_times.h"
#include "data/reports.h"
#include "data/slots.h"
#include "data/ticket_ring.h"
#include "data/worker_processes.h"
#include "ipc/schema.h"
#include "tenon/tenon.h"

namespace tenon::impl {

// How many abandoned threads a feed may have at a time.
inline constexpr int32_t kMostAbandoned = 8;

// Counted: the feed and each worker hold a reference, so that a generator that does not return can be left
// behind with all that it uses. The last worker to leave drops the generator.
//
// A fill loop is what one thread runs. Worker i begins in loop i. If a fill takes longer than
// fill_timeout_ns, its loop is abandoned and the worker continues in another one, with the batch of the first
// one in a spare slot. The thread of the abandoned loop keeps its slot until it returns. Then its result is
// dropped, and it ends.
//
// If fill or prepare ends its thread, the batch fails, and another thread continues in the same loop with the
// reference of the ended one. If a thread that the generator has started ends, a thread of the feed continues
// in its loop, and lets each of its batches fail.
//
// Threads: a loop is used by its thread; everything else may be called by any.
class Workers {
 public:
  // The generator stays the caller's until take_over_generator(). options are checked.
  static Ref<Workers> make(const tenon_generator& generator, Ref<Schema> schema,
                           const tenon_feed_options& options);

  int32_t count() const noexcept { return count_; }
  int32_t loops() const noexcept { return static_cast<int32_t>(loops_.size()); }
  Slots& slots() const noexcept { return *slots_; }
  TicketRing& queue() noexcept { return queue_; }
  const std::string& generator_name() const noexcept { return name_; }
  // Null: the workers are threads. Valid after start().
  WorkerProcesses* processes() noexcept { return has_processes_ ? &*processes_ : nullptr; }
  const SlotLayout& layout() const noexcept { return layout_; }
  bool has_state() const noexcept { return (generator_.flags & TENON_HAS_STATE) != 0; }
  // Sets the numbers that are counted here.
  void put_counts(tenon_feed_statistics& statistics) const noexcept;
  // Of one worker.
  const FillTimes& times(int32_t worker) const noexcept { return slots_->control().loop(worker).times; }

  // Starts the processes and the threads that others run. Fails with kSystem, and with kOp as the generator's
  // start fails; then dismiss() must be called.
  void start();
  // Whether a thread of the feed runs the loop: work().
  bool needs_thread(int32_t loop) noexcept;
  // What the thread of a loop does until dismiss(), or until it is abandoned.
  void work(int32_t loop) noexcept;

  // For threads that the generator starts: ThreadWorker.

  // Null: there is none in this process, or it is closed.
  static Ref<Workers> find(uint32_t number) noexcept;
  // Null: its thread has joined, or none is to join.
  FillLoop* join(int32_t loop) noexcept;
  using JobTake = Filling::JobTake;
  // The next fill of the loop. kNone: there was none in this time. kOver: the thread has left.
  JobTake next_fill(FillLoop& loop, const Deadline& deadline, tenon_fill_request& request) noexcept;
  // Takes memory for the first bytes of a sparse slot, that of the fill. Fails with kValue, kNoMemory.
  void commit(FillLoop& loop, uint64_t nbytes);
  // The fill has ended. False: it took too long, and the thread has left.
  bool answer(FillLoop& loop, FillResult& result, const char* message) noexcept;
  // The thread leaves, in its fill or between two, before next_fill() has returned kOver.
  void end_thread(FillLoop& loop) noexcept;

  // After wait_until_left(): the first thread of this loop sleeps for ever.
  bool has_replaced(int32_t loop) const noexcept { return loops_[static_cast<size_t>(loop)].is_replaced; }
  void take_over_generator() noexcept;

  // Gives up the fills of threads that have taken longer than fill_timeout_ns, and abandons these threads.
  // has_waited: the caller has just waited, without a lock. Else a thread that runs no fill may only wait for
  // a lock of the caller's, such as Python's, and does not count as hung.
  // replace: lets the thread of one loop go, and starts that of another. False: there were none.
  // One call at a time, and none after dismiss().
  bool give_up_hung(bool has_waited, const std::function<void(int32_t abandoned, int32_t other)>& replace);
  // The oldest text on an abandoned thread, on skipped batches or on a field that was not written.
  // is_child: of a fork, which leaves what other processes have written to its parent.
  std::string take_report(bool is_child);
  // A consumer has taken this batch.
  void note_delivery(const Ticket& ticket) noexcept;

  // A feed without workers: its consumers fill, in place of the thread of loop 0.
  bool is_inline() const noexcept { return options_.workers == 0; }
  int32_t threads() const noexcept { return is_inline() ? 0 : count_; }
  // Fills the next batch in this thread, one at a time. False: there is none, or no slot (then needs_slot is
  // true), or another thread fills.
  bool fill_inline(bool* needs_slot);
  // After dismiss(): waits for a fill that runs, at most so long.
  void leave_inline(int64_t timeout_ns);

  // Ends all waiting; workers leave when their generator returns.
  void dismiss() noexcept;
  bool is_dismissed() noexcept {
    const std::scoped_lock lock(mutex_);
    return is_dismissed_;
  }
  // Whether a call of the generator has not returned that no one can end.
  bool is_busy();
  // True when all workers have left and the generator is dropped, or only threads are left that the generator
  // has started, and that run code of their own: who has started them joins them.
  bool wait_until_left(int64_t timeout_ns);
  // Ends the worker processes. After dismiss().
  void end_processes() noexcept;
  // The generator, in this thread, is the caller.
  bool is_called_by_worker() const noexcept { return working_for_ == this; }
  // One of the workers at least is a thread that the generator has started. Constant after start().
  bool are_started() const noexcept { return are_started_; }

  void retain() noexcept { refs_.increment(); }
  void release() noexcept {
    if (refs_.decrement()) delete this;
  }

 private:
  Workers(const tenon_generator& generator, Ref<Schema> schema, const tenon_feed_options& options);
  ~Workers();

  // The two halves of what the thread of a loop does; between them it runs the generator.
  // begin: loop.job() is to be filled then. kOver: after dismiss().
  JobTake begin(FillLoop& loop, const Deadline& deadline);
  // end: the batch is settled, or begin() returns it again. False: the loop was abandoned, and is another
  // thread's.
  bool end(FillLoop& loop, const FillResult& result);
  void drop_jobs(FillLoop& loop) noexcept;
  void fill_batches(FillLoop& loop);
  [[noreturn, gnu::cold]] void go_on_elsewhere(FillLoop& loop) noexcept;
  void go_on(FillLoop& loop, Ref<Workers> self) noexcept;

  // Worker processes: their deaths, and what is prepared for them.
  void start_processes();
  void settle_dead(int32_t worker, const WorkerProcesses::End& end, const Ticket& ticket);
  bool end_process(int32_t worker, const WorkerProcesses::End& end) noexcept;
  bool tell_owed(int32_t worker, const WorkerProcesses::End& end) noexcept;
  void leave_processes() noexcept;
  bool has_process(const FillLoop& loop) const noexcept {
    return has_processes_ && loop.number < count_ && processes_->has_process(loop.number);
  }
  void prepare_batches(FillLoop& loop);
  bool is_preparer(const FillLoop& loop) const noexcept {
    return !prepared_.empty() && loop.number == loops() - 1;
  }

  // Threads that the generator starts: started_threads.cc.
  void set_findable(bool is_findable) noexcept;
  void expect_thread(FillLoop& loop) noexcept;
  bool note_start(FillLoop& loop, bool has_failed) noexcept;
  std::string call_start(const FillLoop& loop) noexcept;
  std::string start_thread(FillLoop& loop);
  void start_beside(FillLoop& loop) noexcept;
  void note_outside(FillLoop& loop) noexcept;
  bool are_rest_started() const noexcept;

  // Threads that hang: hung_threads.cc.
  void return_late(FillLoop& loop) noexcept;
  bool may_replace() const noexcept;
  std::string lost_text();
  FillLoop* find_free_loop() noexcept;
  bool abandon(FillLoop& loop, int64_t since_ns,
               const std::function<void(int32_t abandoned, int32_t other)>& replace, bool is_any_in_time);
  void hand_over(FillLoop& loop, FillLoop& other, int32_t spare) noexcept;
  void lose(FillLoop& loop, const char* reason) noexcept;
  bool give_up_stuck(bool is_any_at_work);
  void report(FillLoop& loop, int64_t since_ns) noexcept;

  FillTimes& times_of(int32_t worker) const noexcept { return slots_->control().loop(worker).times; }
  FeedShared& shared() const noexcept { return slots_->control().shared(); }
  void settle(FillLoop& loop, const Job& job, const FillResult& result, bool was_begun = true) noexcept;
  Filling::Hooks hooks_of(FillLoop& loop) noexcept;
  static uint32_t holder_of(const FillLoop& loop) noexcept {
    return Slots::kFirstLoop + static_cast<uint32_t>(loop.number);
  }
  trace::Span begin_span(trace::SpanKind kind, uint64_t key, int32_t worker, const Job* job) const noexcept;
  void note_fill(int32_t worker, const Job& job, const FillResult& result) const noexcept;
  bool take_memory(int32_t slot, std::string& reason) noexcept;
  bool prepare(FillLoop& loop, Job& job);
  tenon_fill_request fill_request(const Job& job, FillLoop& loop);
  void fill_here(FillLoop& loop, FillResult& result);
  bool note_left() noexcept;
  void leave() noexcept;
  void leave_started() noexcept;
  void drop_generator() noexcept;
  void leave(FillLoop& loop) noexcept;

  // The feed whose generator this thread runs.
  static constinit thread_local const Workers* working_for_;

  // Constant after construction.
  tenon_generator generator_;
  const std::string name_;
  const uint32_t number_;  // of the feed, in a timeline
  const Ref<Schema> schema_;
  const tenon_feed_options options_;
  const SlotLayout layout_;
  const Ref<Slots> slots_;
  const int32_t count_;

  TicketRing queue_;
  std::optional<WorkerProcesses> processes_;
  bool are_started_;            // one at least, by the generator; constant after start()
  bool has_processes_ = false;  // constant after start()
  std::mutex ending_;           // of processes_
  Ref<Workers> supervised_;     // of the thread of processes_, until that ends
  // By slot, with on_error retry: the attachments that were prepared for worker processes. Written by the
  // holder of the slot.
  std::vector<std::vector<std::byte>> prepared_;
  Workers* next_ = nullptr;             // of those that threads may join; guarded by a lock of all
  std::atomic<uint64_t> abandoned_{0};  // shared: a plain counter
  std::vector<FillLoop> loops_;

  TimedMutex inline_;             // held by the consumer that fills
  bool has_left_inline_ = false;  // guarded by inline_

  Reports reports_;

  TimedMutex preparing_;  // held from a ticket to the end of what prepares it: they come in order

  std::mutex mutex_;
  std::condition_variable left_;
  // Guarded by mutex_ once threads run.
  int32_t running_ = 0;   // threads that have not left
  int32_t starting_ = 0;  // of these, threads of the feed in which the generator starts another one
  std::string lost_;      // why a worker has no thread
  bool is_dismissed_ = false;
  bool owns_generator_ = false;
  bool have_left_ = false;

  RefCount refs_;
};

}  // namespace tenon::impl
