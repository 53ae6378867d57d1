// SPDX-License-Identifier: Apache-2.0
//
// Calls that use a buffer of an array (PEP 3118) while they run: np.array(a), bytearray(a), f.readinto(a).
// The view of the buffer blocks no lease (docs/contract.md), but a copy that such a call makes must not be
// torn. So a lease or call that has just been granted waits here until conflicting calls of other threads
// that use a buffer have returned. docs/dev/turns.md has the reasons.
//
// A call runs as long as its buffer is not released and the frame that made it is at the same instruction.
// After that the buffer is a lasting view. Everything here is under the GIL.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "python.h"
#include "sites.h"

namespace tenon::python {

// The use of one buffer by the call that took it. Part of what the buffer owns; does not move while it is in
// use.
class BufferCall {
 public:
  // The bytes that the call may access.
  struct BufferUse {
    PyObject* array;  // an NDArray, which the buffer keeps alive
    uintptr_t begin;
    uintptr_t end;
    Access access;
    const char* site;
  };

  BufferCall() noexcept {}  // begin() sets the other members: one is made for each buffer

  // Requires that the view of the buffer has been opened since the GIL was taken. Does nothing where no
  // Python code runs.
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

// The calls that ran when they were last looked at, the latest one first.
extern BufferCall* first_buffer_call;

// The end of a wait; nullopt: no limit.
struct TimeLimit {
  std::chrono::steady_clock::time_point end;
  std::chrono::nanoseconds given;
};
using WaitLimit = std::optional<TimeLimit>;
// The limit of a wait that begins now. timeout_ns: negative for none.
WaitLimit limit_of(int64_t timeout_ns);

// Whether there may be calls to wait for; inline, because usually there are none.
inline bool may_have_buffer_calls() noexcept { return first_buffer_call != nullptr; }

// Requires that the calling thread has a lease or call of the array for this access. Waits until no
// conflicting call of another thread runs. Throws Error (TENON_ERR_TIMEOUT) and nb::python_error (an
// interrupt); the caller then releases the lease.
void wait_for_buffer_calls(tenon_array* array, Access access, WaitLimit end);

// For a task of the calling thread that begins to wait. The event loop runs inside of all running calls of
// the thread. No thread waits for these calls any more, because the task may wait for such a thread.
void leave_calls_to_task() noexcept;
// The call for which a task has to wait, in words; empty: none. (Its thread must not sleep.)
std::string buffer_call_ahead(tenon_array* array, Access access);

// Around a wait of the calling thread in the C library. Meanwhile no thread waits for its calls, because the
// calling thread may wait for such a thread.
void begin_waiting() noexcept;
void end_waiting() noexcept;
// The number of waits of all threads. If it has changed since the calling thread took the GIL, that thread
// has waited.
extern uint64_t n_waits;

// For a forked child, which has only the calling thread.
void forget_other_waits() noexcept;

}  // namespace tenon::python
