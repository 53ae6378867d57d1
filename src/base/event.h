// SPDX-License-Identifier: Apache-2.0
//
// Lets threads of one process sleep until a condition holds that other threads change without a lock.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "base/futex.h"

namespace tenon::impl {

// Plain data: zeros are an event on which no thread sleeps. A thread that changes what the condition reads
// does so by a sequentially consistent store, then signals. The condition reads it in the same way. So either
// the sleeper sees the change in its last look, or the signal sees the sleeper. Without sleepers, a signal
// stores nothing.
// Threads: any. signal_one() and signal_all() never block, and take no lock.
struct Event {
  std::atomic<uint32_t> signals;
  std::atomic<uint32_t> sleepers;

  void signal_one() noexcept {
    if (count()) futex_wake_one(signals);
  }
  void signal_all() noexcept {
    if (count()) futex_wake_all(signals);
  }

  bool has_sleepers() const noexcept {
    // pairs with: Event::sleep, "a sleeper"
    return sleepers.load(std::memory_order_seq_cst) != 0;
  }

  // Sleeps until is_over() holds, which is called again after each signal. False: the time has passed.
  template <class Condition>
  bool sleep(const Deadline& deadline, Condition is_over) {
    // pairs with: Event::has_sleepers, "a sleeper"
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    bool is_in_time = true;
    while (true) {
      // pairs with: Event::count, "signals"
      const uint32_t seen = signals.load(std::memory_order_acquire);
      if (is_over()) break;
      if (deadline.is_never()) {
        (void)futex_wait(signals, seen);
      } else if (const int64_t left = deadline.left_ns(); left > 0) {
        (void)futex_wait_for(signals, seen, left);
      } else {
        is_in_time = false;
        break;
      }
    }
    // pairs with: Event::has_sleepers, "a sleeper"
    sleepers.fetch_sub(1, std::memory_order_seq_cst);
    return is_in_time;
  }

 private:
  bool count() noexcept {
    if (!has_sleepers()) return false;
    // pairs with: Event::sleep, "signals"
    signals.fetch_add(1, std::memory_order_release);
    return true;
  }
};

}  // namespace tenon::impl
