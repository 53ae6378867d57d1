// SPDX-License-Identifier: Apache-2.0
#include "data/slot_layout.h"

#include "base/bytes.h"
#include "base/error.h"

namespace tenon::impl {
namespace {

uint64_t sum(uint64_t a, uint64_t b) {
  uint64_t result = 0;
  if (__builtin_add_overflow(a, b, &result) || result > PTRDIFF_MAX - kPage) {
    throw_error(Code::kValue, "a slot of ", a, " and ", b, " bytes does not fit into 63 bits");
  }
  return result;
}

}  // namespace

SlotLayout SlotLayout::of(const Schema& schema, uint64_t attachment_nbytes, uint64_t state_nbytes) {
  size_t axes = 0;
  for (const SchemaField& field : schema.fields()) axes += field.shape.size();
  SlotLayout layout;
  layout.shapes_at = round_up(schema.fields_nbytes(), kFieldAlignment);
  layout.committed_at = sum(layout.shapes_at, axes * sizeof(int64_t));
  layout.mapped_at = layout.committed_at + sizeof(uint64_t);
  layout.notes_at = layout.mapped_at + sizeof(uint64_t);
  layout.stated_at = layout.notes_at + sizeof(uint64_t);
  layout.state_at = layout.stated_at + sizeof(uint64_t);
  layout.state_nbytes = sum(state_nbytes, sizeof(uint64_t) - 1) / sizeof(uint64_t) * sizeof(uint64_t);
  layout.attached_at = sum(layout.state_at, layout.state_nbytes);
  layout.attachment_at = layout.attached_at + sizeof(uint64_t);
  layout.attachment_nbytes = attachment_nbytes;
  const uint64_t end = sum(layout.attachment_at, attachment_nbytes);
  layout.slot_nbytes = (end + kPage - 1) / kPage * kPage;
  return layout;
}

void throw_no_request(uint64_t nbytes) {
  throw_error(Code::kValue, "no memory can be taken for ", nbytes, " bytes: there is no request");
}

void throw_too_large(uint64_t nbytes, uint64_t most) {
  throw_error(Code::kValue, "no memory can be taken for ", nbytes, " bytes: the fields of a slot have ",
              most);
}

const SchemaField* find_wrong_shape(const Schema& schema, const int64_t* shapes) noexcept {
  const int64_t* shape = shapes;
  for (const SchemaField& field : schema.fields()) {
    for (size_t i = 0; i < field.shape.size(); ++i) {
      if (shape[i] < 0 || shape[i] > field.shape[i] || (i == 0 && shape[i] != shapes[0])) return &field;
    }
    shape += field.shape.size();
  }
  return nullptr;
}

}  // namespace tenon::impl
