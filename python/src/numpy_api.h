// SPDX-License-Identifier: Apache-2.0
//
// NumPy's C API, for the files named numpy_*.cc and from_numpy.cc only. It is loaded at the first use, so
// that `import tenon` does not import NumPy.
#pragma once

#include "python.h"

#define NPY_TARGET_VERSION NPY_1_25_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL tenon_numpy_api
#ifndef TENON_DEFINES_NUMPY_API
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

namespace tenon::python {

// Imports NumPy and its table of functions. Throws what the import raises.
void import_numpy_api();

inline void need_numpy() {
  if (PyArray_API == nullptr) import_numpy_api();
}

// Requires need_numpy(). The test for the exact type first: nearly every array is of it.
inline bool is_numpy_array(PyObject* object) noexcept {
  return Py_TYPE(object) == &PyArray_Type || PyType_IsSubtype(Py_TYPE(object), &PyArray_Type) != 0;
}
inline PyArrayObject* as_numpy(PyObject* object) noexcept { return reinterpret_cast<PyArrayObject*>(object); }

// The element type of a NumPy dtype; false for the ones that arrays of Tenon cannot have.
bool dtype_of_numpy(PyArray_Descr* descr, tenon_dtype* out) noexcept;

// The TypeError that says why dtype_of_numpy failed, and what to do.
[[noreturn]] void refuse_numpy_dtype(PyArray_Descr* descr);

// The NumPy dtype of this element type: a new reference. Throws TypeError where NumPy has none.
// is_padded: sub-byte elements take whole bytes, as those of ml_dtypes do.
PyArray_Descr* numpy_dtype_of(DType dtype, bool is_padded = false);

}  // namespace tenon::python
