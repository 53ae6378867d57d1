// SPDX-License-Identifier: Apache-2.0
//
// A robust mutex in shared memory, held for a short section. Its holder may be stopped in there, so no
// thread waits for it without a deadline.
#pragma once

#include <pthread.h>

#include "base/clock.h"

namespace tenon::impl {

// Fails with kSystem.
void make_robust(pthread_mutex_t* mutex);

// Holds a robust mutex. Every store under it leaves what it guards in order, so that what a dead holder
// leaves needs no repair.
class TimedLock {
 public:
  // Waits until the deadline, and a moment more for a holder that runs. Fails with kTimeout, which names the
  // holder, and kInterrupted. doing: "receive from the channel".
  TimedLock(pthread_mutex_t& mutex, const Deadline& deadline, const char* doing);
  // Looks for some microseconds.
  explicit TimedLock(pthread_mutex_t& mutex) noexcept : mutex_(mutex) { is_held_ = poll(); }
  TimedLock(const TimedLock&) = delete;
  TimedLock& operator=(const TimedLock&) = delete;
  ~TimedLock() {
    if (is_held_) pthread_mutex_unlock(&mutex_);
  }
  bool is_held() const noexcept { return is_held_; }

 private:
  bool poll() noexcept;
  bool note(int result) noexcept;

  pthread_mutex_t& mutex_;
  bool is_held_ = false;
};

}  // namespace tenon::impl
