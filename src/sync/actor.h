// SPDX-License-Identifier: Apache-2.0
//
// The owner of a request: a thread, or a task of an asynchronous program on it, or the op that the thread
// runs.
#pragma once

#include <cstdint>

namespace tenon::impl {

class Request;

// What the engine keeps for each thread. One thread only.
struct ThisThread {
  uint32_t id = 0;                     // 0 until this_thread_id() has been called
  uint32_t number = 0;                 // the kernel's, as of id; another thread may get it later
  uint64_t running = 0;                // the number of the op whose body runs here; 0: none
  Request* running_request = nullptr;  // that op
  bool is_finishing = false;           // what runs here belongs to the end of an op, which waits for it
  int64_t requests = 0;  // of its leases and calls: appended here, and not taken out here (requests.h)
};

// In the first block of thread-local memory, so that looking costs one instruction.
extern constinit thread_local ThisThread this_thread [[gnu::tls_model("initial-exec")]];

uint32_t begin_thread() noexcept;  // of this_thread_id()
// A number of this thread that no other one of the process ever gets, other than the kernel's. The thread
// that forks keeps it in the child.
inline uint32_t this_thread_id() noexcept {
  const uint32_t id = this_thread.id;
  return id != 0 ? id : begin_thread();
}

// The id of a thread that lives and has one, by the kernel's number; 0: there is none.
uint32_t thread_id_of(uint32_t number) noexcept;

void lock_threads_for_fork() noexcept;
void unlock_threads_after_fork(bool is_child) noexcept;

// What owns a lease. A lease taken outside of tasks belongs to its thread; Actor{} is the owner of a
// detached one.
struct Actor {
  uint32_t thread = 0;  // its id
  uint32_t number = 0;  // the kernel's number of the thread, for messages
  uint64_t task = 0;    // of an asynchronous program; 0: none

  friend bool operator==(const Actor& a, const Actor& b) noexcept {
    return a.thread == b.thread && a.task == b.task;
  }
  // What belongs to this actor belongs to the other one, too: what a thread took outside of tasks is all of
  // its tasks'.
  bool includes(const Actor& other) const noexcept {
    return thread == other.thread && (task == 0 || task == other.task);
  }
};

inline Actor actor_of_task(uint64_t task) noexcept {
  const uint32_t id = this_thread_id();
  return {id, this_thread.number, task};
}

// The task that this thread runs; 0: none. Asks the binding of the language (wait.h).
uint64_t current_task() noexcept;

inline Actor current_actor() noexcept { return actor_of_task(current_task()); }

// Milliseconds of a coarse clock that goes on steadily: for ages in messages.
int64_t coarse_now_ms() noexcept;

}  // namespace tenon::impl
