// SPDX-License-Identifier: Apache-2.0
//
// How long to sleep while no event would wake the thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace tenon::impl {

// For a wait for the end of a process that has begun to end. The first 200 us are spent without sleep, as
// most processes end in this time. Later sleeps are a quarter of the time waited so far, so the end is
// noticed with about this delay. Threads: one.
class EndingPace {
 public:
  // The time to sleep now, at most most_ns.
  int64_t next_ns(int64_t most_ns) noexcept {
    const int64_t now = now_ns();
    if (began_ns_ == 0) began_ns_ = now;
    const int64_t waited = now - began_ns_;
    return waited < kBusyNs ? 0 : std::min({waited / 4, kSlowestNs, most_ns});
  }
  void restart() noexcept { began_ns_ = 0; }

 private:
  static constexpr int64_t kBusyNs = 200'000;
  static constexpr int64_t kSlowestNs = 50'000'000;

  int64_t began_ns_ = 0;  // 0: not begun
};

}  // namespace tenon::impl
