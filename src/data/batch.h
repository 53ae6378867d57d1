// SPDX-License-Identifier: Apache-2.0
//
// A delivered batch: the arrays of its fields over one slot.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "array/array.h"
#include "base/ref.h"
#include "data/slot_layout.h"
#include "data/slots.h"
#include "data/ticket_ring.h"
#include "ipc/schema.h"

namespace tenon::impl {

// Counted, immutable as a handle. One storage covers the slot. The batch, its arrays and their views keep
// the storage; the slot is free again when the last of them is gone, in any order.
class Batch {
 public:
  // Takes over the ticket's slot. Fails with std::bad_alloc; the slot is then free.
  static Ref<Batch> make(const Schema& schema, const SlotLayout& layout, Slots& slots, const Ticket& ticket);
  // The same of a slot that was lent, and that other processes may write to. Fails with kValue, too: a shape
  // does not fit.
  static Ref<Batch> make(const Schema& schema, const SlotLayout& layout, Ref<Storage> slot,
                         const Ticket& ticket);
  // The same with a copy of what was filled, in its own memory; the slot is free.
  static Ref<Batch> copy(const Schema& schema, const SlotLayout& layout, Slots& slots, const Ticket& ticket);

  // The same fields, with no elements yet, on a storage that has room for the fields of the schema. Has a
  // copy of the attachment. Fails with std::bad_alloc.
  static Ref<Batch> beside(const Batch& filled, const Schema& schema, Ref<Storage> storage);

  const Ticket& ticket() const noexcept { return ticket_; }
  // Null for a field that the schema does not have.
  Ref<Array> array(int32_t field) const noexcept {
    return field >= 0 && static_cast<size_t>(field) < arrays_.size() ? arrays_[static_cast<size_t>(field)]
                                                                     : Ref<Array>();
  }

  // Of the fields, in the shapes to which they were filled.
  uint64_t nbytes() const noexcept { return nbytes_; }
  std::span<const std::byte> attachment() const noexcept { return attachment_; }

  void retain() noexcept { refs_.increment(); }
  void release() noexcept {
    if (refs_.decrement()) delete this;
  }

 private:
  // is_packed: the fields lie one behind the other, and not where the schema says.
  Batch(const Schema& schema, Ref<Storage> storage, const int64_t* shapes, bool is_packed,
        std::span<const std::byte> attachment, const Ticket& ticket);

  const Ticket ticket_;
  const Ref<Storage> storage_;
  std::span<const std::byte> attachment_;
  std::vector<std::byte> copied_attachment_;
  uint64_t nbytes_ = 0;
  std::vector<Ref<Array>> arrays_;  // in schema order
  RefCount refs_;
};

}  // namespace tenon::impl
