// SPDX-License-Identifier: Apache-2.0
//
// libtenon_tbb.so: an executor on the threads of oneTBB.
#include "engine/tbb_executor.h"

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/task_arena.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <new>
#include <optional>

namespace tenon::engine {
namespace {

// An arena of its own, without a place for the thread that posts. oneTBB keeps the tasks, and no thread from
// outside can take one of them. Threads: as Executor.
class TbbExecutor final : public Executor {
 public:
  explicit TbbExecutor(int workers)
      : workers_(workers),
        scheduler_(tbb::attach{}),
        // oneTBB counts the thread that makes this as well.
        threads_(std::in_place, tbb::global_control::max_allowed_parallelism,
                 static_cast<size_t>(workers) + 1),
        arena_(std::in_place, workers, 0) {
    arena_->initialize();
  }

  // oneTBB allocates for each task; without memory the task runs at once.
  void post(Task* task) noexcept override {
    posted_.fetch_add(1, std::memory_order_relaxed);
    try {
      arena_->enqueue([this, task] { run(task); });
    } catch (const std::bad_alloc&) {
      run(task);
    }
  }

  bool try_run_one() noexcept override { return false; }
  bool has_own_threads() const noexcept override { return true; }
  int concurrency() const noexcept override { return workers_; }

  void stop() noexcept override {
    while (!is_done()) {
      const timespec a_while{0, 50'000};
      nanosleep(&a_while, nullptr);
    }
    arena_.reset();
    threads_.reset();
    tbb::finalize(scheduler_, std::nothrow);
  }

 private:
  void run(Task* task) noexcept {
    run_chain(task);
    // pairs with: TbbExecutor::is_done, "all that the task posted"
    finished_.fetch_add(1, std::memory_order_release);
  }

  // A task counts as finished after all that it posted counts as posted. So where the first number, read
  // first, equals the second, nothing runs that could post.
  bool is_done() const noexcept {
    // pairs with: TbbExecutor::run, "all that the task posted"
    const uint64_t finished = finished_.load(std::memory_order_acquire);
    return finished == posted_.load(std::memory_order_relaxed);
  }

  const int workers_;
  tbb::task_scheduler_handle scheduler_;
  std::optional<tbb::global_control> threads_;
  std::optional<tbb::task_arena> arena_;

  // On lines of their own: two sides count.
  alignas(64) std::atomic<uint64_t> posted_{0};
  alignas(64) std::atomic<uint64_t> finished_{0};
};

}  // namespace
}  // namespace tenon::engine

extern "C" __attribute__((visibility("default"))) tenon::engine::Executor* tenon_tbb_executor(
    int workers, char* message, size_t message_size) {
  try {
    return new tenon::engine::TbbExecutor(workers);
  } catch (const std::exception& e) {
    std::snprintf(message, message_size, "%s", e.what());
    return nullptr;
  }
}

static_assert(std::is_same_v<decltype(&tenon_tbb_executor), tenon::engine::TbbExecutorFactory>);
