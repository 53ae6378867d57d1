// SPDX-License-Identifier: Apache-2.0
//
// Fields as Python has them: tuples (name, dtype, shape).
#pragma once

#include <nanobind/stl/string.h>

#include <string>
#include <vector>

#include "dims.h"
#include "dtype.h"
#include "tenon/feed.hpp"
#include "tenon/field.hpp"

namespace tenon::python {

inline std::vector<Field> fields_in(nb::handle described) {
  std::vector<Field> fields;
  for (nb::handle item : described) {
    const nb::tuple parts = nb::cast<nb::tuple>(nb::borrow(item));
    const Dims dims(nb::borrow(parts[2]), "shape");
    const Shape shape = dims.shape();
    fields.push_back({nb::cast<std::string>(parts[0]),
                      nb::cast<DTypeLike>(parts[1]).get(),
                      {shape.data(), shape.data() + shape.ndim()}});
  }
  return fields;
}

inline nb::tuple shape_of(const tenon_field& field) {
  nb::list shape;
  for (int32_t axis = 0; axis < field.ndim; ++axis) shape.append(field.shape[axis]);
  return nb::tuple(shape);
}

inline nb::tuple describe_field(const tenon_field& field) {
  return nb::make_tuple(field.name, dtype_object(field.dtype), shape_of(field));
}

// As tenon.schema takes them: a dict of names to (dtype, shape).
inline nb::dict fields_dict(const Schema& schema) {
  nb::dict fields;
  for (int32_t i = 0; i < schema.size(); ++i) {
    const tenon_field field = schema[i];
    fields[field.name] = nb::make_tuple(dtype_object(field.dtype), shape_of(field));
  }
  return fields;
}

}  // namespace tenon::python
