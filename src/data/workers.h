// SPDX-License-Identifier: Apache-2.0
//
// The workers of a feed: the loop that the thread of each worker runs, and everything that it needs. The
// thread fills batches itself, or has a worker process do it. The threads belong to data/feed.h, the
// processes to data/worker_processes.h.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/ref.h"
#include "base/spin_budget.h"
#include "base/trace.h"
#include "data/fill_times.h"
#include "data/schema.h"
#include "data/slots.h"
#include "data/ticket_queue.h"
#include "data/worker_processes.h"
#include "tenon/tenon.h"

namespace tenon::impl {

// Counted: the feed and each worker hold a reference, so that a generator that does not return can be left
// behind with all that it uses. The last worker to leave drops the generator.
// Threads: work(i) is run by one thread; everything else may be called by any.
class Workers {
 public:
  // The generator stays the caller's until take_over_generator(). options are checked.
  static Ref<Workers> make(const tenon_generator& generator, Ref<Schema> schema,
                           const tenon_feed_options& options);

  int32_t count() const noexcept { return count_; }
  Slots& slots() const noexcept { return *slots_; }
  TicketQueue& queue() noexcept { return queue_; }
  const std::string& generator_name() const noexcept { return name_; }
  // Null: the workers are threads.
  WorkerProcesses* processes() noexcept { return processes_ ? &*processes_ : nullptr; }
  // Workers can be killed.
  bool has_processes() const noexcept { return processes_ && !processes_->is_thread(0); }
  const SlotLayout& layout() const noexcept { return layout_; }
  // Time that workers waited for a free slot; of that, while filled batches lay ready.
  uint64_t blocked_ns() const noexcept { return blocked_ns_.load(std::memory_order_relaxed); }
  uint64_t blocked_by_consumer_ns() const noexcept {
    return blocked_by_consumer_ns_.load(std::memory_order_relaxed);
  }
  uint64_t retried() const noexcept { return retried_.load(std::memory_order_relaxed); }
  uint64_t unwritten() const noexcept { return unwritten_.load(std::memory_order_relaxed); }
  // Of one worker.
  const FillTimes& times(int32_t worker) const noexcept { return times_[static_cast<size_t>(worker)]; }

  // What worker number i (from 0) does until dismiss().
  void work(int32_t worker) noexcept;
  // The number of threads that will run work(), before the first of them starts.
  void expect(int32_t count) noexcept { running_ = count; }
  void take_over_generator() noexcept;

  // Ends all waiting; workers leave when their generator returns.
  void dismiss() noexcept;
  // True when all workers have left and the generator is dropped.
  bool wait_until_left(int64_t timeout_ns);
  // The caller is one of these workers.
  bool is_called_by_worker() const noexcept;

  void retain() noexcept { refs_.increment(); }
  void release() noexcept {
    if (refs_.decrement()) delete this;
  }

 private:
  // A batch on its way.
  struct Job {
    Ticket ticket;
    int32_t slot = -1;
    int32_t retries = 0;
    std::vector<std::byte> attachment;  // to be there again when it is filled again
  };
  enum class JobTake { kJob, kNone, kOver };

  Workers(const tenon_generator& generator, Ref<Schema> schema, const tenon_feed_options& options);

  void fill_batches(int32_t worker);
  void begin_fill(int32_t worker, const Job& job) noexcept;
  bool end_fill(int32_t worker, const Job& job, FillResult& result);
  int32_t take_slot(int32_t worker, SpinBudget& short_wait) noexcept;
  trace::Span begin_span(trace::SpanKind kind, int32_t worker, const Job* job) const noexcept;
  void note_fill(int32_t worker, const Job& job, const FillResult& result) const noexcept;
  JobTake take_job(int32_t worker, bool may_wait, SpinBudget& short_wait, Job& job);
  bool prepare(int32_t worker, Job& job);
  void describe(const Job& job, int32_t worker, tenon_fill_request& request);
  void put_back(const Job& job) noexcept;
  void fill_here(int32_t worker, const Job& job, FillResult& result);
  bool may_retry(const Job& job, const FillResult& result) noexcept;
  bool is_failure(const FillResult& result) const noexcept;
  void note_unwritten(FillResult& result) noexcept;
  void check_shapes(const Job& job, FillResult& result) const;
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

  TicketQueue queue_;
  std::optional<WorkerProcesses> processes_;
  // Shared: plain counters.
  std::atomic<uint64_t> blocked_ns_{0}, blocked_by_consumer_ns_{0}, retried_{0}, unwritten_{0};
  std::vector<FillTimes> times_;  // by worker
  // By worker: addresses for the request; used by that worker only.
  std::vector<std::vector<void*>> fields_;
  std::vector<std::vector<int64_t*>> shapes_;

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
