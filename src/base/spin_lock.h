// SPDX-License-Identifier: Apache-2.0
//
// A lock for short sections, usually of some nanoseconds, that do not wait and do not call code of users. One
// exchange to lock and one store to unlock: without contention it costs half as much as a mutex. A thread
// that finds it locked for long gives up its core, because the holder may have lost its own: first with a
// yield, then by sleeping, because a yield does not let a thread of lower priority run.
#pragma once

#include <sched.h>
#include <time.h>

#include <atomic>

namespace tenon::impl {

// One pause in a polling loop: leaves execution resources to the other hardware thread of the core.
inline void relax_processor() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until is_free() returns true, which another thread causes soon.
template <class Condition>
void pause_until(Condition is_free) noexcept {
  constexpr int kLooksBeforeYield = 64;
  constexpr int kLooksBeforeSleep = 96;
  for (int look = 0; !is_free(); ++look) {
    if (look < kLooksBeforeYield) {
      relax_processor();
    } else if (look < kLooksBeforeSleep) {
      sched_yield();
    } else {
      const timespec a_while{0, 50'000};
      nanosleep(&a_while, nullptr);
    }
  }
}

// A Lockable of the standard library, for std::scoped_lock and std::unique_lock.
class SpinLock {
 public:
  void lock() noexcept {
    // pairs with: SpinLock::unlock, "the section before"
    while (is_locked_.exchange(true, std::memory_order_acquire)) {
      pause_until([this] { return !is_locked_.load(std::memory_order_relaxed); });
    }
  }

  bool try_lock() noexcept {
    // pairs with: SpinLock::unlock, "the section before"
    return !is_locked_.exchange(true, std::memory_order_acquire);
  }

  // pairs with: SpinLock::lock, "the section before"
  void unlock() noexcept { is_locked_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> is_locked_{false};
};

}  // namespace tenon::impl
