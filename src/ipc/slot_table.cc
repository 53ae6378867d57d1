// SPDX-License-Identifier: Apache-2.0
#include "ipc/slot_table.h"

#include <algorithm>

namespace tenon::impl {
namespace {

constexpr uint64_t kSlotBits = 15;
static_assert(SlotTable::kMostSlots < 1 << kSlotBits);

constexpr uint64_t entry_of(uint64_t n, uint32_t slot) noexcept { return n << kSlotBits | slot; }
constexpr uint64_t number_of(uint64_t entry) noexcept { return entry >> kSlotBits; }
constexpr uint32_t slot_in(uint64_t entry) noexcept {
  return static_cast<uint32_t>(entry & ((1 << kSlotBits) - 1));
}

}  // namespace

bool SlotTable::take_free(uint32_t p, uint32_t slot) const noexcept {
  uint64_t seen = SlotWord::kFree;
  return exchange(slots_[slot].word, seen, SlotWord::make(SlotWord::kHeld, p, 0));
}

bool SlotTable::take(uint32_t p, uint32_t slot, uint64_t seen, uint64_t kept) const noexcept {
  const bool is_stray = SlotWord::is_stray(seen);
  if (!exchange(slots_[slot].word, seen, SlotWord::make(SlotWord::kHeld, p, kept))) return false;
  if (is_stray) (void)add(counters_->strays, ~uint64_t{0});
  return true;
}

bool SlotTable::claim(uint32_t p, uint32_t slot, uint64_t n) const noexcept {
  uint64_t seen = SlotWord::ready(n);
  return exchange(slots_[slot].word, seen, SlotWord::make(SlotWord::kClaimed, p, n));
}

void SlotTable::end_claim(uint32_t p, uint32_t slot, uint64_t n, bool is_taken) const noexcept {
  announce(slots_[slot].word, is_taken ? SlotWord::make(SlotWord::kHeld, p, 0) : SlotWord::ready(n));
}

void SlotTable::offer(uint32_t p, uint32_t slot) const noexcept {
  announce(slots_[slot].word, SlotWord::make(SlotWord::kOffered, p, given() + 1));
}

// The entry is changed only from the value that was read after the last number. If another process has given
// the number n meanwhile, the entry has n or a later number, and the exchange fails.
uint64_t SlotTable::give_number(uint32_t p, uint32_t slot) const noexcept {
  while (true) {
    Turn turn = next_number();
    const uint64_t n = turn.number, offered = SlotWord::make(SlotWord::kOffered, p, n);
    if (word(slot) != offered) announce(slots_[slot].word, offered);
    if (!exchange(entry(n), turn.before, entry_of(n, slot))) continue;
    help(n);
    return n;
  }
}

SlotTable::Turn SlotTable::next_number() const noexcept {
  while (true) {
    const uint64_t n = given() + 1;
    const uint64_t before = observe(entry(n));
    if (number_of(before) < n) return {n, before};
    if (number_of(entry_of(n, 0)) != n)
      return {n, ~before};                              // the memory is damaged: nobody gets this number
    raise_to(counters_->given, number_of(before) - 1);  // only if the memory is damaged, it was less
    help(number_of(before));
  }
}

bool SlotTable::take_number(uint32_t slot, const Turn& turn) const noexcept {
  const uint64_t n = turn.number;
  uint64_t before = turn.before;
  hold(SlotWord::holder(word(slot)), slot, n);
  if (!exchange(entry(n), before, entry_of(n, slot))) return false;
  help(n);
  return true;
}

// From held(p, n).
bool SlotTable::end_fill(uint32_t slot, uint64_t n, uint64_t after) const noexcept {
  uint64_t seen = word(slot);
  return SlotWord::kind(seen) == SlotWord::kHeld && SlotWord::number(seen) == n &&
         exchange(slots_[slot].word, seen, after);
}

bool SlotTable::settle(uint32_t slot, uint64_t n) const noexcept {
  return end_fill(slot, n, SlotWord::ready(n));
}

bool SlotTable::ask(uint32_t slot, uint64_t n, uint32_t of) const noexcept {
  return end_fill(slot, n, SlotWord::make(SlotWord::kAsked, of, n));
}

bool SlotTable::take_asked(uint32_t p, uint32_t slot, uint64_t seen) const noexcept {
  return exchange(slots_[slot].word, seen, SlotWord::held(p, SlotWord::number(seen)));
}

bool SlotTable::leave(uint32_t slot, uint64_t n) const noexcept {
  uint64_t seen = word(slot);
  return SlotWord::kind(seen) == SlotWord::kHeld && SlotWord::number(seen) == n &&
         exchange(slots_[slot].word, seen, SlotWord::make(SlotWord::kLeft, SlotWord::holder(seen), n));
}

void SlotTable::move(uint64_t n, uint32_t from, uint32_t to) const noexcept {
  uint64_t named = entry_of(n, from);
  (void)exchange(entry(n), named, entry_of(n, to));
}

// kMostSlots is the number of no slot.
void SlotTable::skip(uint64_t n, uint32_t slot) const noexcept { move(n, slot, kMostSlots); }

bool SlotTable::is_skipped(uint64_t n) const noexcept { return observe(entry(n)) == entry_of(n, kMostSlots); }

uint32_t SlotTable::slot_of(uint64_t n) const noexcept {
  const uint64_t named = observe(entry(n));
  const uint32_t slot = slot_in(named);
  return number_of(named) == n && slot < slots_.size() ? slot : kNone;
}

bool SlotTable::pass(uint64_t n) const noexcept { return raise_to(counters_->passed, n); }

void SlotTable::begin_anew(uint64_t base) const noexcept {
  raise_to(counters_->given, base - 1);
  pass(base - 1);
}

// Makes the slot of number n ready, if n was given, and moves the last number on.
void SlotTable::help(uint64_t n) const noexcept {
  const uint64_t named = observe(entry(n));
  const uint32_t slot = slot_in(named);
  if (number_of(named) != n) return;
  uint64_t word = slot < slots_.size() ? this->word(slot) : uint64_t{SlotWord::kFree};
  if (SlotWord::kind(word) == SlotWord::kOffered && SlotWord::number(word) == n)
    (void)exchange(slots_[slot].word, word, SlotWord::ready(n));
  uint64_t last = n - 1;
  (void)exchange(counters_->given, last, n);
}

// The item is counted first: else nobody would look for it.
void SlotTable::put_back(uint32_t slot, uint64_t n) const noexcept {
  raise_to(counters_->passed, n);
  (void)add(counters_->strays, uint64_t{1});
  announce(slots_[slot].word, SlotWord::ready(n, true));
}

void SlotTable::hold(uint32_t p, uint32_t slot, uint64_t n) const noexcept {
  announce(slots_[slot].word, SlotWord::make(SlotWord::kHeld, p, n));
}

void SlotTable::set_aside(uint32_t slot) const noexcept {
  announce(slots_[slot].word, SlotWord::make(SlotWord::kLeft, 0, 0));
}

void SlotTable::release(uint32_t slot) const noexcept {
  announce(slots_[slot].word, uint64_t{SlotWord::kFree});
}

// kNone: the item is not in its slot any more, or as many items as there are entries came after it.
SlotTable::Found SlotTable::item(uint64_t n, bool* is_known) const noexcept {
  const uint64_t named = observe(entry(n));
  const uint32_t slot = slot_in(named);
  *is_known = number_of(named) <= n;
  if (number_of(named) != n || slot >= slots_.size()) return {};
  const uint64_t word = this->word(slot);
  return SlotWord::item(word) == n ? Found{slot, word} : Found{};
}

// Not of items after the last one: they may have come behind the look, and others before them, too.
SlotTable::Found SlotTable::oldest_of_all(uint64_t after, uint64_t last) const noexcept {
  Found found;
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    const uint64_t word = this->word(i), n = SlotWord::item(word);
    if (n > after && n <= last && (found.slot == kNone || n < found.number())) found = {i, word};
  }
  return found;
}

