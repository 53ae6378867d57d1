// SPDX-License-Identifier: Apache-2.0
//
// The executor with threads of its own. Designed for tasks of some hundred nanoseconds: posting is one
// exchange on a shared list, and a system call only if all idle workers sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/spin_budget.h"
#include "base/spin_lock.h"
#include "exec/executor.h"

namespace tenon::impl {

// Where tasks are. post() adds a task to the front of inbox_. A thread that needs work looks into its own
// list, then takes the whole inbox and reverses it (oldest first), then takes half of the list of another
// thread from its front. It keeps the first task to run and appends the rest to its own list. List i belongs
// to worker i, the last one to all threads that call try_run_one(). Except for the moment of such a move,
// tasks are nowhere else.
//
// Sleep. Each worker works, searches or sleeps; idle_ counts the searchers and the sleepers. A worker that
// finds nothing becomes a searcher, unless half of the workers are searchers: it polls for a while, and then
// sleeps. The protocol (each look and each change named here is sequentially consistent, except the change in
// which a worker becomes a searcher, on which nothing depends):
//
//   S1 A thread that puts tasks in sight (into the inbox, or the rest into a list) looks at idle_ afterwards.
//      If there is no searcher and a sleeper, it turns one sleeper into a searcher (in idle_: a claim), then
//      adds a token to tokens_ and wakes one thread that waits for a token. post() waits a moment before it
//      claims: if the inbox becomes empty, a thread has taken its task, and the claim is not needed.
//   S2 A searcher that has found a task stops counting as a searcher before it runs the task. If it was the
//      last one, it looks for tasks in sight, and continues as in S1 if there are any.
//   S3 A worker that has found nothing counts itself as a sleeper (and no longer as a searcher, in one step)
//      and then looks for tasks in sight. If there are any, it turns one sleeper, not necessarily itself,
//      into a searcher, and continues as that one. If there are none, or no sleeper is left to turn, it waits
//      for a token, takes it, and is a searcher.
//
// Invariants: workers between the count of S3 and the end of its wait = sleepers in idle_ + tokens + claims
// whose token is still to come. So each claim ends exactly one wait, and no token is lost.
// Why no task is left behind: let a task come in sight. If the look of S1 finds a searcher, then that one, or
// the last one that searches with it, looks again later, in S2 or S3. If it finds no idle worker, each worker
// will look before it sleeps (S3). Otherwise it wakes one. A thread that takes several tasks runs the first
// and puts the rest in sight: S1 again.
//
// The end. stop() sets kStopping in idle_ and then continues as in S1, so that some worker passes S3 later.
// The worker whose change in S3 finds kStopping set and makes all workers sleepers, and which then finds
// nothing in sight, sets kOver and turns all sleepers into searchers, with a token for each; so does a worker
// that finds kOver set in S3. A worker returns after a wait if it finds no task and sees kOver. Later tasks
// are posted by a worker, which does not return before it has found nothing itself.
//
// A task may end the thread of its worker. Then another thread continues as the same worker, which works all
// the while. stop() joins no thread before each worker has left, because only then no thread is replaced.
//
// Owner: the caller of make_executor. A pool that exists at the end of the process is never destroyed: its
// threads use only the pool and the tasks. Threads: as Executor; the workers block all signals except those
// of faults.
class ThreadPool final : public Executor {
 public:
  static constexpr int kMostWorkers = 1024;

  // Requires 1 <= workers <= kMostWorkers. Fails with kSystem where a thread cannot be started.
  explicit ThreadPool(int workers);

  void post(Task* task) noexcept override;
  bool try_run_one() noexcept override;
  bool has_own_threads() const noexcept override { return true; }
  void stop() noexcept override;

  // The calling thread is a worker of a pool.
  static bool is_worker() noexcept;
  // Of such a thread, in a task from which it does not return: another thread takes its place, and first
  // runs this task again.
  static void replace_worker(Task* task) noexcept;

 private:
  // Tasks in order, oldest first.
  struct TaskBatch {
    Task* first = nullptr;
    Task* last = nullptr;
    uint32_t count = 0;
  };

  // Tasks of one worker in sight of all. Threads: any.
  class alignas(64) TaskList {
   public:
    bool is_empty() const noexcept;  // the look of S2 and S3
    Task* pop() noexcept;            // null if empty
    void append(const TaskBatch& batch) noexcept;
    TaskBatch take_half() noexcept;

   private:
    SpinLock lock_;
    std::atomic<uint32_t> count_{0};  // written under lock_
    Task* first_ = nullptr;           // guarded by lock_, as is last_
    Task* last_ = nullptr;
  };

  static constexpr uint64_t kSearcher = 1;
  static constexpr uint64_t kSleeper = uint64_t{1} << 16;
  static constexpr uint64_t kStopping = uint64_t{1} << 32;
  static constexpr uint64_t kOver = uint64_t{1} << 33;
  static constexpr uint64_t searchers(uint64_t idle) { return idle & 0xffff; }
  static constexpr uint64_t sleepers(uint64_t idle) { return (idle >> 16) & 0xffff; }

  void start_threads();
  void work(size_t self, Task* task) noexcept;
  Task* find(size_t self) noexcept;
  Task* keep_rest(size_t self, TaskBatch batch) noexcept;
  TaskBatch take_inbox() noexcept;
  bool is_work_in_sight() const noexcept;

  Task* wait_for_task(size_t self, SpinBudget& budget) noexcept;
  bool try_start_search() noexcept;
  void end_search() noexcept;
  void sleep(uint64_t searching) noexcept;
  bool try_get_up() noexcept;
  bool needs_waking() const noexcept;
  bool is_soon_taken() const noexcept;
  void wake_one_if_none_searches() noexcept;
  void end_all() noexcept;
  void take_token() noexcept;

  // Constant after construction.
  const int workers_;
  const std::unique_ptr<TaskList[]> lists_;  // workers_ + 1

  std::mutex changing_;
  std::condition_variable left_;
  // Guarded by changing_ once they run.
  std::vector<std::thread> threads_;
  size_t n_left_ = 0;  // workers

  // Shared and atomic. The first two are on one cache line, because a thread that posts needs both.
  alignas(64) std::atomic<Task*> inbox_{nullptr};  // newest first
  std::atomic<uint64_t> idle_{0};
  alignas(64) std::atomic<uint32_t> tokens_{0};
};

}  // namespace tenon::impl
