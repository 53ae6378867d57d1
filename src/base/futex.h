// SPDX-License-Identifier: Apache-2.0
//
// The only calls of futex(2): a thread sleeps while a word of memory has a value, until another thread wakes
// it. Private to the process. A wait orders no memory; the operations on the word must do that. A wait may
// return for no reason, so the caller must check the word again.
#pragma once

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace tenon::impl {

// kWoken: woken, or the word had another value. kInterrupted: a signal's handler has run. One that was
// installed with SA_RESTART may leave a wait without a timeout asleep.
enum class FutexWait { kWoken, kTimedOut, kInterrupted };

namespace detail {

inline long futex(const std::atomic<uint32_t>& word, int operation, uint32_t value,
                  const timespec* time) noexcept {
  static_assert(sizeof word == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);
  return syscall(SYS_futex, &word, operation | FUTEX_PRIVATE_FLAG, value, time, nullptr,
                 FUTEX_BITSET_MATCH_ANY);
}

inline FutexWait futex_sleep(const std::atomic<uint32_t>& word, int operation, uint32_t expected,
                             const timespec* time) noexcept {
  if (futex(word, operation, expected, time) == 0) return FutexWait::kWoken;
  if (errno == ETIMEDOUT) return FutexWait::kTimedOut;
  return errno == EINTR ? FutexWait::kInterrupted : FutexWait::kWoken;
}

inline timespec timespec_of(int64_t ns) noexcept {
  constexpr int64_t kSecond = 1'000'000'000;
  return {static_cast<time_t>(ns / kSecond), static_cast<long>(ns % kSecond)};
}

}  // namespace detail

// Sleeps while word == expected.
inline FutexWait futex_wait(const std::atomic<uint32_t>& word, uint32_t expected) noexcept {
  return detail::futex_sleep(word, FUTEX_WAIT, expected, nullptr);
}

// The same for at most timeout_ns; requires timeout_ns >= 0.
inline FutexWait futex_wait_for(const std::atomic<uint32_t>& word, uint32_t expected,
                                int64_t timeout_ns) noexcept {
  const timespec time = detail::timespec_of(timeout_ns);
  return detail::futex_sleep(word, FUTEX_WAIT, expected, &time);
}

// The same until deadline_ns >= 0 of the steady clock.
inline FutexWait futex_wait_until(const std::atomic<uint32_t>& word, uint32_t expected,
                                  int64_t deadline_ns) noexcept {
  const timespec time = detail::timespec_of(deadline_ns);
  return detail::futex_sleep(word, FUTEX_WAIT_BITSET, expected, &time);
}

inline void futex_wake_one(const std::atomic<uint32_t>& word) noexcept {
  detail::futex(word, FUTEX_WAKE, 1, nullptr);
}

inline void futex_wake_all(const std::atomic<uint32_t>& word) noexcept {
  detail::futex(word, FUTEX_WAKE, INT_MAX, nullptr);
}

}  // namespace tenon::impl
