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
  uint32_t number = 0;                 // of the kernel, set with id; another thread may get it later
  uint64_t running = 0;                // the number of the op whose body runs here; 0: none
  Request* running_request = nullptr;  // that op
  bool is_finishing = false;           // the code that runs here is a part of the end of an op
  bool may_end = false;                // and may end the thread: its callers are ready for that
  uint64_t last_op = 0;                // the number of the last op that it made
  // How many leases, calls and ended parts it owns: those that it has appended without those that it has
  // removed. It stays too large if another thread has removed one. Those that another thread has appended
  // for it are not in it (detail::has_requests_of_others).
  int64_t requests = 0;
  void* room = nullptr;     // for the ended part of the next view (EndedPart); owned
  bool keeps_room = false;  // it is freed at the end of the thread
};

// In the first block of thread-local memory, so that an access costs one instruction.
extern constinit thread_local ThisThread this_thread [[gnu::tls_model("initial-exec")]];

uint32_t begin_thread() noexcept;  // of this_thread_id()
// A number of this thread that no other thread of the process ever gets, unlike the kernel number. The thread
// that forks keeps it in the child.
inline uint32_t this_thread_id() noexcept {
  const uint32_t id = this_thread.id;
  return id != 0 ? id : begin_thread();
}

// The id of the living thread with this kernel number; 0: there is none, or it has no id.
uint32_t thread_id_of(uint32_t number) noexcept;

void lock_threads_for_fork() noexcept;
void unlock_threads_after_fork(bool is_child) noexcept;

// The owner of a request. A lease taken outside of tasks belongs to its thread; a detached lease belongs to
// Actor{}.
struct Actor {
  uint32_t thread = 0;  // its id
  uint32_t number = 0;  // the kernel number of the thread, for messages
  uint64_t task = 0;    // of an asynchronous program; 0: none

  friend bool operator==(const Actor& a, const Actor& b) noexcept {
    return a.thread == b.thread && a.task == b.task;
  }
  // Leases of this actor belong to the other one, too: a lease that a thread took outside of tasks belongs to
  // all of its tasks.
  bool includes(const Actor& other) const noexcept {
    return thread == other.thread && (task == 0 || task == other.task);
  }
};

inline Actor actor_of_task(uint64_t task) noexcept {
  const uint32_t id = this_thread_id();
  return {id, this_thread.number, task};
}

// The task that this thread runs; 0: none. Calls the hook of the language binding (waiter.h).
uint64_t current_task() noexcept;

inline Actor current_actor() noexcept { return actor_of_task(current_task()); }

// Milliseconds of a coarse monotonic clock, for ages in messages.
int64_t coarse_now_ms() noexcept;

}  // namespace tenon::impl
