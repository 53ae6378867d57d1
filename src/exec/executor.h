// SPDX-License-Identifier: Apache-2.0
//
// Executors run ready tasks. The queues decide what is ready; an executor only provides a thread. Executors
// do not know arrays, leases or ops.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace tenon::impl {

// A piece of ready work. Intrusive: posting it allocates nothing.
class Task {
 public:
  // Runs once. It may return another ready task, which runs next on this thread, so that a chain of dependent
  // tasks passes through no queue.
  virtual Task* run() noexcept = 0;

  Task* next_task = nullptr;  // used by the executor from post() until run()

 protected:
  ~Task() = default;
};

// Runs task, then the task that it returned, and so on.
inline void run_chain(Task* task) noexcept {
  while (task != nullptr) task = task->run();
}

// Threads: post() and try_run_one() from any thread, also from inside of tasks; stop() once, from none of the
// executor's own threads.
class Executor {
 public:
  Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  virtual ~Executor() = default;  // after stop()

  // Takes the task; it will run exactly once. Roughly first in, first out. Never waits.
  virtual void post(Task* task) noexcept = 0;

  // Runs one posted task and its chain in the calling thread; false if there was none. An executor with
  // threads of its own may always return false.
  virtual bool try_run_one() noexcept = 0;

  // True if posted tasks run without calls of try_run_one().
  virtual bool has_own_threads() const noexcept = 0;

  // Runs all posted tasks, then ends the threads. Requires that no thread outside of the executor calls
  // post() or is in try_run_one().
  virtual void stop() noexcept = 0;
};

// "pool", "inline" or "seeded:N". workers: threads of "pool", at most 1024; 0 means one for each processor
// that this process may use, at least 2. Fails with kValue for other names and numbers, kSystem when threads
// cannot be started.
std::unique_ptr<Executor> make_executor(std::string_view name, int workers);

}  // namespace tenon::impl
