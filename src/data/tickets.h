// SPDX-License-Identifier: Apache-2.0
//
// The workers' half of the order of a feed: they take tickets and settle them. ticket_ring.h has the
// consumers' half, and says what a ticket is. Knows nothing of generators, arrays and threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "data/feed_control.h"
#include "data/free_slots.h"
#include "data/order.h"
#include "data/ticket.h"
#include "data/ticket_failure.h"

namespace tenon::impl {

std::string ticket_text(const Ticket& ticket);  // "batch 3 of epoch 0"

// What a worker knows of the state of its generator. Used by the worker alone.
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

// Refers to the control part, which outlives it. Threads: the one that has the slot of the ticket; is_past()
// may be called by any. Nothing takes a lock.
//
// The slot of a ticket is the one that the caller has taken for it. What comes of a past epoch, or for a
// ticket that was given up, is dropped, and its slot is free. notes: FillNotes.
class Tickets {
 public:
  explicit Tickets(const FreeSlots& slots);

  enum class TicketTake { kTicket, kNone, kStopped };
  // In place of a worker: the caller prepares batches, for all of them.
  static constexpr int32_t kPreparer = -1;
  // Whether there is a ticket for this worker, new or asked of it; waits until there is. kNone: there was
  // none in this time. kStopped: the feed is closed.
  TicketTake await_turn(int32_t worker, const Deadline& deadline) const noexcept;
  // The next batch to be filled. Waits for nothing. kNone: there is none now, and the caller keeps the slot.
  TicketTake take(int32_t worker, Ticket& ticket) const noexcept;
  // The oldest ticket that is asked of this worker or of any, with its slot, as ask() has left it. Waits for
  // nothing. False: there is none. Only worker processes are asked: each runs the loop of its own number.
  bool take_asked(int32_t worker, Ticket& ticket) const noexcept;
  // Leaves the ticket, and its slot, to this worker, or to any (kPreparer); also of a dead worker, by
  // its reaper. False: it is past, or was left; its slot is free.
  bool ask(const Ticket& ticket, int32_t worker) const noexcept;
  void publish(const Ticket& ticket, uint32_t notes = 0) const noexcept;
  // The consumer gets the failure at the batch's place, and the epoch ends there. loop: of the caller.
  void fail(const Ticket& ticket, int32_t loop, const TicketFailure& failure,
            uint32_t notes = 0) const noexcept;
  // The consumer gets the next batch in its place.
  void skip(const Ticket& ticket, uint32_t notes = 0) const noexcept;
  // The epoch ends before it.
  void finish(const Ticket& ticket, uint32_t notes = 0) const noexcept;
  // With round_robin, before a ticket is filled: if it is the first one of the worker after begin(), known
  // becomes the state with which that begins. False: the ticket is past.
  bool start_state(const Ticket& ticket, int32_t worker, KnownState& known) const;
  // The state of a worker with which the round begins. False: it is written now, or was meanwhile.
  bool read_start(int32_t worker, KnownState& known) const;
  // No consumer waits for this batch any more.
  bool is_past(const Ticket& ticket) const noexcept;
  // With round_robin: the worker that fills the ticket. 0 if it is past.
  int32_t worker_of(const Ticket& ticket) const noexcept;
  // For consumers of all processes.

  // Ticket t of a round is place begin + (t - base), and there are none from limit on.
  struct Round {
    uint64_t base = 1, limit = 1, epoch = 0, begin = 0, first_worker = 0, flags = 0;
  };
  // False: the server writes it now, or has written it meanwhile.
  bool read_round(Round& round) const noexcept {
    SlotTable::Turn turn;
    return read_round(round, turn);
  }
  // What a consumer finds that comes to a ticket below the limit. slot: kNone for what failed without a
  // worker, and for a skip without a state.
  struct Look {
    enum Kind { kPending, kBatch, kSkip, kFailure, kEnd } kind = kPending;
    uint32_t slot = SlotTable::kNone;
  };
  Look look_at(uint64_t number) const noexcept;
  // The caller has passed the ticket: wakes those who wait for what comes behind it.
  void note_passed(uint64_t number, uint64_t limit) const noexcept;
  Ticket read_record(uint32_t slot) const noexcept;
  Ticket ticket_at(const Round& round, uint64_t number) const noexcept;
  TicketFailure failure_at(const Look& look, uint64_t number) const noexcept;
  // The states of the workers that the server has noted, after all batches up to a number. False: it writes
  // them now.
  bool read_noted(std::vector<KnownState>& states, uint64_t& number) const;

  // A batch waits for a consumer.
  bool has_ready() const noexcept { return count_ready() > 0; }

 protected:
  FeedShared& shared() const noexcept { return control_.shared(); }
  SlotRecord& record(uint32_t slot) const noexcept { return control_.record(slot); }
  bool is_stopped() const noexcept { return observe(shared().is_stopped) != 0; }
  uint64_t base() const noexcept { return observe(shared().round.base); }
  uint64_t worker_of(const Round& round, uint64_t place) const noexcept {
    return round_robin_ == 0 ? 0 : (place - round.begin + round.first_worker) % round_robin_;
  }
  void write_record(const Ticket& ticket, uint32_t holder) const noexcept;
  void raise_closed(uint64_t number) const noexcept;
  int32_t count_ready() const noexcept;
  bool drop_settled(uint32_t slot, uint64_t word, uint32_t holder) const noexcept;
  bool drop_settled(uint32_t slot, uint64_t word) const noexcept {
    return drop_settled(slot, word, free_slots_.self());
  }
  void drop_past(uint32_t slot, uint64_t word) const noexcept;

  // Constant after construction.
  const FreeSlots free_slots_;
  const FeedControl control_;
  const SlotTable table_;
  const Order order_;
  const uint64_t round_robin_;  // the number of workers among which the batches go round; 0: they do not

 private:
  static uint32_t holder_of(int32_t worker) noexcept {
    return FreeSlots::kFirstLoop + static_cast<uint32_t>(worker);
  }
  // Of an asked ticket: the holder that is to fill it.
  static uint32_t asked_of(int32_t worker) noexcept { return worker == kPreparer ? 0 : holder_of(worker); }
  uint32_t find_asked(int32_t worker, uint64_t* word) const noexcept;
  int32_t count_asked() const noexcept;
  bool read_round(Round& round, SlotTable::Turn& turn) const noexcept;
  TicketTake look_for_turn(int32_t worker, Round& round, SlotTable::Turn& turn) const noexcept;
  bool settle(const Ticket& ticket, Outcome outcome, uint32_t notes) const noexcept;
};

}  // namespace tenon::impl
