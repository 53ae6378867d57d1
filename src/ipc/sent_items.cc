// SPDX-License-Identifier: Apache-2.0
#include "ipc/sent_items.h"

#include <algorithm>

namespace tenon::impl {

// kNoSlot: it was not sent, is not in its slot any more, or as many items as there are slots came after it.
uint32_t SentItems::slot_of(uint64_t sequence) const noexcept {
  const auto has_item = [&](uint32_t slot) {
    return slot < slots_.size() && look(slots_[slot].sequence) == sequence;
  };
  const bool is_last = sequence == look(state_->last_sequence);
  if (is_last) {
    if (const uint32_t recent = look(state_->recent_slot); has_item(recent)) return recent;
  }
  const uint32_t slot = look(slots_[sequence % slots_.size()].slot_of_item);
  return has_item(slot) ? slot : kNoSlot;
}

// Compares all slots only if more items than there are slots came after it.
uint32_t SentItems::next(uint64_t after) const noexcept {
  const uint64_t gone = look(state_->gone_up_to), last = look(state_->last_sequence);
  const uint64_t begin = std::max(after, gone);
  uint32_t found = kNoSlot;
  uint64_t least = last + 1;
  if (last - begin <= slots_.size()) {
    for (uint64_t sequence = begin + 1; sequence <= last && found == kNoSlot; ++sequence) {
      found = slot_of(sequence);
      if (found != kNoSlot) least = sequence;
    }
  } else {
    for (uint32_t i = 0; i < slots_.size(); ++i) {
      const uint64_t sequence = look(slots_[i].sequence);
      if (sequence <= begin || sequence >= least) continue;
      least = sequence;
      found = i;
    }
  }
  if (after <= gone && least - 1 > gone) publish(state_->gone_up_to, least - 1);
  return found;
}

// state_->last_sequence may be the number of an item that was never sent.
uint32_t SentItems::newest() const noexcept {
  const uint64_t last = look(state_->last_sequence);
  for (uint64_t sequence = last; sequence > 0 && last - sequence < slots_.size(); --sequence) {
    if (const uint32_t slot = slot_of(sequence); slot != kNoSlot) return slot;
  }
  uint32_t found = kNoSlot;
  uint64_t newest = 0;
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    const uint64_t sequence = look(slots_[i].sequence);
    if (sequence <= newest) continue;
    newest = sequence;
    found = i;
  }
  return found;
}

// If the process dies on the way, the item is lost: it has no number yet.
uint64_t SentItems::add(uint32_t slot) const noexcept {
  const uint64_t sequence = look(state_->last_sequence) + 1;
  publish(state_->last_sequence, sequence);
  publish(slots_[sequence % slots_.size()].slot_of_item, slot);
  publish(slots_[slot].sequence, sequence);
  return sequence;
}

void SentItems::put_back(uint32_t slot, uint64_t sequence) const noexcept {
  if (look(state_->gone_up_to) >= sequence) publish(state_->gone_up_to, sequence - 1);
  publish(slots_[slot].sequence, sequence);
}

}  // namespace tenon::impl
