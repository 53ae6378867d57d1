// SPDX-License-Identifier: Apache-2.0
//
// The gate of the slots of a channel. The channel decides which process uses a slot (slot_table.h),
// so no request waits here: it passes if this process holds the slots of its bytes, and if it only reads
// where other processes may read, too. Else it is refused: the item was sent, or belongs to the process that
// has forked this one.
#pragma once

#include <atomic>

#include "ipc/openings.h"
#include "ipc/process_lock.h"
#include "ipc/slot_table.h"

namespace tenon::impl {

// One for each channel in each process. It is the lock of the block of the slots, so that it has a place in
// the order of all gates. Threads: any.
class SlotGate final : public ProcessLock {
 public:
  struct Slots {
    std::byte* data = nullptr;
    uint64_t nbytes = 0;  // of each
    uint32_t count = 0;
    SlotTable table;
  };
  SlotGate(Segment& segment, uint32_t block, const Slots& slots)
      : ProcessLock(segment, block), slots_(slots), openings_(slots.count) {}

  Openings& openings() noexcept { return openings_; }

  bool enter(const Request& request, RequestPart& part, const Deadline& deadline,
             Conflict* conflict) noexcept override;
  Appended submit(Request& request, RequestPart& part, Conflict* conflict) noexcept override;
  Right right_to(Access access, const Extent& extent) const noexcept override;
  bool cancel(RequestPart&) noexcept override { return false; }
  void share(GrantId) noexcept override {}
  void leave(GrantId, bool has_written) noexcept override {
    if (has_written) note_write();
  }
  void disown(GrantId) noexcept override {}
  void visit_others(const Extent&, void (*)(const Holder&, void*), void*) noexcept override {}
  bool describe_holder(const Asked&, Holder*) noexcept override { return false; }
  // No other process writes while this one has the item.
  uint64_t version() noexcept override { return writes_.load(std::memory_order_relaxed); }
  void note_write() noexcept override { writes_.fetch_add(1, std::memory_order_relaxed); }
  void note_outlived_view() noexcept override {}
  void heal(const Extent&) noexcept override {}
  bool clear_deaths(const Extent&, const Deadline&, Conflict*) noexcept override { return true; }

 private:
  const Slots slots_;
  Openings openings_;
  std::atomic<uint64_t> writes_{0};  // of this process, to all slots
};

}  // namespace tenon::impl
