// SPDX-License-Identifier: Apache-2.0
//
// The order of the batches of a feed: gives them to workers as tickets, in their order, and the settled slots
// to the consumer in the same order. Knows nothing of generators, arrays and threads.
//
// A ticket is a number of the slots' table (ipc/slot_table.h), which is given before its slot is filled. A
// worker takes a free slot before it takes a ticket. So each ticket has a slot, and later batches cannot take
// the slot of the batch for which the consumer waits. What becomes of the ticket, a batch or not, lies in the
// slot until the consumer is told. A skip without a state needs no slot: the entry of its number says it.
//
// begin() and end() begin a new round, whose first number is larger than each that a worker may have. So
// what comes late is known by its number alone, and is dropped. docs/dev/slots.md has the stores, and
// tests/models/tickets.pml is the model.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/event.h"
#include "base/ref.h"
#include "base/spin_budget.h"
#include "base/trace.h"
#include "data/order.h"
#include "data/slot_layout.h"
#include "data/slots.h"
#include "data/ticket.h"
#include "data/ticket_failure.h"

namespace tenon::impl {

std::string ticket_text(const Ticket& ticket);  // "batch 3 of epoch 0"

using StateRef = std::shared_ptr<const std::vector<std::byte>>;

// The state of a worker's generator after a ticket. Numbers that no ticket has are of states from elsewhere.
struct WorkerState {
  StateRef bytes;       // null: the one from before its first fill
  uint64_t number = 0;  // of the ticket; 0: it comes from no ticket of this feed
};

// What a worker knows of the state of its generator. Used by the thread of the worker.
struct KnownState {
  std::vector<std::byte> bytes;
  uint64_t number = 0;   // of the ticket; 0: the state from before its first fill, which has no bytes
  bool is_lost = false;  // the generator has another state
  uint64_t round = 0;    // of its last ticket
};

// What is known after a fill, also if its batch is not delivered.
enum FillNotes : uint32_t {
  kHasState = 1,  // it lies in the slot
  kIgnoredIndex = 2,
};

// What consumers have got.
struct FeedPosition {
  uint64_t epoch = 0;
  uint64_t place = 0;  // of the epoch
  int32_t worker = 0;  // whose turn the next batch is, with round_robin
  bool ignored_index = false;
  std::vector<WorkerState> states;  // by worker; empty without round_robin
};

// Threads: of workers the one that has the slot; any threads as consumers. Workers take no lock.
// Invariant: each number after the one that was passed last, up to the last one, has an entry. The slot of
// the entry is held by a loop, or settled, or it was left: then the ticket is given up or gets another slot.
// Or the entry says that the ticket is skipped.
class TicketRing {
 public:
  // round_robin: the number of workers among which the batches go round; 0: the next worker that asks gets
  // the next batch. layout: where states lie in a slot. feed: its number in a timeline. No one else gives
  // numbers of the slots' table.
  explicit TicketRing(Ref<Slots> slots, Order order, int32_t round_robin = 0, const SlotLayout& layout = {},
                      uint32_t feed = 0);

  // For workers: the slot of a ticket is the one that the caller has taken for it. What comes of a past
  // epoch, or for a ticket that was given up, is dropped, and its slot is free. notes: FillNotes.

