// SPDX-License-Identifier: Apache-2.0
#include "ipc/served_ends.h"

namespace tenon::impl {
namespace {

// A consumer has it from a queue.
bool is_received(uint64_t word) noexcept {
  return SlotWord::kind(word) == SlotWord::kHeld && SlotWord::number(word) != 0 &&
         SlotWord::holder(word) < kParticipants;
}

}  // namespace

void ServedEnds::signal(Event& event) noexcept {
  note_store();
  event.signal_all();
}

void ServedEnds::wake_all() const noexcept {
  for (Event* const event : {&state_->pool().settled, &state_->pool().room, &state_->ends}) signal(*event);
}

void ServedEnds::serve(uint32_t p) const noexcept {
  set_bit(state_->users, p);
  const Place& place = control_.place(p);
  store(state_->server_generation, look(place.generation));
  store(state_->server_pid, look(place.pid));
  publish(state_->server, p);
}

bool ServedEnds::is_server_alive() const noexcept {
  const uint32_t p = look(state_->server);
  return p < kParticipants && is_alive(p) &&
         look(control_.place(p).generation) == look(state_->server_generation);
}

// The last number that was passed is read again when the role is there: the slots of all up to it may have
// been taken meanwhile, from now on none behind it is.
void ServedEnds::begin_join(uint32_t p, bool has_wanted) const noexcept {
  CursorRecord& record = state_->records[p];
  if (!has_bit(state_->users, p)) set_bit(state_->users, p);
  store(record.ended, uint64_t{0});
  store(record.cursor, table_.passed());
  announce(record.word, CursorRecord::kJoining | (has_wanted ? CursorRecord::kHasWanted : uint64_t{0}));
  announce(record.cursor, table_.passed());
}

void ServedEnds::end_join(uint32_t p, uint64_t ended, bool keeps_wanted) const noexcept {
  CursorRecord& record = state_->records[p];
  if (ended != 0) announce(record.ended, ended);
  const uint64_t wanted = keeps_wanted ? observe(record.word) & CursorRecord::kHasWanted : 0;
  announce(record.word, CursorRecord::kConsumer | wanted);
  signal(state_->ends);
}

// Requires that no consumer is joining. One that joins later finds that the round has begun.
void ServedEnds::drop_wanted() const noexcept {
  visit_consumers([&](uint32_t p) {
    uint64_t seen = CursorRecord::kConsumer | CursorRecord::kHasWanted;
    (void)exchange(state_->records[p].word, seen, uint64_t{CursorRecord::kConsumer});
  });
}

void ServedEnds::end_round(uint32_t p, uint64_t base) const noexcept {
  raise_to(state_->told, base);
  end_loop(p, base);
}

void ServedEnds::end_loop(uint32_t p, uint64_t base) const noexcept {
  announce(state_->records[p].ended, base);
  signal(state_->ends);
}

void ServedEnds::leave(uint32_t p) const noexcept {
  announce(state_->records[p].word, uint64_t{CursorRecord::kNone});
  signal(state_->ends);
  signal(state_->pool().room);
}

uint32_t ServedEnds::count() const noexcept {
  uint32_t n = 0;
  visit_consumers([&](uint32_t p) { n += is_alive(p) ? 1 : 0; });
  return n;
}

bool ServedEnds::have_all_ended(uint64_t base) const noexcept {
  bool have_all = true;
  visit_bits(state_->users, [&](uint32_t p) {
    const CursorRecord& record = state_->records[p];
    const bool goes_on = observe(record.word) != CursorRecord::kNone && observe(record.ended) < base;
    if (goes_on && is_alive(p)) have_all = false;
  });
  return have_all;
}

bool ServedEnds::take(uint32_t p, uint32_t slot, uint64_t n) const noexcept {
  if (!table_.change(slot, SlotWord::ready(n), SlotWord::held(p, n))) return false;
  (void)table_.pass(n);
  if (!has_noted(n)) signal(state_->ends);
  return true;
}

void ServedEnds::help() const noexcept {
  const uint64_t n = table_.passed() + 1;
  const uint32_t slot = table_.slot_of(n);
  if (slot == SlotTable::kNone) return;
  const uint64_t word = table_.word(slot);
  if (is_received(word) && SlotWord::number(word) == n) (void)table_.pass(n);
}

// The word, then the last number that is noted: the server does the opposite, so one of them frees the slot.
void ServedEnds::give_back(uint32_t slot, uint64_t seen) const noexcept {
  const uint64_t n = SlotWord::number(seen), unnoted = SlotWord::unnoted(n);
  if (has_noted(n)) {
    (void)table_.change(slot, seen, SlotWord::kFree);
  } else if (table_.change(slot, seen, unnoted)) {
    if (has_noted(n)) (void)table_.change(slot, unnoted, SlotWord::kFree);
    signal(state_->ends);
  }
}

void ServedEnds::release(uint32_t p, uint32_t slot, uint64_t n) const noexcept {
  give_back(slot, SlotWord::held(p, n));
  signal(state_->pool().room);
}

bool ServedEnds::begin_read(uint32_t p, uint32_t slot, uint64_t n) const noexcept {
  table_.set_reader(p, slot);
  return table_.word(slot) == SlotWord::ready(n);
}

bool ServedEnds::note_read(uint32_t p, uint64_t n) const noexcept {
  announce(state_->records[p].cursor, n);
  const bool is_first = table_.pass(n);
  if (!has_noted(n)) signal(state_->ends);
  return is_first;
}

void ServedEnds::end_read(uint32_t p, uint32_t slot) const noexcept {
  table_.clear_reader(p, slot);
  signal(state_->pool().room);
}

bool ServedEnds::is_read(uint32_t slot) const noexcept {
  bool is_read = false;
  visit_bits(table_.readers(slot), [&](uint32_t p) { is_read = is_read || is_alive(p); });
  return is_read;
}

// What is passed, and noted, is read before the roles and the cursors: a consumer that joins announces its
// word, then reads what is passed. The bits come last: one that reads sets its bit, then looks at the word. A
// dead consumer counts until it is reaped.
uint64_t floor_of(const ServedState& state, const SlotTable& table, uint64_t base) noexcept {
  uint64_t least = std::min(table.passed(), observe(state.noted));
  const uint64_t past = base == 0 ? 0 : base - 1;
  visit_bits(state.users, [&](uint32_t place) {
    const CursorRecord& record = state.records[place];
    if (observe(record.word) == CursorRecord::kNone) return;
    least = std::min(least, std::max(observe(record.cursor), past));
  });
  return least;
}

bool is_spare(const SlotTable& table, uint32_t slot, uint64_t word, uint64_t floor) noexcept {
  return SlotWord::kind(word) == SlotWord::kReady && SlotWord::number(word) <= floor &&
         is_empty(table.readers(slot));
}

uint32_t ServedEnds::held() const noexcept {
  uint32_t n = 0;
  for (uint32_t i = 0; i < table_.size(); ++i) {
    n += is_received(table_.word(i)) || is_read(i) ? 1 : 0;
  }
  return n;
}

bool ServedEnds::is_settled(uint64_t word) noexcept {
  return SlotWord::kind(word) == SlotWord::kReady || word == SlotWord::unnoted(SlotWord::number(word)) ||
         is_received(word);
}

// By the words: the entry of a number may be of a later one already. A number that is not found was skipped,
// without a state.
SlotTable::Found ServedEnds::next_unnoted(uint64_t last) const noexcept {
  SlotTable::Found next;
  const uint64_t noted = observe(state_->noted);
  for (uint32_t i = 0; i < table_.size(); ++i) {
    const uint64_t word = table_.word(i), n = SlotWord::number(word);
    if (is_settled(word) && n > noted && n <= last && (next.slot == SlotTable::kNone || n < next.number()))
      next = {i, word};
  }
  return next;
}

void ServedEnds::note_one(uint32_t slot, uint64_t n) const noexcept {
  announce(state_->noted, n);
  (void)table_.change(slot, SlotWord::unnoted(n), SlotWord::kFree);
}

void ServedEnds::reap_dead() const noexcept {
  visit_bits(state_->users, [&](uint32_t p) {
    if (control_.has_place(p) && is_dead(look(life_word(control_.life(p))))) (void)reap(control_, p);
  });
}

void ServedEnds::add_life(uint32_t p, Lives* lives) const noexcept {
  // Also one whose death the kernel could not mark.
  if (!control_.has_place(p) || reap(control_, p)) return;
  if (look(control_.place(p).state) != PlaceState::kLive) return;
  if (!is_alive(p) || lives->n == os::kMostWords) {
    lives->is_complete = false;
    return;
  }
  std::atomic<uint32_t>& life = life_word(control_.life(p));
  lives->words[lives->n++] = {&life, note_sleeper(life)};
  if (is_dead(look(life))) lives->is_complete = false;
}

// What it had received is passed before its slot is free: else others would wait for that number. The slots
// come before the record, and the bit of the user last: without it, no process would wake the others in place
// of a reaper that was killed.
void ServedEnds::clear(uint32_t p) const noexcept {
  if (!has_bit(state_->users, p)) return;
  for (uint32_t i = 0; i < table_.size(); ++i) {
    const uint64_t word = table_.word(i), n = SlotWord::number(word);
    if (SlotWord::has_holder(word) && SlotWord::holder(word) == p) {
      if (SlotWord::kind(word) == SlotWord::kHeld && n != 0) {
        (void)table_.pass(n);
        give_back(i, word);
      } else {
        (void)table_.change(i, word, SlotWord::kFree);
      }
    }
    // It may have died before it looked whether this was noted meanwhile.
    if (n != 0 && word == SlotWord::unnoted(n) && has_noted(n)) (void)table_.change(i, word, SlotWord::kFree);
    if (has_bit(table_.readers(i), p)) table_.clear_reader(p, i);
  }
  CursorRecord& record = state_->records[p];
  announce(record.word, uint64_t{CursorRecord::kNone});
  announce(record.cursor, uint64_t{0});
  announce(record.ended, uint64_t{0});
  for (Event* const event : {&state_->pool().settled, &state_->pool().room, &state_->ends}) {
    note_store();
    event->forget();
  }
  clear_bit(state_->users, p);
}

}  // namespace tenon::impl
