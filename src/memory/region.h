// SPDX-License-Identifier: Apache-2.0
//
// A region is one range of known memory: the unit to which the contract applies. Storages whose bytes overlap
// share a region, so that the contract treats two imports of the same memory as one. Its queue contains all
// leases, ops and views of that memory.
#pragma once

#include <cstdint>

#include "sync/gate.h"
#include "sync/queue.h"
#include "tenon/tenon.h"

namespace tenon::impl {

class Storage;

// Owned by KnownMemory; lives at least as long as every storage on it.
// Threads: what the queue guards, any; the rest is guarded by KnownMemory's lock.
// Invariant: the extents of two regions in the map are disjoint. Two regions share no cache line, because two
// threads may use them at the same time.
class alignas(64) Region : public Queue {
 public:
  tenon_view_count views() noexcept;

  // Changes when elements may have changed; with an open writable view, at every call.
  uint64_t version() noexcept;

 private:
  friend class KnownMemory;

  uintptr_t begin() const noexcept { return bounds().begin; }
  uintptr_t end() const noexcept { return bounds().end; }

  bool is_mapped_ = false;  // in the interval map: false for memory without bytes
  union {
    Storage* storages_ = nullptr;  // on this region, including dead ones that were not swept yet
    Region* next_spare_;           // of a region that is not in use
  };
};

}  // namespace tenon::impl
