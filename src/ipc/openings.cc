// SPDX-License-Identifier: Apache-2.0
#include "ipc/openings.h"

#include <algorithm>

#include "base/fork_mark.h"
#include "base/spin_lock.h"

namespace tenon::impl {

Cursor& Openings::add_cursor(uint64_t taker, uint64_t sequence) {
  // pairs with: Channel::give_roles, "a cursor that is free"
  const auto is_free = [&](const Cursor& c) { return c.taker.load(std::memory_order_acquire) != taker; };
  const auto found = std::ranges::find_if(cursors_, is_free);
  Cursor& cursor = found != cursors_.end() ? *found : cursors_.emplace_back();
  cursor.sequence = sequence;
  cursor.put_back.clear();
  cursor.taker.store(taker, std::memory_order_relaxed);
  return cursor;
}

uint64_t Openings::received_up_to(uint64_t taker) const noexcept {
  uint64_t least = UINT64_MAX;
  for (const Cursor& cursor : cursors_) {
    if (cursor.taker.load(std::memory_order_relaxed) == taker)
      least = std::min(least, cursor.received_up_to());
  }
  return least == UINT64_MAX ? 0 : least;
}

bool Openings::has_received(uint64_t taker, uint64_t sequence) const noexcept {
  return std::ranges::any_of(cursors_, [&](const Cursor& cursor) {
    return cursor.taker.load(std::memory_order_relaxed) == taker && cursor.sequence >= sequence &&
           std::ranges::find(cursor.put_back, sequence) == cursor.put_back.end();
  });
}

bool Openings::join_item(uint32_t slot) noexcept {
  Held& held = held_[slot];
  if (held.process != ForkMark::current()) return false;  // they are of the parent
  uint32_t n = held.items.load(std::memory_order_relaxed);
  while (n != 0 && n != kEnding) {
    // pairs with: Openings::remove_item, "an item that has ended"
    if (held.items.compare_exchange_weak(n, n + 1, std::memory_order_acq_rel)) return true;
  }
  return false;
}

bool Openings::add_item(uint32_t slot, uint64_t process) noexcept {
  Held& held = held_[slot];
  const bool is_first = held.process != process;
  held.process = process;
  // pairs with: Openings::remove_item, "an item that has ended"
  if (!is_first) pause_until([&] { return held.items.load(std::memory_order_acquire) == 0; });
  held.items.store(1, std::memory_order_relaxed);
  return !is_first;
}

}  // namespace tenon::impl
