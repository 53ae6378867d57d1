// SPDX-License-Identifier: Apache-2.0
//
// A thread that waits at process locks for ops and asyncio tasks, because these must not block a thread.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "ipc/process_lock.h"

namespace tenon::impl {

// Threads: any. Its thread completes the arrival of a request, and with some executors runs the body of the
// op. So it may wait for the GIL. A thread that holds the GIL must not wait for the proxy waiter.
class ProxyWaiter {
 public:
  // The one of this process; a forked child has its own. Never destroyed.
  static ProxyWaiter& instance();

  ProxyWaiter() = default;
  ProxyWaiter(const ProxyWaiter&) = delete;
  ProxyWaiter& operator=(const ProxyWaiter&) = delete;

  // Waits until the part has its grant; then calls arrive_at_gates(request, ...). grant: the waiting one;
  // kNoGrant: none was free. False: there is no memory or no thread.
  bool add(ProcessLock& lock, Request& request, RequestPart& part, GrantId grant) noexcept;
  // Ends the wait of a part. False: it has arrived, or arrives now.
  bool cancel(const RequestPart& part) noexcept;
  // Has the thread try all waiting parts again.
  void call() noexcept;
  // Has the thread call report_awaited() soon.
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
  // The words on which the thread sleeps next. Only that thread uses them. Capacity: kMostWords.
  std::vector<os::Sleep> words_;
  std::atomic<bool> is_to_report_{false};
  std::atomic<uint32_t> calls_{0};  // a futex; changes when there is something new
};

}  // namespace tenon::impl
