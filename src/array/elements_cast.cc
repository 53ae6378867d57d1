// SPDX-License-Identifier: Apache-2.0
#include "array/elements_cast.h"

#include <algorithm>
#include <iterator>

namespace tenon::impl {
namespace {

constexpr bool is_integer(ElementKind kind) { return kind >= kI8 && kind <= kU64; }

constexpr bool is_small_float(ElementKind kind) { return kind >= kF16 && kind <= kF8E8M0FNU; }

// The next type on the path if there is no kernel for the pair.
ElementKind detour(const Kernels& kernels, ElementKind from, ElementKind to) {
  if (is_complex(from)) return part_of(from);
  if (is_complex(to)) {
    const ElementKind part = part_of(to);
    return kernels.cast[from][part] != nullptr ? part : detour(kernels, from, part);
  }
  if (from == kBool) return kU8;
  if (is_small_float(from)) return kF32;
  if (is_small_float(to)) {
    if (from == kF64 || from == kI64 || from == kU64) return kF32Odd;
    return from == kI32 || from == kU32 ? kI64 : kF32;
  }
  return kI32;
}

// In the order of ElementKind. kF32Odd has the dtype of kF32, which is found first.
constexpr DType kDTypes[] = {
    {TENON_BOOL, 8},           {TENON_INT, 8},
    {TENON_INT, 16},           {TENON_INT, 32},
    {TENON_INT, 64},           {TENON_UINT, 8},
    {TENON_UINT, 16},          {TENON_UINT, 32},
    {TENON_UINT, 64},          {TENON_FLOAT, 32},
    {TENON_FLOAT, 64},         {TENON_FLOAT, 16},
    {TENON_BFLOAT, 16},        {TENON_FLOAT8_E3M4, 8},
    {TENON_FLOAT8_E4M3, 8},    {TENON_FLOAT8_E4M3B11FNUZ, 8},
    {TENON_FLOAT8_E4M3FN, 8},  {TENON_FLOAT8_E4M3FNUZ, 8},
    {TENON_FLOAT8_E5M2, 8},    {TENON_FLOAT8_E5M2FNUZ, 8},
    {TENON_FLOAT8_E8M0FNU, 8}, {TENON_COMPLEX, 64},
    {TENON_COMPLEX, 128},      {TENON_FLOAT, 32},
};
static_assert(std::size(kDTypes) == kKindCount);

}  // namespace

std::optional<ElementKind> kind_of(DType dtype) {
  const auto* found = std::ranges::find(kDTypes, dtype);
  if (found == std::end(kDTypes)) return std::nullopt;
  return static_cast<ElementKind>(found - kDTypes);
}

uint32_t width_of(ElementKind kind) { return kDTypes[kind].bits / 8u; }

CastPath cast_path(const Kernels& kernels, ElementKind from, ElementKind to) {
  CastPath path;
  const bool is_same_bits = is_integer(from) && is_integer(to) && width_of(from) == width_of(to);
  while (from != to && !is_same_bits) {
    const ElementKind next = kernels.cast[from][to] != nullptr ? to : detour(kernels, from, to);
    path.steps[path.count++] = {kernels.cast[from][next], width_of(next)};
    from = next;
  }
  return path;
}

}  // namespace tenon::impl
