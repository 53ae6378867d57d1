// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic on shapes and strides, checked for overflow. Strides count elements.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "tenon/tenon.h"

namespace tenon::impl {

using Dims = std::span<const int64_t>;

// A buffer for one number per axis, on the stack.
struct DimBuffer {
  std::array<int64_t, TENON_MAX_NDIM> values;
  int32_t count = 0;

  void push(int64_t value) { values[static_cast<size_t>(count++)] = value; }
  int64_t& operator[](int32_t i) { return values[static_cast<size_t>(i)]; }
  int64_t operator[](int32_t i) const { return values[static_cast<size_t>(i)]; }
  Dims dims() const { return {values.data(), static_cast<size_t>(count)}; }
};

// Fails with kValue for ndim outside of 0..TENON_MAX_NDIM, a missing or a negative entry.
Dims checked_shape(int32_t ndim, const int64_t* shape);

// The product of the extents. Fails with kValue if it, or the number of bits, exceeds 63 bits.
int64_t element_count(Dims shape, uint32_t element_bits);

// The strides of C order.
DimBuffer c_strides(Dims shape);
// The same, written to out (one for each axis).
void fill_c_strides(Dims shape, int64_t* out);

// True if the elements are in C order without gaps. Strides of axes of length 1 do not matter, and an array
// without elements is contiguous.
bool is_c_contiguous(Dims shape, Dims strides);

// The bytes that elements touch, counted from element 0: low <= 0 < high. Both are 0 when there are no
// elements.
struct Reach {
  int64_t low;
  int64_t high;
};
// width: of an element, in bytes. unit: the bytes in which strides are counted. Empty: it does not fit in 64
// bits.
inline std::optional<Reach> reach(Dims shape, Dims strides, int64_t width, int64_t unit) noexcept {
  Reach result{0, width};
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) return Reach{0, 0};
    int64_t span = 0;
    int64_t& end = strides[i] < 0 ? result.low : result.high;
    if (__builtin_mul_overflow(shape[i] - 1, strides[i], &span) ||
        __builtin_mul_overflow(span, unit, &span) || __builtin_add_overflow(end, span, &end)) {
      return std::nullopt;
    }
  }
  return result;
}

}  // namespace tenon::impl
