// SPDX-License-Identifier: Apache-2.0
//
// Calls functions of users, which may end their thread instead of returning.
//
// pthread_exit and pthread_cancel unwind the stack. The process ends if a catch (...) swallows the unwinding
// or if it reaches a noexcept function; otherwise a thread ends for which others wait. Here the unwinding
// ends at the call. Leaving the handler in the usual way would abort the process, so the handler jumps within
// its own frame and restores the thread's list of caught exceptions. The frames of the function have been
// unwound by then. The thread continues; only pthread_cancel has no effect on it any more. If an exception
// handler makes the call, the function does not see the exception that is being handled: catching an
// unwinding beside a caught exception would end the process.
//
// Not covered: functions without unwind tables, and C libraries whose pthread_exit does not unwind (musl).
#pragma once

#include <cxxabi.h>

#include <csetjmp>

namespace tenon::impl {

inline constexpr const char* kEndedThread =
    "it ended its thread (pthread_exit, or a pthread_cancel from elsewhere): return from it instead";

#if defined(__GLIBCXX__)

// Calls function() and passes on its exceptions. False: it ended its thread instead of returning. A forced
// unwinding has no exception object: the handler's reference is null.
template <class Function>
[[gnu::noinline, gnu::no_sanitize("null")]] bool has_returned(Function& function) {
  // Itanium C++ ABI, Exception Handling, 2.2.2.
  struct Exceptions {
    void* caught;
    unsigned int uncaught;
  };
  auto* const exceptions = reinterpret_cast<Exceptions*>(abi::__cxa_get_globals());
  const Exceptions before = *exceptions;
  struct Caught {
    Exceptions* const all;
    void* const before;
    ~Caught() { all->caught = before; }
  } const caught{exceptions, before.caught};
  exceptions->caught = nullptr;
  std::jmp_buf place;
  if (setjmp(place) != 0) {
    *exceptions = before;
    return false;
  }
  try {
    function();
    return true;
  } catch (const abi::__forced_unwind&) {
    std::longjmp(place, 1);
  }
}

#else

template <class Function>
bool has_returned(Function& function) {
  function();
  return true;
}

#endif

}  // namespace tenon::impl
