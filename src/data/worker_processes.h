// SPDX-License-Identifier: Apache-2.0
//
// The worker processes of a feed, seen from the feed's process: they are started, asked, watched and ended
// here. data/worker.h is the worker's side.
//
// One thread starts all of them and learns of their ends. It lives as long as the feed, so that the kernel
// can be told to kill the workers with their parent (which it takes to be the thread that started them).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/os.h"
#include "base/ref.h"
#include "base/spin_budget.h"
#include "data/fill_loop.h"
#include "data/request_ring.h"
#include "data/slots.h"
#include "ipc/schema.h"
#include "tenon/tenon.h"

namespace tenon::impl {

// Threads: ask(), await(), stop() and start() of one worker belong to one thread at a time; everything else
// may be called by any.
class WorkerProcesses {
 public:
  // The generator's functions are called as long as this lives. Starts nothing. feed: its number in this
  // process.
  WorkerProcesses(const tenon_generator& generator, const Schema& schema, const SlotLayout& layout,
                  Ref<Slots> slots, int32_t workers, uint32_t feed);
  // Kills those that have not left.
  ~WorkerProcesses();
  WorkerProcesses(const WorkerProcesses&) = delete;
  WorkerProcesses& operator=(const WorkerProcesses&) = delete;

  // Starts all workers. Fails with kSystem, and with kOp as the generator's start fails.
  void start();

  // At most kRingEntries requests may be open.
  void ask(int32_t worker, const Ticket& request) noexcept;
  // The answer to the oldest open request, or what became of its process. timeout_ns <= 0: for ever; a
  // process that takes longer is killed. False: the feed ends. slot: of this request; on its first use, it is
  // mapped here while the worker maps it.
  bool await(int32_t worker, int32_t slot, int64_t timeout_ns, FillResult& result);
  // Kills the worker if it lives, and waits for its end: from then on it writes nothing.
  void stop(int32_t worker);
  // How many requests the worker has answered.
  uint32_t answered(int32_t worker) const noexcept;
  // Starts it, where none runs: it is asked again what is open. Empty, or why it could not be started.
  std::string start(int32_t worker);

  int64_t pid(int32_t worker) const noexcept;  // 0: none runs
  // Valid after start(). False: the generator has started a thread of this process in its place.
  bool has_process(int32_t worker) const noexcept {
    return peers_[static_cast<size_t>(worker)].pid.load(std::memory_order_relaxed) != 0;
  }
  uint64_t restarts() const noexcept { return restarts_.load(std::memory_order_relaxed); }

  // Tells all to leave, and wakes the threads that wait here.
  void dismiss() noexcept;
  // Waits for them to leave, at most for so long, then kills those that have not. False: some were killed.
  bool end(int64_t timeout_ns);

 private:
  struct RingUser {
    std::atomic<int64_t> pid{0};
    std::atomic<bool> is_alive{false};
    // Guarded by mutex_.
    os::File process;    // a pidfd of the process that is watched; empty: there is none
    uint64_t start = 0;  // of that process
    int32_t status = 0;  // as waitpid gives it, of the process that has ended
    bool is_wanted = false;
    std::string failure;  // why it could not be started
    // Of the thread that asks.
    uint32_t asked = 0, seen = 0;
    SpinBudget short_wait;
  };

  void run() noexcept;
  void request_start(int32_t worker);
  std::string await_start(int32_t worker);
  void start_one(int32_t worker) noexcept;
  int64_t fork_worker(int32_t worker);
  void note_end(int32_t worker) noexcept;
  bool watch_again(RingUser& peer) noexcept;
  void renew_wake() noexcept;
  void kill_one(int32_t worker) noexcept;
  bool has_answer(const RingUser& peer, const RequestRing& ring) const noexcept;
  RequestRing& ring(int32_t worker) const noexcept;
  void describe_end(const RingUser& peer, FillResult& result);

  const tenon_generator generator_;
  const Ref<Slots> slots_;
  const SlotLayout layout_;
  const size_t fields_;
  const uint32_t feed_;
  std::vector<RingUser> peers_;  // by worker
  std::vector<char> has_pages_;  // by slot, of the thread that awaits it: map_slot() has run in this process
  std::atomic<uint64_t> restarts_{0};
  std::atomic<bool> is_over_{false};  // moves under mutex_

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<int32_t> to_start_;  // guarded by mutex_
  os::File wake_;                 // guarded by mutex_ after start()
  std::thread watcher_;
};

}  // namespace tenon::impl