  enum class TicketTake { kTicket, kNone, kStopped };
  // Whether there is a ticket for this worker; waits until there is. kNone: there was none in this time.
  // kStopped: after stop().
  TicketTake await_turn(int32_t worker, const Deadline& deadline);
  // The next batch to be filled. Waits for nothing. kNone: there is none now, and the caller keeps the slot.
  TicketTake take(int32_t worker, Ticket& ticket);
  void publish(const Ticket& ticket, uint32_t notes = 0) noexcept;
  // The consumer gets the failure at the batch's place, and the epoch ends there.
  void fail(const Ticket& ticket, const TicketFailure& failure, uint32_t notes = 0) noexcept;
  // The consumer gets the next batch in its place.
  void skip(const Ticket& ticket, uint32_t notes = 0) noexcept;
  // The epoch ends before it.
  void finish(const Ticket& ticket, uint32_t notes = 0) noexcept;
  // With round_robin, before a ticket is filled: if it is the first one of the worker after begin(), known
  // becomes the state with which that begins. False: the ticket is past.
  bool start_state(const Ticket& ticket, int32_t worker, KnownState& known) const;
  // No consumer waits for this batch any more.
  bool is_past(const Ticket& ticket) const noexcept;

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
    const std::scoped_lock lock(consuming_);
    starved_ns_ += static_cast<uint64_t>(ns);
  }
  // What next() would return; it takes nothing.
  NextBatch peek(int64_t timeout_ns = 0);
  // The batch for which a consumer waits, if it has been filled for so long; it is given up then: failed with
  // failure, or skipped. Its worker keeps the slot until it returns.
  bool give_up(int64_t longer_than_ns, bool skips, const TicketFailure& failure);
  // The batch for which the consumer waits, whether it was begun or not. False: it is there.
  bool fail_wanted(const TicketFailure& failure);
  // A worker hangs in the ticket. It continues in the slot of `again`, a spare one, for that loop. The hung
  // thread keeps its slot, which does not count as being filled any more. False: no consumer waits for it, or
  // it was settled; the spare slot is the caller's.
  bool abandon(const Ticket& ticket, const Ticket& again, uint32_t holder);
  // With round_robin: the worker whose turn the consumer's next batch is, if none has begun it.
  std::optional<int32_t> worker_in_turn();
  // No more tickets and batches; wakes all waiters.
  void stop();

  // For statistics and messages.

