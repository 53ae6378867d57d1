// SPDX-License-Identifier: Apache-2.0
//
// The items of a channel that were sent and lie in its slots. Each has a number: that of the item before it
// plus 1.
#pragma once

#include <cstdint>
#include <span>

#include "ipc/channel_state.h"

namespace tenon::impl {

// A value that refers to the channel's memory. Threads: any; all functions require the channel's mutex.
class SentItems {
 public:
  static constexpr uint32_t kNoSlot = UINT32_MAX;

  SentItems() = default;
  SentItems(ChannelState& state, std::span<ChannelSlot> slots) noexcept : state_(&state), slots_(slots) {}

  // The slot with the oldest item after this number; kNoSlot: none.
  uint32_t next(uint64_t after) const noexcept;
  // The slot with the newest item; kNoSlot: none.
  uint32_t newest() const noexcept;
  // Adds the item in this slot, and returns its number.
  uint64_t add(uint32_t slot) const noexcept;
  // Adds an item again that has left its slot.
  void put_back(uint32_t slot, uint64_t sequence) const noexcept;

 private:
  uint32_t slot_of(uint64_t sequence) const noexcept;

  ChannelState* state_ = nullptr;
  std::span<ChannelSlot> slots_;
};

}  // namespace tenon::impl
