// SPDX-License-Identifier: Apache-2.0
//
// Polling before sleeping. A sleep and its wake-up cost the two threads about 5 to 20 us together, many times
// longer than most waits.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "base/spin_lock.h"

namespace tenon::impl {

// Checks is_over() up to `looks` times, with a pause after each check. True as soon as it holds.
template <class Condition>
bool spin(int looks, Condition is_over) {
  for (int i = 0; i < looks; ++i) {
    if (is_over()) return true;
    relax_processor();
  }
  return false;
}

// For waits without a budget: some microseconds.
constexpr int kBriefLooks = 200;

// How long a wait should poll before it sleeps, estimated from earlier waits. After short waits: about twice
// the usual wait. After long waits: only briefly. Waits may be long because polling takes the core from the
// threads that work.
// Threads: any; of notes at the same time, some may be lost.
class SpinBudget {
 public:
  static constexpr int64_t kLeastNs = 2'000;
  static constexpr int64_t kMostNs = 50'000;  // longer waits sleep

  // has_trials: if waits are long, one in kWaitsPerTrial still polls for kMostNs, because a wait that sleeps
  // takes longer than one that polls. This pays between processes. It does not pay for the workers of a pool:
  // while they poll in vain, they take a core from the thread that pushes.
  explicit SpinBudget(bool has_trials = false) noexcept : has_trials_(has_trials) {}

  int64_t budget_ns() const noexcept {
    const int64_t usual = usual_ns_.load(std::memory_order_relaxed);
    if (usual <= kMostNs) return 2 * usual + kLeastNs;
    return is_trial() ? kMostNs : kLeastNs;
  }

  static constexpr int64_t kInVain = 2 * kMostNs;

  // Records the duration of a wait, sleep included. kInVain: polling did not see the end; this counts as a
  // long wait, because the other side may need this core.
  void note(int64_t waited_ns) noexcept {
    int64_t usual = usual_ns_.load(std::memory_order_relaxed);
    if (usual > kMostNs) {
      if (is_trial() && waited_ns <= kMostNs) usual = waited_ns;
      long_waits_.store(long_waits_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }
    usual += (std::min(waited_ns, 8 * kMostNs) - usual) / 4;
    usual_ns_.store(usual, std::memory_order_relaxed);
  }

  // Polls until is_over() or until the budget is used up; true if it is over. yields: after the first checks,
  // calls sched_yield() between two checks, so that the thread that it waits for can run. On a busy machine
  // the core may come back milliseconds later, when a wake-up would have been faster.
  template <class Condition>
  static bool poll(int64_t budget_ns, Condition is_over, bool yields = true) {
    if (budget_ns == 0) return false;
    const int64_t end = now_ns() + budget_ns;
    for (int look = 0; !is_over(); ++look) {
      const bool is_first = look < kFirstLooks;
      if (is_first || !yields) {
        for (int i = 0; i < kPauses; ++i)
          relax_processor();  // a check may take the cache line from other cores
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
