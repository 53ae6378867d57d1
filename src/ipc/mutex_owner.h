// SPDX-License-Identifier: Apache-2.0
//
// A thread that lives as long as its process and holds robust mutexes. When the process ends for any reason,
// the kernel marks the mutexes and wakes the processes that sleep on them. The thread runs no code of users,
// so its callers may hold any lock.
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
  // The one of this process; a forked child has its own. Never destroyed.
  static MutexOwner& instance();

  MutexOwner() = default;
  MutexOwner(const MutexOwner&) = delete;
  MutexOwner& operator=(const MutexOwner&) = delete;
  // Ends the thread: the kernel marks the mutexes that it holds.
  ~MutexOwner();

  // Runs work in the thread and waits for it. Fails with kSystem if the thread cannot be created, or robust
  // mutexes do not work in this process; and with the exception of work.
  void call(const std::function<void()>& work);

  // Creates the thread if there is none. Fails as call().
  void begin();

  // A short function. Returns the time after which it is to run again; 0: never.
  using Chore = std::chrono::milliseconds (*)() noexcept;

  // Runs chore() soon in the thread. Does nothing if there is no thread yet.
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
