// SPDX-License-Identifier: Apache-2.0
#include "base/timed_mutex.h"

#include <errno.h>
#include <time.h>

#include "base/clock.h"

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace tenon::impl {
namespace {

// glibc before 2.30 has no lock with a limit on the clock that now_ns() reads. If the time of day is set, one
// slice of a wait is then shorter or longer.
#if !__GLIBC_PREREQ(2, 30)
int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t, const timespec* until) {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  int64_t until_ns = until->tv_sec * kSecond + until->tv_nsec - now_ns();
  until_ns += now.tv_sec * kSecond + now.tv_nsec;
  const timespec time = timespec_of(until_ns);
  return pthread_mutex_timedlock(mutex, &time);
}
#endif

}  // namespace

int lock_until(pthread_mutex_t& mutex, int64_t until_ns) noexcept {
  const timespec time = timespec_of(until_ns);
  const int result = pthread_mutex_clocklock(&mutex, CLOCK_MONOTONIC, &time);
#if defined(__SANITIZE_THREAD__)  // TSan of g++ 12 does not intercept this function
  if (result == 0 || result == EOWNERDEAD) {
    __tsan_mutex_pre_lock(&mutex, __tsan_mutex_try_lock);
    __tsan_mutex_post_lock(&mutex, __tsan_mutex_try_lock, 1);
  }
#endif
  return result;
}

bool TimedMutex::lock_within(int64_t timeout_ns) noexcept {
  int64_t until_ns = 0;
  if (timeout_ns < 0 || __builtin_add_overflow(now_ns(), timeout_ns, &until_ns))
    return pthread_mutex_lock(&mutex_) == 0;
  return lock_until(mutex_, until_ns) == 0;
}

}  // namespace tenon::impl
