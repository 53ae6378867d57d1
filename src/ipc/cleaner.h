// SPDX-License-Identifier: Apache-2.0
//
// The clean-up of a segment of an allocator after the end of its creator, which alone allocates and frees its
// blocks. Then any process that has the segment open frees the blocks without users, and returns all memory
// between the other blocks to the system. One process does so at a time: it holds a lock of the memory file,
// which the kernel releases when the process ends. A process that stops meanwhile delays the others.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "base/bytes.h"

namespace tenon::impl {

class Segment;

// Of one segment, in one process. Threads: guarded by the lock of Segments.
//
// A block is closed, then its memory is returned, then it is free. So the next process continues what a
// killed one has begun: it finds the closed blocks.
class Cleaner {
 public:
  // Cleans up for a few milliseconds, if the creator has ended. Returns when it must be called again; 0:
  // never. While the creator lives, it makes no system call.
  std::chrono::milliseconds look(Segment& segment) noexcept;

 private:
  bool clean(Segment& segment);
  bool return_memory(const Segment& segment, uint64_t begin, uint64_t end, int64_t until_ns) noexcept;

  uint64_t at_ = 0;               // the memory before this offset in the data was returned
  bool is_clean_ = false;         // all of it, once
  std::vector<uint32_t> closed_;  // the closed blocks below at_ have been closed since at_ was 0; ascending
  std::vector<ByteRange> used_;   // the bytes of the other blocks
};

}  // namespace tenon::impl
