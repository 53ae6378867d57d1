// SPDX-License-Identifier: Apache-2.0
//
// Element types: the codes of DLPack 1.3, their sizes and their names. array/elements.h says which types can
// be cast into each other.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tenon/tenon.h"

namespace tenon::impl {

struct DType {
  uint8_t code = TENON_FLOAT;
  uint8_t bits = 32;
  uint16_t lanes = 1;

  constexpr DType() = default;
  constexpr DType(int code_value, int value_bits, int lane_count = 1)
      : code(static_cast<uint8_t>(code_value)),
        bits(static_cast<uint8_t>(value_bits)),
        lanes(static_cast<uint16_t>(lane_count)) {}
  // Implicit both ways: the same struct as in the C ABI.
  constexpr DType(tenon_dtype dtype) : code(dtype.code), bits(dtype.bits), lanes(dtype.lanes) {}
  constexpr operator tenon_dtype() const { return {code, bits, lanes}; }

  friend constexpr bool operator==(const DType&, const DType&) = default;

  constexpr uint32_t element_bits() const { return static_cast<uint32_t>(bits) * lanes; }
  // Elements are whole bytes.
  constexpr bool is_byte_sized() const { return element_bits() % 8 == 0; }
  // Bytes that an element takes when it is not packed.
  constexpr uint32_t padded_itemsize() const { return (element_bits() + 7) / 8; }
  // The address of an element is a multiple of this: the size of one value, at most 8. A complex number has
  // the alignment of its parts.
  uint32_t alignment() const;
  std::string name() const;
};

// The dtype of a canonical name ("float32"), a short name of the array interface ("f4") or a name with a lane
// suffix ("float4_e2m1fn_x2"). Fails with kType.
DType dtype_from_name(std::string_view name);

// Fails with kType unless DLPack 1.3 defines this code with this width.
void check_dtype(DType dtype);

}  // namespace tenon::impl
