// SPDX-License-Identifier: Apache-2.0
//
// The workers of a feed: the loop that the thread of each worker runs, and what it needs. The thread fills
// batches itself, or asks a worker process. Feed has the threads, WorkerProcesses the processes.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/ref.h"
#include "base/spin_budget.h"
#include "base/timed_mutex.h"
#include "base/trace.h"
#include "data/fill_times.h"
#include "data/reports.h"
#include "data/skips.h"
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
// fill_timeout_ns, its loop is abandoned and the worker continues in another one, with the batches of the
// first one in spare slots. The thread of the abandoned loop keeps its slots until it returns. Then its
// results are dropped, and it ends.
//
// If fill or prepare ends its thread, the batch fails, and another thread continues in the same loop with the
// reference of the ended one.
//
// Threads: work(loop) is run by one thread; everything else may be called by any.
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
  // Null: the workers are threads.
  WorkerProcesses* processes() noexcept { return processes_ ? &*processes_ : nullptr; }
  // Workers can be killed.
  bool has_processes() const noexcept { return processes_ && !processes_->are_threads(); }
  const SlotLayout& layout() const noexcept { return layout_; }
  bool has_state() const noexcept { return (generator_.flags & TENON_HAS_STATE) != 0; }
  // Sets the numbers that are counted here.
  void put_counts(tenon_feed_statistics& statistics) const noexcept;
  // Of one worker.
  const FillTimes& times(int32_t worker) const noexcept { return times_[static_cast<size_t>(worker)]; }

  // What the thread of a loop does until dismiss(), or until it is abandoned.
  void work(int32_t loop) noexcept;
  // After wait_until_left(): the first thread of this loop sleeps for ever.
  bool has_replaced(int32_t loop) const noexcept { return loops_[static_cast<size_t>(loop)].is_replaced; }
  // The number of threads that will run work(), before the first of them starts.
  void expect(int32_t count) noexcept { running_ = count; }
  void take_over_generator() noexcept;

  // Gives up the fills of threads that have taken longer than fill_timeout_ns, and abandons these threads.
  // replace: lets the thread of one loop go, and starts that of another. False: there were none.
  // One call at a time, and none after dismiss().
  bool give_up_hung(const std::function<void(int32_t abandoned, int32_t other)>& replace);
  // The oldest text on an abandoned thread, on skipped batches or on a field that was not written.
  std::string take_report() { return reports_.take(); }

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
  // Whether a call of the generator has not returned that no one can end.
  bool is_busy();
  // True when all workers have left and the generator is dropped.
  bool wait_until_left(int64_t timeout_ns);
  // The caller is one of these workers.
  bool is_called_by_worker() const noexcept;

  void retain() noexcept { refs_.increment(); }
  void release() noexcept {
    if (refs_.decrement()) delete this;
  }

 private:
  // A batch that is being filled.
  struct Job : Ticket {
    int32_t retries = 0;
    std::vector<std::byte> attachment;  // from before the fill
    std::optional<StateRef> restored;   // the state with which it is filled; none: as the worker is

    // Requires that none is restored yet.
    void restore(StateRef state) noexcept {
      flags |= state ? TENON_RESTORE_STATE : TENON_RESTORE_START;
      restore_nbytes = state ? state->size() : 0;
      restored = std::move(state);
    }
  };
  enum class JobTake { kJob, kNone, kOver };
  // The state of a worker's generator. Used by its thread only.
  struct KnownState {
    StateRef last;         // after its last fill
    bool is_lost = false;  // the generator has another state: its process is new, or a fill left none
  };

  // In place of the time when a fill began.
  static constexpr int64_t kIdle = 0, kAbandoned = -1, kFree = -2;
  struct FillLoop {
    int32_t number = 0;
    // Of the thread that runs it; of the one that abandons it from then on.
    int32_t worker = 0;
    std::array<Job, kRingEntries> jobs;  // in order of the requests: number n lies at n % kRingEntries
    uint32_t begun = 0, settled = 0;
    bool is_second = false;     // it continues an abandoned one, and has no thread yet
    bool is_replaced = false;   // its first thread has ended
    bool has_ended = false;     // the fill that was begun first has, without a result: so has its thread
    std::vector<void*> fields;  // addresses for the request
    std::vector<int64_t*> shapes;
    // Shared. Of the fill for which the thread waits. The thread ends it, or another one abandons the loop.
    std::atomic<int64_t> since_ns{kFree};
    std::atomic<uint32_t> thread{0};
  };

  Workers(const tenon_generator& generator, Ref<Schema> schema, const tenon_feed_options& options);

  [[noreturn, gnu::cold]] void go_on_elsewhere(FillLoop& loop) noexcept;
  void fill_batches(FillLoop& loop);
  void begin_fill(FillLoop& loop, Job& job) noexcept;
  bool end_fill(FillLoop& loop, const Job& job, FillResult& result);
  void put_state(int32_t worker, Job& job) noexcept;
  void read_report(const Job& job, FillResult& result) const;
  void note_state(int32_t worker, Job& job, const FillResult& result, bool is_again);
  void return_late(FillLoop& loop) noexcept;
  bool may_replace() const noexcept;
  bool abandon(FillLoop& loop, int64_t since_ns,
               const std::function<void(int32_t abandoned, int32_t other)>& replace);
  void hand_over(FillLoop& loop, FillLoop& other, int32_t* spares) noexcept;
  void lose(FillLoop& loop, const char* reason) noexcept;
  bool give_up_stuck(bool is_any_at_work);
  void report(const FillLoop& loop, int64_t since_ns) noexcept;
  static uint32_t holder_of(const FillLoop& loop) noexcept {
    return Slots::kFirstLoop + static_cast<uint32_t>(loop.number);
  }
  int32_t take_slot(const FillLoop& loop, SpinBudget& short_wait) noexcept;
  trace::Span begin_span(trace::SpanKind kind, int32_t worker, const Job* job) const noexcept;
  void note_fill(int32_t worker, const Job& job, const FillResult& result) const noexcept;
  JobTake take_job(FillLoop& loop, bool may_wait, SpinBudget& short_wait, Job& job);
  bool take_memory(int32_t slot, std::string& reason) noexcept;
  bool prepare(FillLoop& loop, Job& job);
  tenon_fill_request fill_request(const Job& job, FillLoop& loop);
  void put_back(const Job& job) noexcept;
  void fill_here(FillLoop& loop, const Job& job, FillResult& result);
  bool is_retried(const FillLoop& loop, Job& job, const FillResult& result);
  void retry(Job& job) noexcept;
  bool is_failure(const FillResult& result) const noexcept;
  void note_unwritten(FillResult& result) noexcept;
  void check_shapes(const Job& job, FillResult& result) const;
  bool skip(const Job& job, const FillResult& result) noexcept;
  void settle(int32_t worker, const Job& job, const FillResult& result) noexcept;
  void leave() noexcept;

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
  // Shared: plain counters.
  std::atomic<uint64_t> blocked_ns_{0}, blocked_by_consumer_ns_{0}, retried_{0}, unwritten_{0}, abandoned_{0};
  std::vector<FillTimes> times_;   // by worker
  std::vector<KnownState> known_;  // by worker
  std::vector<FillLoop> loops_;

  TimedMutex inline_;             // held by the consumer that fills
  bool has_left_inline_ = false;  // guarded by inline_

  std::string lost_;  // why a worker has no thread; used in give_up_hung() only

  Reports reports_;
  Skips skips_;

  std::mutex preparing_;  // held from a ticket to the end of what prepares it: they come in order

  std::mutex mutex_;
  std::condition_variable left_;
  // Guarded by mutex_ once threads run.
  int32_t running_ = 0;
  bool owns_generator_ = false;
  bool have_left_ = false;

  RefCount refs_;
};

}  // namespace tenon::impl
