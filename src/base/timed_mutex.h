// SPDX-License-Identifier: Apache-2.0
//
// Mutexes that are locked within a time on the clock of now_ns(). ThreadSanitizer of g++ 12 does not know the
// function of the C library that std::timed_mutex calls, and reports its unlocking.
#pragma once

#include <pthread.h>

#include <cstdint>

namespace tenon::impl {

// As pthread_mutex_lock; ETIMEDOUT at until_ns.
int lock_until(pthread_mutex_t& mutex, int64_t until_ns) noexcept;

class TimedMutex {
 public:
  TimedMutex() = default;
  TimedMutex(const TimedMutex&) = delete;
  TimedMutex& operator=(const TimedMutex&) = delete;

  bool try_lock() noexcept { return pthread_mutex_trylock(&mutex_) == 0; }
  // False: it was not free in this time. There is no limit if timeout_ns < 0.
  bool lock_within(int64_t timeout_ns) noexcept;
  void unlock() noexcept { (void)pthread_mutex_unlock(&mutex_); }

 private:
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

}  // namespace tenon::impl
