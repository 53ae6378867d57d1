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

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/ref.h"
#include "base/spin_budget.h"
#include "base/trace.h"
#include "data/slot_layout.h"
#include "data/slots.h"
#include "data/tickets.h"

namespace tenon::impl {

using StateRef = std::shared_ptr<const std::vector<std::byte>>;

// The state of a worker's generator after a ticket. Numbers that no ticket has are of states from elsewhere.
struct WorkerState {
  StateRef bytes;       // null: the one from before its first fill
  uint64_t number = 0;  // of the ticket; 0: it comes from no ticket of this feed
};

// What consumers have got.
struct FeedPosition {
  uint64_t epoch = 0;
  uint64_t place = 0;  // of the epoch
  int32_t worker = 0;  // whose turn the next batch is, with round_robin
  bool ignored_index = false;
  std::vector<WorkerState> states;  // by worker; empty without round_robin
};

// Threads: any, as consumers; as workers the one that has the slot.
// Invariant: each number after the one that was passed last, up to the last one, has an entry. The slot of
// the entry is held by a loop, or settled, or it was left: then the ticket is given up or gets another slot.
// Or the entry says that the ticket is skipped.
class TicketRing : public Tickets {
 public:
  // The slots have a loop for each worker. feed: its number in a timeline. No one else gives numbers of the
  // slots' table.
  explicit TicketRing(Ref<Slots> slots, uint32_t feed = 0);

  enum class NextBatch { kBatch, kFailure, kEnd, kLate, kStopped };
  struct Delivery {
    // Not constexpr: with a constant value, g++ clears the whole object, with the 4 KiB of the message.
    Delivery() noexcept {}

    Ticket ticket;                         // kBatch: its slot is the caller's now
    std::optional<TicketFailure> failure;  // kFailure
  };

  // Fails with kClosed after stop(), and with kValue while the feed is served.
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
  // looks: passes what is skipped. Not in a forked child, where the words are those of the parent.
  FeedPosition position(bool looks = true);
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

  // For the server of consumers in other processes, in place of begin() and next(). They leave a slot with a
  // state until the server has noted it, which each of these functions does, and position().

  // From now on, until end_serving(): begin() fails with kValue.
  void begin_serving();
  void end_serving() noexcept;

  // Begins the next round if may(base of the last one) holds while no consumer can join. note: is called
  // then, with the next one. False: it may not.
  bool begin_served(std::function<bool(uint64_t base)> may, std::function<void(const Round& next)> note);
  struct RoundView {
    uint64_t base = 0;
    bool is_over = false;                  // no batch is left, nor will come
    std::optional<TicketFailure> failure;  // why it is over
    Ticket ticket;                         // with failure
    uint64_t ready = 0;                    // batches that wait in order
    bool is_filled = false;                // these are the last ones
  };
  RoundView view_round();

  // The process that ran this loop, for the worker of the same number, has died: gives back what it had, and
  // makes the loop ready for its successor. settle_dead settles or asks a ticket that it was filling. True:
  // there was one that counts. Requires that the process writes nothing more, and that no successor is
  // started before this returns.
  bool reclaim(int32_t loop, const std::function<void(const Ticket& ticket)>& settle_dead);

  // For statistics and messages.

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
  // The state of a worker after the places before the consumer's.
  struct LastState {
    std::vector<std::byte> bytes;  // has room for each state
    uint64_t number = 0;
    StateRef shared;  // the bytes, once a caller has wanted them
  };
  // What lies at the consumer's place. kSkip: consumers in other processes pass it.
  enum class Front { kPending, kBatch, kFailure, kEnd, kSkip };
  // What a consumer that waits without the lock has seen.
  struct Seen {
    uint64_t next = 0;
    uint32_t changes = 0;
  };

  SlotUse use_of(uint32_t slot) const noexcept;
  bool is_ready(uint64_t number) const noexcept {
    const uint32_t slot = table_.slot_of(number);
    return slot != SlotTable::kNone ? table_.word(slot) == SlotWord::ready(number)
                                    : table_.is_skipped(number);
  }

  // All of these require consuming_.
  uint64_t place_of(uint64_t number) const noexcept { return round_.begin + (number - round_.base); }
  Front look_at_front(uint32_t* slot = nullptr) noexcept;
  bool receive(uint32_t slot) noexcept;
  // A ticket that has failed without a worker.
  uint64_t given_up() const noexcept { return look(shared().round.given_up); }
  void pass_front() noexcept;
  // A round that next() and peek() deliver.
  bool is_own() const noexcept { return is_active_ && !is_of_others_; }
  bool is_settled() noexcept { return is_stopped() || !is_own() || look_at_front() != Front::kPending; }
  // While no one can find out which round it is. may: null, or whether it may begin.
  struct Beginning {
    std::function<bool(uint64_t base)> may;
    std::function<void(const Round& next)> note;
  };
  bool begin_round(const Beginning& beginning);
  bool change_round(Round round, uint64_t length, const Beginning& beginning = {});
  void end_epoch() noexcept;
  void read_notes(uint32_t slot, uint64_t number) noexcept;
  void read_notes(uint32_t slot) noexcept { read_notes(slot, next_); }
  // The states of what other processes receive.
  bool notes_for_others() const noexcept {
    return is_served_ && observe(slots_->served()->noted) != ServedState::kNoStates;
  }
  void note_received();
  void note_rest(uint64_t last) noexcept;
  void write_noted() noexcept;
  void write_start(uint64_t worker, uint64_t number, std::span<const std::byte> bytes) noexcept;
  void write_successor_start(uint64_t worker) noexcept;
  void set_states(const std::vector<WorkerState>& states);
  std::vector<WorkerState> states();
  void note_failure(const TicketFailure& failure) noexcept;
  void begin_waiting(int64_t now) noexcept;
  void end_waiting() noexcept;
  void notify_consumers() noexcept;
  Seen seen() const noexcept { return {next_, observe(shared().changes)}; }
  bool has_changed(const Seen& seen) const noexcept {
    return table_.passed() + 1 != seen.next || observe(shared().changes) != seen.changes ||
           is_ready(seen.next);
  }
  bool wait_settled(std::unique_lock<std::mutex>& lock, int64_t timeout_ns);
  bool poll_settled(std::unique_lock<std::mutex>& lock);
  bool sleep_settled(std::unique_lock<std::mutex>& lock, const Deadline& deadline);

  // Constant after construction.
  const Ref<Slots> slots_;
  const SlotLayout layout_;
  const uint32_t feed_;
  const bool is_served_;  // or may be: other processes receive batches, too

  std::mutex consuming_;
  // Guarded by consuming_.
  Round round_;
  uint64_t next_ = 1;            // the ticket for the consumer
  uint64_t epoch_ = UINT64_MAX;  // the first begin() makes it 0
  FeedPosition start_;           // where begin() begins
  bool has_start_ = false;       // seek() has set it
  bool has_begun_ = false;
  bool is_resumed_ = false;
  bool ignored_index_ = false;
  bool is_active_ = false;
  bool is_of_others_ = false;  // it is served: begin_served() has begun the round, or will
  bool is_being_served_ = false;
  std::vector<LastState> states_;  // by worker
  uint64_t foreign_ = UINT64_MAX;  // the number of the last state that came from elsewhere
  int64_t waiting_since_ns_ = 0;   // 0: the last call got its batch
  trace::Span waiting_ = trace::kNoSpan;
  uint64_t starved_ns_ = 0;
  SpinBudget short_wait_;
};

}  // namespace tenon::impl
