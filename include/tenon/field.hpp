// SPDX-License-Identifier: Apache-2.0
//
// A named array of a schema, an arena or a channel.
#ifndef TENON_FIELD_HPP_
#define TENON_FIELD_HPP_

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tenon/tenon.hpp"

namespace tenon {
inline namespace api0 {

struct Field {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;  // in the schema of a feed, axis 0 counts the rows of the batch
};

template <class T>
Field field(std::string name, std::vector<int64_t> shape) {
  return {std::move(name), dtype_of<T>(), std::move(shape)};
}

namespace detail {
// The fields as structs of the C ABI; valid as long as the fields.
inline std::vector<tenon_field> describe(std::span<const Field> fields) {
  std::vector<tenon_field> described;
  for (const Field& f : fields) {
    described.push_back({f.name.c_str(), f.dtype, static_cast<int32_t>(f.shape.size()), f.shape.data()});
  }
  return described;
}
}  // namespace detail

}  // namespace api0
}  // namespace tenon

#endif  // TENON_FIELD_HPP_
