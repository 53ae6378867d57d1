// SPDX-License-Identifier: Apache-2.0
//
// What lies where in a slot: the fields, then the shapes to which they were filled, how much of a sparse slot
// has memory, and what is attached.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "data/schema.h"

namespace tenon::impl {

// Constant. Lies in memory that worker processes map, too.
struct SlotLayout {
  uint64_t shapes_at = 0;      // int64_t for each axis of each field
  uint64_t committed_at = 0;   // uint64_t: of a sparse slot, how many of its first bytes have memory
  uint64_t attached_at = 0;    // uint64_t: how many bytes are attached
  uint64_t attachment_at = 0;  // the bytes
  uint64_t attachment_nbytes = 0;
  uint64_t slot_nbytes = 0;  // a multiple of the page size

  // Fails with kValue (overflow).
  static SlotLayout of(const Schema& schema, uint64_t attachment_nbytes);

  int64_t* shapes(std::byte* slot) const noexcept { return reinterpret_cast<int64_t*>(slot + shapes_at); }
  uint64_t& committed(std::byte* slot) const noexcept {
    return *reinterpret_cast<uint64_t*>(slot + committed_at);
  }
  uint64_t& attached(std::byte* slot) const noexcept {
    return *reinterpret_cast<uint64_t*>(slot + attached_at);
  }
  std::byte* attachment(std::byte* slot) const noexcept { return slot + attachment_at; }
};

// Before a fill: the shapes of the schema, nothing attached.
inline void reset_slot(const SlotLayout& layout, const Schema& schema, std::byte* slot) noexcept {
  int64_t* shape = layout.shapes(slot);
  for (const Field& field : schema.fields()) {
    std::memcpy(shape, field.shape.data(), field.shape.size() * sizeof *shape);
    shape += field.shape.size();
  }
  layout.attached(slot) = 0;
}

// After it: whether the generator has left shapes that can be. Null, or the field that is wrong.
const Field* find_wrong_shape(const SlotLayout& layout, const Schema& schema, std::byte* slot) noexcept;

}  // namespace tenon::impl
