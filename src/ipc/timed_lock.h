// SPDX-License-Identifier: Apache-2.0
//
// A robust mutex in shared memory, held for short sections. The process that holds it may be stopped, so no
// thread waits for it without a deadline.
#pragma once

#include <errno.h>
#include <pthread.h>

#include "base/clock.h"

namespace tenon::impl {

// Fails with kSystem.
void make_robust(pthread_mutex_t* mutex);

// Holds a robust mutex. Every store under the mutex leaves the guarded data consistent, so no repair is
// needed after the death of a holder.
class TimedLock {
 public:
  // Waits until the deadline, and up to 1 s longer for a holder that is not stopped. Fails with kTimeout,
  // which names the holder, and kInterrupted. doing: for messages, as "receive from the channel".
  TimedLock(pthread_mutex_t& mutex, const Deadline& deadline, const char* doing) : mutex_(mutex) {
    is_held_ = note(pthread_mutex_trylock(&mutex_));
    if (!is_held_) [[unlikely]]
      wait(deadline, doing);
  }
  // Tries for some microseconds.
  explicit TimedLock(pthread_mutex_t& mutex) noexcept : mutex_(mutex) { is_held_ = poll(); }
  TimedLock(const TimedLock&) = delete;
  TimedLock& operator=(const TimedLock&) = delete;
  ~TimedLock() {
    if (is_held_) pthread_mutex_unlock(&mutex_);
  }
  bool is_held() const noexcept { return is_held_; }

 private:
  bool poll() noexcept;
  void wait(const Deadline& deadline, const char* doing);
  bool note(int result) noexcept {
    if (result == EOWNERDEAD) [[unlikely]]
      pthread_mutex_consistent(&mutex_);
    return result == 0 || result == EOWNERDEAD;
  }

  pthread_mutex_t& mutex_;
  bool is_held_ = false;
};

}  // namespace tenon::impl
