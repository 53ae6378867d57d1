// SPDX-License-Identifier: Apache-2.0
//
// Calls functions of users, which may end their thread instead of returning.
//
// pthread_exit and pthread_cancel unwind the stack. The process ends if a catch (...) swallows the unwinding
// or if it reaches a noexcept function, so a handler can only throw it again, or never return. In such a
// handler a thread of the library lets another thread take its place, and sleeps for ever. A thread of the
// caller cannot be replaced: there the process ends with a message.
//
// Not covered: functions without unwind tables, C libraries whose pthread_exit does not unwind (musl), and a
// call inside of a handler of an exception, beside which an unwinding cannot be caught: std::terminate() ends
// the process.
#pragma once

#include <time.h>

#include <exception>

namespace tenon::impl {

inline constexpr const char* kEndedThread =
    "it ended its thread (pthread_exit, or a pthread_cancel from elsewhere): return from it instead";

// In a catch (...): what was caught is the end of the thread, and not an exception.
inline bool is_end_of_thread() noexcept { return std::current_exception() == nullptr; }

// Calls function(), and at_end() if function ends its thread. The unwinding continues if at_end returns.
// Exceptions pass.
template <class Function, class AtEnd>
void call_foreign(Function&& function, AtEnd&& at_end) {
  try {
    function();
  } catch (...) {
    if (is_end_of_thread()) at_end();
    throw;
  }
}

// Calls start, which starts a thread, until it does not throw, with a pause between the attempts: the system
// may have room for another thread later, and what the ended one was to do must not be lost.
template <class Start>
void start_thread_surely(Start start) noexcept {
  constexpr timespec kMoment{0, 10'000'000};
  while (true) {
    try {
      return start();
    } catch (const std::exception&) {
      nanosleep(&kMoment, nullptr);
    }
  }
}

// Sleeps until the process ends.
[[noreturn]] void sleep_for_ever() noexcept;

// Ends the process: the function of this kind and name has ended a thread that cannot be replaced.
[[noreturn]] void end_process(const char* kind, const char* name) noexcept;

}  // namespace tenon::impl
