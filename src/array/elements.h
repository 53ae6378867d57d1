// SPDX-License-Identifier: Apache-2.0
//
// The loops over elements: copy, cast and fill, for any strides. They know addresses, dtypes and strides, but
// no arrays and no ownership. Compiled for several instruction sets; the best one that the processor supports
// is chosen once at run time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "array/dtype.h"

namespace tenon::impl {

// A strided window. Strides count bytes and may be negative or zero. Elements are whole bytes.
struct Elements {
  std::byte* data;
  DType dtype;
  int32_t ndim;
  const int64_t* shape;
  const int64_t* byte_strides;
};

// True if there is a conversion: for equal dtypes, and if both are numbers (bool, integers, float16/32/64,
// bfloat16, the fp8 types, complex64/128) with one lane.
bool can_cast(DType from, DType to);

// dst[...] = src, elementwise. Requires: same ndim and shape, can_cast(). dst has no two elements at one
// address; addresses need no alignment. The windows may overlap in any way: the result is as if src had
// been copied first. Throws std::bad_alloc when an overlap needs a temporary.
//
// Conversions:
//  - To a floating-point type: rounded once, to nearest, ties to even, also from float64 and 64-bit
//    integers to the small types. Overflow gives infinity, or NaN if the type has no infinity. NaN stays NaN;
//    its payload is unspecified. float8_e8m0fnu has neither zero nor sign: zero, negative and infinite values
//    become NaN, smaller values the smallest power, ties the larger power.
//  - Between integers: the low bits.
//  - From floating point to integers: toward zero. The value is converted to int64 (for uint32, int64 and
//    uint64) or to int32 (for the others), whose low bits are kept. Values that do not fit there, and NaN,
//    become its smallest value. uint64 also accepts values from 2^63 to 2^64; larger ones become 0. The
//    results are those of NumPy on x86, where NumPy's arrays and scalars agree.
//  - To bool: true for values other than zero, and for NaN. A bool that is neither 0 nor 1 counts as 1,
//    unless it is copied to bool.
//  - Complex to real drops the imaginary part (to bool: either part counts), real to complex adds zero.
void copy_elements(const Elements& dst, const Elements& src);

// dst[...] = *value. Requires can_cast(value_dtype, dst.dtype); value need not be aligned.
void fill_elements(const Elements& dst, const void* value, DType value_dtype);

}  // namespace tenon::impl
