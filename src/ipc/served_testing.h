// SPDX-License-Identifier: Apache-2.0
//
// What tests of served feeds have in common: a worker and consumers that pass numbers by the table of a feed,
// as the layer above does.
#pragma once

#include "ipc/served_ends.h"

namespace tenon::impl {

constexpr uint32_t kWorker = kParticipants;  // the holder of a slot that is filled
constexpr uint32_t kNoSlot = SlotTable::kNone;

inline uint32_t free_slot(const ServedEnds& ends) {
  for (uint32_t i = 0; i < ends.table().size(); ++i) {
    if (ends.table().word(i) == SlotWord::kFree) return i;
  }
  return kNoSlot;
}
// Takes a slot, of a broadcast also that of a batch that all have received.
inline uint32_t lend(const ServedEnds& ends, uint64_t base = 0) {
  const SlotTable& table = ends.table();
  for (uint32_t i = 0; i < table.size(); ++i) {
    if (table.take_free(kWorker, i)) return i;
    const uint64_t word = table.word(i);
    const bool is_ready = ends.is_broadcast() && SlotWord::kind(word) == SlotWord::kReady;
    if (is_ready && is_spare(table, i, word, floor_of(ends.state(), table, base)) &&
        table.take(kWorker, i, word, 0))
      return i;
  }
  return kNoSlot;
}
// Fills a slot. Returns the number of the batch; 0: there is no slot.
inline uint64_t fill(const ServedEnds& ends, uint64_t base = 0) {
  const uint32_t slot = lend(ends, base);
  if (slot == kNoSlot) return 0;
  SlotTable::Turn turn = ends.table().next_number();
  while (!ends.table().take_number(slot, turn)) turn = ends.table().next_number();
  (void)ends.table().settle(slot, turn.number);
  return turn.number;
}

struct Received {
  uint32_t slot = kNoSlot;
  uint64_t number = 0;  // 0: nothing was there
};
// Receives the next batch: of a queue, or of a broadcast after the cursor.
inline Received receive(const ServedEnds& ends, uint32_t p) {
  const SlotTable& table = ends.table();
  for (int i = 0; i < 1000; ++i) {
    if (!ends.is_broadcast()) ends.help();
    const uint64_t n = (ends.is_broadcast() ? observe(ends.state().records[p].cursor) : table.passed()) + 1;
    const uint32_t slot = table.slot_of(n);
    if (slot == kNoSlot || table.word(slot) != SlotWord::ready(n)) {
      if (ends.is_broadcast() || table.passed() + 1 == n) return {};
      continue;
    }
    if (ends.is_broadcast() ? ends.read(p, slot, n) : ends.take(p, slot, n)) return {slot, n};
  }
  return {};
}
inline void let_go(const ServedEnds& ends, uint32_t p, const Received& batch) {
  if (ends.is_broadcast()) {
    ends.end_read(p, batch.slot);
  } else {
    ends.release(p, batch.slot, batch.number);
  }
}

}  // namespace tenon::impl
