// SPDX-License-Identifier: Apache-2.0
//
// The sequence of kernels that casts one element type into another. Few pairs have a kernel of their own; the
// others go through types that lose no information, so that a floating-point result is rounded only once.
#pragma once

#include <cstdint>
#include <optional>

#include "array/dtype.h"
#include "array/elements_kernels.h"

namespace tenon::impl {

// None for dtypes that are not cast: several lanes, fp6, fp4.
std::optional<ElementKind> kind_of(DType dtype);

uint32_t width_of(ElementKind kind);

constexpr bool is_complex(ElementKind kind) { return kind == kC64 || kind == kC128; }

// The type of the two parts of a complex number.
constexpr ElementKind part_of(ElementKind complex) { return complex == kC64 ? kF32 : kF64; }

struct CastStep {
  CastRow row;
  uint32_t dst_width;
};

// No steps: the bytes are the result.
struct CastPath {
  static constexpr int kMaxSteps = 4;
  int count = 0;
  CastStep steps[kMaxSteps];
};

// Not between two complex types: those are cast part by part.
CastPath cast_path(const Kernels& kernels, ElementKind from, ElementKind to);

}  // namespace tenon::impl
