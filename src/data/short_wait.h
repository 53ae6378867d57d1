// SPDX-License-Identifier: Apache-2.0
//
// Polling for a short time before sleeping. Sleeping and waking cost two threads some 5 to 20 us together,
// many times the hand-over of a small batch. So a thread whose waits are mostly short polls for about as long
// as they usually take. A thread whose waits are long, or become long because the polling takes the core away
// from workers, sleeps at once.
#pragma once

#include <sched.h>

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "base/spin_lock.h"

namespace tenon::impl {

// Threads: one thread at a time; the owner sees to that.
class ShortWait {
 public:
  // How long to poll: twice the usual wait, or not at all.
  int64_t budget_ns() const noexcept { return usual_ns_ > kLongest ? 0 : 2 * usual_ns_ + kShortest; }

  // After a wait that took so long, sleep included.
  void note(int64_t waited_ns) noexcept { usual_ns_ += (std::min(waited_ns, 8 * kLongest) - usual_ns_) / 4; }

  // Polls until is_over() or until the budget is spent; true if it is over.
  template <class Condition>
  static bool poll(int64_t budget_ns, Condition is_over) {
    if (budget_ns == 0) return false;
    const int64_t end = now_ns() + budget_ns;
    for (int round = 0; !is_over(); ++round) {
      if (round < kRoundsBeforeYield) {
        for (int i = 0; i < 8; ++i) relax_processor();
      } else {
        sched_yield();
        if (now_ns() >= end) return false;
      }
    }
    return true;
  }

 private:
  static constexpr int64_t kShortest = 1'000;
  static constexpr int64_t kLongest = 50'000;
  static constexpr int kRoundsBeforeYield = 8;

  int64_t usual_ns_ = 0;
};

}  // namespace tenon::impl
