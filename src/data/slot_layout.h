// SPDX-License-Identifier: Apache-2.0
//
// The layout of a slot: the fields, then the shapes to which they were filled, how much of a sparse slot has
// memory, the notes of the fill, the state of the generator, and the attachment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "data/schema.h"

namespace tenon::impl {

// Constant. Lies in memory that worker processes map, too.
struct SlotLayout {
  uint64_t shapes_at = 0;     // int64_t for each axis of each field
  uint64_t committed_at = 0;  // uint64_t: of a sparse slot, how many of its first bytes have memory
  uint64_t notes_at = 0;      // uint64_t: of tenon_fill_request
  uint64_t stated_at = 0;     // uint64_t: how many bytes the state has; kNoState: it is not known
  uint64_t state_at = 0;      // the bytes
  uint64_t state_nbytes = 0;
  uint64_t attached_at = 0;    // uint64_t: how many bytes are attached
  uint64_t attachment_at = 0;  // the bytes
  uint64_t attachment_nbytes = 0;
  uint64_t slot_nbytes = 0;  // a multiple of the page size

  // Fails with kValue (overflow).
  static SlotLayout of(const Schema& schema, uint64_t attachment_nbytes, uint64_t state_nbytes = 0);

  static constexpr uint64_t kNoState = UINT64_MAX;

  int64_t* shapes(std::byte* slot) const noexcept { return reinterpret_cast<int64_t*>(slot + shapes_at); }
  uint64_t& committed(std::byte* slot) const noexcept {
    return *reinterpret_cast<uint64_t*>(slot + committed_at);
  }
  uint64_t& notes(std::byte* slot) const noexcept { return *reinterpret_cast<uint64_t*>(slot + notes_at); }
  uint64_t& stated(std::byte* slot) const noexcept { return *reinterpret_cast<uint64_t*>(slot + stated_at); }
  std::byte* state(std::byte* slot) const noexcept { return slot + state_at; }
  uint64_t& attached(std::byte* slot) const noexcept {
    return *reinterpret_cast<uint64_t*>(slot + attached_at);
  }
  std::byte* attachment(std::byte* slot) const noexcept { return slot + attachment_at; }
};

// Before a fill: the shapes of the schema, no notes, no state, nothing attached.
inline void reset_slot(const SlotLayout& layout, const Schema& schema, std::byte* slot) noexcept {
  int64_t* shape = layout.shapes(slot);
  for (const SchemaField& field : schema.fields()) {
    std::memcpy(shape, field.shape.data(), field.shape.size() * sizeof *shape);
    shape += field.shape.size();
  }
  layout.notes(slot) = 0;
  layout.stated(slot) = SlotLayout::kNoState;
  layout.attached(slot) = 0;
}

// After a fill: the first field whose shape is not valid; null if there is none.
const SchemaField* find_wrong_shape(const SlotLayout& layout, const Schema& schema, std::byte* slot) noexcept;

}  // namespace tenon::impl
