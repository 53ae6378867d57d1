// SPDX-License-Identifier: Apache-2.0
#include "dims.h"

#include "values.h"

namespace tenon::python {

Dims::Dims(nb::handle source, const char* what) {
  if (PyIndex_Check(source.ptr()) != 0 && PySequence_Check(source.ptr()) == 0) {
    values_[0] = entry_from(source, what);
    n_ = 1;
    return;
  }
  const bool is_text = PyUnicode_Check(source.ptr()) != 0 || PyBytes_Check(source.ptr()) != 0;
  if (is_text || PySequence_Check(source.ptr()) == 0) {
    raise(PyExc_TypeError, "%s is %R: it must be an int or a sequence of ints", what, source.ptr());
  }
  const Py_ssize_t n = PySequence_Size(source.ptr());
  if (n < 0) nb::raise_python_error();
  if (n > TENON_MAX_NDIM)
    raise(PyExc_ValueError, "%s has %zd entries: at most %d work", what, n, TENON_MAX_NDIM);
  for (Py_ssize_t i = 0; i < n; ++i) {
    values_[n_++] = entry_from(owned(PySequence_GetItem(source.ptr(), i)), what);
  }
}

Dims Dims::of_arguments(const nb::args& arguments, const char* what) {
  if (arguments.size() == 1) return Dims(arguments[0], what);
  return Dims(arguments, what);
}

}  // namespace tenon::python
