// SPDX-License-Identifier: Apache-2.0
//
// Memory for small objects that one thread creates and another thread destroys, thousands of times; malloc is
// slow there. A thread keeps the blocks that it frees and takes from them. Surplus blocks go to a common
// list in batches; a thread without blocks takes a batch.
#pragma once

#include <cstddef>

namespace tenon::impl {

// Blocks are reused and never returned to the system: the memory that was in use at the peak stays allocated.
class BlockCache {
 public:
  // Throws std::bad_alloc. size: of the object. Objects larger than kBlock come from the heap.
  static void* take(size_t size);
  // size: as given to take(). Threads: any.
  static void give(void* memory, size_t size) noexcept;

 private:
  static constexpr size_t kBlock = 768;  // enough for an op with three uses
};

}  // namespace tenon::impl
