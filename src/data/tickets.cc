// SPDX-License-Identifier: Apache-2.0
#include "data/tickets.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace tenon::impl {

std::string ticket_text(const Ticket& ticket) {
  return concat("batch ", ticket.index, " of epoch ", ticket.epoch);
}

Tickets::Tickets(const FreeSlots& slots)
    : free_slots_(slots),
      control_(slots.control()),
      table_(slots.table()),
      order_(control_.head().order()),
      round_robin_(control_.head().has(kGoesRound) ? static_cast<uint64_t>(control_.head().workers) : 0) {}

namespace {

void read_words(std::span<std::atomic<uint64_t>> from, std::span<std::byte> to) noexcept {
  for (size_t at = 0; at < to.size(); at += sizeof(uint64_t)) {
    // pairs with: write_words, "a word of a state"
    const uint64_t word = from[at / sizeof(uint64_t)].load(std::memory_order_acquire);
    std::memcpy(to.data() + at, &word, std::min(sizeof word, to.size() - at));
  }
}

}  // namespace

// False: a consumer writes it now, or has written it meanwhile. The version is read again after the last
// number. So if it is the same, the number was read before the consumer began, and it reads the last number
// afterwards: the number that may follow here is below the next round's base.
bool Tickets::read_round(Round& round, SlotTable::Turn& turn) const noexcept {
  // pairs with: change_round, "an even version"
  const uint64_t version = observe(shared().round.version);
  if (version % 2 != 0) return false;
  round.base = look(shared().round.base);
  round.limit = look(shared().round.limit);
  round.epoch = look(shared().round.epoch);
  round.begin = look(shared().round.begin);
  round.first_worker = look(shared().round.first_worker);
  round.flags = look(shared().round.flags);
  turn = table_.next_number();
  // pairs with: change_round, "an odd version"
  return observe(shared().round.version) == version;
}

// kNone also while a consumer writes the round: it wakes those who wait for tickets afterwards.
Tickets::TicketTake Tickets::look_for_turn(int32_t worker, Round& round,
                                           SlotTable::Turn& turn) const noexcept {
  if (is_stopped()) return TicketTake::kStopped;
  if (!read_round(round, turn)) return TicketTake::kNone;
  if (turn.number >= round.limit || observe(shared().round.closed) >= round.base) return TicketTake::kNone;
  // Most are skipped. A consumer of a broadcast finds each batch after its cursor by the entry.
  const uint64_t passed = control_.is_broadcast() ? free_slots_.floor() : table_.passed();
  if (turn.number - std::min(passed, turn.number) > table_.entries()) return TicketTake::kNone;
  if (worker == kPreparer)
    return count_asked() < control_.head().workers ? TicketTake::kTicket : TicketTake::kNone;
  if (control_.head().has(kPrepares)) return TicketTake::kNone;  // it is asked
  const bool is_its_turn = round_robin_ == 0 || worker_of(round, round.begin + (turn.number - round.base)) ==
                                                    static_cast<uint64_t>(worker);
  return is_its_turn ? TicketTake::kTicket : TicketTake::kNone;
}

Tickets::TicketTake Tickets::await_turn(int32_t worker, const Deadline& deadline) const noexcept {
  Round round;
  SlotTable::Turn turn;
  uint64_t word = 0;
  const auto look = [&] {
    const TicketTake found = look_for_turn(worker, round, turn);
    if (found != TicketTake::kNone) return found;
    return find_asked(worker, &word) != SlotTable::kNone ? TicketTake::kTicket : TicketTake::kNone;
  };
  TicketTake found = look();
  if (found == TicketTake::kNone && !deadline.leaves_no_time()) {
    (void)shared().work.sleep(
        deadline,
        [&] {
          found = look();
          return found != TicketTake::kNone;
        },
        control_.look_ns());
  }
  return found;
}

// Not one behind the last ticket of a round, which begin() or end() frees. kNone: there is none.
uint32_t Tickets::find_asked(int32_t worker, uint64_t* word) const noexcept {
  uint32_t found = SlotTable::kNone;
  if (observe(shared().asked) == 0 || worker == kPreparer) return found;
  const uint64_t first = base(), closed = observe(shared().round.closed);
  for (uint32_t slot = 0; slot < static_cast<uint32_t>(free_slots_.made()); ++slot) {
    const uint64_t now = table_.word(slot), number = SlotWord::number(now);
    if (SlotWord::kind(now) != SlotWord::kAsked) continue;
    if (SlotWord::holder(now) != 0 && SlotWord::holder(now) != holder_of(worker)) continue;
    if (first <= closed && closed < number) continue;
    if (found != SlotTable::kNone && SlotWord::number(*word) < number) continue;
    found = slot;
    *word = now;
  }
  return found;
}

