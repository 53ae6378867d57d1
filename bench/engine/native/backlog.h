// SPDX-License-Identifier: Apache-2.0
//
// How many ops are unfinished, and waiting for that: for contenders that bring no such thing. Polls as long
// as Tenon does, then sleeps.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/spin_lock.h"
#include "bench.h"

namespace bench {

// Outlives the threads that call end(). Threads: begin() and the waits from one, end() from any.
class Backlog {
 public:
  void begin() noexcept {
    if (unfinished_.load(std::memory_order_relaxed) >= kLimit) wait_until(kLimit / 2);
    unfinished_.fetch_add(1, std::memory_order_relaxed);
  }

  // An op is done; the waiters may go on at once.
  void end() noexcept {
    // pairs with: Backlog::wait_until, "what the ops have done"
    const uint32_t left = unfinished_.fetch_sub(1, std::memory_order_acq_rel) - 1;
    if (left == 0 || left == kLimit / 2) unfinished_.notify_all();
  }

  void wait_until(uint32_t most) noexcept {
    constexpr int kPolls = 200;
    for (int i = 0;; ++i) {
      // pairs with: Backlog::end, "what the ops have done"
      const uint32_t unfinished = unfinished_.load(std::memory_order_acquire);
      if (unfinished <= most) return;
      if (i < kPolls) {
        tenon::impl::relax_processor();
      } else {
        // pairs with: Backlog::end, "what the ops have done"
        unfinished_.wait(unfinished, std::memory_order_acquire);
      }
    }
  }

 private:
  alignas(64) std::atomic<uint32_t> unfinished_{0};
};

}  // namespace bench
