// SPDX-License-Identifier: Apache-2.0
//
// The engine of the process: takes ops, posts them to an executor when they are ready, waits for all of them,
// and handles fork and exit.
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

// One for the process. Never destroyed, because ops and deleters may use it after static destructors.
// Threads: any.
class Engine {
 public:
  static Engine& instance() noexcept;

  // Appends all parts of an op, or none. False: refused. Waits while too many ops are unfinished or hold too
  // much memory, unless the caller is the body of an op or runs at its end. Fails with kClosed at the end of
  // the process, and as set_executor().
  bool push(const Ref<Op>& op, OnHost on_host, Conflict* conflict);

  // Waits until no op is unfinished, and runs ops meanwhile if the executor has no threads. False: the
  // conflict says why.
  bool wait_all(const Deadline& deadline, Conflict* conflict) noexcept;

  // "pool", "inline", "seeded:N", "default". Waits for all ops first; pushes of other threads wait meanwhile.
  // Fails with kValue, kSystem, and with kTimeout if ops do not end within a minute.
  void set_executor(const std::string& name, int workers);
  std::string executor_name();

  // A push waits if this many ops are unfinished or hold this many bytes of memory, until only half of that
  // is left. 0: no limit.
  void set_limits(uint64_t ops, uint64_t nbytes) noexcept {
    limit_.store(ops, std::memory_order_relaxed);
    byte_limit_.store(nbytes, std::memory_order_relaxed);
  }
  uint64_t limit() const noexcept { return limit_.load(std::memory_order_relaxed); }
  uint64_t byte_limit() const noexcept { return byte_limit_.load(std::memory_order_relaxed); }
  uint64_t unfinished() const noexcept {
    // In this order, so that the difference is not negative.
    // pairs with: Engine::note_done, "a thread waits for all ops"
    const uint64_t finished = finished_.load(std::memory_order_seq_cst);
    // pairs with: Engine::set_executor, "no push beside a change"
    return pushed_.load(std::memory_order_seq_cst) - finished;
  }

  // Refuses further pushes, waits for all ops, and reports the failures that no caller has seen. False: the
  // conflict says why not all ops have ended.
  bool shut_down(const Deadline& deadline, Conflict* conflict) noexcept;

  // The home of ops that use no memory, so that forks and waits for all ops find them.
  Home& loose_home() noexcept { return loose_home_; }

  // For ops and waits.
  Executor& executor();
  // True also while there is no executor: nothing has been pushed then.
  bool has_own_threads() noexcept;
  // For waits: runs one ready op in this thread, if no threads of the engine run them. False: there is none.
  bool help() noexcept { return !has_own_threads() && executor().try_run_one(); }
  void note_done() noexcept;

  // Before a fork: waits until no body runs except that of the caller, because the child would get partly
  // written memory. False: timeout.
  bool wait_for_bodies(const Deadline& deadline) noexcept;
  // In a forked child, which has only one thread: no executor yet, and no unfinished op.
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
  std::atomic<uint64_t> byte_limit_;  // initially half of the memory of the machine
  std::atomic<uint32_t> waiters_{0};
  std::atomic<uint32_t> pushers_{0};      // waiters that wait for room
  std::atomic<uint32_t> turns_{0};        // changes, with a wake-up, when a condition of a waiter may be true
  std::atomic<bool> is_changing_{false};  // no push begins
  std::atomic<bool> is_closed_{false};

  Queue loose_;
  Home loose_home_{&loose_};

  // Pushers and workers write to separate cache lines.
  alignas(64) std::atomic<uint64_t> pushed_{0};
  std::atomic<uint64_t> seen_finished_{0};  // the value of finished_ that a pusher has read last
  alignas(64) std::atomic<uint64_t> finished_{0};

  // Held by the thread that changes the executor, also while it waits; before change_.
  alignas(64) std::mutex changers_;
  std::mutex change_;  // held while executors are exchanged
  // Guarded by change_.
  std::string name_;
  // Stopped executors. They are kept, because a thread in help() may still use one.
  std::vector<std::unique_ptr<Executor>> former_;
};

}  // namespace tenon::impl
