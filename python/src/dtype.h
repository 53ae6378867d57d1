// SPDX-License-Identifier: Apache-2.0
//
// tenon.dtype: element types as Python objects. There is one object for each type, so `is` and `==` agree;
// they equal NumPy's dtypes where NumPy (with ml_dtypes) has the type.
#pragma once

#include "python.h"

namespace tenon::python {

// The one tenon.dtype of this type: a new reference.
nb::object dtype_object(DType dtype);

// From a tenon.dtype, a name, a NumPy dtype or scalar type, a torch.dtype, bool, int, float or complex.
// Throws TypeError.
DType dtype_from(nb::handle source);

// A parameter that takes whatever dtype_from takes. In functions bound by nanobind; None is not accepted.
struct DTypeLike {
  nb::object source;
  DType get() const { return dtype_from(source); }
};

void add_dtype(nb::module_& module);

}  // namespace tenon::python

namespace nanobind::detail {
template <>
struct type_caster<tenon::python::DTypeLike> {
  NB_TYPE_CASTER(tenon::python::DTypeLike, const_name("DTypeLike"))

  bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
    if (source.is_none()) return false;
    value.source = borrow(source);
    return true;
  }
};
}  // namespace nanobind::detail
