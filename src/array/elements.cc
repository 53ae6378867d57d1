// SPDX-License-Identifier: Apache-2.0
#include "array/elements.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>

#include "array/elements_run.h"
#include "array/elements_select.h"

namespace tenon::impl {
namespace {

Loop make_loop(const Elements& dst, const Elements& src) {
  Loop loop;
  loop.dst = dst.data;
  loop.src = src.data;
  for (int k = 0; k < dst.ndim; ++k) loop.push({dst.shape[k], dst.byte_strides[k], src.byte_strides[k]});
  return loop;
}

bool has_no_elements(const Elements& elements) {
  for (int k = 0; k < elements.ndim; ++k) {
    if (elements.shape[k] == 0) return true;
  }
  return false;
}

// For a move, the type of the elements does not matter: an element whose size is not a power of two up to 16
// becomes a row of words.
uint32_t split_element(Loop& loop, uint32_t width) {
  const uint32_t word = std::min(uint32_t{16}, width & (~width + 1));
  if (word != width) loop.push({width / word, word, word});
  return word;
}

// A contiguous row that fits into one word becomes one element.
uint32_t join_row(Loop& loop, uint32_t width) {
  if (loop.ndim == 0) return width;
  const Axis& row = loop.axes[loop.ndim - 1];
  const bool is_run = row.dst == width && row.src == width;
  if (!is_run || row.n > 16 / width || !std::has_single_bit(static_cast<uint64_t>(row.n))) return width;
  --loop.ndim;
  return width * static_cast<uint32_t>(row.n);
}

bool is_packed(const Loop& loop, uint32_t width) {
  return loop.ndim == 0 || (loop.ndim == 1 && loop.axes[0].dst == width && loop.axes[0].src == width);
}

bool is_same_window(const Loop& loop) {
  bool same = loop.dst == loop.src;
  for (int k = 0; k < loop.ndim; ++k) same = same && loop.axes[k].dst == loop.axes[k].src;
  return same;
}

// Copies the elements of src to new memory and lets the loop read there. Axes of stride zero keep it.
std::unique_ptr<std::byte[]> detach_src(const Conversion& conversion, Loop& loop) {
  const uint32_t width = conversion.src_width;
  Loop copy;
  copy.src = loop.src;
  int64_t nbytes = width;
  for (int k = loop.ndim - 1; k >= 0; --k) {
    Axis& axis = loop.axes[k];
    if (axis.src == 0) continue;
    copy.push({axis.n, nbytes, axis.src});
    axis.src = nbytes;
    nbytes *= axis.n;
  }
  std::unique_ptr<std::byte[]> memory(new std::byte[static_cast<size_t>(nbytes)]);
  copy.dst = memory.get();
  loop.src = memory.get();
  normalise(copy);
  run_loop({conversion.kernels, CastPath{}, width, width, conversion.stream_from}, copy);
  return memory;
}

// Requires: normalise(loop).
void run(const Conversion& conversion, Loop& loop) {
  std::unique_ptr<std::byte[]> memory;
  if (may_overlap(loop, conversion.dst_width, conversion.src_width)) {
    if (conversion.path.count == 0 && is_same_window(loop)) return;
    if (conversion.path.count == 0 && is_packed(loop, conversion.src_width)) {
      const int64_t n = loop.ndim == 0 ? 1 : loop.axes[0].n;
      std::memmove(loop.dst, loop.src, static_cast<size_t>(n) * conversion.src_width);
      return;
    }
    memory = detach_src(conversion, loop);
    normalise(loop);
  }
  run_loop(conversion, loop);
}

}  // namespace

bool can_cast(DType from, DType to) { return from == to || (kind_of(from) && kind_of(to)); }

void copy_elements(const Kernels& kernels, StreamFrom stream_from, const Elements& dst, const Elements& src) {
  if (has_no_elements(dst)) return;
  Loop loop = make_loop(dst, src);
  if (dst.dtype == src.dtype) {
    uint32_t width = split_element(loop, dst.dtype.padded_itemsize());
    normalise(loop);
    width = join_row(loop, width);
    run({kernels, CastPath{}, width, width, stream_from}, loop);
    return;
  }
  ElementKind from = *kind_of(src.dtype);
  ElementKind to = *kind_of(dst.dtype);
  if (is_complex(from) && is_complex(to)) {
    from = part_of(from);
    to = part_of(to);
    loop.push({2, width_of(to), width_of(from)});
  }
  normalise(loop);
  run({kernels, cast_path(kernels, from, to), width_of(from), width_of(to), stream_from}, loop);
}

void copy_elements(const Elements& dst, const Elements& src) {
  copy_elements(best_kernels(), StreamFrom{}, dst, src);
}

void fill_elements(const Elements& dst, const void* value, DType value_dtype) {
  static constexpr int64_t kNoStrides[TENON_MAX_NDIM] = {};
  alignas(16) std::byte cast_value[16];
  Elements src{static_cast<std::byte*>(const_cast<void*>(value)), value_dtype, 0, nullptr, nullptr};
  if (value_dtype != dst.dtype) {
    copy_elements({cast_value, dst.dtype, 0, nullptr, nullptr}, src);
    src.data = cast_value;
  }
  copy_elements(dst, {src.data, dst.dtype, dst.ndim, dst.shape, kNoStrides});
}

}  // namespace tenon::impl
