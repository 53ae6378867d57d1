// SPDX-License-Identifier: Apache-2.0
//
// Time for waits and statistics, in nanoseconds of the steady clock.
#pragma once

#include <chrono>
#include <cstdint>

namespace tenon {

inline int64_t now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A moment to wait for. timeout_ns < 0, or so far away that the clock would overflow: never.
class Deadline {
 public:
  explicit Deadline(int64_t timeout_ns) noexcept : is_never_(timeout_ns < 0) {
    if (!is_never_) is_never_ = __builtin_add_overflow(now_ns(), timeout_ns, &at_ns_);
  }
  bool is_never() const noexcept { return is_never_; }
  bool has_passed() const noexcept { return !is_never_ && now_ns() >= at_ns_; }
  // Not more than some centuries.
  int64_t left_ns() const noexcept { return is_never_ ? INT64_MAX : at_ns_ - now_ns(); }
  std::chrono::steady_clock::time_point time_point() const noexcept {
    return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(at_ns_));
  }

 private:
  bool is_never_;
  int64_t at_ns_ = 0;
};

}  // namespace tenon
