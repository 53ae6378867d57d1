// SPDX-License-Identifier: Apache-2.0
#include "feed/batch.h"

#include <memory>

namespace tenon {
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

Ref<Batch> Batch::make(const Schema& schema, Slots& slots, int32_t slot, const Ticket& ticket) {
  const Ref<Storage> storage = storage_over(slots, slot);
  std::unique_ptr<Batch> batch(new Batch(ticket));
  batch->arrays_.reserve(schema.fields().size());
  Layout layout;
  for (const Field& field : schema.fields()) {
    layout.data = storage->data() + field.offset;
    layout.dtype = field.dtype;
    layout.shape = field.shape;
    layout.strides = field.strides;
    batch->arrays_.push_back(Array::make(storage, layout));
  }
  return Ref<Batch>::adopt(batch.release());
}

}  // namespace tenon
