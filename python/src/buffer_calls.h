// SPDX-License-Identifier: Apache-2.0
//
// Calls that use a buffer of an array (PEP 3118) while they run: np.array(a), bytearray(a), f.readinto(a).
// The buffer's view is in no lease's way (docs/contract.md), but what such a call copies must be whole: a
// lease or call that has just been granted waits here until the calls of other threads that use a buffer in
// its way have returned. docs/dev/turns.md has the reasons.
//
// A call runs as long as its buffer is not released and the frame that made it is at the same instruction.
// After that the buffer is a lasting view. Everything here is under the GIL.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "python.h"
#include "sites.h"

namespace tenon::python {

// One buffer's use by the call that took it. Lies in what the buffer keeps; does not move while it is in use.
class BufferCall {
 public:
  // What the call may touch.
  struct BufferUse {
    PyObject* array;  // an NDArray, which the buffer keeps alive
    uintptr_t begin;
    uintptr_t end;
    Access access;
    const char* site;
  };

  BufferCall() noexcept {}  // what is not set here is set by begin(): it lies in what is made very often

  // Requires that the view of the buffer has been opened since the GIL was taken. Nothing happens outside of
  // Python's frames.
  void begin(const BufferUse& use, const Caller& caller) noexcept;
  // The buffer is released.
  void end() noexcept {
    if (is_listed_) finish();
  }

  // The calling thread has waited while it took the buffer, and leases may have been granted that the other
  // buffers of the same call were in the way of: waits for the end of those. Throws.
  void renew();

 private:
  friend class BufferCalls;
  void unlink() noexcept;
  void finish() noexcept;

  bool is_listed_ = false;  // else it is no call, or has become a lasting view
  BufferCall* next_;
  BufferCall* previous_;
  BufferUse use_;
  Caller caller_;
  unsigned long thread_;  // as Python's threading.get_ident()
};

// Those that ran when they were looked at last, the latest one first.
extern BufferCall* first_buffer_call;

// When a wait ends at the latest; nothing: never.
struct TimeLimit {
  std::chrono::steady_clock::time_point end;
  std::chrono::nanoseconds given;
};
using WaitLimit = std::optional<TimeLimit>;
// Of a wait that begins now. timeout_ns: negative for no limit.
WaitLimit limit_of(int64_t timeout_ns);

// Whether there may be calls to wait for; inline, because as a rule there are none.
inline bool may_have_buffer_calls() noexcept { return first_buffer_call != nullptr; }

// Of an array that the calling thread has a lease or call of for this access: waits until no call of another
// thread that conflicts runs. Throws Error (TENON_ERR_TIMEOUT) and nb::python_error (an interrupt): then the
// lease is to be given back.
void wait_for_buffer_calls(tenon_array* array, Access access, WaitLimit end);

// A task of the calling thread waits from now on. All calls of the thread that run are around the event loop:
// no thread waits for them any more, because the task may wait for that.
void leave_calls_to_task() noexcept;
// For a task, whose thread must not sleep: the call for which it has to wait, in words; empty: none.
std::string buffer_call_ahead(tenon_array* array, Access access);

// The calling thread waits in the C library from now on. Meanwhile no thread waits for its calls: what it
// waits for may wait for them.
void begin_waiting() noexcept;
void end_waiting() noexcept;
// Counts the waits of all threads. Where it has moved since the calling thread took the GIL, that has waited.
extern uint64_t n_waits;

// In the child only the calling thread is left.
void forget_other_waits() noexcept;

}  // namespace tenon::python
