// SPDX-License-Identifier: Apache-2.0
//
// Looking before sleeping. To sleep and be woken costs two threads some 5 to 20 us together, many times what
// most waits take.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "base/spin_lock.h"

namespace tenon::impl {

// Looks so many times, with a pause after each; true if is_over() was true once.
template <class Condition>
bool spin(int looks, Condition is_over) {
  for (int i = 0; i < looks; ++i) {
    if (is_over()) return true;
    relax_processor();
  }
  return false;
}

// Where nothing is known of the waits before: some microseconds.
constexpr int kBriefLooks = 200;

// For how long it is worth to look, by what the waits before took. Where they are short, for about twice as
// long as usual. Where they are long, or become long because the looking takes the core away from those who
// work, for a moment only; but one such wait in some looks long, for otherwise nobody would see that waits
// with a wake-up are longer than those without.
// Threads: any; what they note at the same time may get lost.
class SpinBudget {
 public:
  static constexpr int64_t kLeastNs = 1'000;
  static constexpr int64_t kMostNs = 50'000;  // longer waits sleep

  int64_t budget_ns() const noexcept {
    const int64_t usual = usual_ns_.load(std::memory_order_relaxed);
    if (usual <= kMostNs) return 2 * usual + kLeastNs;
    return is_trial() ? kMostNs : kLeastNs;
  }

  static constexpr int64_t kInVain = 2 * kMostNs;

  // After a wait that took so long, sleep included. kInVain: the looking has not seen the end, and that is to
  // count, for the other side may need this core.
  void note(int64_t waited_ns) noexcept {
    int64_t usual = usual_ns_.load(std::memory_order_relaxed);
    if (usual > kMostNs) {
      if (is_trial() && waited_ns <= kMostNs) usual = waited_ns;
      long_waits_.store(long_waits_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }
    usual += (std::min(waited_ns, kInVain) - usual) / 4;
    usual_ns_.store(usual, std::memory_order_relaxed);
  }

  // Looks until is_over() or until the budget is spent; true if it is over. yields: after the first looks it
  // gives the core away between two of them, to threads that may be at work for it. On a busy machine it may
  // have the core back milliseconds later, when a wake-up would have been faster.
  template <class Condition>
  static bool poll(int64_t budget_ns, Condition is_over, bool yields = true) {
    if (budget_ns == 0) return false;
    const int64_t end = now_ns() + budget_ns;
    int looks = kFirstLooks;
    while (!spin(looks, is_over)) {
      if (now_ns() >= end) return false;
      if (!yields) continue;
      sched_yield();
      looks = 1;
    }
    return true;
  }

 private:
  static constexpr int kFirstLooks = 64;
  static constexpr uint32_t kWaitsPerTrial = 64;

  bool is_trial() const noexcept {
    return long_waits_.load(std::memory_order_relaxed) % kWaitsPerTrial == kWaitsPerTrial - 1;
  }

  std::atomic<int64_t> usual_ns_{0};
  std::atomic<uint32_t> long_waits_{0};
};

}  // namespace tenon::impl
