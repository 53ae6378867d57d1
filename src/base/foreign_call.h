// SPDX-License-Identifier: Apache-2.0
//
// Calls of functions that others wrote, which may end their thread instead of returning.
//
// pthread_exit and pthread_cancel unwind the stack. An unwinding that a catch (...) swallows, or that meets a
// noexcept function, ends the process; one that goes on ends a thread that others wait for. Here it ends at
// the call. A handler that is left in the usual way would abort the process, so this one jumps, within its
// own frame, and puts the thread's list of caught exceptions back. By then the frames of the function are
// gone, with what they had to clean up. The thread goes on; only pthread_cancel has no effect on it any more.
// Where a handler of exceptions calls, the function does not see what is handled there: to catch an unwinding
// beside a caught exception would end the process.
//
// Not seen: a function without unwind tables, and the C libraries whose pthread_exit does not unwind (musl).
#pragma once

#include <cxxabi.h>

#include <csetjmp>

namespace tenon::impl {

inline constexpr const char* kEndedThread =
    "it ended its thread (pthread_exit, or a pthread_cancel from elsewhere): return from it instead";

#if defined(__GLIBCXX__)

// Calls function(). False: it did not return, but ended its thread. What it throws comes out. An unwinding
// has no object: the handler's reference is null.
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
