// SPDX-License-Identifier: Apache-2.0
//
// The executor for tests: one task at a time, in an order drawn from a seed, so that a run can be repeated.
// The order is a function of the seed and of the order of posts and runs: with one thread, of the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "base/spin_lock.h"
#include "exec/executor.h"

namespace tenon::impl {

// Runs nothing by itself. Threads: as Executor. While one thread runs a task, others wait in try_run_one()
// for their turn. They do not get false, because a thread that waits for a task must be able to run it when
// the first thread stops. From inside of a task, try_run_one() runs another task at once. The cost of a draw
// grows with the number of posted tasks.
class SeededExecutor final : public Executor {
 public:
  explicit SeededExecutor(uint64_t seed) : state_(seed) {}

  void post(Task* task) noexcept override;
  bool try_run_one() noexcept override;
  bool has_own_threads() const noexcept override { return false; }
  void stop() noexcept override;

 private:
  Task* draw() noexcept;
  uint64_t next_random() noexcept;

  std::recursive_mutex turn_;  // held while a task runs

  SpinLock lock_;
  // Guarded by lock_.
  Task* first_ = nullptr;
  Task** end_ = &first_;  // where the next one is linked
  size_t count_ = 0;
  uint64_t state_;
};

}  // namespace tenon::impl
