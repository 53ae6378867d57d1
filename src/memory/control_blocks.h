// SPDX-License-Identifier: Apache-2.0
//
// Memory for regions, storages and the entries of the map. Malloc would add up to 16 bytes to each. Large
// chunks consist of huge pages, because a fork takes time for each page.
#pragma once

#include <cstddef>

namespace tenon::impl {

// Blocks of one size. Freed blocks are reused and never returned to the system: the memory that was in use
// at the peak stays allocated. Threads: the caller locks.
class ControlBlocks {
 public:
  constexpr ControlBlocks(size_t nbytes, size_t alignment) noexcept
      : nbytes_(nbytes), alignment_(alignment) {}

  void* take();  // throws std::bad_alloc
  void give(void* block) noexcept;

 private:
  struct Unused {
    Unused* next;
  };
  [[gnu::cold]] void add_chunk();

  const size_t nbytes_;
  const size_t alignment_;
  Unused* given_ = nullptr;
  std::byte* next_ = nullptr;  // next_..end_ of the last chunk have not been used
  std::byte* end_ = nullptr;
  static constexpr size_t kFirstChunk = size_t{8} << 10;
  size_t chunk_nbytes_ = kFirstChunk;  // of the next chunk
};

// The standard allocator on the blocks for one type. Threads: all of its users have the lock of KnownMemory.
template <class T>
class ControlAllocator {
 public:
  using value_type = T;
  ControlAllocator() noexcept = default;
  template <class U>
  ControlAllocator(const ControlAllocator<U>&) noexcept {}

  T* allocate(size_t) { return static_cast<T*>(blocks.take()); }  // of one object
  void deallocate(T* object, size_t) noexcept { blocks.give(object); }

  friend bool operator==(const ControlAllocator&, const ControlAllocator&) noexcept = default;

 private:
  static constinit inline ControlBlocks blocks{sizeof(T), alignof(T)};
};

}  // namespace tenon::impl