int32_t Tickets::count_asked() const noexcept {
  int32_t n = 0;
  for (uint32_t slot = 0; slot < static_cast<uint32_t>(free_slots_.made()); ++slot)
    n += SlotWord::kind(table_.word(slot)) == SlotWord::kAsked ? 1 : 0;
  return n;
}

Ticket Tickets::ticket_at(const Round& round, uint64_t number) const noexcept {
  const uint64_t place = round.begin + (number - round.base);
  return {.slot = -1,
          .epoch = round.epoch,
          .index = order_.index_at(round.epoch, round.begin, place),
          .place = place,
          .number = number,
          .round = round.base,
          .flags = round.flags};
}

void Tickets::write_record(const Ticket& ticket, uint32_t holder) const noexcept {
  SlotRecord& to = record(static_cast<uint32_t>(ticket.slot));
  // pairs with: read_record, use_of, "a word that others look at"
  impl::publish(to.number, ticket.number);
  impl::publish(to.round, ticket.round);
  impl::publish(to.epoch, ticket.epoch);
  impl::publish(to.index, ticket.index);
  impl::publish(to.place, ticket.place);
  impl::publish(to.flags, ticket.flags);
  impl::publish(to.since_ns, now_ns());
  impl::publish(to.outcome, Outcome::kNone);
  impl::publish(to.notes, 0U);
  impl::publish(to.loop, static_cast<int32_t>(holder) - static_cast<int32_t>(FreeSlots::kFirstLoop));
  impl::publish(to.attempt, 0);
  impl::publish(to.pid, int64_t{0});
}

Tickets::TicketTake Tickets::take(int32_t worker, Ticket& ticket) const noexcept {
  const auto slot = static_cast<uint32_t>(ticket.slot);
  Round round;
  SlotTable::Turn turn;
  while (true) {
    const TicketTake found = look_for_turn(worker, round, turn);
    if (found != TicketTake::kTicket) return found;
    const int32_t own_slot = ticket.slot;
    ticket = ticket_at(round, turn.number);
    ticket.slot = own_slot;
    const uint32_t holder = SlotWord::holder(table_.word(slot));
    write_record(ticket, holder);
    if (table_.take_number(slot, turn)) break;
    table_.hold(holder, slot);  // before the record changes again
  }
  if (round_robin_ != 0) shared().work.signal_all();
  return TicketTake::kTicket;
}

// The round is read after the word has changed. So a round whose base is not above the ticket is that of the
// ticket: later rounds have larger numbers. If the round changes meanwhile, the ticket is past, because it
// was given before.
bool Tickets::take_asked(int32_t worker, Ticket& ticket) const noexcept {
  uint64_t word = 0;
  while (true) {
    const uint32_t slot = find_asked(worker, &word);
    if (slot == SlotTable::kNone) return false;
    if (!table_.take_asked(holder_of(worker), slot, word)) continue;
    (void)add(shared().asked, ~uint64_t{0});
    Round round;
    SlotTable::Turn turn;
    const uint64_t number = SlotWord::number(word);
    const bool is_current = read_round(round, turn) && number >= round.base;
    const uint64_t closed = observe(shared().round.closed);
    if (is_current && (closed < round.base || closed >= number)) {
      ticket = ticket_at(round, number);
      ticket.slot = static_cast<int32_t>(slot);
      impl::publish(record(slot).loop, worker);
      impl::publish(record(slot).since_ns, now_ns());
      if (control_.head().has(kPrepares)) shared().work.signal_all();  // one less is asked
      return true;
    }
    free_slots_.give(static_cast<int32_t>(slot));
  }
}

// The base is read after the word has changed, as in settle(). The count goes up before the word changes: who
// looks at the words for it finds at most so many.
bool Tickets::ask(const Ticket& ticket, int32_t worker) const noexcept {
  const auto slot = static_cast<uint32_t>(ticket.slot);
  (void)add(shared().asked, uint64_t{1});
  if (!table_.ask(slot, ticket.number, asked_of(worker))) {
    (void)add(shared().asked, ~uint64_t{0});
    free_slots_.give(ticket.slot);
    return false;
  }
  if (ticket.number < base()) {
    drop_past(slot, SlotWord::make(SlotWord::kAsked, asked_of(worker), ticket.number));
    return false;
  }
  shared().work.signal_all();
  return true;
}

// False: it is dropped, and its slot is free. The base is read after the word has changed. Whoever begins a
// round stores the base, then looks at the words. So one of the two gives the slot back.
bool Tickets::settle(const Ticket& ticket, Outcome outcome, uint32_t notes) const noexcept {
  const auto slot = static_cast<uint32_t>(ticket.slot);
  impl::publish(record(slot).notes, notes);
  impl::publish(record(slot).outcome, outcome);
  const uint32_t holder = SlotWord::holder(table_.word(slot));
  if (!table_.settle(slot, ticket.number)) {
    free_slots_.give(ticket.slot);
    return false;
  }
  if (ticket.number < base()) {
    (void)drop_settled(slot, SlotWord::ready(ticket.number), holder);
    return false;
  }
  return true;
}

