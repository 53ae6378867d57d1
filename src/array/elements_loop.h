// SPDX-License-Identifier: Apache-2.0
//
// A nest of loops over two windows. normalise() brings it into one normal form, so that equal memory layouts
// take equal paths for any order of axes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "tenon/tenon.h"

namespace tenon::impl {

// n steps of dst bytes in one window and src bytes in the other.
struct Axis {
  int64_t n;
  int64_t dst;
  int64_t src;
};

struct Loop {
  // One more for the parts of an element.
  static constexpr int kMaxAxes = TENON_MAX_NDIM + 1;

  std::byte* dst = nullptr;
  const std::byte* src = nullptr;
  int ndim = 0;
  Axis axes[kMaxAxes];

  void push(Axis axis) { axes[ndim++] = axis; }
};

// Drops axes of one step, makes dst strides positive, sorts the axes from the largest dst stride to the
// smallest, and merges axes that are contiguous in both windows. Requires: no axis of zero steps.
void normalise(Loop& loop);

// The bytes that a window touches lie in this range.
ByteRange dst_extent(const Loop& loop, uint32_t width);
ByteRange src_extent(const Loop& loop, uint32_t width);

// False only if no byte of dst is a byte of src.
bool may_overlap(const Loop& loop, uint32_t dst_width, uint32_t src_width);

}  // namespace tenon::impl
