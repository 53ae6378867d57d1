// SPDX-License-Identifier: Apache-2.0
//
// Ranges, units and alignments of memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tenon::impl {

// Of the data of all new arrays, for every framework: JAX copies memory that is not aligned to 64 bytes.
inline constexpr size_t kAlignment = 64;
// Of the layouts of files. A system may have larger pages: see os::page_nbytes().
inline constexpr size_t kPage = 4096;
inline constexpr size_t kHugePage = size_t{2} << 20;

constexpr size_t round_up(size_t value, size_t unit) noexcept { return (value + unit - 1) / unit * unit; }

// The bytes begin..end of memory or of a block of a file.
struct ByteRange {
  uint64_t begin = 0;
  uint64_t end = 0;

  bool is_empty() const noexcept { return begin >= end; }
  bool overlaps(const ByteRange& other) const noexcept { return begin < other.end && other.begin < end; }
  bool contains(const ByteRange& other) const noexcept { return begin <= other.begin && other.end <= end; }
};

}  // namespace tenon::impl
