// SPDX-License-Identifier: Apache-2.0
//
// Time for waits and statistics, in nanoseconds of the steady clock.
#pragma once

#include <time.h>

#include <chrono>
#include <cstdint>

namespace tenon::impl {

inline int64_t now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline constexpr int64_t kSecond = 1'000'000'000;

// Requires ns >= 0.
inline timespec timespec_of(int64_t ns) noexcept {
  return {static_cast<time_t>(ns / kSecond), static_cast<long>(ns % kSecond)};
}

// The time at which a wait ends. There is no limit if timeout_ns < 0, or if the clock would overflow.
// Threads: one at a time.
class Deadline {
 public:
  explicit Deadline(int64_t timeout_ns) noexcept : timeout_ns_(timeout_ns), is_never_(timeout_ns < 0) {
    if (!is_never_) is_never_ = __builtin_add_overflow(now_ns(), timeout_ns, &at_ns_);
  }
  // The timeout starts at the first query of the time left, so a caller that does not wait reads no clock.
  static Deadline from_first_look(int64_t timeout_ns) noexcept {
    Deadline deadline(-1);
    deadline.timeout_ns_ = timeout_ns;
    deadline.is_never_ = timeout_ns < 0;
    deadline.pending_ns_ = timeout_ns;
    return deadline;
  }
  // The timeout that was given, for messages.
  int64_t timeout_ns() const noexcept { return timeout_ns_; }
  bool is_never() const noexcept { return is_never_; }
  bool has_passed() const noexcept { return left_ns() <= 0; }
  // The same, but does not read the clock if the timeout has not started.
  bool leaves_no_time() const noexcept { return pending_ns_ >= 0 ? pending_ns_ == 0 : has_passed(); }
  // INT64_MAX without a limit.
  int64_t left_ns() const noexcept {
    if (is_never_) return INT64_MAX;
    const int64_t at = at_ns();  // first: it may start the timeout
    return at - now_ns();
  }
  std::chrono::steady_clock::time_point time_point() const noexcept {
    return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(at_ns()));
  }

 private:
  int64_t at_ns() const noexcept {
    if (pending_ns_ >= 0 && __builtin_add_overflow(now_ns(), pending_ns_, &at_ns_)) at_ns_ = INT64_MAX;
    pending_ns_ = -1;
    return at_ns_;
  }

  int64_t timeout_ns_;
  bool is_never_;
  mutable int64_t pending_ns_ = -1;  // >= 0: the timeout has not started
  mutable int64_t at_ns_ = 0;
};

}  // namespace tenon::impl
