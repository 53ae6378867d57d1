// SPDX-License-Identifier: Apache-2.0
//
// futex(2): a thread sleeps while a word of memory has a value, until another thread wakes it. is_shared:
// also one of another process that maps the memory. A wait orders no memory; the operations on the word must
// do that. A wait may return spuriously, so the caller must check the word again.
#pragma once

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

#include "base/clock.h"

namespace tenon::impl {

// kWoken: woken, or the word had another value. kInterrupted: a signal handler has run. After a handler that
// was installed with SA_RESTART, a wait without a timeout may continue to sleep.
enum class FutexWait { kWoken, kTimedOut, kInterrupted };

namespace detail {

inline long futex(const std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* time,
                  bool is_shared) noexcept {
  static_assert(sizeof word == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);
  return syscall(SYS_futex, &word, operation | (is_shared ? 0 : FUTEX_PRIVATE_FLAG), value, time, nullptr, 0);
}

inline FutexWait futex_sleep(const std::atomic<uint32_t>& word, uint32_t expected, const timespec* time,
                             bool is_shared) noexcept {
  if (futex(word, FUTEX_WAIT, expected, time, is_shared) == 0) return FutexWait::kWoken;
  if (errno == ETIMEDOUT) return FutexWait::kTimedOut;
  return errno == EINTR ? FutexWait::kInterrupted : FutexWait::kWoken;
}

}  // namespace detail

// Sleeps while word == expected.
inline FutexWait futex_wait(const std::atomic<uint32_t>& word, uint32_t expected) noexcept {
  return detail::futex_sleep(word, expected, nullptr, false);
}

// The same for at most timeout_ns; requires timeout_ns >= 0.
inline FutexWait futex_wait_for(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns,
                                bool is_shared = false) noexcept {
  const timespec time = timespec_of(timeout_ns);
  return detail::futex_sleep(word, expected, &time, is_shared);
}

inline void futex_wake_one(const std::atomic<uint32_t>& word, bool is_shared = false) noexcept {
  detail::futex(word, FUTEX_WAKE, 1, nullptr, is_shared);
}

inline void futex_wake_all(const std::atomic<uint32_t>& word, bool is_shared = false) noexcept {
  detail::futex(word, FUTEX_WAKE, INT_MAX, nullptr, is_shared);
}

}  // namespace tenon::impl
