// SPDX-License-Identifier: Apache-2.0
#include "data/schema.h"

#include <algorithm>
#include <memory>

#include "base/error.h"

namespace tenon::impl {
namespace {

bool is_identifier(std::string_view name) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return !name.empty() && is_letter(name[0]) &&
         std::ranges::all_of(name, [&](char c) { return is_letter(c) || is_digit(c); });
}

size_t checked_sum(size_t a, size_t b) {
  size_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum) || sum > PTRDIFF_MAX) {
    throw_error(Code::kValue, "schema: the fields of a batch do not fit into 63 bits");
  }
  return sum;
}

size_t checked_round_up(size_t n, size_t multiple) {
  return checked_sum(n, multiple - 1) / multiple * multiple;
}

}  // namespace

Ref<Schema> Schema::make(std::span<const tenon_field> fields) {
  if (fields.empty()) throw_error(Code::kValue, "schema: at least one field is needed");
  std::unique_ptr<Schema> schema(new Schema);
  for (const tenon_field& field : fields) schema->add(field);
  schema->fields_nbytes_ = checked_round_up(schema->fields_nbytes_, kFieldAlignment);
  return Ref<Schema>::adopt(schema.release());
}

void Schema::add(const tenon_field& given) {
  const std::string name = given.name != nullptr ? given.name : "";
  if (!is_identifier(name)) {
    throw_error(Code::kValue, "schema: the name '", name, "' is not an identifier (letters, digits, _)");
  }
  if (find(name) >= 0) throw_error(Code::kValue, "schema: two fields are named '", name, "'");
  const DType dtype = given.dtype;
  check_dtype(dtype);
  if (!dtype.is_byte_sized()) {
    throw_error(Code::kType, "schema: field '", name, "': elements of ", dtype.name(),
                " are not a whole number of bytes");
  }
  const Dims shape = checked_shape(given.ndim, given.shape);
  if (shape.empty()) {
    throw_error(Code::kValue, "schema: field '", name, "' has no axis; axis 0 counts the rows of the batch");
  }
  if (std::ranges::any_of(shape, [](int64_t extent) { return extent == 0; })) {
    throw_error(Code::kValue, "schema: field '", name, "' of shape ", shape_text(shape), " is empty");
  }
  if (!fields_.empty() && shape[0] != rows()) {
    throw_error(Code::kValue, "schema: field '", name, "' has ", shape[0], " rows (axis 0), field '",
                fields_[0].name, "' has ", rows());
  }
  SchemaField field;
  field.name = name;
  field.dtype = dtype;
  field.shape.assign(shape.begin(), shape.end());
  const int64_t size = element_count(shape, dtype.element_bits());
  field.nbytes = static_cast<size_t>(size) * dtype.padded_itemsize();
  field.offset = checked_round_up(fields_nbytes_, kFieldAlignment);
  nbytes_ = checked_sum(nbytes_, field.nbytes);
  fields_nbytes_ = checked_sum(field.offset, field.nbytes);
  fields_.push_back(std::move(field));
}

int32_t Schema::find(std::string_view name) const noexcept {
  const auto field = std::ranges::find(fields_, name, &SchemaField::name);
  return field == fields_.end() ? -1 : static_cast<int32_t>(field - fields_.begin());
}

}  // namespace tenon::impl
