// SPDX-License-Identifier: Apache-2.0
#include "ipc/schema.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "ipc/layout.h"

namespace tenon::impl {
namespace {

constexpr uint64_t kMostSchemaFields = 4096;

[[noreturn]] void throw_damaged_fields() {
  throw_error(Code::kValue, "the description of shared memory is damaged");
}

bool is_identifier(std::string_view name) noexcept {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return !name.empty() && is_letter(name[0]) &&
         std::ranges::all_of(name, [&](char c) { return is_letter(c) || is_digit(c); });
}

bool is_name(std::string_view name) noexcept {
  return !name.empty() && name.size() <= kMostNameBytes &&
         std::ranges::all_of(name, [](char c) { return static_cast<unsigned char>(c) > ' ' && c != 0x7f; });
}

}  // namespace

Ref<Array> SchemaField::array_in(Array& memory) const {
  const Dims dims(shape);
  return reinterpret(memory, dtype, &dims, offset);
}

Ref<Schema> Schema::make(std::span<const tenon_field> given, std::string_view what,
                         const SchemaRules& rules) {
  if (given.empty()) throw_error(Code::kValue, what, ": at least one field is needed");
  if (given.size() > kMostSchemaFields) {
    throw_error(Code::kValue, what, ": ", given.size(), " fields are more than ", kMostSchemaFields,
                ": give fields of one dtype and shape an axis of their own");
  }
  auto schema = Ref<Schema>::adopt(new Schema);
  for (const tenon_field& f : given) {
    schema->add(f.name != nullptr ? f.name : "", f.dtype, checked_shape(f.ndim, f.shape), what, rules);
  }
  return schema;
}

void Schema::add(std::string name, DType dtype, Dims shape, std::string_view what, const SchemaRules& rules) {
  if (rules.is_batch && !is_identifier(name)) {
    throw_error(Code::kValue, what, ": the name '", name, "' is not an identifier (letters, digits, _)");
  }
  if (!rules.is_batch && !is_name(name)) {
    throw_error(Code::kValue, what, ": '", name, "' cannot name a field: 1 to ", kMostNameBytes,
                " characters without spaces");
  }
  if (find(name) >= 0) throw_error(Code::kValue, what, ": two fields are named '", name, "'");
  check_dtype(dtype);
  if (rules.is_batch) {
    if (!dtype.is_byte_sized()) {
      throw_error(Code::kType, what, ": field '", name, "': elements of ", dtype.name(),
                  " are not a whole number of bytes");
    }
    if (shape.empty()) {
      throw_error(Code::kValue, what, ": field '", name,
                  "' has no axis; axis 0 counts the rows of the batch");
    }
    if (std::ranges::any_of(shape, [](int64_t extent) { return extent == 0; })) {
      throw_error(Code::kValue, what, ": field '", name, "' of shape ", shape_text(shape), " is empty");
    }
    if (!fields_.empty() && shape[0] != rows()) {
      throw_error(Code::kValue, what, ": field '", name, "' has ", shape[0], " rows (axis 0), field '",
                  fields_[0].name, "' has ", rows());
    }
  }
  SchemaField field{std::move(name), dtype, {shape.begin(), shape.end()}, nbytes_of(dtype, shape, 0), 0};
  if (!fields_.empty()) field.offset = round_up(fields_nbytes(), rules.alignment);
  if (field.offset + field.nbytes > PTRDIFF_MAX / 2) {
    throw_error(Code::kValue, what, ": its fields do not fit into 62 bits");
  }
  nbytes_ += field.nbytes;
  fields_.push_back(std::move(field));
}

void Schema::encode(std::string* to) const {
  put(to, fields_.size());
  for (const SchemaField& field : fields_) {
    put(to, field.name);
    const DType dtype = field.dtype;
    put(to, uint64_t{dtype.code} | uint64_t{dtype.bits} << 8 | uint64_t{dtype.lanes} << 16);
    put(to, field.shape.size());
    for (const int64_t n : field.shape) put(to, static_cast<uint64_t>(n));
  }
}

Ref<Schema> Schema::decode(std::span<const std::byte>* bytes) {
  const uint64_t n = take_number(bytes);
  if (n == 0 || n > kMostSchemaFields) throw_damaged_fields();
  auto schema = Ref<Schema>::adopt(new Schema);
  for (uint64_t i = 0; i < n; ++i) {
    std::string name = take_text(bytes);
    const uint64_t dtype = take_number(bytes);
    const uint64_t ndim = take_number(bytes);
    if (ndim > kMostAxes) throw_damaged_fields();
    std::vector<int64_t> shape;
    for (uint64_t k = 0; k < ndim; ++k) shape.push_back(static_cast<int64_t>(take_number(bytes)));
    if (std::ranges::any_of(shape, [](int64_t size) { return size < 0; })) throw_damaged_fields();
    schema->add(std::move(name),
                DType(static_cast<int>(dtype & 255), static_cast<int>(dtype >> 8 & 255),
                      static_cast<int>(dtype >> 16 & 65535)),
                shape, "the description of shared memory", kSharedRules);
  }
  return schema;
}

int32_t Schema::find(std::string_view name) const noexcept {
  const auto field = std::ranges::find(fields_, name, &SchemaField::name);
  return field == fields_.end() ? -1 : static_cast<int32_t>(field - fields_.begin());
}

void put(std::string* to, uint64_t number) {
  to->append(reinterpret_cast<const char*>(&number), sizeof number);
}

void put(std::string* to, std::string_view text) {
  put(to, text.size());
  to->append(text);
}

uint64_t take_number(std::span<const std::byte>* bytes) {
  uint64_t number = 0;
  if (bytes->size() < sizeof number) throw_damaged_fields();
  std::memcpy(&number, bytes->data(), sizeof number);
  *bytes = bytes->subspan(sizeof number);
  return number;
}

std::string take_text(std::span<const std::byte>* bytes) {
  const uint64_t n = take_number(bytes);
  if (n > bytes->size() || n > kMostNameBytes) throw_damaged_fields();
  std::string text(reinterpret_cast<const char*>(bytes->data()), n);
  *bytes = bytes->subspan(n);
  return text;
}

}  // namespace tenon::impl
