// SPDX-License-Identifier: Apache-2.0
//
// The worker processes of a feed, seen from the feed's process: they are started, watched, killed and reaped
// here. data/worker.h is the worker's side. A worker takes tickets and settles them itself, so nothing is
// asked here.
//
// One thread does all of it. It lives as long as the feed, so that the kernel can be told to kill the workers
// with their parent (which it takes to be the thread that started them). No other thread gives back what a
// dead worker had, and the thread does it before it starts the successor.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/os.h"
#include "base/ref.h"
#include "data/feed_control.h"
#include "data/slots.h"
#include "data/ticket_failure.h"
#include "ipc/schema.h"
#include "tenon/tenon.h"

namespace tenon::impl {

// Threads: any.
class WorkerProcesses {
 public:
  // How the process of a worker has ended, or why it has none.
  struct End {
    int64_t pid = 0;        // 0: none was started
    int32_t status = 0;     // as waitpid gives it
    bool has_hung = false;  // it took too long, and was killed
    std::string failure;    // why none could be started

    // Of its ticket.
    TicketFailure as_failure(int32_t worker) const noexcept;
  };
  // What the thread calls.
  struct Feed {
    // The process has ended: gives back what it had. True: a batch tells the consumer of it, or is filled
    // again.
    std::function<bool(int32_t worker, const End& end)> on_end;
    // No batch has told the consumer: lets the next one of this worker do it, if there is one now.
    std::function<bool(int32_t worker, const End& end)> on_owed;
    // All have ended, and none is started any more. The last call: may drop what owns this, in another
    // thread.
    std::function<void()> on_over;
  };

  // Starts nothing. The generator's functions are called as long as this lives. feed: its number in this
  // process. The slots have the control part.
  WorkerProcesses(const tenon_generator& generator, Ref<Schema> schema, Ref<Slots> slots, uint32_t feed,
                  Feed calls);
  // As end().
  ~WorkerProcesses();
  WorkerProcesses(const WorkerProcesses&) = delete;
  WorkerProcesses& operator=(const WorkerProcesses&) = delete;

  // Starts all workers. Fails with kSystem, and with kOp as the generator's start fails.
  void start();
  // Valid after start(). False: the generator has started a thread of this process in its place.
  bool has_process(int32_t worker) const noexcept {
    return peers_[static_cast<size_t>(worker)].pid.load(std::memory_order_relaxed) != 0;
  }
  int64_t pid(int32_t worker) const noexcept;  // 0: none runs
  uint64_t restarts() const noexcept { return restarts_.load(std::memory_order_relaxed); }
  // There are tickets again: those that have ended without one may be told of now.
  void note_begin() noexcept;

  // Those that do not leave within kGraceNs are killed. Who calls this lets them see that the feed is over.
  void dismiss() noexcept;
  // Dismisses all, and waits for their ends.
  void end() noexcept;

 private:
  struct Peer {
    std::atomic<int64_t> pid{0};
    std::atomic<bool> is_alive{false};
    // Of the thread alone.
    os::File process;         // a pidfd of the process that is watched; empty: there is none
    uint64_t start = 0;       // of that process
    std::optional<End> owed;  // of which no batch has told yet: it is not started before
    // Guarded by mutex_.
    bool is_wanted = false;
    std::string failure;  // why it could not be started
  };

  void run() noexcept;
  void want(int32_t worker) noexcept;
  void owe(int32_t worker, End end) noexcept;
  void tell_owed() noexcept;
  bool start_next() noexcept;
  void kill_late() noexcept;
  void note_ungiven(bool is_awaited) noexcept;
  int64_t idle_since(int32_t worker) const noexcept;
  int64_t time_left_ns(const Deadline* grace) const noexcept;
  void request_start(int32_t worker);
  std::string await_start(int32_t worker);
  std::string start_one(int32_t worker) noexcept;
  int64_t fork_worker(int32_t worker);
  void note_end(int32_t worker) noexcept;
  static bool has_ended(const Peer& peer) noexcept;
  bool watch_again(Peer& peer) noexcept;
  void renew_wake() noexcept;
  void kill_one(Peer& peer) noexcept;
  int32_t workers() const noexcept { return static_cast<int32_t>(peers_.size()); }

  const tenon_generator generator_;
  const Ref<Schema> schema_;
  const Ref<Slots> slots_;
  const FeedControl control_;
  const uint32_t feed_;
  const Feed calls_;
  std::vector<Peer> peers_;  // by worker
  std::atomic<uint64_t> restarts_{0};
  std::atomic<int32_t> owed_{0};  // how many there are

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  bool is_over_ = false;
  Deadline grace_{-1};  // of those that are dismissed
  std::deque<int32_t> to_start_;
  os::File wake_;

  // Of the thread: the ticket that note_ungiven() has seen last; 0: none.
  uint64_t ungiven_ = 0;
  int64_t ungiven_since_ns_ = 0;

  std::thread supervisor_;
};

}  // namespace tenon::impl
