// SPDX-License-Identifier: Apache-2.0
#include "data/free_slots.h"

namespace tenon::impl {

int32_t FreeSlots::try_take(uint32_t holder) const noexcept {
  if (is_over()) return kOver;
  const auto take = [&](uint32_t slot) {
    return table_.word(slot) == SlotWord::kFree && table_.take_free(holder, slot);
  };
  const int32_t made = this->made();
  const uint32_t recent = control_.shared().recent.load(std::memory_order_relaxed);
  if (recent < static_cast<uint32_t>(made) && take(recent)) return static_cast<int32_t>(recent);
  for (int32_t slot = 0; slot < made; ++slot) {
    if (take(static_cast<uint32_t>(slot))) return slot;
  }
  return control_.is_broadcast() ? try_take_spare(holder) : kNone;
}

uint64_t FreeSlots::floor() const noexcept {
  return floor_of(*control_.served(), table_, observe(control_.shared().round.base));
}

int32_t FreeSlots::try_take_spare(uint32_t holder) const noexcept {
  const uint64_t floor = this->floor();
  for (int32_t i = 0; i < made(); ++i) {
    const auto slot = static_cast<uint32_t>(i);
    const uint64_t word = table_.word(slot);
    if (is_spare(table_, slot, word, floor) && table_.take(holder, slot, word, 0)) return i;
  }
  return kNone;
}

int32_t FreeSlots::take(uint32_t holder, const Deadline& deadline) const noexcept {
  int32_t slot = try_take(holder);
  if (slot == kNone && !deadline.leaves_no_time()) {
    (void)control_.shared().room.sleep(
        deadline, [&] { return (slot = try_take(holder)) != kNone; }, control_.look_ns());
  }
  return slot;
}

bool FreeSlots::has_free() const noexcept {
  for (int32_t slot = 0; slot < made(); ++slot) {
    if (table_.word(static_cast<uint32_t>(slot)) == SlotWord::kFree) return true;
  }
  if (!control_.is_broadcast()) return false;
  const uint64_t floor = this->floor();
  for (int32_t i = 0; i < made(); ++i) {
    const auto slot = static_cast<uint32_t>(i);
    if (is_spare(table_, slot, table_.word(slot), floor)) return true;
  }
  return false;
}

void FreeSlots::await_free(int64_t timeout_ns) const noexcept {
  const auto is_settled = [this] { return is_over() || has_free(); };
  if (!is_settled() && timeout_ns > 0)
    (void)control_.shared().room.sleep(Deadline(timeout_ns), is_settled, control_.look_ns());
}

void FreeSlots::give(int32_t slot) const noexcept {
  if (on_give_.call != nullptr) on_give_.call(on_give_.self, slot);
  control_.shared().recent.store(static_cast<uint32_t>(slot), std::memory_order_relaxed);
  table_.release(static_cast<uint32_t>(slot));
  control_.shared().room.signal_one();
}

void FreeSlots::wake() const noexcept {
  announce(control_.shared().is_over, 1U);
  control_.shared().room.signal_all();
}

}  // namespace tenon::impl
