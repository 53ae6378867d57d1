// SPDX-License-Identifier: Apache-2.0
//
// The Python type tenon.NDArray as the other files see it: a hand-written type (not one of nanobind's),
// because making and freeing one is on the fastest paths of the package.
#pragma once

#include "python.h"

namespace tenon::python {

// Owns one reference to the array, which only exchange() changes. Not a container for Python's garbage
// collector: references to Python objects are held by storages (owners.h).
struct NDArray {
  PyObject_HEAD tenon_array* array;
  const tenon_array_desc* desc;  // of array
  PyObject* weak_references;
};

extern PyTypeObject* ndarray_type;

// The type is final: this is the whole test.
inline bool is_ndarray(PyObject* object) noexcept { return Py_TYPE(object) == ndarray_type; }

// Requires is_ndarray(object).
inline tenon_array* array_of(PyObject* object) noexcept { return reinterpret_cast<NDArray*>(object)->array; }
inline const tenon_array_desc& desc_of(PyObject* object) noexcept {
  return *reinterpret_cast<NDArray*>(object)->desc;
}
inline Array share(PyObject* object) noexcept { return Array::share(array_of(object)); }

// Prepares new memory for tenon_view_open(), which looks at the first word only and sets the others. Clearing
// all of it (TENON_VIEW_INIT) is compiled to `rep stos`, which is slow for so few bytes.
inline void prepare(tenon_view& view) noexcept { view.reserved[0] = nullptr; }

// Swaps the arrays of two NDArrays. Requires the GIL. Code that may release the GIL while it uses the array
// of an NDArray has a reference of its own, or calls a function of the C library that takes one.
void exchange(PyObject* a, PyObject* b) noexcept;

// A new NDArray over array. Throws nb::python_error.
PyObject* wrap(Array array);

// A parameter of functions bound by nanobind that is the NDArray itself, not only its array.
struct Self {
  nb::object object;
  Array array() const { return share(object.ptr()); }
};

void add_ndarray(nb::module_& module);

}  // namespace tenon::python

// In functions bound by nanobind an NDArray is a tenon::Array.
namespace nanobind::detail {
template <>
struct type_caster<tenon::Array> {
  NB_TYPE_CASTER(tenon::Array, const_name("NDArray"))

  bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
    if (!tenon::python::is_ndarray(source.ptr())) return false;
    value = tenon::python::share(source.ptr());
    return true;
  }
  static handle from_cpp(const tenon::Array& array, rv_policy, cleanup_list*) noexcept {
    return tenon::python::guarded([&] { return tenon::python::wrap(array); });
  }
  static handle from_cpp(tenon::Array&& array, rv_policy, cleanup_list*) noexcept {
    return tenon::python::guarded([&] { return tenon::python::wrap(std::move(array)); });
  }
};

template <>
struct type_caster<tenon::python::Self> {
  NB_TYPE_CASTER(tenon::python::Self, const_name("NDArray"))

  bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
    if (!tenon::python::is_ndarray(source.ptr())) return false;
    value.object = borrow(source);
    return true;
  }
};
}  // namespace nanobind::detail
