// SPDX-License-Identifier: Apache-2.0
//
// The engine of the process: takes ops, gives them to an executor when they are ready, waits for all of them,
// and survives fork and exit.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/fork_mark.h"
#include "exec/executor.h"
#include "exec/op.h"

namespace tenon::impl {

// One for the process, never destroyed: late ops and deleters meet a valid object.
// Threads: any.
class Engine {
 public:
  static Engine& instance() noexcept;

  // Takes an op: all of its parts at once, or none. False: refused. Waits while too many ops are unfinished
  // or hold too much memory, unless the caller is the body of an op or belongs to its end. Fails with kClosed
  // at the process' end, and as set_executor.
  bool push(const Ref<Op>& op, OnHost on_host, Conflict* conflict);

  // Waits until no op is unfinished, and runs ops meanwhile where no other thread does. False: the conflict
  // says why.
  bool wait_all(const Deadline& deadline, Conflict* conflict) noexcept;

  // "pool", "inline", "seeded:N", "default". Waits for all ops first; pushes of others wait meanwhile. Fails
  // with kValue, kSystem, and with kTimeout when ops do not end within a minute.
  void set_executor(const std::string& name, int workers);
  std::string executor_name();
  int concurrency();

  // How many ops may be unfinished, and how many bytes of memory they may hold, before a push waits; it then
  // waits until half of that is left. 0: any number.
  void set_limits(uint64_t ops, uint64_t nbytes) noexcept {
    limit_.store(ops, std::memory_order_relaxed);
    byte_limit_.store(nbytes, std::memory_order_relaxed);
  }
  uint64_t limit() const noexcept { return limit_.load(std::memory_order_relaxed); }
  uint64_t byte_limit() const noexcept { return byte_limit_.load(std::memory_order_relaxed); }
  uint64_t unfinished() const noexcept {
    // In this order: nothing is finished that was not pushed.
    // pairs with: Engine::note_done, "a thread waits for all ops"
    const uint64_t finished = finished_.load(std::memory_order_seq_cst);
    // pairs with: Engine::set_executor, "no push beside a change"
    return pushed_.load(std::memory_order_seq_cst) - finished;
  }

  // No further pushes; waits for what can end, and reports the failures that no caller has seen. False: the
  // conflict says why.
  bool shut_down(const Deadline& deadline, Conflict* conflict) noexcept;

  // In which an op stands that uses no memory, so that it is seen by forks and by waits for all ops.
  Queue& loose_queue() noexcept { return loose_; }
  Home& loose_home() noexcept { return loose_home_; }

  // Of ops and waits.
  Executor& executor();
  // True also while there is no executor: nothing has been pushed then.
  bool has_own_threads() noexcept;
  void note_done() noexcept;

  // Before a fork: waits until no body runs but that of the caller. What it has half written would stay so in
  // the child. False: the time has passed.
  bool wait_for_bodies(const Deadline& deadline) noexcept;
  // A forked child has no threads but one: a new pool, and no op is unfinished.
  void start_anew_after_fork() noexcept;

 private:
  class Change;
  Engine() noexcept;
  void make_default();
  bool is_within(uint64_t ops, uint64_t nbytes) const noexcept;
  bool has_reached(uint64_t limit) noexcept;
  bool has_room() const noexcept;
  static bool has_room_in(const Engine& engine) noexcept;
  bool begin_push(Conflict* conflict) noexcept;
  bool wait_for_turn(bool (*is_over)(const Engine& engine), const Deadline& deadline,
                     Conflict* conflict) noexcept;
  void exchange_executor(std::unique_ptr<Executor>* fresh, std::string name);

  // Shared.
  std::atomic<Executor*> executor_{nullptr};
  std::atomic<uint64_t> limit_{10'000};
  std::atomic<uint64_t> byte_limit_;  // half of the machine's memory at first
  std::atomic<uint32_t> waiters_{0};
  std::atomic<uint32_t> pushers_{0};      // waiters that wait for room
  std::atomic<uint32_t> turns_{0};        // moves and wakes when something that waiters wait for may be true
  std::atomic<bool> is_changing_{false};  // no push begins
  std::atomic<bool> is_closed_{false};

  Queue loose_;
  Home loose_home_{&loose_};

  // Pushers and workers each have a line to write to.
  alignas(64) std::atomic<uint64_t> pushed_{0};
  std::atomic<uint64_t> seen_finished_{0};  // what a pusher has last seen of finished_
  alignas(64) std::atomic<uint64_t> finished_{0};

  // Held by the thread that changes the executor, also while it waits; before change_.
  alignas(64) std::mutex changers_;
  std::mutex change_;  // held while executors are exchanged
  // Guarded by change_.
  std::string name_;
  // A thread that helps may still look into one: they are stopped, and kept.
  std::vector<std::unique_ptr<Executor>> former_;
};

}  // namespace tenon::impl
