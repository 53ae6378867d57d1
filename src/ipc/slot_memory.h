// SPDX-License-Identifier: Apache-2.0
//
// The memory of the slots of a channel. Each slot has a range of addresses in the channel's file, as large as
// the largest item, and gets pages when an item is written there. The pages of all slots come out of one
// budget. There is no lock: only the process that has a slot for itself (slot_table.h) changes its memory.
// tests/models/slot_memory.pml is the model.
//
// After each store, also after that of a process that is killed:
//   - a slot has at most as many bytes of pages as it reserves, and at least as many as it has committed;
//   - the pages of all slots are within the budget.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/os.h"
#include "ipc/layout.h"
#include "ipc/slot_table.h"

namespace tenon::impl {

// Of one slot. Written by the process that has it for itself.
struct SlotMemory {
  std::atomic<uint64_t> reserved;   // bytes of the budget
  std::atomic<uint64_t> committed;  // so many of its first bytes have pages
  std::atomic<uint64_t> used;       // bytes of the item, in a channel of bytes
};

// A value that refers to the file and the state of a channel. Threads: any. Functions that change a slot
// require that the caller has it for itself.
class SlotMemories {
 public:
  struct Range {
    uint64_t file_at = 0;          // of the first slot
    std::byte* data = nullptr;     // the same, mapped
    uint64_t capacity_nbytes = 0;  // of each slot
    uint64_t budget_nbytes = 0;    // of all
  };
  SlotMemories() = default;
  SlotMemories(const os::File& file, const Range& range, std::span<SlotMemory> slots,
               const SlotTable& table) noexcept
      : file_(&file), range_(range), slots_(slots), table_(table) {}

  uint64_t capacity_nbytes() const noexcept { return range_.capacity_nbytes; }
  uint64_t budget_nbytes() const noexcept { return range_.budget_nbytes; }
  uint64_t reserved(uint32_t slot) const noexcept { return observe(slots_[slot].reserved); }
  // Not more than the slot's capacity, also if the memory is damaged.
  uint64_t committed(uint32_t slot) const noexcept;

  // What the other slots reserve.
  uint64_t reserved_beside(uint32_t slot) const noexcept { return look_at_others(slot).reserved; }

  // The first nbytes of the slot get pages, unless they have some. False: the budget has no room, or another
  // process takes it at the same time. Fails with kNoMemory, kSystem; the slot is as it was then.
  bool grow(uint32_t slot, uint64_t nbytes) const;
  // Returns the pages of the slot from nbytes on to the system and to the budget. False: the system cannot do
  // it. Requires slots of whole pages, and nbytes of such.
  bool shrink(uint32_t slot, uint64_t nbytes) const noexcept;

  // So much fits into the budget beside what is reserved.
  bool has_room(uint64_t reserved, uint64_t nbytes) const noexcept {
    return reserved <= range_.budget_nbytes && nbytes <= range_.budget_nbytes - reserved;
  }

  // The bytes of an item. Set before it is offered.
  void set_used(uint32_t slot, uint64_t nbytes) const noexcept { store(slots_[slot].used, nbytes); }
  // Not more than the slot has pages, also if the memory is damaged.
  uint64_t used(uint32_t slot) const noexcept;

 private:
  // What the other slots reserve, and which of them are about to change that.
  struct Others {
    uint64_t reserved = 0;
    bool has_moving_above = false;
    bool has_moving_below = false;
  };
  Others look_at_others(uint32_t slot) const noexcept;
  // Slots that can all be full at the same time need no look at each other.
  bool is_budget_of_all() const noexcept {
    return range_.budget_nbytes / range_.capacity_nbytes >= slots_.size();
  }
  bool reserve(uint32_t slot, uint64_t nbytes) const noexcept;
  void commit(uint32_t slot, uint64_t from, uint64_t to) const;

  const os::File* file_ = nullptr;
  Range range_;
  std::span<SlotMemory> slots_;
  SlotTable table_;
};

}  // namespace tenon::impl
