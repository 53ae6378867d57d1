// SPDX-License-Identifier: Apache-2.0
#include "array/shape.h"

#include "base/error.h"

namespace tenon::impl {

Dims checked_shape(int32_t ndim, const int64_t* shape) {
  if (ndim < 0 || ndim > TENON_MAX_NDIM) {
    throw_error(Code::kValue, "ndim is ", ndim, ": it must lie in 0..", TENON_MAX_NDIM);
  }
  if (ndim > 0 && shape == nullptr) {
    throw_error(Code::kValue, "shape is NULL for an array of ", ndim, " axes");
  }
  const Dims dims{shape, static_cast<size_t>(ndim)};
  for (int64_t extent : dims) {
    if (extent < 0) {
      throw_error(Code::kValue, "shape ", shape_text(dims), " has the negative entry ", extent);
    }
  }
  return dims;
}

int64_t element_count(Dims shape, uint32_t element_bits) {
  int64_t count = 1;
  bool is_empty = false;
  bool overflows = false;
  for (int64_t extent : shape) {
    is_empty |= extent == 0;
    overflows |= __builtin_mul_overflow(count, extent, &count);
  }
  if (is_empty) return 0;
  if (overflows) {
    throw_error(Code::kValue, "shape ", shape_text(shape), " has more than 2**63 - 1 elements");
  }
  int64_t bits = 0;
  if (__builtin_mul_overflow(count, static_cast<int64_t>(element_bits), &bits)) {
    throw_error(Code::kValue, "shape ", shape_text(shape), " with ", element_bits,
                " bits an element takes more than 2**60 bytes");
  }
  return count;
}

DimBuffer c_strides(Dims shape) {
  DimBuffer strides;
  strides.count = static_cast<int32_t>(shape.size());
  fill_c_strides(shape, strides.values.data());
  return strides;
}

void fill_c_strides(Dims shape, int64_t* out) {
  uint64_t stride = 1;  // wraps only for arrays without elements, whose strides mean nothing
  for (size_t i = shape.size(); i-- > 0;) {
    out[i] = static_cast<int64_t>(stride);
    if (shape[i] > 0) stride *= static_cast<uint64_t>(shape[i]);
  }
}

bool is_c_contiguous(Dims shape, Dims strides) {
  uint64_t expected = 1;
  bool contiguous = true;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == 0) return true;
    if (shape[i] == 1) continue;
    if (static_cast<uint64_t>(strides[i]) != expected) contiguous = false;
    expected *= static_cast<uint64_t>(shape[i]);
  }
  return contiguous;
}

}  // namespace tenon::impl
