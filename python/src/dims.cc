// SPDX-License-Identifier: Apache-2.0
#include "dims.h"

namespace tenon::python {

int64_t index_from(nb::handle source) {
  const nb::object number = owned(PyNumber_Index(source.ptr()));
  const long long value = PyLong_AsLongLong(number.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) nb::raise_python_error();
  return value;
}

Dims::Dims(nb::handle source, const char* what) {
  if (PyIndex_Check(source.ptr()) != 0 && PySequence_Check(source.ptr()) == 0) {
    values_[0] = index_from(source);
    n_ = 1;
    return;
  }
  if (nb::isinstance<nb::str>(source) || PySequence_Check(source.ptr()) == 0) {
    raise(PyExc_TypeError, "%s must be an int or a sequence of ints, not %R", what, source.ptr());
  }
  const Py_ssize_t n = PySequence_Size(source.ptr());
  if (n < 0) nb::raise_python_error();
  if (n > TENON_MAX_NDIM)
    raise(PyExc_ValueError, "%s has %zd entries: at most %d work", what, n, TENON_MAX_NDIM);
  for (Py_ssize_t i = 0; i < n; ++i) {
    values_[n_++] = index_from(owned(PySequence_GetItem(source.ptr(), i)));
  }
}

Dims Dims::of_arguments(const nb::args& arguments, const char* what) {
  if (arguments.size() == 1) return Dims(arguments[0], what);
  return Dims(arguments, what);
}

}  // namespace tenon::python
