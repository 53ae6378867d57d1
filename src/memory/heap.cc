// SPDX-License-Identifier: Apache-2.0
#include "memory/heap.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>

#include "base/error.h"

namespace tenon::impl::heap {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kPage = 4096;
constexpr size_t kPageAlignedFrom = size_t{1} << 20;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kHugePagesFrom = size_t{4} << 20;

uintptr_t round_up(uintptr_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

void advise_huge_pages(uintptr_t address, size_t nbytes) {
  const uintptr_t begin = round_up(address, kHugePage);
  const uintptr_t end = (address + nbytes) / kHugePage * kHugePage;
  // Advice only: without huge pages the memory works all the same.
  if (end > begin) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace

// malloc and a little more, because aligned_alloc is several times slower for small sizes, and calloc gets
// large zeroed memory from the system without touching it.
Allocation allocate(size_t nbytes, bool is_zeroed) {
  const size_t alignment = nbytes >= kPageAlignedFrom ? kPage : kAlignment;
  void* owner = nullptr;
  if (nbytes <= PTRDIFF_MAX - kPage) {
    owner = is_zeroed ? std::calloc(nbytes + alignment, 1) : std::malloc(nbytes + alignment);
  }
  if (owner == nullptr) throw_error(Code::kNoMemory, "cannot allocate ", nbytes, " bytes");
  const uintptr_t address = round_up(reinterpret_cast<uintptr_t>(owner), alignment);
  if (nbytes >= kHugePagesFrom) advise_huge_pages(address, nbytes);
  return {static_cast<std::byte*>(owner) + (address - reinterpret_cast<uintptr_t>(owner)), owner};
}

void release(void* owner) { std::free(owner); }

}  // namespace tenon::impl::heap
