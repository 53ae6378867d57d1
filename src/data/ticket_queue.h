// SPDX-License-Identifier: Apache-2.0
//
// Hands the batches of an epoch to workers as tickets, in their order, and the filled slots to the consumer
// in the same order. Knows nothing of generators, arrays and threads.
//
// A worker takes a free slot before it takes a ticket. So each ticket has a slot, and later batches cannot
// take the slot of the batch for which the consumer waits.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/ref.h"
#include "base/spin_budget.h"
#include "base/trace.h"
#include "data/order.h"
#include "data/request_ring.h"
#include "data/slots.h"

namespace tenon::impl {

std::string ticket_text(const Ticket& ticket);  // "batch 3 of epoch 0"

// The state of a worker's generator after a fill. Null: the one from before its first fill.
using StateRef = std::shared_ptr<const std::vector<std::byte>>;

// What is known after a fill, also if its batch is not delivered.
struct FillReport {
  StateRef state;  // null: none, or it is not known
  bool ignored_index = false;
};

// What consumers have got.
struct FeedPosition {
  uint64_t epoch = 0;
  uint64_t place = 0;  // of the epoch
  int32_t worker = 0;  // whose turn the next batch is, with round_robin
  bool ignored_index = false;
  std::vector<StateRef> states;  // by worker; empty without round_robin
};

// Why a batch cannot be delivered.
struct TicketFailure {
  int32_t kind = 0;
  int32_t code = 0;
  int32_t worker = -1;
  int64_t pid = 0;
  int32_t exit_signal = 0;
  int32_t exit_code = -1;
  bool was_begun = true;
  char message[kMessageSize] = "";

  void set_message(const char* text) noexcept {
    std::strncpy(message, text, sizeof message - 1);
    message[sizeof message - 1] = '\0';
  }
};

// Threads: of workers the one that has the slot, so at most one at a time; any threads as consumers.
// Invariants: deliver_ <= next_ <= deliver_ + most slots; each ticket in deliver_..next_ is being filled, or
// lies in its entry of ring_ as filled, failed or skipped. states_ are those after the places before
// deliver_.
class TicketQueue {
 public:
  // round_robin: the number of workers among which the batches go round; 0: the next worker that asks gets
  // the next batch. feed: its number in a timeline.
  explicit TicketQueue(Ref<Slots> slots, Order order, int32_t round_robin = 0, uint32_t feed = 0);

  // For workers: the slot of a ticket is the one that the caller has taken for it. A batch of a past epoch,
  // or one that was given up, is dropped, and its slot is free.

  enum class TicketTake { kTicket, kNone, kStopped };
  // The next batch to be filled. Without one, the caller keeps the slot. kNone: there is none now, and
  // may_wait is false. kStopped: after stop().
  TicketTake take(int32_t worker, bool may_wait, Ticket& ticket);
  // Whether the next batch is this worker's, as take() would return it; waits until it is, if it may.
  TicketTake await_turn(int32_t worker, bool may_wait);
  void publish(const Ticket& ticket, uint64_t fill_ns, FillReport report = {}) noexcept;
  // The consumer gets the failure at the batch's place, and the epoch ends there.
  void fail(const Ticket& ticket, const TicketFailure& failure, FillReport report = {}) noexcept;
  // The consumer gets the next batch in its place.
  void skip(const Ticket& ticket, FillReport report = {}) noexcept;
  // The epoch ends before it.
  void finish(const Ticket& ticket, FillReport report = {}) noexcept;
  // With round_robin, for the first ticket of a worker after begin(): the state with which it begins.
  std::optional<StateRef> first_state(const Ticket& ticket, int32_t worker);

  // For consumers.

  enum class NextBatch { kBatch, kFailure, kEnd, kLate, kStopped };
  struct Delivery {
    // Not constexpr: with a constant value, g++ clears the whole object, with the 4 KiB of the message.
    Delivery() noexcept {}

    Ticket ticket;                         // kBatch: its slot is the caller's now
    std::optional<TicketFailure> failure;  // kFailure
  };

  // Fails with kClosed after stop().
  void begin();
  void end();
  // The same, as if the consumers had got only what lies before the position, which position() has returned
  // in this epoch.
  void end_at(FeedPosition delivered);
  // The epoch that begin() begins, and its place in it. Without states, workers begin with their first ones.
  void seek(uint64_t epoch, uint64_t place);
  void seek(FeedPosition position);
  // The epoch, and the place of the epoch up to which all ranks have delivered, when each has delivered as
  // many as this one. If no epoch runs, where begin() would begin.
  FeedPosition position();
  // kFailure ends the epoch; kEnd: no epoch runs any more. Waits at most timeout_ns (< 0: for ever).
  NextBatch next(int64_t timeout_ns, Delivery& item);
  // The consumer has waited elsewhere, too.
  void note_starved(int64_t ns) {
    const std::scoped_lock lock(mutex_);
    starved_ns_ += static_cast<uint64_t>(ns);
  }
  // What next() would return; it takes nothing.
  NextBatch peek(int64_t timeout_ns = 0);
  // The batch for which a consumer waits, if it has been filled for so long; it is given up then: failed with
  // failure, or skipped.
  bool give_up(int64_t longer_than_ns, bool skips, const TicketFailure& failure);
  // The same for a batch whose worker is known to hang. False: no consumer waits for it any more.
  bool give_up(const Ticket& ticket, bool skips, const TicketFailure& failure);
  // The batch for which the consumer waits, whether it was begun or not. False: it is there.
  bool fail_wanted(const TicketFailure& failure);
  // The slot of a worker that hangs does not count as being filled any more. That of again, with which the
  // batch is filled again, does; null: it is not.
  void abandon(int32_t slot, const Ticket* again);
  // No more tickets and batches; wakes all waiters.
  void stop();

