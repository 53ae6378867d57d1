// SPDX-License-Identifier: Apache-2.0
//
// Lets threads sleep until a condition holds that other threads change without a lock: threads of one
// process, or of the processes that map the memory of the event.
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
//
// Of an event in shared memory, a process may be killed while it sleeps, or killed or stopped between its
// change and its signal. So the reaper of a process calls forget(), and sleepers look at the condition from
// time to time. Whether the memory is shared is not said in it, as others may write to it.
// Threads: any. signal_one(), signal_all() and forget() never block, and take no lock.
struct Event {
  // Between two looks of a thread that sleeps on an event in shared memory, and in memory of its process.
  static constexpr int64_t kLookNs = 200'000'000;
  static constexpr int64_t kNoLookNs = INT64_MAX;

  std::atomic<uint32_t> signals;
  uint32_t reserved;
  // The generation, then 32 bits of their number. A sleeper counts in the generation in which it has
  // announced itself.
  std::atomic<uint64_t> sleepers;

  void signal_one() noexcept {
    if (count()) futex_wake_one(signals, true);
  }
  void signal_all() noexcept {
    if (count()) futex_wake_all(signals, true);
  }

  bool has_sleepers() const noexcept {
    // pairs with: Event::announce_sleeper, "a sleeper"
    return static_cast<uint32_t>(sleepers.load(std::memory_order_seq_cst)) != 0;
  }

  // A process has died, which may have slept: its threads do not count any more. Those of others wake, and
  // announce themselves again before they look at the condition. The generation changes before the signals: a
  // sleeper that has read the signals before does not sleep, and one that reads them now sees the generation.
  void forget() noexcept {
    // pairs with: Event::announce_sleeper and Event::generation, "a sleeper"
    uint64_t now = sleepers.load(std::memory_order_seq_cst);
    while (!sleepers.compare_exchange_weak(now, ((now >> 32) + 1) << 32, std::memory_order_seq_cst)) {
    }
    // pairs with: Sleeper::look, "signals"
    signals.fetch_add(1, std::memory_order_release);
    futex_wake_all(signals, true);
  }

  // A thread that sleeps on the event, until its destructor. Threads: one.
  class Sleeper {
   public:
    explicit Sleeper(Event& event) noexcept : event_(event), announced_(event.announce_sleeper()) {}
    Sleeper(const Sleeper&) = delete;
    Sleeper& operator=(const Sleeper&) = delete;
    ~Sleeper() { event_.note_awake(announced_); }

    // The value of the signals on which to sleep, read before a look at the condition.
    uint32_t look() noexcept {
      // pairs with: Event::count and Event::forget, "signals"
      const uint32_t seen = event_.signals.load(std::memory_order_acquire);
      if (event_.generation() != announced_) announced_ = event_.announce_sleeper();
      return seen;
    }

   private:
    Event& event_;
    uint32_t announced_;
  };

  // Sleeps until is_over() holds, which is called again after each signal. False: the time has passed.
  template <class Condition>
  bool sleep(const Deadline& deadline, Condition is_over, int64_t look_ns = kLookNs) {
    Sleeper sleeper(*this);
    while (true) {
      const uint32_t seen = sleeper.look();
      if (is_over()) return true;
      const int64_t left = deadline.left_ns();
      if (left <= 0) return false;
      (void)futex_wait_for(signals, seen, std::min(left, look_ns), true);
    }
  }

 private:
  bool count() noexcept {
    if (!has_sleepers()) return false;
    // pairs with: Sleeper::look, "signals"
    signals.fetch_add(1, std::memory_order_release);
    return true;
  }

  uint32_t generation() const noexcept {
    // pairs with: Event::forget, "a sleeper"
    return static_cast<uint32_t>(sleepers.load(std::memory_order_seq_cst) >> 32);
  }
  // Returns the generation in which it counts.
  uint32_t announce_sleeper() noexcept {
    // pairs with: Event::has_sleepers, "a sleeper"
    return static_cast<uint32_t>(sleepers.fetch_add(1, std::memory_order_seq_cst) >> 32);
  }
  void note_awake(uint32_t announced) noexcept {
    // pairs with: Event::has_sleepers and Event::forget, "a sleeper"
    uint64_t now = sleepers.load(std::memory_order_seq_cst);
    while (now >> 32 == announced &&
           !sleepers.compare_exchange_weak(now, now - 1, std::memory_order_seq_cst)) {
    }
  }
};

}  // namespace tenon::impl