// Each item up to the last number was ready once, so one that is not in the slot of its entry is gone. All
// slots are compared only if there are strays, or if an entry has a later number: then the item may be there.
SlotTable::Found SlotTable::next(uint64_t after) const noexcept {
  while (true) {
    const bool has_strays = after == 0 && observe(counters_->strays) != 0;
    const uint64_t passed = observe(counters_->passed), begin = std::max(after, passed), last = given();
    Found found;
    bool is_known = !has_strays && last - begin <= entries_.size();
    uint64_t number = begin;
    while (is_known && found.slot == kNone && number < last) found = item(++number, &is_known);
    if (is_known) {
      const uint64_t gone = found.slot == kNone ? last : number - 1;
      if (begin == passed && gone > passed) raise_to(counters_->passed, gone);
    } else {
      found = oldest_of_all(has_strays ? 0 : begin, last);
    }
    if (found.slot != kNone) return found;
    help(last + 1);
    if (given() == last) return found;
  }
}

SlotTable::Found SlotTable::newest() const noexcept {
  help(given() + 1);
  while (true) {
    const uint64_t last = given();
    bool is_known = false;
    const Found found = item(last, &is_known);
    if (found.slot != kNone || given() == last) return found;
  }
}

bool SlotTable::change(uint32_t slot, uint64_t seen, uint64_t after) const noexcept {
  return exchange(slots_[slot].word, seen, after);
}

bool SlotTable::reclaim(uint32_t p) const noexcept {
  bool had_any = false;
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    uint64_t now = word(i);
    if (SlotWord::has_holder(now) && SlotWord::holder(now) == p) {
      const uint64_t n = SlotWord::number(now);
      const bool is_item = SlotWord::kind(now) == SlotWord::kClaimed ||
                           (SlotWord::kind(now) == SlotWord::kOffered && observe(entry(n)) == entry_of(n, i));
      (void)exchange(slots_[i].word, now, is_item ? SlotWord::ready(n) : uint64_t{SlotWord::kFree});
      had_any = true;
    }
    if (!has_bit(slots_[i].readers, p)) continue;
    clear_bit(slots_[i].readers, p);
    had_any = true;
  }
  return had_any;
}

}  // namespace tenon::impl
