// SPDX-License-Identifier: Apache-2.0
//
// The fields of a batch, each with a name, a dtype and a shape whose axis 0 counts the rows, and their
// places in a slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "array/dtype.h"
#include "array/shape.h"
#include "base/ref.h"
#include "tenon/tenon.h"

namespace tenon::impl {

// Fields begin at multiples of this in a slot, so that no framework makes a copy to align them.
inline constexpr size_t kFieldAlignment = 256;

struct SchemaField {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  size_t nbytes;
  size_t offset;  // in the slot
};

// Counted, immutable: threads may share one.
// Invariants: at least one field, names are distinct identifiers, all fields have the same rows > 0,
// elements are whole bytes, fields_nbytes() is a multiple of kFieldAlignment.
class Schema {
 public:
  // Fails with kValue (names, shapes, rows, overflow) and kType (dtypes).
  static Ref<Schema> make(std::span<const tenon_field> fields);

  const std::vector<SchemaField>& fields() const noexcept { return fields_; }
  // The position of the field with this name, or -1.
  int32_t find(std::string_view name) const noexcept;
  int64_t rows() const noexcept { return fields_.front().shape.front(); }
  // The payload of a batch, without the gaps between the fields.
  size_t nbytes() const noexcept { return nbytes_; }
  // With the gaps: the end of the last field.
  size_t fields_nbytes() const noexcept { return fields_nbytes_; }

  void retain() noexcept { refs_.increment(); }
  void release() noexcept {
    if (refs_.decrement()) delete this;
  }

 private:
  Schema() = default;
  void add(const tenon_field& field);

  std::vector<SchemaField> fields_;
  size_t nbytes_ = 0;
  size_t fields_nbytes_ = 0;
  RefCount refs_;
};

}  // namespace tenon::impl
