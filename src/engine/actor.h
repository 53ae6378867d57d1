// SPDX-License-Identifier: Apache-2.0
//
// Who acts: a thread, or a task of an asynchronous program on it, or the op that the thread runs.
#pragma once

#include <cstdint>

namespace tenon::engine {

class Claim;

// What the engine keeps for each thread. One thread only.
struct ThisThread {
  uint32_t id = 0;                 // the kernel's; 0 until this_thread_id() has been called
  uint64_t running = 0;            // the number of the op whose body runs here; 0: none
  Claim* running_claim = nullptr;  // that op
  bool is_finishing = false;       // what runs here belongs to the end of an op, which waits for it
};

// In the first block of thread-local memory, so that looking costs one instruction.
extern constinit thread_local ThisThread this_thread [[gnu::tls_model("initial-exec")]];

// The kernel's number of this thread.
uint32_t this_thread_id() noexcept;

// What owns a lease. A lease taken outside of tasks belongs to its thread; nobody == {} is the owner of a
// detached one.
struct Actor {
  uint32_t thread = 0;
  uint64_t task = 0;  // of an asynchronous program; 0: none

  friend bool operator==(Actor, Actor) = default;
};

// The task that this thread runs; 0: none. Asks the binding of the language (wait.h).
uint64_t current_task() noexcept;

inline Actor current_actor() noexcept { return {this_thread_id(), current_task()}; }

// Milliseconds of a coarse clock that goes on steadily: for ages in messages.
int64_t coarse_now_ms() noexcept;

}  // namespace tenon::engine
