// SPDX-License-Identifier: Apache-2.0
#include "ipc/slot_memory.h"

#include <sched.h>

#include <algorithm>

#include "base/bytes.h"
#include "base/error.h"
#include "base/spin_budget.h"

namespace tenon::impl {
namespace {

// Up to so many bytes are taken without a look at the limits of the system, which takes longer.
constexpr uint64_t kSmall = uint64_t{64} << 10;

}  // namespace

uint64_t SlotMemories::committed(uint32_t slot) const noexcept {
  return std::min(look(slots_[slot].committed), range_.capacity_nbytes);
}

uint64_t SlotMemories::used(uint32_t slot) const noexcept {
  return std::min(look(slots_[slot].used), committed(slot));
}

// A process that has its slot for itself reserves more than it has committed while it grows or shrinks the
// slot, and a killed one may have left a slot like that. So the word is read, too; it may be free because the
// process has given up meanwhile, and then reserves something else.
SlotMemories::Others SlotMemories::look_at_others(uint32_t slot) const noexcept {
  Others others;
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    if (i == slot) continue;
    const uint64_t reserved = observe(slots_[i].reserved);
    if (__builtin_add_overflow(others.reserved, reserved, &others.reserved)) others.reserved = UINT64_MAX;
    if (reserved <= observe(slots_[i].committed)) continue;
    const bool is_moving = SlotWord::has_holder(table_.word(i)) || observe(slots_[i].reserved) != reserved;
    (i > slot ? others.has_moving_above : others.has_moving_below) |= is_moving;
  }
  return others;
}

// Announces the bytes, then looks what the others have announced: of two processes that do so at once, at
// least one sees the other. If it is too much, the one in the higher slot gives up, and the one in the lower
// slot looks again. It does not look for ever: the other process may be stopped, or be taking its pages.
bool SlotMemories::reserve(uint32_t slot, uint64_t nbytes) const noexcept {
  std::atomic<uint64_t>& reserved = slots_[slot].reserved;
  const uint64_t before = observe(reserved);
  if (nbytes <= before) return true;
  if (is_budget_of_all()) {
    announce(reserved, nbytes);
    return true;
  }
  if (!has_room(look_at_others(slot).reserved, nbytes)) return false;
  announce(reserved, nbytes);
  for (int i = 0; i < kBriefLooks; ++i) {
    const Others others = look_at_others(slot);
    if (has_room(others.reserved, nbytes)) return true;
    if (others.has_moving_below || !others.has_moving_above) break;
    sched_yield();
  }
  announce(reserved, before);  // not less: a killed process may have left pages up to there
  return false;
}

bool SlotMemories::grow(uint32_t slot, uint64_t nbytes) const {
  const uint64_t committed = this->committed(slot);
  if (nbytes <= committed) return true;
  const uint64_t before = observe(slots_[slot].reserved);
  if (nbytes > range_.capacity_nbytes || !reserve(slot, nbytes)) return false;
  try {
    commit(slot, committed, nbytes);
  } catch (...) {
    announce(slots_[slot].reserved, before);
    throw;
  }
  announce(slots_[slot].committed, nbytes);
  return true;
}

// Slots may share the pages at their ends. These are taken alone, so that none is returned if there is no
// memory for the rest. Without the descriptor, which other code may have closed, the mapping has to do.
void SlotMemories::commit(uint32_t slot, uint64_t from, uint64_t to) const {
  const uint64_t page = os::page_nbytes(), at = range_.file_at + slot * range_.capacity_nbytes;
  const auto take = [&](uint64_t begin, uint64_t end) {
    if (begin >= end || (end - begin <= kSmall && os::try_commit(*file_, begin, end - begin))) return;
    std::byte* const data = range_.data + (begin - range_.file_at) - begin % page;
    if (file_->is_lost() && os::populate(data, end - begin + begin % page, true)) return;
    os::commit(*file_, begin, end - begin, concat("an item of ", to, " bytes in a slot of a channel"));
  };
  const uint64_t begin = at + from, end = at + to;
  const uint64_t first = std::min(round_up(begin, page), end), last = std::max(end / page * page, first);
  take(begin, first);
  take(last, end);
  take(first, last);
}

bool SlotMemories::shrink(uint32_t slot, uint64_t nbytes) const noexcept {
  SlotMemory& memory = slots_[slot];
  const uint64_t reserved = std::min(observe(memory.reserved), range_.capacity_nbytes);
  const uint64_t committed = this->committed(slot), kept = std::min(committed, nbytes);
  if (reserved <= kept) return true;
  announce(memory.committed, kept);
  const uint64_t at = slot * range_.capacity_nbytes + kept;
  const uint64_t rest = round_up(reserved - kept, os::page_nbytes());
  if (!os::punch(*file_, range_.file_at + at, rest) && !os::discard(range_.data + at, rest)) {
    announce(memory.committed, committed);
    return false;
  }
  announce(memory.reserved, kept);
  return true;
}

}  // namespace tenon::impl
