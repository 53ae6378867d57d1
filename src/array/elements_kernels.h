// SPDX-License-Identifier: Apache-2.0
//
// The inner loops of array/elements.h: one table for each instruction set, all made from
// elements_kernels.inc. A kernel handles one row or one tile; elements_run.cc decides which kernels run. This
// header declares only plain data: files that are compiled for newer instruction sets must not define inline
// functions, because the linker could use these copies everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tenon::impl {

// The element types that can be cast, and kF32Odd: a float32 that was rounded to odd, so that one more
// rounding gives the correctly rounded result. Exists only between two kernels.
enum ElementKind : uint8_t {
  kBool,
  kI8,
  kI16,
  kI32,
  kI64,
  kU8,
  kU16,
  kU32,
  kU64,
  kF32,
  kF64,
  kF16,
  kBF16,
  kF8E3M4,
  kF8E4M3,
  kF8E4M3B11FNUZ,
  kF8E4M3FN,
  kF8E4M3FNUZ,
  kF8E5M2,
  kF8E5M2FNUZ,
  kF8E8M0FNU,
  kC64,
  kC128,
  kF32Odd,
  kKindCount,
};

// n elements, both rows contiguous, no overlap. Addresses need no alignment, here and below.
using CastRow = void (*)(std::byte* dst, const std::byte* src, size_t n);
// n elements of one width with any strides in bytes, no overlap.
using MoveRow = void (*)(std::byte* dst, int64_t dst_stride, const std::byte* src, int64_t src_stride,
                         size_t n);
// dst[c][r] = src[r][c]; the elements of a row are contiguous, rows lie row_stride bytes apart.
using TransposeTile = void (*)(std::byte* dst, int64_t dst_row_stride, const std::byte* src,
                               int64_t src_row_stride, size_t src_rows, size_t src_columns);
// Contiguous bytes past the caches; weakly ordered until finish_stream.
using StreamBytes = void (*)(std::byte* dst, const std::byte* src, size_t nbytes);

struct Kernels {
  const char* name;
  CastRow cast[kKindCount][kKindCount];  // [from][to]; null: array/elements_cast.h finds a path
  MoveRow move[5];                       // by the logarithm of the width: 1, 2, 4, 8, 16 bytes
  TransposeTile transpose[4];            // 1, 2, 4, 8 bytes
  StreamBytes stream;
  void (*finish_stream)();
};

extern const Kernels kKernelsBaseline;
#if defined(__x86_64__)
extern const Kernels kKernelsV3;  // x86-64-v3: AVX2, F16C
extern const Kernels kKernelsV4;  // x86-64-v4: AVX-512 F, BW, CD, DQ, VL
#endif

}  // namespace tenon::impl
