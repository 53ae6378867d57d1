// SPDX-License-Identifier: Apache-2.0
//
// Memory for small objects that one thread creates and another thread destroys, thousands of times; malloc is
// slow there. A thread keeps the blocks that it frees and takes from them. Surplus blocks go to a common
// list in batches; a thread without blocks takes a batch.
#pragma once

#include <array>
#include <cstddef>

namespace tenon::impl {

// False with a sanitizer, which sees a use after free only if memory is not reused.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kMayReuse = false;
#else
inline constexpr bool kMayReuse = true;
#endif

// Blocks are reused and never returned to the system: the memory that was in use at the peak stays allocated.
class BlockCache {
 public:
  // Throws std::bad_alloc. size: of the object. Larger objects than all blocks come from the heap.
  static void* take(size_t size);
  // size: as given to take(). Threads: any.
  static void give(void* memory, size_t size) noexcept;

  static constexpr std::array<size_t, 2> kSizes{448, 768};  // for an op with one use, and with three
};

}  // namespace tenon::impl
