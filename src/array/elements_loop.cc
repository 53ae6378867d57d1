// SPDX-License-Identifier: Apache-2.0
#include "array/elements_loop.h"

#include <algorithm>
#include <numeric>

#include "array/shape.h"

namespace tenon::impl {
namespace {

template <int64_t Axis::* stride>
ByteRange extent(const void* first, const Loop& loop, uint32_t width) {
  int64_t shape[Loop::kMaxAxes], strides[Loop::kMaxAxes];
  for (int k = 0; k < loop.ndim; ++k) {
    shape[k] = loop.axes[k].n;
    strides[k] = loop.axes[k].*stride;
  }
  const auto ndim = static_cast<size_t>(loop.ndim);
  const Reach r = reach({shape, ndim}, {strides, ndim}, width, 1).value_or(Reach{});  // of a valid array
  const auto at = reinterpret_cast<uintptr_t>(first);
  return {at + static_cast<uintptr_t>(r.low), at + static_cast<uintptr_t>(r.high)};
}

}  // namespace

void normalise(Loop& loop) {
  int count = 0;
  for (int k = 0; k < loop.ndim; ++k) {
    Axis axis = loop.axes[k];
    if (axis.n == 1) continue;
    if (axis.dst < 0) {
      loop.dst += (axis.n - 1) * axis.dst;
      loop.src += (axis.n - 1) * axis.src;
      axis.dst = -axis.dst;
      axis.src = -axis.src;
    }
    loop.axes[count++] = axis;
  }
  std::sort(loop.axes, loop.axes + count, [](const Axis& a, const Axis& b) { return a.dst > b.dst; });
  int last = -1;
  for (int k = 0; k < count; ++k) {
    const Axis axis = loop.axes[k];
    if (last >= 0 && loop.axes[last].dst == axis.n * axis.dst && loop.axes[last].src == axis.n * axis.src) {
      loop.axes[last] = {loop.axes[last].n * axis.n, axis.dst, axis.src};
    } else {
      loop.axes[++last] = axis;
    }
  }
  loop.ndim = last + 1;
}

ByteRange dst_extent(const Loop& loop, uint32_t width) { return extent<&Axis::dst>(loop.dst, loop, width); }

ByteRange src_extent(const Loop& loop, uint32_t width) { return extent<&Axis::src>(loop.src, loop, width); }

bool may_overlap(const Loop& loop, uint32_t dst_width, uint32_t src_width) {
  const ByteRange dst = dst_extent(loop, dst_width);
  const ByteRange src = src_extent(loop, src_width);
  if (!dst.overlaps(src)) return false;
  // All elements lie at multiples of one step from their first: do they ever meet?
  int64_t step = 0;
  for (int k = 0; k < loop.ndim; ++k) step = std::gcd(step, std::gcd(loop.axes[k].dst, loop.axes[k].src));
  if (step == 0) return true;
  const uint64_t unsigned_step = static_cast<uint64_t>(step);
  const uint64_t dst_phase = reinterpret_cast<uintptr_t>(loop.dst) % unsigned_step;
  const uint64_t src_phase = reinterpret_cast<uintptr_t>(loop.src) % unsigned_step;
  const uint64_t dst_after_src = (dst_phase + unsigned_step - src_phase) % unsigned_step;
  return dst_after_src < src_width || unsigned_step - dst_after_src < dst_width;
}

}  // namespace tenon::impl
