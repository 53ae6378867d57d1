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
// long as usual. Where they are long, or become long because the looking takes the core away from threads
// that work, for a moment only.
// Threads: any; what they note at the same time may get lost.
class SpinBudget {
 public:
  static constexpr int64_t kLeastNs = 2'000;
  static constexpr int64_t kMostNs = 50'000;  // longer waits sleep

  // has_trials: one long wait in some looks long, because waits with a wake-up take longer than others.
  // Between processes that is worth it. The workers of a pool lose by it: while they look in vain, they take
  // a core from the thread that pushes.
  explicit SpinBudget(bool has_trials = false) noexcept : has_trials_(has_trials) {}

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
    usual += (std::min(waited_ns, 8 * kMostNs) - usual) / 4;
    usual_ns_.store(usual, std::memory_order_relaxed);
  }

  // Looks until is_over() or until the budget is spent; true if it is over. yields: after the first looks it
  // gives the core away between two of them, to threads that may be at work for it. On a busy machine it may
  // have the core back milliseconds later, when a wake-up would have been faster.
  template <class Condition>
  static bool poll(int64_t budget_ns, Condition is_over, bool yields = true) {
    if (budget_ns == 0) return false;
    const int64_t end = now_ns() + budget_ns;
    for (int look = 0; !is_over(); ++look) {
      const bool is_first = look < kFirstLooks;
      if (is_first || !yields) {
        for (int i = 0; i < kPauses; ++i)
          relax_processor();  // a look may take a line of the cache from others
      } else {
        sched_yield();
      }
      if ((!is_first || !yields) && now_ns() >= end) return false;
    }
    return true;
  }

 private:
  static constexpr int kFirstLooks = 16;
  static constexpr int kPauses = 4;
  static constexpr uint32_t kWaitsPerTrial = 64;

  bool is_trial() const noexcept {
    return has_trials_ && long_waits_.load(std::memory_order_relaxed) % kWaitsPerTrial == kWaitsPerTrial - 1;
  }

  const bool has_trials_;
  std::atomic<int64_t> usual_ns_{0};
  std::atomic<uint32_t> long_waits_{0};
};

}  // namespace tenon::impl
