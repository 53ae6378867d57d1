// SPDX-License-Identifier: Apache-2.0
#include "ipc/fields.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/error.h"
#include "ipc/layout.h"

namespace tenon::impl {
namespace {

constexpr uint64_t kMostParts = 4096;

[[noreturn]] void throw_damaged_fields() {
  throw_error(Code::kValue, "the description of shared memory is damaged");
}

bool is_name(std::string_view name) noexcept {
  return !name.empty() && name.size() <= kMostNameBytes &&
         std::ranges::all_of(name, [](char c) { return static_cast<unsigned char>(c) > ' ' && c != 0x7f; });
}

}  // namespace

void Fields::add(std::string name, DType dtype, Dims shape, const std::string& what) {
  if (!is_name(name)) {
    throw_error(Code::kValue, what, ": '", name, "' cannot name a field: 1 to ", kMostNameBytes,
                " characters without spaces");
  }
  if (find(name) != nullptr) throw_error(Code::kValue, what, ": two fields are named '", name, "'");
  check_dtype(dtype);
  Part part;
  part.nbytes = nbytes_of(dtype, shape, 0);
  part.name = std::move(name);
  part.dtype = dtype;
  part.shape.assign(shape.begin(), shape.end());
  part.offset = round_up(nbytes_, kAlignment);
  if (__builtin_add_overflow(part.offset, part.nbytes, &nbytes_) || nbytes_ > PTRDIFF_MAX / 2) {
    throw_error(Code::kValue, what, ": its fields do not fit into 62 bits");
  }
  parts_.push_back(std::move(part));
}

Fields Fields::lay_out(std::span<const tenon_field> given, const std::string& what) {
  if (given.empty()) throw_error(Code::kValue, what, ": at least one field is needed");
  if (given.size() > kMostParts) throw_error(Code::kValue, what, ": ", given.size(), " fields are too many");
  Fields fields;
  for (const tenon_field& f : given) {
    fields.add(f.name != nullptr ? f.name : "", f.dtype, checked_shape(f.ndim, f.shape), what);
  }
  return fields;
}

void Fields::encode(std::string* to) const {
  put(to, parts_.size());
  for (const Part& part : parts_) {
    put(to, part.name);
    put(to, uint64_t{part.dtype.code} | uint64_t{part.dtype.bits} << 8 | uint64_t{part.dtype.lanes} << 16);
    put(to, part.shape.size());
    for (const int64_t n : part.shape) put(to, static_cast<uint64_t>(n));
  }
}

Fields Fields::decode(std::span<const std::byte>* bytes) {
  const uint64_t n = take_number(bytes);
  if (n == 0 || n > kMostParts) throw_damaged_fields();
  Fields fields;
  for (uint64_t i = 0; i < n; ++i) {
    std::string name = take_text(bytes);
    const uint64_t dtype = take_number(bytes);
    const uint64_t ndim = take_number(bytes);
    if (ndim > kMostAxes) throw_damaged_fields();
    std::vector<int64_t> shape;
    for (uint64_t k = 0; k < ndim; ++k) shape.push_back(static_cast<int64_t>(take_number(bytes)));
    if (std::ranges::any_of(shape, [](int64_t size) { return size < 0; })) throw_damaged_fields();
    fields.add(std::move(name),
               DType(static_cast<int>(dtype & 255), static_cast<int>(dtype >> 8 & 255),
                     static_cast<int>(dtype >> 16 & 65535)),
               shape, "the description of shared memory");
  }
  return fields;
}

const Part* Fields::find(std::string_view name) const noexcept {
  const auto at = std::ranges::find(parts_, name, &Part::name);
  return at == parts_.end() ? nullptr : &*at;
}

Ref<Array> Fields::array_of(Array& memory, const Part& part) {
  const Dims shape(part.shape);
  return reinterpret(memory, part.dtype, &shape, part.offset);
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
