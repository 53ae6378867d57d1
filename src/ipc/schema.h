// SPDX-License-Identifier: Apache-2.0
//
// Named arrays that lie one after the other in memory: the fields of a batch in a slot, of an item of a
// channel, of a layout of an arena. And their description in bytes, which other processes read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "array/array.h"
#include "base/bytes.h"
#include "base/ref.h"
#include "tenon/tenon.h"

namespace tenon::impl {

// Fields of batches begin at multiples of this, so that no framework makes a copy to align them.
inline constexpr size_t kFieldAlignment = 256;

struct SchemaField {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  size_t nbytes;
  size_t offset;

  tenon_field described() const noexcept {
    return {name.c_str(), dtype, static_cast<int32_t>(shape.size()), shape.data()};
  }
  // memory: a one-dimensional array of bytes, which holds the fields. Fails with kValue (the field is not
  // aligned for its dtype).
  Ref<Array> array_in(Array& memory) const;
};

struct SchemaRules {
  size_t alignment;  // of each field
  bool is_batch;  // names are identifiers, elements are whole bytes, axis 0 counts the rows > 0 of all fields
};
inline constexpr SchemaRules kBatchRules{kFieldAlignment, true}, kSharedRules{kAlignment, false};

// Counted, immutable: threads may share one.
// Invariants: at least one field, names are distinct, the rules.
class Schema {
 public:
  // Places the fields in their order. what: for messages. Fails with kValue (names, shapes, rows, too large),
  // kType.
  static Ref<Schema> make(std::span<const tenon_field> fields, std::string_view what = "schema",
                          const SchemaRules& rules = kBatchRules);
  // Reads and checks bytes that encode() wrote, perhaps in another process, and removes them from the front.
  // They have kSharedRules. Fails with kValue, kType.
  static Ref<Schema> decode(std::span<const std::byte>* bytes);
  void encode(std::string* to) const;

  const std::vector<SchemaField>& fields() const noexcept { return fields_; }
  // The position of the field with this name, or -1.
  int32_t find(std::string_view name) const noexcept;
  // Of the fields of a batch.
  int64_t rows() const noexcept { return fields_.front().shape.front(); }
  // Without the gaps between the fields.
  size_t nbytes() const noexcept { return nbytes_; }
  // With the gaps: the end of the last field.
  size_t fields_nbytes() const noexcept { return fields_.back().offset + fields_.back().nbytes; }

  void retain() noexcept { refs_.increment(); }
  void release() noexcept {
    if (refs_.decrement()) delete this;
  }

 private:
  Schema() = default;
  void add(std::string name, DType dtype, Dims shape, std::string_view what, const SchemaRules& rules);

  std::vector<SchemaField> fields_;
  size_t nbytes_ = 0;
  RefCount refs_;
};

// Values in a description, one after the other.
void put(std::string* to, uint64_t number);
void put(std::string* to, std::string_view text);
uint64_t take_number(std::span<const std::byte>* bytes);  // fails with kValue
std::string take_text(std::span<const std::byte>* bytes);

}  // namespace tenon::impl
