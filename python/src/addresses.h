// SPDX-License-Identifier: Apache-2.0
//
// Where the elements of an array lie: of NDArrays and of arrays of NumPy.
#pragma once

#include <cstdint>

#include "ndarray.h"
#include "numpy_api.h"

namespace tenon::python {

// The bytes begin..end that elements touch; equal where there are none.
struct Addresses {
  uintptr_t begin;
  uintptr_t end;

  bool overlaps(const Addresses& other) const noexcept {
    return begin < end && other.begin < other.end && begin < other.end && other.begin < end;
  }
};

// width: of an element, in bytes. unit: the bytes in which strides are counted. All addresses for a layout
// that leaves them, which only NumPy can make.
inline Addresses addresses_of(const void* first, int ndim, const int64_t* shape, const int64_t* strides,
                              int64_t width, int64_t unit) noexcept {
  const auto at = reinterpret_cast<uintptr_t>(first);
  Addresses found{at, 0};
  bool leaves = __builtin_add_overflow(at, width, &found.end);
  for (int i = 0; i < ndim; ++i) {
    if (shape[i] == 0) return {at, at};
    int64_t span = 0;
    uintptr_t& end = strides[i] < 0 ? found.begin : found.end;
    leaves = leaves || __builtin_mul_overflow(shape[i] - 1, strides[i], &span) ||
             __builtin_mul_overflow(span, unit, &span) || __builtin_add_overflow(end, span, &end);
  }
  return leaves ? Addresses{0, UINTPTR_MAX} : found;
}

inline Addresses addresses_of(const tenon_array_desc& array) noexcept {
  const auto at = reinterpret_cast<uintptr_t>(array.data);
  if (array.itemsize == 0) return {at, at + array.nbytes};  // elements are packed below a byte
  return addresses_of(array.data, array.ndim, array.shape, array.strides, array.itemsize, array.itemsize);
}

// Of an array of NumPy.
inline Addresses addresses_of(PyObject* x) noexcept {
  static_assert(sizeof(npy_intp) == sizeof(int64_t));
  PyArrayObject* const array = as_numpy(x);
  return addresses_of(PyArray_DATA(array), PyArray_NDIM(array), PyArray_DIMS(array), PyArray_STRIDES(array),
                      PyArray_ITEMSIZE(array), 1);
}

}  // namespace tenon::python
