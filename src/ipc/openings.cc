// SPDX-License-Identifier: Apache-2.0
#include "ipc/openings.h"

#include <algorithm>
#include <utility>

namespace tenon::impl {
namespace {

size_t index_of(ChannelRole role) noexcept {
  return static_cast<size_t>(std::ranges::find(kRoles, role) - std::begin(kRoles));
}

}  // namespace

uint32_t Openings::add_role(uint64_t taker, ChannelRole role) noexcept {
  if (std::exchange(taker_, taker) != taker) {
    std::ranges::fill(counts_, 0);
    has_used_ = false;
  }
  ++counts_[index_of(role)];
  has_used_ = has_used_ || role != kMember;
  return roles();
}

uint32_t Openings::remove_role(ChannelRole role) noexcept {
  --counts_[index_of(role)];
  return roles();
}

uint32_t Openings::roles() const noexcept {
  uint32_t roles = 0;
  for (const ChannelRole role : kRoles) {
    const bool has_role = counts_[index_of(role)] != 0 && !(role == kMember && has_used_);
    if (has_role) roles |= role;
  }
  return roles;
}

Cursor& Openings::add_cursor(uint64_t taker, uint64_t sequence, bool is_awaited) {
  // pairs with: Channel::give_up_roles, "a cursor that is free"
  const auto is_free = [&](const Cursor& c) { return c.taker.load(std::memory_order_acquire) != taker; };
  const auto found = std::ranges::find_if(cursors_, is_free);
  Cursor& cursor = found != cursors_.end() ? *found : cursors_.emplace_back();
  cursor.sequence = sequence;
  cursor.is_awaited = is_awaited;
  cursor.put_back.clear();
  cursor.taker.store(taker, std::memory_order_relaxed);
  return cursor;
}

uint64_t Openings::received_up_to(uint64_t taker) const noexcept {
  uint64_t least = UINT64_MAX;
  for (const Cursor& cursor : cursors_) {
    if (cursor.is_awaited && cursor.taker.load(std::memory_order_relaxed) == taker)
      least = std::min(least, cursor.received_up_to());
  }
  return least == UINT64_MAX ? 0 : least;
}

bool Openings::has_received(uint64_t taker, uint64_t sequence) const noexcept {
  return std::ranges::any_of(cursors_, [&](const Cursor& cursor) {
    return cursor.is_awaited && cursor.taker.load(std::memory_order_relaxed) == taker &&
           cursor.sequence >= sequence &&
           std::ranges::find(cursor.put_back, sequence) == cursor.put_back.end();
  });
}

bool Openings::join_item(uint32_t slot) noexcept {
  if (is_new(slot)) return false;  // they are of the parent
  std::atomic<uint32_t>& items = held_[slot].items;
  uint32_t n = items.load(std::memory_order_relaxed);
  while (n != 0 && n != kEnding) {
    // pairs with: Openings::remove_item, "an item that has ended"
    if (items.compare_exchange_weak(n, n + 1, std::memory_order_acq_rel)) return true;
  }
  return false;
}

void Openings::add_item(uint32_t slot) noexcept {
  std::atomic<uint32_t>& items = held_[slot].items;
  // pairs with: Openings::remove_item, "an item that has ended"
  pause_until([&] { return items.load(std::memory_order_acquire) == 0; });
  items.store(1, std::memory_order_relaxed);
}

}  // namespace tenon::impl
