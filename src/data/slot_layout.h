// SPDX-License-Identifier: Apache-2.0
//
// The layout of a slot: the fields, then the shapes to which they were filled, how much of a sparse slot has
// memory, how much of it was mapped, the notes of the fill, the state of the generator, and the attachment.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/os.h"
#include "ipc/schema.h"

namespace tenon::impl {

// What map_slot() maps at a time.
inline constexpr uint64_t kMapPart = 1 << 20;

// Constant. Lies in memory that worker processes map, too.
struct SlotLayout {
  uint64_t shapes_at = 0;     // int64_t for each axis of each field
  uint64_t committed_at = 0;  // uint64_t: of a sparse slot, how many of its first bytes have memory
  uint64_t mapped_at = 0;     // std::atomic<uint64_t>: of map_slot(), how many parts were begun
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
  friend bool operator==(const SlotLayout&, const SlotLayout&) = default;

  static constexpr uint64_t kNoState = UINT64_MAX;

  int64_t* shapes(std::byte* slot) const noexcept { return reinterpret_cast<int64_t*>(slot + shapes_at); }
  uint64_t& committed(std::byte* slot) const noexcept {
    return *reinterpret_cast<uint64_t*>(slot + committed_at);
  }
  std::atomic<uint64_t>& mapped(std::byte* slot) const noexcept {
    return *reinterpret_cast<std::atomic<uint64_t>*>(slot + mapped_at);
  }
  uint64_t& notes(std::byte* slot) const noexcept { return *reinterpret_cast<uint64_t*>(slot + notes_at); }
  uint64_t& stated(std::byte* slot) const noexcept { return *reinterpret_cast<uint64_t*>(slot + stated_at); }
  std::byte* state(std::byte* slot) const noexcept { return slot + state_at; }
  // What was stated. Another process may write the number meanwhile, so it is read once.
  std::span<const std::byte> state_in(std::byte* slot) const noexcept {
    const uint64_t nbytes = std::atomic_ref(stated(slot)).load(std::memory_order_relaxed);
    return {state(slot), std::min(nbytes, state_nbytes)};
  }
  // What was attached, read as state_in().
  std::span<const std::byte> attached_in(std::byte* slot) const noexcept {
    const uint64_t nbytes = std::atomic_ref(attached(slot)).load(std::memory_order_relaxed);
    return {attachment(slot), std::min(nbytes, attachment_nbytes)};
  }
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

// Enters the pages of a slot that has its memory into the page table of this process, until stop() is true.
// A page costs most the first time, because the system clears it. So the worker begins at the start and the
// feed's process at the end, each part is cleared by one of them, and the rest costs a fifth. Neither waits
// for the other: if one ends or is stopped on the way, the other maps all.
template <class Stop>
void map_slot(const SlotLayout& layout, std::byte* slot, bool is_from_end, Stop stop) noexcept {
  const uint64_t parts = (layout.slot_nbytes + kMapPart - 1) / kMapPart;
  bool is_first = true;
  for (uint64_t i = 0; i < parts && !stop(); ++i) {
    is_first = is_first && layout.mapped(slot).fetch_add(1, std::memory_order_relaxed) < parts;
    const uint64_t at = (is_from_end ? parts - 1 - i : i) * kMapPart;
    os::populate(slot + at, std::min(kMapPart, layout.slot_nbytes - at), is_first);
  }
}

// Failures of Worker::commit, with kValue.
[[noreturn]] void throw_no_request(uint64_t nbytes);
[[noreturn]] void throw_too_large(uint64_t nbytes, uint64_t most);

// The first bytes of the fields of a slot are going to be written: calls take(at, nbytes) for those of a
// sparse slot that have no memory yet. Fails with kValue (the fields have fewer), and as take.
template <class Take>
void commit_fields(const SlotLayout& layout, std::byte* slot, bool is_sparse, uint64_t nbytes, Take take) {
  constexpr uint64_t kStep = 64 << 10, kMoreFraction = 8;
  if (nbytes > layout.shapes_at) throw_too_large(nbytes, layout.shapes_at);
  uint64_t& committed = layout.committed(slot);
  if (!is_sparse || nbytes <= committed) return;
  // A little more: batches of about one size are not to take memory each time.
  const uint64_t wanted = std::max(nbytes, committed + committed / kMoreFraction);
  const uint64_t end = std::min((wanted + kStep - 1) / kStep * kStep, layout.shapes_at);
  take(committed, end - committed);
  committed = end;
}

// After a fill: the first field whose shape is not valid; null if there is none.
const SchemaField* find_wrong_shape(const Schema& schema, const int64_t* shapes) noexcept;
inline const SchemaField* find_wrong_shape(const SlotLayout& layout, const Schema& schema,
                                           std::byte* slot) noexcept {
  return find_wrong_shape(schema, layout.shapes(slot));
}

}  // namespace tenon::impl
