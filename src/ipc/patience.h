// SPDX-License-Identifier: Apache-2.0
//
// How long to look before sleeping, by what looking has been worth; and how long to sleep where nothing
// wakes.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace tenon::impl {

// Threads: any; what they note at the same time may get lost.
class Patience {
 public:
  static constexpr uint32_t kMost = 4000;  // pauses: about as long as it takes to be put asleep and woken
  static constexpr uint32_t kLeast = 50;

  uint32_t spins() const noexcept { return spins_.load(std::memory_order_relaxed); }

  // After a wait that looked up to `spins` times. Who has come to look little cannot see that more would be
  // worth it again, and so now and then looks long.
  void note(uint32_t spins, bool was_worth_it) noexcept {
    uint32_t next = was_worth_it ? std::min(spins * 2, kMost) : std::max(spins / 2, kLeast);
    if (next == kLeast) {
      const uint32_t waits = short_waits_.load(std::memory_order_relaxed) + 1;
      short_waits_.store(waits % kWaitsBetweenTrials, std::memory_order_relaxed);
      if (waits == kWaitsBetweenTrials) next = kMost;
    }
    spins_.store(next, std::memory_order_relaxed);
  }

 private:
  static constexpr uint32_t kWaitsBetweenTrials = 64;

  std::atomic<uint32_t> spins_{kMost};
  std::atomic<uint32_t> short_waits_{0};
};

// For the end of a process that has begun to end. Looks all the time at first, as most are gone then; later
// it is late by about a quarter of what the end takes. Threads: one.
class EndingPace {
 public:
  // For how long to sleep now, at most most_ns.
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

  int64_t began_ns_ = 0;  // 0: not yet
};

}  // namespace tenon::impl
