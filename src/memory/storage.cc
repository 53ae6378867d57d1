// SPDX-License-Identifier: Apache-2.0
#include "memory/storage.h"

#include "base/error.h"
#include "memory/heap.h"
#include "memory/known_memory.h"

namespace tenon::impl {

Ref<Storage> Storage::allocate(size_t nbytes, bool is_zeroed) {
  const heap::Allocation block = heap::allocate(nbytes, is_zeroed);
  const Memory memory{block.data, nbytes, block.data, nbytes, false, block.owner, heap::release};
  try {
    return KnownMemory::instance().add(memory, nbytes);
  } catch (...) {
    heap::release(block.owner);
    throw;
  }
}

Ref<Storage> Storage::adopt(const Memory& memory) { return KnownMemory::instance().add(memory, 0); }

Ref<Storage> Storage::find(const std::byte* data, size_t nbytes, Access access) {
  return KnownMemory::instance().find(data, nbytes, access);
}

void Storage::release() noexcept {
  if (!refs_.decrement()) return;
  const Memory memory = memory_;
  const bool is_moved = moved_at() != nullptr;
  const bool has_failures = region().has_failures.load(std::memory_order_relaxed);
  KnownMemory::instance().retire(this);  // from here on the object may be recycled
  if (memory.deleter != nullptr && !is_moved) {
    try {
      memory.deleter(memory.owner);
    } catch (...) {
      KnownMemory::instance().note_failed_deleter();
    }
  }
  if (has_failures)
    KnownMemory::instance().forget_retired();  // so that one that no caller has seen is reported
}

}  // namespace tenon::impl
