// SPDX-License-Identifier: Apache-2.0
//
// Runs the kernels over a normal loop: chooses rows or tiles, splits long rows into pieces that stay in the
// first cache, and moves pieces through a small buffer if one kernel is not enough.
#pragma once

#include "array/elements_cast.h"
#include "array/elements_loop.h"

namespace tenon::impl {

// If source and result together have at least this many bytes, the result is written past the caches, because
// it would not stay there. Tiles gain earlier, because their runs use only few sets of a cache.
struct StreamFrom {
  int64_t rows = int64_t{32} << 20;
  int64_t tiles = int64_t{16} << 20;
};

// The conversion of the elements of a loop. Widths are powers of two up to 16, equal if there are no steps.
struct Conversion {
  const Kernels& kernels;
  CastPath path;
  uint32_t src_width;
  uint32_t dst_width;
  StreamFrom stream_from;
};

// Requires: normalise(loop), no overlap. Leaves the axes of loop in another order.
void run_loop(const Conversion& conversion, Loop& loop);

}  // namespace tenon::impl
