// SPDX-License-Identifier: Apache-2.0
//
// A region is one stretch of known memory: the unit to which the contract applies. Storages whose bytes
// overlap share a region, so that two imports of the same memory can never be told apart by it. Views are
// counted here and nowhere else.
#pragma once

#include <atomic>
#include <cstdint>

#include "tenon/tenon.h"

namespace tenon {

class Storage;

// What a view does with the elements.
enum class Access : int32_t { kRead = TENON_READ, kWrite = TENON_WRITE };

// Owned by KnownMemory; lives at least as long as every storage on it.
// Threads: the counters may be used by any thread; the rest is guarded by KnownMemory's lock.
// Invariant: the extents of two regions in the map are disjoint.
class Region {
 public:
  // pairs with: KnownMemory::merge, "a view is counted on the region that the merge saw"
  void open_view(Access access) noexcept {
    (access == Access::kWrite ? writers_ : readers_).fetch_add(1, std::memory_order_seq_cst);
  }

  // The end of a writable view counts as a write: nobody saw what happened before it.
  void close_view(Access access) noexcept {
    if (access == Access::kWrite) note_write();
    (access == Access::kWrite ? writers_ : readers_).fetch_sub(1, std::memory_order_relaxed);
  }

  // pairs with: Storage::open_view, "a view is counted on the region that the merge saw"
  tenon_view_count views() const noexcept {
    return {readers_.load(std::memory_order_seq_cst), writers_.load(std::memory_order_seq_cst)};
  }

  void note_write() noexcept { version_.fetch_add(1, std::memory_order_relaxed); }

  // Moves at every call while a writable view is open, because its writes are not seen.
  uint64_t version() noexcept {
    if (writers_.load(std::memory_order_relaxed) != 0) note_write();
    return version_.load(std::memory_order_relaxed);
  }

 private:
  friend class KnownMemory;

  // Shared: plain counters, which order nothing.
  std::atomic<uint32_t> readers_{0};
  std::atomic<uint32_t> writers_{0};
  std::atomic<uint64_t> version_{0};

  // Guarded by KnownMemory::lock_.
  uintptr_t begin_ = 0;
  uintptr_t end_ = 0;
  Storage* storages_ = nullptr;  // the storages on this region, the dead ones that nobody swept included
  bool is_mapped_ = false;       // in the interval map: false for memory without bytes
};

}  // namespace tenon
