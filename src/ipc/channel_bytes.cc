// SPDX-License-Identifier: Apache-2.0
//
// How a channel of bytes lends slots: each item takes as many pages as it needs from the budget of the
// channel (slot_memory.h). A slot keeps its pages for the next item, unless another one needs them.
#include <algorithm>
#include <memory>

#include "base/bytes.h"
#include "base/error.h"
#include "ipc/channel.h"

namespace tenon::impl {
namespace {

uint64_t whole_pages(uint64_t nbytes) noexcept {
  return round_up(std::max<uint64_t>(nbytes, 1), os::page_nbytes());
}

}  // namespace

void Channel::check_size(uint64_t nbytes) const {
  if (!plan_.holds_bytes() || nbytes <= plan_.largest_nbytes) return;
  throw_error(Code::kValue, "an item of ", nbytes, " bytes is larger than the largest one of the channel, ",
              plan_.largest_nbytes, " bytes: create it with a larger nbytes= (and largest=)");
}

// Memory that a slot may have and is lent with for an item of nbytes. All slots with an equal share fit into
// the budget. What a larger item has beside its bytes is lost for others until its slot is free.
uint64_t Channel::most_lent(uint64_t nbytes) const noexcept {
  return std::max(nbytes + nbytes / 4, memories_.budget_nbytes() / plan_.slots);
}

// The slot for an item of so many bytes, of those that no process has; none: they do not fit beside what the
// others have. One that has the memory, and not much more; else one that has most of it. A slot with much
// more is for larger items, unless there is no room to grow another one.
Channel::Choice Channel::choose_slot(uint64_t nbytes, const Refused& refused) const noexcept {
  const uint64_t up_to = spare_up_to();
  uint64_t reserved = 0, held = 0;
  Choice enough, less;
  for (uint32_t i = 0; i < plan_.slots; ++i) {
    const uint64_t word = table_.word(i);
    const uint64_t now = std::min(memories_.reserved(i), memories_.capacity_nbytes());
    reserved += now;
    if (refused.test(i) || !is_spare(i, word, up_to)) {
      held += now;
      continue;
    }
    const uint64_t committed = memories_.committed(i);
    Choice& best = committed >= nbytes ? enough : less;
    const bool is_better = &best == &enough ? committed < best.nbytes : committed > best.nbytes;
    if (!best.is_any() || is_better) best = {i, word, committed};
  }
  if (!memories_.has_room(held, nbytes)) return {};
  if (!enough.is_any() || !less.is_any()) return enough.is_any() ? enough : less;
  const bool may_grow =
      memories_.has_room(reserved - std::min(reserved, memories_.reserved(less.slot)), nbytes);
  return enough.nbytes > most_lent(nbytes) && may_grow ? less : enough;
}

// Of the slots that no process has, that with the most memory; none: no such slot has any.
Channel::Choice Channel::largest_spare(const Refused& refused) const noexcept {
  const uint64_t up_to = spare_up_to();
  Choice largest;
  for (uint32_t i = 0; i < plan_.slots; ++i) {
    const uint64_t reserved = memories_.reserved(i);
    if (reserved <= largest.nbytes || refused.test(i)) continue;
    const uint64_t word = table_.word(i);
    if (is_spare(i, word, up_to)) largest = {i, word, reserved};
  }
  return largest;
}

// Returns the memory of slots that no process has, one after the other, until the budget has room for the
// slot. False: it has none. refused: not these slots.
bool Channel::make_room(uint32_t slot, uint64_t nbytes, Refused refused) {
  refused.set(slot);
  while (!memories_.has_room(memories_.reserved_beside(slot), nbytes)) {
    const Choice other = largest_spare(refused);
    if (!other.is_any()) return false;
    refused.set(other.slot);
    if (!take_spare(other.slot, other.word)) continue;
    (void)memories_.shrink(other.slot, 0);
    table_.release(other.slot);
    signal_event(state_->room);
  }
  return true;
}

// Takes a slot only when there is room for it: to give it back wakes the others, and this process, too.
bool Channel::lend_bytes(Item& item) {
  const uint64_t nbytes = whole_pages(item.nbytes());
  Refused refused;
  for (Choice own = choose_slot(nbytes, refused); own.is_any(); own = choose_slot(nbytes, refused)) {
    if (!make_room(own.slot, nbytes, refused)) return false;
    refused.set(own.slot);
    if (!take_spare(own.slot, own.word)) continue;
    bool is_lent = false;
    const auto give_back = [&](void*) noexcept {
      if (is_lent) return;
      table_.release(own.slot);
      signal_event(state_->room);
    };
    const std::unique_ptr<void, decltype(give_back)> at_end(this, give_back);
    if (memories_.reserved(own.slot) > most_lent(nbytes)) (void)memories_.shrink(own.slot, nbytes);
    if (!grow(own.slot, nbytes)) return false;
    is_lent = true;
    note_loan(item, own.slot);
    return true;
  }
  return false;
}

// Of a loan that is about to be sent, and has much more memory than its item. True: others have room.
bool Channel::return_excess(const Item& item) noexcept {
  if (!plan_.holds_bytes()) return false;
  const uint64_t nbytes = whole_pages(item.nbytes());
  return memories_.reserved(item.slot_) > most_lent(nbytes) && memories_.shrink(item.slot_, nbytes);
}

// Drops the oldest items until there is room, unless what processes hold leaves none.
bool Channel::drop_for_bytes(Item& item) {
  uint64_t held = 0;
  for (uint32_t i = 0; i < plan_.slots; ++i) {
    if (!is_spare(i, table_.word(i), UINT64_MAX))
      held += std::min(memories_.reserved(i), memories_.capacity_nbytes());
  }
  if (!memories_.has_room(held, whole_pages(item.nbytes()))) return false;
  for (SlotTable::Found f = table_.next(0); f.slot != SlotTable::kNone; f = table_.next(f.number())) {
    if (SlotWord::kind(f.word) != SlotWord::kReady || !take_over(f.slot, f.word, true)) continue;
    (void)add(state_->dropped, uint64_t{1});
    table_.release(f.slot);
    signal_event(state_->room);
    if (lend_bytes(item)) return true;
  }
  return false;
}

std::string Channel::bytes_text() const {
  if (!plan_.holds_bytes()) return {};
  uint64_t held = 0;
  const uint64_t up_to = spare_up_to();
  for (uint32_t i = 0; i < plan_.slots; ++i) {
    if (!is_spare(i, table_.word(i), up_to))
      held += std::min(memories_.reserved(i), memories_.capacity_nbytes());
  }
  return concat(held, " of ", plan_.budget_nbytes, " bytes in use, ");
}

}  // namespace tenon::impl
