// SPDX-License-Identifier: Apache-2.0
#include "exec/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <exception>
#include <mutex>

#include "base/blocked_signals.h"
#include "base/error.h"
#include "base/foreign_call.h"
#include "base/futex.h"

namespace tenon::impl {
namespace {

// The most tasks that one thread takes from another: the lock is held while they are counted.
constexpr uint32_t kMostTaken = 32;

constexpr int kLooksBeforeWaking = 24;

constinit thread_local ThreadPool* this_pool = nullptr;
constinit thread_local size_t this_worker = 0;

}  // namespace

bool ThreadPool::TaskList::is_empty() const noexcept {
  // pairs with: ThreadPool::TaskList::append, "in sight or asleep"
  return count_.load(std::memory_order_seq_cst) == 0;
}

Task* ThreadPool::TaskList::pop() noexcept {
  if (count_.load(std::memory_order_relaxed) == 0) return nullptr;
  const std::scoped_lock lock(lock_);
  const uint32_t count = count_.load(std::memory_order_relaxed);
  if (count == 0) return nullptr;
  Task* const task = first_;
  first_ = task->next_task;
  count_.store(count - 1, std::memory_order_relaxed);
  return task;
}

void ThreadPool::TaskList::append(const TaskBatch& batch) noexcept {
  const std::scoped_lock lock(lock_);
  const uint32_t count = count_.load(std::memory_order_relaxed);
  (count == 0 ? first_ : last_->next_task) = batch.first;
  last_ = batch.last;
  // pairs with: ThreadPool::TaskList::is_empty, "in sight or asleep"
  count_.store(count + batch.count, std::memory_order_seq_cst);
}

ThreadPool::TaskBatch ThreadPool::TaskList::take_half() noexcept {
  if (count_.load(std::memory_order_relaxed) == 0) return {};
  const std::scoped_lock lock(lock_);
  const uint32_t count = count_.load(std::memory_order_relaxed);
  if (count == 0) return {};
  TaskBatch batch{first_, first_, std::min((count + 1) / 2, kMostTaken)};
  for (uint32_t i = 1; i < batch.count; ++i) batch.last = batch.last->next_task;
  first_ = batch.last->next_task;
  count_.store(count - batch.count, std::memory_order_relaxed);
  return batch;
}

ThreadPool::ThreadPool(int workers)
    : workers_(workers), lists_(std::make_unique<TaskList[]>(static_cast<size_t>(workers) + 1)) {
  start_threads();
}

void ThreadPool::start_threads() {
  const auto count = static_cast<size_t>(workers_);
  threads_.reserve(count);
  const BlockedSignals blocked;
  try {
    for (size_t i = 0; i < count; ++i) threads_.emplace_back([this, i] { work(i, nullptr); });
  } catch (const std::exception& e) {  // of the system, or std::bad_alloc
    const size_t started = threads_.size();
    end_all();
    for (std::thread& thread : threads_) thread.join();
    throw_error(Code::kSystem, "cannot start worker ", started + 1, " of ", workers_, ": ", e.what(),
                "; ask for fewer workers, or raise the limit on processes or memory");
  }
}

void ThreadPool::post(Task* task) noexcept {
  Task* newest = inbox_.load(std::memory_order_relaxed);
  do {
    task->next_task = newest;
    // pairs with: ThreadPool::take_inbox, "the task itself"
    // pairs with: ThreadPool::is_work_in_sight, "in sight or asleep"
  } while (!inbox_.compare_exchange_weak(newest, task, std::memory_order_seq_cst, std::memory_order_relaxed));
  if (needs_waking() && !is_soon_taken()) wake_one_if_none_searches();
}

bool ThreadPool::try_run_one() noexcept {
  Task* const task = find(static_cast<size_t>(workers_));
  run_chain(task);
  return task != nullptr;
}

void ThreadPool::stop() noexcept {
  // pairs with: ThreadPool::sleep, "in sight or asleep"
  idle_.fetch_or(kStopping, std::memory_order_seq_cst);
  wake_one_if_none_searches();
  {
    std::unique_lock lock(changing_);
    left_.wait(lock, [this] { return n_left_ == threads_.size(); });
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

bool ThreadPool::is_worker() noexcept { return this_pool != nullptr; }

void ThreadPool::replace_worker(Task* task) noexcept {
  start_thread_surely([pool = this_pool, self = this_worker, task] {
    const std::scoped_lock lock(pool->changing_);
    std::thread thread([=] { pool->work(self, task); });
    thread.swap(pool->threads_[self]);
    thread.detach();
  });
}

// task: to be run first; or null.
void ThreadPool::work(size_t self, Task* task) noexcept {
  pthread_setname_np(pthread_self(), concat("tenon-", self).c_str());
  this_pool = this;
  this_worker = self;
  run_chain(task);
  SpinBudget budget;
  while ((task = find(self)) != nullptr || (task = wait_for_task(self, budget)) != nullptr) run_chain(task);
  const std::scoped_lock lock(changing_);
  ++n_left_;
  left_.notify_all();
}

Task* ThreadPool::find(size_t self) noexcept {
  if (Task* const task = lists_[self].pop()) return task;
  if (inbox_.load(std::memory_order_relaxed) != nullptr) {
    const TaskBatch batch = take_inbox();
    if (batch.count != 0) return keep_rest(self, batch);
  }
  const size_t lists = static_cast<size_t>(workers_) + 1;
  for (size_t other = (self + 1) % lists; other != self; other = (other + 1) % lists) {
    const TaskBatch batch = lists_[other].take_half();
    if (batch.count != 0) return keep_rest(self, batch);
  }
  return nullptr;
}

Task* ThreadPool::keep_rest(size_t self, TaskBatch batch) noexcept {
  Task* const task = batch.first;
  if (--batch.count > 0) {
    batch.first = task->next_task;
    lists_[self].append(batch);
    wake_one_if_none_searches();
  }
  return task;
}

ThreadPool::TaskBatch ThreadPool::take_inbox() noexcept {
  // pairs with: ThreadPool::post, "the task itself"
  Task* task = inbox_.exchange(nullptr, std::memory_order_acquire);
  TaskBatch batch{nullptr, task, 0};
  while (task != nullptr) {
    Task* const older = task->next_task;
    task->next_task = batch.first;
    batch.first = task;
    ++batch.count;
    task = older;
  }
  return batch;
}

bool ThreadPool::is_work_in_sight() const noexcept {
  // pairs with: ThreadPool::post, "in sight or asleep"
  if (inbox_.load(std::memory_order_seq_cst) != nullptr) return true;
  return !std::all_of(&lists_[0], &lists_[0] + workers_ + 1, [](const TaskList& l) { return l.is_empty(); });
}

Task* ThreadPool::wait_for_task(size_t self, SpinBudget& budget) noexcept {
  const int64_t start = now_ns();
  Task* task = nullptr;
  const auto has_found = [&] { return (task = find(self)) != nullptr; };
  bool is_searching = try_start_search();
  while (!is_searching || !SpinBudget::poll(budget.budget_ns(), has_found)) {
    sleep(is_searching ? kSearcher : 0);
    is_searching = true;
    if (has_found()) break;
    // pairs with: ThreadPool::end_all, "the end"
    if ((idle_.load(std::memory_order_acquire) & kOver) != 0) return nullptr;
  }
  end_search();
  budget.note(now_ns() - start);
  return task;
}

// Relaxed: a thread that sees this searcher relies on the later looks in end_search() or sleep().
bool ThreadPool::try_start_search() noexcept {
  const auto most = static_cast<uint64_t>(std::max(workers_ / 2, 1));
  uint64_t idle = idle_.load(std::memory_order_relaxed);
  while (searchers(idle) < most) {
    if (idle_.compare_exchange_weak(idle, idle + kSearcher, std::memory_order_relaxed)) return true;
  }
  return false;
}

// S2.
void ThreadPool::end_search() noexcept {
  // pairs with: ThreadPool::wake_one_if_none_searches, "in sight or asleep"
  const uint64_t before = idle_.fetch_sub(kSearcher, std::memory_order_seq_cst);
  if (searchers(before) == 1 && sleepers(before) > 0 && is_work_in_sight()) wake_one_if_none_searches();
}

// S3. searching: kSearcher if the caller counts as a searcher, or 0. Afterwards it counts as one.
void ThreadPool::sleep(uint64_t searching) noexcept {
  const uint64_t change = kSleeper - searching;
  // pairs with: ThreadPool::wake_one_if_none_searches, "in sight or asleep"
  const uint64_t idle = idle_.fetch_add(change, std::memory_order_seq_cst) + change;
  if (is_work_in_sight()) {
    if (try_get_up()) return;
  } else if ((idle & kOver) != 0 ||
             ((idle & kStopping) != 0 && sleepers(idle) == static_cast<uint64_t>(workers_))) {
    end_all();
  }
  take_token();
}

bool ThreadPool::try_get_up() noexcept {
  uint64_t idle = idle_.load(std::memory_order_relaxed);
  while (sleepers(idle) > 0) {
    if (idle_.compare_exchange_weak(idle, idle - kSleeper + kSearcher, std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

bool ThreadPool::needs_waking() const noexcept {
  // pairs with: ThreadPool::sleep, "in sight or asleep"
  const uint64_t idle = idle_.load(std::memory_order_seq_cst);
  return searchers(idle) == 0 && sleepers(idle) > 0;
}

// A worker that is about to end a short task takes the next one sooner than a worker that must be woken, and
// at no cost.
bool ThreadPool::is_soon_taken() const noexcept {
  for (int look = 0; look < kLooksBeforeWaking; ++look) {
    if (inbox_.load(std::memory_order_relaxed) == nullptr) return true;
    relax_processor();
  }
  return false;
}

// S1.
void ThreadPool::wake_one_if_none_searches() noexcept {
  // pairs with: ThreadPool::sleep, "in sight or asleep"
  uint64_t idle = idle_.load(std::memory_order_seq_cst);
  do {
    if (searchers(idle) > 0 || sleepers(idle) == 0) return;
    // pairs with: ThreadPool::sleep, "in sight or asleep"
  } while (!idle_.compare_exchange_weak(idle, idle - kSleeper + kSearcher, std::memory_order_seq_cst));
  // pairs with: ThreadPool::take_token, "a token"
  tokens_.fetch_add(1, std::memory_order_release);
  futex_wake_one(tokens_);
}

void ThreadPool::end_all() noexcept {
  uint64_t idle = idle_.load(std::memory_order_relaxed);
  uint64_t asleep = 0;
  do {
    asleep = sleepers(idle);
    // pairs with: ThreadPool::wait_for_task, "the end"
  } while (!idle_.compare_exchange_weak(idle, (idle | kOver) - asleep * kSleeper + asleep * kSearcher,
                                        std::memory_order_acq_rel, std::memory_order_relaxed));
  // pairs with: ThreadPool::take_token, "a token"
  tokens_.fetch_add(static_cast<uint32_t>(asleep), std::memory_order_release);
  futex_wake_all(tokens_);
}

void ThreadPool::take_token() noexcept {
  uint32_t tokens = tokens_.load(std::memory_order_relaxed);
  while (true) {
    if (tokens == 0) {
      futex_wait(tokens_, 0);
      tokens = tokens_.load(std::memory_order_relaxed);
      // pairs with: ThreadPool::wake_one_if_none_searches, "a token"
    } else if (tokens_.compare_exchange_weak(tokens, tokens - 1, std::memory_order_acquire,
                                             std::memory_order_relaxed)) {
      return;
    }
  }
}

}  // namespace tenon::impl
