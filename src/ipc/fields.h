// SPDX-License-Identifier: Apache-2.0
//
// Named arrays that lie one after the other in memory, and their description in bytes, which other processes
// read.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "array/array.h"
#include "tenon/tenon.h"

namespace tenon::impl {

struct Part {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  uint64_t offset = 0;  // a multiple of 64
  uint64_t nbytes = 0;
};

// Immutable once made.
class Fields {
 public:
  // Places the fields in their order. what: for messages. Fails with kValue (names, shapes, too large),
  // kType.
  static Fields lay_out(std::span<const tenon_field> fields, const std::string& what);
  // Reads and checks bytes that encode() wrote, perhaps in another process, and removes them from the front.
  // Fails with kValue.
  static Fields decode(std::span<const std::byte>* bytes);
  void encode(std::string* to) const;

  const std::vector<Part>& parts() const noexcept { return parts_; }
  uint64_t nbytes() const noexcept { return nbytes_; }
  // nullptr: there is no field of this name.
  const Part* find(std::string_view name) const noexcept;

  // The part as an array. memory: a one-dimensional array of bytes, which holds the fields. Fails with kValue
  // (the part is not aligned for its dtype).
  static Ref<Array> array_of(Array& memory, const Part& part);

 private:
  void add(std::string name, DType dtype, Dims shape, const std::string& what);

  std::vector<Part> parts_;
  uint64_t nbytes_ = 0;
};

// Values in a description, one after the other.
void put(std::string* to, uint64_t number);
void put(std::string* to, std::string_view text);
uint64_t take_number(std::span<const std::byte>* bytes);  // fails with kValue
std::string take_text(std::span<const std::byte>* bytes);

}  // namespace tenon::impl