  bool has_ready() const noexcept { return count_ready() > 0; }

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
    uint64_t starved_ns = 0;
    std::optional<Ticket> wanted;    // for which a consumer waits
    int64_t waiting_since_ns = 0;    // with wanted
    std::optional<SlotUse> longest;  // that has been filled for the longest time
  };
  Snapshot snapshot();
  std::vector<SlotUse> uses() const;  // by slot

 private:
  // kElsewhere: the ticket was taken from a thread that hangs, and has another slot.
  enum class Outcome : uint32_t { kNone, kBatch, kFailure, kSkip, kEnd, kElsewhere };

  // What a worker needs of a round: ticket t is place begin + (t - base), and there are none from limit on.
  struct Round {
    uint64_t base = 1, limit = 1, epoch = 0, begin = 0, first_worker = 0, flags = 0;
  };
  // Plain data. The version is odd while a consumer writes the round. A worker reads the round between two
  // looks at the version, and the last number before the second one.
  struct alignas(64) SharedRound {
    std::atomic<uint64_t> version;
    std::atomic<uint64_t> base, limit, epoch, begin, first_worker, flags;
    // The last ticket that has ended its round: no further ones of that round are given. It only grows, so
    // what a worker of a former round writes does not concern a later one.
    std::atomic<uint64_t> closed;
  };
  // Of each slot. Plain data. Written by the thread that has the slot for itself; what others read meanwhile
  // belongs together if the slot's word is the same before and after.
  struct SlotRecord {
    std::atomic<uint64_t> number, round, epoch, index, place, flags;
    std::atomic<int64_t> since_ns;
    std::atomic<Outcome> outcome;
    std::atomic<uint32_t> notes;
  };
  // The state with which a worker begins a round. The version is odd while a consumer writes it, and that of
  // the round is odd, too, then.
  struct StartState {
    std::atomic<uint64_t> version{0}, number{0}, nbytes{0};
    std::vector<std::atomic<uint64_t>> words;
  };
  // The state of a worker after the places before the consumer's.
  struct LastState {
    std::vector<std::byte> bytes;  // has room for each state
    uint64_t number = 0;
    StateRef shared;  // the bytes, once a caller has wanted them
  };
  // What lies at the consumer's place.
  enum class Front { kPending, kBatch, kFailure, kEnd };
  // What a consumer that waits without the lock has seen.
  struct Seen {
    uint64_t next = 0;
    uint32_t changes = 0;
  };

  SlotRecord& record(uint32_t slot) noexcept { return records_[slot]; }
  const SlotRecord& record(uint32_t slot) const noexcept { return records_[slot]; }
  TicketFailure* failure_in(uint32_t slot) const noexcept {
    return reinterpret_cast<TicketFailure*>(failures_.get()) + slot;
  }
  bool is_stopped() const noexcept { return observe(is_stopped_) != 0; }
  uint64_t base() const noexcept { return observe(shared_.base); }
  uint64_t worker_of(const Round& round, uint64_t place) const noexcept {
    return round_robin_ == 0 ? 0 : (place - round.begin + round.first_worker) % round_robin_;
  }
  bool read_round(Round& round, SlotTable::Turn& turn) const noexcept;
  TicketTake look_for_turn(int32_t worker, Round& round, SlotTable::Turn& turn) const noexcept;
  Ticket ticket_at(const Round& round, uint64_t number) const noexcept;
  void write_record(const Ticket& ticket) noexcept;
  Ticket read_record(uint32_t slot) const noexcept;
  SlotUse use_of(uint32_t slot) const noexcept;
  bool settle(const Ticket& ticket, Outcome outcome, uint32_t notes) noexcept;
  void drop_settled(uint32_t slot, uint64_t word) noexcept;
  int32_t count_ready() const noexcept;
  bool is_ready(uint64_t number) const noexcept {
    const uint32_t slot = table_.slot_of(number);
    return slot != SlotTable::kNone ? table_.word(slot) == SlotWord::ready(number)
                                    : table_.is_skipped(number);
  }

  // All of these require consuming_.
  uint64_t place_of(uint64_t number) const noexcept { return round_.begin + (number - round_.base); }
  Front look_at_front(uint32_t* slot = nullptr) noexcept;
  bool receive(uint32_t slot) noexcept;
  void pass_front() noexcept;
  bool is_settled() noexcept { return is_stopped() || !is_active_ || look_at_front() != Front::kPending; }
  void change_round(Round round, uint64_t length) noexcept;
  void end_epoch() noexcept;
  void read_notes(uint32_t slot) noexcept;
  void write_start(uint64_t worker) noexcept;
  void set_states(const std::vector<WorkerState>& states);
  std::vector<WorkerState> states();
  void note_failure(const TicketFailure& failure) noexcept;
  void begin_waiting(int64_t now) noexcept;
  void end_waiting() noexcept;
  void notify_consumers() noexcept;
  Seen seen() const noexcept { return {next_, observe(changes_)}; }
  bool has_changed(const Seen& seen) const noexcept {
    return table_.passed() + 1 != seen.next || observe(changes_) != seen.changes || is_ready(seen.next);
  }
  bool wait_settled(std::unique_lock<std::mutex>& lock, int64_t timeout_ns);
  bool poll_settled(std::unique_lock<std::mutex>& lock);
  bool sleep_settled(std::unique_lock<std::mutex>& lock, const Deadline& deadline);

  // Constant after construction.
  const Ref<Slots> slots_;
  const SlotTable table_;
  const uint64_t round_robin_;
  const SlotLayout layout_;
  const uint32_t feed_;
  const Order order_;

  // Shared.
  SharedRound shared_{};
  std::atomic<uint32_t> is_stopped_{0};
  std::atomic<uint32_t> changes_{0};  // that a consumer has made and passed() does not show
  std::atomic<uint64_t> skipped_{0};
  alignas(64) Event work_{};  // there may be tickets
  Event settled_{};           // there may be something at the consumer's place
  std::vector<SlotRecord> records_;
  // By slot; written by the thread that has the slot for itself. Of TicketFailure, whose memory is touched
  // only where there is a failure.
  std::unique_ptr<std::byte[]> failures_;
  std::vector<StartState> starts_;  // by worker

  std::mutex consuming_;
  // Guarded by consuming_.
  Round round_;
  uint64_t next_ = 1;            // the ticket for the consumer
  uint64_t epoch_ = UINT64_MAX;  // the first begin() makes it 0
  uint64_t failed_ = 0;          // the ticket that failure_ is of
  TicketFailure failure_;        // that no worker has reported
  FeedPosition start_;           // where begin() begins
  bool has_start_ = false;       // seek() has set it
  bool has_begun_ = false;
  bool is_resumed_ = false;
  bool ignored_index_ = false;
  bool is_active_ = false;
  std::vector<LastState> states_;  // by worker
  uint64_t foreign_ = UINT64_MAX;  // the number of the last state that came from elsewhere
  int64_t waiting_since_ns_ = 0;   // 0: the last call got its batch
  trace::Span waiting_ = trace::kNoSpan;
  uint64_t starved_ns_ = 0;
  SpinBudget short_wait_;
};

}  // namespace tenon::impl
