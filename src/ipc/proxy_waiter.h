// SPDX-License-Identifier: Apache-2.0
//
// A thread that waits at process locks for ops and tasks of asynchronous programs, which must not sleep.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "ipc/process_lock.h"

namespace tenon::impl {

// Threads: any. Runs the arrival of a request, and with some executors its body, so it may wait for the lock
// of a language. A thread that holds that lock must not wait for the proxy waiter.
class ProxyWaiter {
 public:
  // That of this process: another one after a fork. Never destroyed.
  static ProxyWaiter& instance();

  ProxyWaiter() = default;
  ProxyWaiter(const ProxyWaiter&) = delete;
  ProxyWaiter& operator=(const ProxyWaiter&) = delete;

  // Waits until the part has its grant; then arrive_at_gates(request, ...). grant: the one that waits;
  // kNoGrant: none was free. False: there is no memory or no thread to wait.
  bool add(ProcessLock& lock, Request& request, RequestPart& part, GrantId grant) noexcept;
  // Takes it back. False: it has arrived, or does so now.
  bool cancel(const RequestPart& part) noexcept;
  // It looks at all that waits again.
  void call() noexcept;
  // It calls report_awaited(), soon.
  void call_to_report() noexcept;

 private:
  struct PendingPart {
    ProcessLock* lock;
    Request* request;
    RequestPart* part;
    GrantId grant;
  };

  bool start() noexcept;
  void run() noexcept;
  bool begin(PendingPart& waiting) noexcept;
  bool look_at_all() noexcept;

  std::mutex lock_;
  std::vector<PendingPart> waiting_;  // guarded by lock_
  bool is_running_ = false;           // guarded by lock_
  // On which its thread sleeps next: of that thread alone, with room for kMostWords once it has started.
  std::vector<os::Sleep> words_;
  std::atomic<bool> is_to_report_{false};
  // Moves when there is something new: a futex.
  std::atomic<uint32_t> calls_{0};
};

}  // namespace tenon::impl
