// SPDX-License-Identifier: Apache-2.0
//
// The loops over elements: copy, cast and fill, for any strides. Knows addresses, dtypes and strides,
// but no arrays, no ownership and no contract. Compiled for several instruction sets; the best one that
// the processor has is chosen once at run time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "array/dtype.h"

namespace tenon::impl {

// A strided window. Strides count bytes, may be negative or zero. Elements are whole bytes.
struct Elements {
  std::byte* data;
  DType dtype;
  int32_t ndim;
  const int64_t* shape;
  const int64_t* byte_strides;
};

// There is a conversion between the two: equal dtypes always; otherwise both are numbers (bool,
// integers, float16/32/64, bfloat16, the fp8 types, complex64/128) with one lane.
bool can_cast(DType from, DType to);

// dst[...] = src, elementwise. Requires: same ndim and shape, can_cast(). dst has no two elements at one
// address; addresses need no alignment. The windows may overlap in any way: the result is as if src had
// been copied first. Throws std::bad_alloc when an overlap needs a temporary.
//
// Conversions:
//  - To a floating-point type: rounded once, to nearest, ties to even, also from float64 and 64-bit
//    integers to the small types. Overflow gives infinity, or NaN where the type has none. NaN stays NaN;
//    of its payload nothing is promised. float8_e8m0fnu has neither zero nor sign: zero, negative and
//    infinite values become NaN, smaller values the smallest power, ties the larger power.
//  - Between integers: the low bits.
//  - From floating point to integers: toward zero. To uint32, int64 and uint64 by way of int64, to the
//    others by way of int32, of which the low bits are kept; what does not fit there, and NaN, counts as
//    its smallest value. uint64 also takes values from 2^63 to 2^64, and gives 0 from there on. That is
//    what NumPy gives on x86, wherever NumPy's arrays and scalars agree.
//  - To bool: is it unequal to zero? NaN is. A bool that is neither 0 nor 1 counts as 1, unless it is
//    copied to bool.
//  - Complex to real drops the imaginary part (to bool: either part counts), real to complex adds zero.
void copy_elements(const Elements& dst, const Elements& src);

// dst[...] = *value. Requires can_cast(value_dtype, dst.dtype); value need not be aligned.
void fill_elements(const Elements& dst, const void* value, DType value_dtype);

}  // namespace tenon::impl
