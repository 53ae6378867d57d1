// SPDX-License-Identifier: Apache-2.0
#include "data/batch.h"

#include <cstring>
#include <memory>

namespace tenon::impl {
namespace {

Ref<Storage> storage_over(Slots& slots, int32_t slot) {
  Memory memory;
  memory.data = slots.data(slot);
  memory.nbytes = slots.slot_nbytes();
  memory.extent = memory.data;
  memory.extent_nbytes = memory.nbytes;
  memory.owner = slots.lend(slot);
  memory.deleter = Slots::end_loan;
  try {
    return Storage::adopt(memory);
  } catch (...) {
    Slots::end_loan(memory.owner);
    throw;
  }
}

}  // namespace

Ref<Batch> Batch::over(Ref<Storage> storage, const Schema& schema, const SlotLayout& slot_layout,
                       const Ticket& ticket) {
  std::byte* const slot = storage->data();
  std::unique_ptr<Batch> batch(new Batch(ticket, storage));
  batch->arrays_.reserve(schema.fields().size());
  batch->attachment_ = {slot_layout.attachment(slot), slot_layout.attached(slot)};
  const int64_t* shape = slot_layout.shapes(slot);
  std::vector<int64_t> strides;
  Layout layout;
  for (const Field& field : schema.fields()) {
    layout.data = slot + field.offset;
    layout.dtype = field.dtype;
    layout.shape = {shape, field.shape.size()};
    shape += field.shape.size();
    strides.resize(layout.shape.size());
    fill_c_strides(layout.shape, strides.data());
    layout.strides = strides;
    batch->arrays_.push_back(Array::make(storage, layout));
    batch->nbytes_ += static_cast<uint64_t>(element_count(layout.shape, field.dtype.element_bits())) *
                      field.dtype.padded_itemsize();
  }
  return Ref<Batch>::adopt(batch.release());
}

Ref<Batch> Batch::make(const Schema& schema, const SlotLayout& layout, Slots& slots, int32_t slot,
                       const Ticket& ticket) {
  return over(storage_over(slots, slot), schema, layout, ticket);
}

Ref<Batch> Batch::copy(const Schema& schema, const SlotLayout& layout, Slots& slots, int32_t slot,
                       const Ticket& ticket) {
  Ref<Storage> storage;
  try {
    storage = Storage::allocate(layout.slot_nbytes, false);
  } catch (...) {
    slots.give(slot);
    throw;
  }
  std::memcpy(storage->data(), slots.data(slot), layout.slot_nbytes);
  slots.give(slot);
  return over(std::move(storage), schema, layout, ticket);
}

}  // namespace tenon::impl
