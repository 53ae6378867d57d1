// SPDX-License-Identifier: Apache-2.0
#include "exec/seeded_executor.h"

namespace tenon::impl {

void SeededExecutor::post(Task* task) noexcept {
  const std::scoped_lock lock(lock_);
  task->next_task = nullptr;
  *end_ = task;
  end_ = &task->next_task;
  ++count_;
}

bool SeededExecutor::try_run_one() noexcept {
  const std::scoped_lock turn(turn_);
  Task* const task = draw();
  run_chain(task);
  return task != nullptr;
}

void SeededExecutor::stop() noexcept {
  while (try_run_one()) continue;
}

Task* SeededExecutor::draw() noexcept {
  const std::scoped_lock lock(lock_);
  if (count_ == 0) return nullptr;
  Task** place = &first_;
  for (uint64_t skipped = next_random() % count_; skipped > 0; --skipped) place = &(*place)->next_task;
  Task* const task = *place;
  *place = task->next_task;
  if (end_ == &task->next_task) end_ = place;
  --count_;
  return task;
}

// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
uint64_t SeededExecutor::next_random() noexcept {
  uint64_t x = state_ += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace tenon::impl
