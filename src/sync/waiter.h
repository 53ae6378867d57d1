// SPDX-License-Identifier: Apache-2.0
//
// How a thread waits: it sleeps in slices. Between two slices the language may interrupt it, and once in each
// period of reports it reports what it waits for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/os.h"

namespace tenon::impl {

// The hooks of a language binding, which may have a lock and signal handlers. Each may be null.
struct WaitHooks {
  void* (*begin)() = nullptr;                  // before this thread sleeps; releases the lock of the language
  int32_t (*poll)(void* token) = nullptr;      // as in tenon/core.h; a result other than 0 ends the wait
  void (*end)(void* token) = nullptr;          // after the sleep
  uint64_t (*current_task)() = nullptr;        // see actor.h
  void (*report)(const char* text) = nullptr;  // once in each period: what a long wait waits for
  // In a wait for views of ordinary code, after 50 ms and then every 5 s: closes views to which no object
  // refers. Returns a value other than 0 if no other thread can close the rest.
  int32_t (*is_alone)(void* token) = nullptr;
  // Around the bodies of ops that need the lock of the language: acquires it in a thread of the engine. Null:
  // it cannot be acquired any more.
  void* (*enter)() = nullptr;
  void (*leave)(void* token) = nullptr;
};
// Reports a value of TENON_REPORT_SECONDS that is not used.
void set_wait_hooks(const WaitHooks& hooks) noexcept;
const WaitHooks& wait_hooks() noexcept;

// The duration of a wait at its next report, after waited_ns: a multiple of the period.
int64_t next_report_ns(int64_t waited_ns) noexcept;
// The period: at first TENON_REPORT_SECONDS, or 5 s. Returns the one before; period_ns <= 0: does not change.
int64_t set_report_period_ns(int64_t period_ns) noexcept;

enum class WaitEnd : uint8_t { kOver, kTimeout, kDeadlock, kInterrupted };

// One wait that sleeps. While it lives, its thread does not hold the lock of the language.
// Threads: one.
class Waiter {
 public:
  static constexpr int64_t kSliceNs = 50'000'000;  // longer if many threads wait

  // The deadline lives as long as this.
  explicit Waiter(const Deadline& deadline) noexcept : Waiter(&deadline) {}
  Waiter() noexcept : Waiter(nullptr) {}
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;
  ~Waiter();

  // Calls sleep(ns) once, for a slice of at most most_ns. kOver: the caller must check its condition. If
  // sleep() returns false, the thread was not woken: then the next call may be interrupted, and reports the
  // text of describe() unless it is "".
  template <class Sleep, class Describe>
  WaitEnd sleep(int64_t most_ns, Sleep sleep, Describe describe) {
    if (is_poll_due_ && is_interrupted()) return WaitEnd::kInterrupted;
    if (is_poll_due_) report_if_due(describe);
    const int64_t left = deadline_ != nullptr ? deadline_->left_ns() : INT64_MAX;
    if (left <= 0) return WaitEnd::kTimeout;
    is_poll_due_ = !sleep(std::min({most_ns, left, slice_ns()}));
    return WaitEnd::kOver;
  }
  // The same while every word has its value. It is not known whether the thread was woken.
  template <class Describe>
  WaitEnd sleep_on(const os::Sleep* words, size_t n, int64_t most_ns, Describe describe) {
    const auto sleep_so_long = [&](int64_t ns) {
      os::sleep_on(words, n, ns);
      return false;
    };
    return sleep(most_ns, sleep_so_long, describe);
  }

  int64_t waited_ns() const noexcept { return now_ns() - began_ns_; }
  void* token() const noexcept { return token_; }  // of the hooks

  static void forget_others_after_fork() noexcept;

 private:
  explicit Waiter(const Deadline* deadline) noexcept;
  static int64_t slice_ns() noexcept;
  bool is_interrupted() const noexcept;
  bool is_report_due() noexcept;
  void report(const std::string& text) const;

  template <class Describe>
  void report_if_due(Describe describe) noexcept {
    if (!is_report_due()) return;
    try {
      report(describe());
    } catch (const std::exception&) {
      // Without memory, the next report may succeed.
    }
  }

  const Deadline* const deadline_;  // null: never
  const int64_t began_ns_;
  int64_t next_report_ns_ = next_report_ns(0);
  bool is_poll_due_ = false;
  void* token_ = nullptr;
};

}  // namespace tenon::impl
