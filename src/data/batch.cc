// SPDX-License-Identifier: Apache-2.0
#include "data/batch.h"

#include <atomic>
#include <cstring>

#include "base/bytes.h"
#include "base/error.h"

namespace tenon::impl {
namespace {

uint64_t used_nbytes(const SchemaField& field, const int64_t* shape) noexcept {
  return static_cast<uint64_t>(element_count({shape, field.shape.size()}, field.dtype.element_bits())) *
         field.dtype.padded_itemsize();
}

// Calls body(field, shape, used bytes, where these lie when nothing is left between fields). Returns where
// the last ones end.
template <class Body>
size_t for_each_field(const Schema& schema, const int64_t* shape, Body&& body) {
  size_t packed = 0;
  for (const SchemaField& field : schema.fields()) {
    const uint64_t nbytes = used_nbytes(field, shape);
    body(field, shape, nbytes, packed);
    packed += round_up(nbytes, kFieldAlignment);
    shape += field.shape.size();
  }
  return packed;
}

}  // namespace

Batch::Batch(const Schema& schema, Ref<Storage> storage, const int64_t* shapes, bool is_packed,
             std::span<const std::byte> attachment, const Ticket& ticket)
    : ticket_(ticket), storage_(std::move(storage)), attachment_(attachment) {
  arrays_.reserve(schema.fields().size());
  Layout layout;
  layout.device = storage_->device();
  layout.flags = storage_->is_readonly() ? TENON_READONLY : 0;
  for_each_field(schema, shapes,
                 [&](const SchemaField& field, const int64_t* shape, uint64_t nbytes, size_t packed) {
                   layout.data = storage_->data() + (is_packed ? packed : field.offset);
                   layout.dtype = field.dtype;
                   layout.shape = {shape, field.shape.size()};
                   arrays_.push_back(Array::make(storage_, layout));
                   nbytes_ += nbytes;
                 });
}

Ref<Batch> Batch::make(const Schema& schema, const SlotLayout& layout, Slots& slots, const Ticket& ticket) {
  Ref<Storage> storage = slots.lend_storage(ticket.slot);
  std::byte* const data = storage->data();
  return Ref<Batch>::adopt(
      new Batch(schema, std::move(storage), layout.shapes(data), false, layout.attached_in(data), ticket));
}

Ref<Batch> Batch::make(const Schema& schema, const SlotLayout& layout, Ref<Storage> slot,
                       const Ticket& ticket) {
  std::byte* const data = slot->data();
  std::vector<int64_t> shapes;
  int64_t* shape = layout.shapes(data);
  for (const SchemaField& field : schema.fields()) {
    for (size_t i = 0; i < field.shape.size(); ++i)
      shapes.push_back(std::atomic_ref(*shape++).load(std::memory_order_relaxed));
  }
  if (const SchemaField* const wrong = find_wrong_shape(schema, shapes.data()))
    throw_error(Code::kValue, "the shape of field '", wrong->name, "' was overwritten");
  return Ref<Batch>::adopt(
      new Batch(schema, std::move(slot), shapes.data(), false, layout.attached_in(data), ticket));
}

Ref<Batch> Batch::beside(const Batch& filled, const Schema& schema, Ref<Storage> storage) {
  std::vector<int64_t> shapes;
  for (const Ref<Array>& array : filled.arrays_)
    shapes.insert(shapes.end(), array->shape().begin(), array->shape().end());
  Ref<Batch> made =
      Ref<Batch>::adopt(new Batch(schema, std::move(storage), shapes.data(), false, {}, filled.ticket_));
  made->copied_attachment_.assign(filled.attachment_.begin(), filled.attachment_.end());
  made->attachment_ = made->copied_attachment_;
  return made;
}

Ref<Batch> Batch::copy(const Schema& schema, const SlotLayout& layout, Slots& slots, const Ticket& ticket) {
  struct Return {
    Slots& slots;
    const int32_t slot;
    ~Return() { slots.give(slot); }
  } const returned{slots, ticket.slot};
  std::byte* const from = slots.data(ticket.slot);
  const int64_t* const shapes = layout.shapes(from);
  const std::span<const std::byte> attached = layout.attached_in(from);
  const size_t fields_nbytes = for_each_field(schema, shapes, [](auto&&...) {});
  Ref<Storage> storage = Storage::allocate(fields_nbytes + attached.size(), false);
  std::byte* const to = storage->data();
  for_each_field(schema, shapes,
                 [&](const SchemaField& field, const int64_t*, uint64_t nbytes, size_t packed) {
                   std::memcpy(to + packed, from + field.offset, nbytes);
                 });
  if (!attached.empty()) std::memcpy(to + fields_nbytes, attached.data(), attached.size());
  return Ref<Batch>::adopt(
      new Batch(schema, std::move(storage), shapes, true, {to + fields_nbytes, attached.size()}, ticket));
}

}  // namespace tenon::impl
