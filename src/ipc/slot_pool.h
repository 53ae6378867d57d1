// SPDX-License-Identifier: Apache-2.0
//
// What all who pass slots by one table share besides the words of the slots: the numbers, what they sleep on,
// and hints. Plain data; zeros are the initial values.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <type_traits>

#include "base/event.h"
#include "ipc/slot_table.h"

namespace tenon::impl {

struct SlotPoolState {
  SlotCounters counters;
  // The slot that was given last: a hint. Workers without a slot poll its line of the cache, so what
  // consumers write besides lies in another one.
  alignas(64) std::atomic<uint32_t> recent;
  std::atomic<uint32_t> is_over;     // no more slots
  std::atomic<uint32_t> made;        // the numbers of all slots are smaller
  std::atomic<uint32_t> is_stopped;  // no more tickets and batches
  std::atomic<uint32_t>
      changes;             // that a consumer has made and the last number that was passed does not show
  Event room;              // a slot may be free
  alignas(64) Event work;  // there may be tickets
  Event settled;           // there may be something at the consumer's place
};
static_assert(std::is_standard_layout_v<SlotPoolState>);

// The entries of a feed of so many slots. There are many also for few slots, so that workers fill ahead where
// batches are skipped.
constexpr uint64_t entries_of_pool(uint64_t slots) noexcept { return std::max<uint64_t>(slots, 256); }

}  // namespace tenon::impl
