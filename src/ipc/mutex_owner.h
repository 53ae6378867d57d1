// SPDX-License-Identifier: Apache-2.0
//
// A thread that lives as long as its process and holds robust mutexes: when the process ends, in whatever
// way, the kernel marks them and wakes the processes that sleep on them. It runs no code of others: its
// callers may hold any lock.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tenon::impl {

// Threads: call() from any.
class MutexOwner {
 public:
  // That of this process: another one after a fork. Never destroyed.
  static MutexOwner& instance();

  MutexOwner() = default;
  MutexOwner(const MutexOwner&) = delete;
  MutexOwner& operator=(const MutexOwner&) = delete;
  // Ends the thread: the kernel marks what it holds.
  ~MutexOwner();

  // Runs work in this thread and waits for it. Fails with kSystem if the thread cannot be made, or the kernel
  // knows no robust mutexes of this process; and as work fails.
  void call(const std::function<void()>& work);

  // There is a thread from now on. Fails as call().
  void begin();

  // Something small to do. The result: after how long once more; 0: it is done.
  using Chore = std::chrono::milliseconds (*)() noexcept;

  // Has chore() run soon. Does nothing if there is no thread yet.
  void nudge(Chore chore) noexcept;

 private:
  struct OwnerCall {
    const std::function<void()>& work;
    std::exception_ptr failure;
    bool is_done = false;
  };

  void run() noexcept;

  std::mutex lock_;
  std::condition_variable changed_;
  // Guarded by lock_.
  std::vector<OwnerCall*> calls_;  // in order
  Chore chore_ = nullptr;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace tenon::impl
