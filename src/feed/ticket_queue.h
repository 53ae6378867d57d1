// SPDX-License-Identifier: Apache-2.0
//
// Order: hands the batches of an epoch to workers as tickets, in order of index, and the filled slots to
// the consumer in the same order. Knows nothing of generators, arrays and threads.
//
// A worker asks for a ticket only with a free slot in hand. So every ticket that is out has its slot, and
// the batch for which the consumer waits can never be kept from its slot by later ones.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/ref.h"
#include "feed/short_wait.h"
#include "feed/slots.h"

namespace tenon {

// One batch of one epoch.
struct Ticket {
  uint64_t epoch = 0;
  uint64_t index = 0;
};

// Threads: one thread for each worker number, any threads as consumers.
// Invariants: deliver_ <= next_ <= deliver_ + slots; each ticket in deliver_..next_ is being filled, or lies
// in ring_[index % slots] with its slot or with a failure.
class TicketQueue {
 public:
  // batches: of an epoch; -1 for no end.
  TicketQueue(Ref<Slots> slots, int32_t workers, int64_t batches);

  // For workers.

  // The next batch to be filled, into the slot that the caller has taken. Waits while there is none.
  // False after stop(): the slot stays the caller's.
  bool take(int32_t worker, Ticket& ticket);
  // The batch is filled; a batch of a past epoch is dropped.
  void publish(int32_t worker, const Ticket& ticket, int32_t slot) noexcept;
  // The generator failed: the consumer gets the failure at the batch's place. code is not 0; the message
  // is cut where it is too long.
  void fail(int32_t worker, const Ticket& ticket, int32_t slot, int32_t code, const char* message) noexcept;

  // For consumers.

  enum class Outcome { kBatch, kFailure, kEnd, kLate, kStopped };
  struct Item {
    Ticket ticket;
    int32_t slot = -1;    // kBatch: is the caller's now
    int32_t code = 0;     // kFailure
    std::string message;  // kFailure
  };

  // Fails with kClosed after stop().
  void begin();
  void end();
  // kFailure ends the epoch; kEnd: no epoch runs any more. Waits at most timeout_ns (< 0: for ever).
  Outcome next(int64_t timeout_ns, Item& item);
  // No more tickets and batches; wakes everybody.
  void stop();

  // A look from outside.

  struct Filling {
    Ticket ticket;
    int64_t since_ns = 0;
    bool is_busy = false;
  };
  struct Snapshot {
    int32_t filling = 0;
    int32_t ready = 0;
    uint64_t fill_ns = 0;
    uint64_t starved_ns = 0;
    std::optional<Ticket> wanted;    // for which a consumer waits
    int64_t waiting_since_ns = 0;    // with wanted
    std::optional<Filling> longest;  // the worker that has been filling longest
  };
  Snapshot snapshot();

  // The batch that a slot was delivered with last.
  struct Delivery {
    Ticket ticket;
    int64_t at_ns = 0;
  };
  std::vector<Delivery> deliveries();  // by slot

 private:
  // The room for a failure is there from the start, so that no worker has to allocate.
  struct Entry {
    int32_t slot = -1;  // -1: not there yet, or a failure
    int32_t code = 0;   // not 0: a failure
    char message[256];
  };

  // All of these require mutex_.
  Entry& entry(uint64_t index) { return ring_[index % ring_.size()]; }
  bool is_current(const Ticket& ticket) const { return is_active_ && ticket.epoch == epoch_; }
  bool has_tickets() const { return is_active_ && next_ < limit_; }
  bool is_settled() const { return is_stopped_ || !is_active_ || deliver_ == end_ || is_filled(); }
  bool is_filled() const;
  void end_epoch() noexcept;
  void note_filled(int32_t worker) noexcept;
  void tell_consumers() noexcept;
  bool wait_settled(std::unique_lock<std::mutex>& lock, int64_t timeout_ns);
  bool poll_settled(std::unique_lock<std::mutex>& lock);
  bool sleep_settled(std::unique_lock<std::mutex>& lock, const Deadline& deadline);

  // Constant after construction.
  const Ref<Slots> slots_;
  const uint64_t end_;  // of an epoch: UINT64_MAX for none

  // Shared. Moves when something has settled: a hint for consumers that poll, who look under the mutex then.
  std::atomic<uint64_t> news_{0};

  std::mutex mutex_;
  std::condition_variable work_;   // tickets, or stopped
  std::condition_variable ready_;  // the batch at deliver_ has settled

  // Guarded by mutex_.
  std::vector<Entry> ring_;
  std::vector<Filling> filling_;      // by worker
  std::vector<Delivery> deliveries_;  // by slot
  uint64_t epoch_ = UINT64_MAX;       // the first begin() makes it 0
  uint64_t next_ = 0;                 // the next ticket
  uint64_t limit_ = 0;                // no tickets from here on
  uint64_t deliver_ = 0;              // the next batch for the consumer
  int32_t ready_count_ = 0;
  int32_t consumers_waiting_ = 0;
  int64_t waiting_since_ns_ = 0;  // 0: the last call got its batch
  uint64_t fill_ns_ = 0;
  uint64_t starved_ns_ = 0;
  bool is_active_ = false;
  bool is_stopped_ = false;
  ShortWait short_wait_;
};

}  // namespace tenon
