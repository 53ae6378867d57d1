// SPDX-License-Identifier: Apache-2.0
//
// Memory for small objects that one thread makes and another one ends, thousands of times: what malloc is
// slow at. A thread keeps the blocks that it frees and takes from them; what it has too many of goes to a
// list of all threads, from which whoever has none takes everything.
#pragma once

#include <cstddef>

namespace tenon::impl {

// Blocks are used again and never given back to the system: as much memory stays taken as was in use at a
// time.
class BlockCache {
 public:
  // Throws std::bad_alloc. size: of the object; larger ones than kBlock come from the heap.
  static void* take(size_t size);
  // size: as taken. Any thread.
  static void give(void* memory, size_t size) noexcept;

 private:
  static constexpr size_t kBlock = 512;
};

}  // namespace tenon::impl
