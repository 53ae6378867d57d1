// SPDX-License-Identifier: Apache-2.0
//
// Waits of tests for what other threads and processes do.
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

namespace tenon::impl {

// For waits that would hang if a law is broken. It is not a limit on speed.
constexpr std::chrono::seconds kPatience{600};
constexpr int64_t kWatchdogNs = std::chrono::nanoseconds(kPatience).count();

// False: it has not come true in this time.
template <class IsSo>
bool comes_true(IsSo&& is_so) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!is_so()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));  // is_so may wait for the same locks
  }
  return true;
}

}  // namespace tenon::impl
