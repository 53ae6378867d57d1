// SPDX-License-Identifier: Apache-2.0
#include "ipc/place_locks.h"

namespace tenon::impl {
namespace {

uint64_t bit_of(uint32_t place) noexcept { return uint64_t{1} << (place % 64); }

}  // namespace

bool PlaceLocks::try_lock(uint32_t place) noexcept {
  std::atomic<uint64_t>& held = held_[place / 64];
  // pairs with: PlaceLocks::unlock, "a place that no thread has"
  if ((held.fetch_or(bit_of(place), std::memory_order_acquire) & bit_of(place)) != 0) return false;
  if (os::try_lock_byte(file_, place)) return true;
  // pairs with: PlaceLocks::try_lock, "a place that no thread has"
  held.fetch_and(~bit_of(place), std::memory_order_release);
  return false;
}

void PlaceLocks::unlock(uint32_t place) noexcept {
  os::unlock_byte(file_, place);
  // pairs with: PlaceLocks::try_lock, "a place that no thread has"
  held_[place / 64].fetch_and(~bit_of(place), std::memory_order_release);
}

bool PlaceLocks::is_free(uint32_t place) const noexcept {
  return (held_[place / 64].load(std::memory_order_relaxed) & bit_of(place)) == 0 &&
         !os::is_byte_locked(file_, place);
}

void PlaceLocks::become_child() noexcept {
  for (auto& word : held_) word.store(0, std::memory_order_relaxed);
}

}  // namespace tenon::impl