// False: another thread has taken it. holder: of the caller, so that its death gives the slot back.
// In a broadcast consumers may read it: it stays, and is taken as a spare slot.
bool Tickets::drop_settled(uint32_t slot, uint64_t word, uint32_t holder) const noexcept {
  if (SlotWord::kind(word) == SlotWord::kReady && control_.is_broadcast()) {
    shared().room.signal_one();
    return false;
  }
  if (!table_.take(holder, slot, word, 0)) return false;
  free_slots_.give(static_cast<int32_t>(slot));
  return true;
}

// The same of an asked one.
void Tickets::drop_past(uint32_t slot, uint64_t word) const noexcept {
  if (drop_settled(slot, word)) (void)add(shared().asked, ~uint64_t{0});
}

void Tickets::publish(const Ticket& ticket, uint32_t notes) const noexcept {
  // A consumer sleeps, then looks at the word; here the word changes before. A consumer that takes the ticket
  // before this one looks at this one afterwards.
  if (!settle(ticket, Outcome::kBatch, notes) || !shared().settled.has_sleepers()) return;
  if (ticket.number == table_.passed() + 1) shared().settled.signal_all();
}

// A loop that has failed two tickets of a round keeps the failure of the lower one: the consumer is told that
// one, and the round ends there.
void Tickets::fail(const Ticket& ticket, int32_t loop, const TicketFailure& failure,
                   uint32_t notes) const noexcept {
  LoopRecord& own = control_.loop(loop);
  if (const uint64_t kept = look(own.failed_number); kept < ticket.round || kept >= ticket.number) {
    own.failure = failure;
    impl::publish(own.failed_number, ticket.number);
  }
  impl::publish(record(static_cast<uint32_t>(ticket.slot)).loop, loop);
  if (!settle(ticket, Outcome::kFailure, notes)) {
    // The round may go on, and the loop may fail another ticket of it.
    if (look(own.failed_number) == ticket.number) impl::publish(own.failed_number, uint64_t{0});
    return;
  }
  raise_closed(ticket.number);
  shared().settled.signal_all();
}

// The ticket is settled before its entry changes, and the slot is free after that. So wherever the thread
// stops, the consumer can pass the ticket.
void Tickets::skip(const Ticket& ticket, uint32_t notes) const noexcept {
  const auto slot = static_cast<uint32_t>(ticket.slot);
  const uint32_t holder = SlotWord::holder(table_.word(slot));
  if (!settle(ticket, Outcome::kSkip, notes)) return;
  if ((notes & kHasState) == 0) {
    table_.skip(ticket.number, slot);
    (void)drop_settled(slot, SlotWord::ready(ticket.number), holder);
  }
  shared().skipped.fetch_add(1, std::memory_order_relaxed);
  shared().settled.signal_all();
}

void Tickets::finish(const Ticket& ticket, uint32_t notes) const noexcept {
  if (!settle(ticket, Outcome::kEnd, notes)) return;
  raise_closed(ticket.number);
  shared().settled.signal_all();
}

// Also if it has the number of the known one, which is complete then.
static bool read_state(const LoopRecord::Start& cell, std::span<std::atomic<uint64_t>> words,
                       KnownState& known) {
  // pairs with: write_state, "a state of a worker"
  const uint64_t version = observe(cell.version), number = look(cell.number);
  const uint64_t nbytes = std::min<uint64_t>(look(cell.nbytes), words.size_bytes());
  const auto is_torn = [&] { return version % 2 != 0 || observe(cell.version) != version; };
  if (is_torn()) return false;
  if (number == known.number) return true;
  known.is_lost = true;
  known.number = UINT64_MAX;  // of no state, as long as it is not complete
  known.bytes.resize(nbytes);
  read_words(words, known.bytes);
  if (is_torn()) return false;
  known.number = number;
  return true;
}

bool Tickets::read_start(int32_t worker, KnownState& known) const {
  return read_state(control_.loop(worker).start, control_.start_words(worker), known);
}

// If a consumer begins the next round meanwhile, it may be the start of that: the ticket is past then. While
// the version is odd, the base is already the next one.
bool Tickets::start_state(const Ticket& ticket, int32_t worker, KnownState& known) const {
  if (ticket.round == known.round) return true;
  const LoopRecord& own = control_.loop(worker);
  const bool is_successor = look(own.again_in) == ticket.round;
  const bool is_read =
      is_successor ? read_state(own.again, control_.again_words(worker), known) : read_start(worker, known);
  if (is_read) known.round = ticket.round;
  return is_read;
}