  // For statistics and messages.

  bool has_ready() const noexcept { return ready_count_.load(std::memory_order_relaxed) > 0; }
  // No consumer waits for this batch any more.
  bool is_past(const Ticket& ticket);

  // The batch that was last in a slot.
  struct SlotUse {
    Ticket ticket;
    int64_t since_ns = 0;  // when its ticket was taken; once delivered: when it was
    bool is_filling = false;
  };
  struct Snapshot {
    int32_t filling = 0;
    int32_t ready = 0;
    uint64_t skipped = 0;
    uint64_t fill_ns = 0;
    uint64_t starved_ns = 0;
    std::optional<Ticket> wanted;    // for which a consumer waits
    int64_t waiting_since_ns = 0;    // with wanted
    std::optional<SlotUse> longest;  // that has been filled for the longest time
  };
  Snapshot snapshot();
  std::vector<SlotUse> uses();  // by slot

 private:
  enum class EntryState : uint8_t { kPending, kFilled, kFailed, kSkipped };
  struct RingEntry {
    EntryState state = EntryState::kPending;
    int32_t slot = -1;  // kFilled
    FillReport report;
  };

  // All of these require mutex_.
  RingEntry& entry(uint64_t place) { return ring_[place % ring_.size()]; }
  Ticket ticket_at(uint64_t epoch, uint64_t place, int32_t slot = -1) const noexcept {
    return {.slot = slot,
            .epoch = epoch,
            .index = order_.index_at(epoch, begin_, place),
            .place = place,
            .round = round_,
            .flags = is_resumed_ ? uint64_t{TENON_RESUMED} : 0};
  }
  bool is_current(const Ticket& ticket) const { return is_active_ && ticket.round == round_; }
  bool is_awaited(const Ticket& ticket) {
    return is_current(ticket) && ticket.place >= deliver_ &&
           entry(ticket.place).state == EntryState::kPending;
  }
  bool has_tickets() const {
    return is_active_ && next_ < limit_ && next_ - deliver_ < static_cast<uint64_t>(ring_.size());
  }
  bool has_ticket_for(int32_t worker) const {
    return has_tickets() && (round_robin_ == 0 || worker_of(next_) == static_cast<uint64_t>(worker));
  }
  uint64_t worker_of(uint64_t place) const {
    return round_robin_ == 0 ? 0 : (place - begin_ + first_worker_) % round_robin_;
  }
  bool is_settled() const { return is_stopped_ || !is_active_ || deliver_ == end_ || is_there(); }
  bool is_there() const { return ring_[deliver_ % ring_.size()].state != EntryState::kPending; }
  TicketTake await_ticket(std::unique_lock<std::mutex>& lock, int32_t worker, bool may_wait);
  template <class Note>
  void settle_without_batch(const Ticket& ticket, Note note) noexcept;
  void end_epoch() noexcept;
  void note_report(uint64_t place, FillReport& report) noexcept;
  void begin_waiting(int64_t now) noexcept;
  void end_waiting() noexcept;
  void drop_skipped() noexcept;
  void note_skipped(uint64_t place, FillReport report) noexcept;
  void note_given_up(uint64_t place, bool skips, const TicketFailure& failure) noexcept;
  void note_failed(uint64_t place, const TicketFailure& failure, FillReport report) noexcept;
  void note_filled(int32_t slot, uint64_t fill_ns) noexcept;
  void notify_consumers() noexcept;
  bool wait_settled(std::unique_lock<std::mutex>& lock, int64_t timeout_ns);
  bool poll_settled(std::unique_lock<std::mutex>& lock);
  bool sleep_settled(std::unique_lock<std::mutex>& lock, const Deadline& deadline);

  // Constant after construction.
  const Ref<Slots> slots_;
  const uint64_t round_robin_;
  const uint32_t feed_;
  const Order order_;

  // Shared. Counts what has settled: a hint for consumers that poll; they look under the mutex then.
  std::atomic<uint64_t> settled_{0};
  // Filled batches. Changed under the mutex.
  std::atomic<int32_t> ready_count_{0};

  std::mutex mutex_;
  std::condition_variable work_;   // tickets, or stopped
  std::condition_variable ready_;  // the batch at deliver_ has settled

  // Guarded by mutex_.
  std::vector<RingEntry> ring_;
  TicketFailure failure_;        // of the entry that has failed: an epoch ends with its first one
  std::vector<SlotUse> uses_;    // by slot
  uint64_t epoch_ = UINT64_MAX;  // the first begin() makes it 0
  uint64_t round_ = 0;
  FeedPosition start_;      // where begin() begins
  bool has_start_ = false;  // seek() has set it
  bool is_resumed_ = false;
  bool ignored_index_ = false;
  std::vector<StateRef> states_;        // by worker
  std::vector<uint64_t> state_rounds_;  // by worker: of the last first_state()
  FillReport end_report_;               // of the fill that has set end_
  uint64_t first_worker_ = 0;           // whose turn begin_ is
  // Places.
  uint64_t begin_ = 0;    // the first one, also of the epoch
  uint64_t end_ = 0;      // of this epoch
  uint64_t next_ = 0;     // the next ticket
  uint64_t limit_ = 0;    // no tickets from here on
  uint64_t deliver_ = 0;  // the next batch for the consumer
  uint64_t skipped_ = 0;
  int32_t consumers_waiting_ = 0;
  int64_t waiting_since_ns_ = 0;  // 0: the last call got its batch
  trace::Span waiting_ = trace::kNoSpan;
  uint64_t fill_ns_ = 0;
  uint64_t starved_ns_ = 0;
  bool is_active_ = false;
  bool is_stopped_ = false;
  SpinBudget short_wait_;
};

}  // namespace tenon::impl
