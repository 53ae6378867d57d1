// SPDX-License-Identifier: Apache-2.0
#include "memory/storage.h"

#include <sys/mman.h>

#include <cstdlib>

#include "base/error.h"
#include "memory/known_memory.h"

namespace tenon::impl {
namespace {

// Aligned for every framework (JAX copies memory that is not aligned to 64 bytes), and backed by huge pages
// where they pay, because page faults cost more than copies.
constexpr size_t kAlignment = 64;
constexpr size_t kPage = 4096;
constexpr size_t kPageAlignedFrom = size_t{1} << 20;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kHugePagesFrom = size_t{4} << 20;

uintptr_t round_up(uintptr_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

void advise_huge_pages(uintptr_t address, size_t nbytes) {
  const uintptr_t begin = round_up(address, kHugePage);
  const uintptr_t end = (address + nbytes) / kHugePage * kHugePage;
  // Only advice: the memory works without huge pages, too.
  if (end > begin) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace

// Calls malloc with some more bytes, because aligned_alloc is several times slower for small sizes. For
// zeroed memory it calls calloc, which gets large blocks from the system without writing to them.
Ref<Storage> Storage::allocate(size_t nbytes, bool is_zeroed) {
  const size_t alignment = nbytes >= kPageAlignedFrom ? kPage : kAlignment;
  void* owner = nullptr;
  if (nbytes <= PTRDIFF_MAX - kPage) {
    owner = is_zeroed ? std::calloc(nbytes + alignment, 1) : std::malloc(nbytes + alignment);
  }
  if (owner == nullptr) throw_error(Code::kNoMemory, "cannot allocate ", nbytes, " bytes");
  const auto begin = reinterpret_cast<uintptr_t>(owner);
  const uintptr_t address = round_up(begin, alignment);
  if (nbytes >= kHugePagesFrom) advise_huge_pages(address, nbytes);
  std::byte* const data = static_cast<std::byte*>(owner) + (address - begin);
  try {
    return KnownMemory::instance().add({data, nbytes, data, nbytes, false, owner, std::free}, nbytes);
  } catch (...) {
    std::free(owner);
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
    KnownMemory::instance().forget_retired();  // so that failures that no caller has seen are reported
}

}  // namespace tenon::impl