// Of a ticket that has ended its round.
void Tickets::raise_closed(uint64_t number) const noexcept {
  std::atomic<uint64_t>& closed = shared().round.closed;
  uint64_t now = observe(closed);
  while (now < number && !exchange(closed, now, number)) {
  }
}

bool Tickets::is_past(const Ticket& ticket) const noexcept {
  const uint64_t word = table_.word(static_cast<uint32_t>(ticket.slot)),
                 closed = observe(shared().round.closed);
  return is_stopped() || ticket.number < base() || ticket.number <= table_.passed() ||
         (closed >= ticket.round && ticket.number >= closed) || SlotWord::kind(word) != SlotWord::kHeld ||
         SlotWord::number(word) != ticket.number;
}

Ticket Tickets::read_record(uint32_t slot) const noexcept {
  const SlotRecord& from = record(slot);
  return {.slot = static_cast<int32_t>(slot),
          .epoch = look(from.epoch),
          .index = look(from.index),
          .place = look(from.place),
          .number = look(from.number),
          .round = look(from.round),
          .flags = look(from.flags)};
}

Tickets::Look Tickets::look_at(uint64_t number) const noexcept {
  while (true) {
    if (look(shared().round.given_up) == number) return {Look::kFailure};
    const uint32_t slot = table_.slot_of(number);
    if (slot == SlotTable::kNone) return {table_.is_skipped(number) ? Look::kSkip : Look::kPending};
    if (table_.word(slot) != SlotWord::ready(number)) return {};
    const Outcome outcome = look(record(slot).outcome);
    // If its worker has given the slot back, the outcome may be of another ticket. One that writes it has
    // changed the word before.
    if (table_.word(slot) != SlotWord::ready(number)) continue;
    if (outcome == Outcome::kBatch) return {Look::kBatch, slot};
    if (outcome == Outcome::kFailure) return {Look::kFailure, slot};
    if (outcome == Outcome::kEnd) return {Look::kEnd, slot};
    return {Look::kSkip, slot};
  }
}

// The worker of the next ticket may have read the one before it as the consumer's next one, and the worker of
// the last one that it is not. Then they wake no one.
void Tickets::note_passed(uint64_t number, uint64_t limit) const noexcept {
  if (table_.given() - (number - 1) >= table_.entries())
    shared().work.signal_all();  // no worker had room for a number
  if (!shared().settled.has_sleepers()) return;
  const bool is_next_there = number + 1 == limit || look_at(number + 1).kind != Look::kPending;
  if (is_next_there) shared().settled.signal_all();
}

bool Tickets::read_noted(std::vector<KnownState>& states, uint64_t& number) const {
  const ServedState& state = *control_.served();
  states.resize(static_cast<size_t>(control_.head().workers));
  // pairs with: TicketRing::note_received, "noted states"
  const uint64_t noting = observe(state.noting);
  if (noting % 2 != 0) return false;
  number = observe(state.noted);
  for (size_t worker = 0; worker < states.size(); ++worker) {
    const auto loop = static_cast<int32_t>(worker);
    const LoopRecord::Start& cell = control_.loop(loop).noted;
    const std::span<std::atomic<uint64_t>> words = control_.noted_words(loop);
    states[worker].number = look(cell.number);
    states[worker].bytes.resize(std::min<uint64_t>(look(cell.nbytes), words.size_bytes()));
    read_words(words, states[worker].bytes);
  }
  // pairs with: TicketRing::note_received, "noted states"
  return observe(state.noting) == noting;
}

TicketFailure Tickets::failure_at(const Look& front, uint64_t number) const noexcept {
  const int32_t loops = control_.head().loops;
  const int32_t loop = front.slot == SlotTable::kNone ? loops : look(record(front.slot).loop);
  TicketFailure failure;
  if (loop >= 0 && loop <= loops && look(control_.loop(loop).failed_number) == number) {
    failure = control_.loop(loop).failure;
    failure.message[kMessageSize - 1] = '\0';
  } else {
    failure.code = -1;
    failure.set_message("what a worker has written about it is damaged");
  }
  return failure;
}

int32_t Tickets::worker_of(const Ticket& ticket) const noexcept {
  Round round;
  SlotTable::Turn turn;
  if (!read_round(round, turn) || ticket.round != round.base) return 0;
  return static_cast<int32_t>(worker_of(round, ticket.place));
}

int32_t Tickets::count_ready() const noexcept {
  int32_t n = 0;
  for (int32_t i = 0; i < free_slots_.made(); ++i) {
    const auto slot = static_cast<uint32_t>(i);
    if (SlotWord::kind(table_.word(slot)) == SlotWord::kReady &&
        look(record(slot).outcome) == Outcome::kBatch)
      ++n;
  }
  return n;
}

}  // namespace tenon::impl
