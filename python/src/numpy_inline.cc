// SPDX-License-Identifier: Apache-2.0
#include "numpy_inline.h"

#include <cstring>

#include "numpy_api.h"

namespace tenon::python {
namespace {

constexpr size_t kAlignment = 64;

bool is_imported() {
  if (PyArray_API != nullptr) return true;
  static Name numpy("numpy");
  if (!nb::steal(PyImport_GetModule(numpy.get())).is_valid()) return false;
  import_numpy_api();
  return true;
}

bool is_number(int type) noexcept {
  return (type >= NPY_BOOL && type <= NPY_CLONGDOUBLE) || type == NPY_HALF;
}

// Metadata of a dtype would be lost.
bool has_metadata(PyArray_Descr* descr) {
  const nb::handle dtype(reinterpret_cast<PyObject*>(descr));
  if (owned(reinterpret_cast<PyObject*>(PyArray_DescrFromType(descr->type_num))).is(dtype)) return false;
  return !nb::object(dtype.attr("metadata")).is_none();
}

bool describe_scalar(PyObject* object, size_t most, InlineArray* out) {
  if (PyObject_TypeCheck(object, &PyGenericArrType_Type) == 0) return false;
  PyArray_Descr* const descr = PyArray_DescrFromScalar(object);
  const nb::object owner = owned(reinterpret_cast<PyObject*>(descr));
  const auto nbytes = static_cast<size_t>(PyDataType_ELSIZE(descr));
  if (!is_number(descr->type_num) || descr->typeobj != Py_TYPE(object) || nbytes >= most) return false;
  PyArray_ScalarAsCtype(object, out->scalar);
  out->type = descr->type_num;
  out->data = out->scalar;
  out->nbytes = nbytes;
  out->is_scalar = true;
  return true;
}

}  // namespace

bool describe_inline(PyObject* object, size_t most, InlineArray* out) noexcept {
  try {
    if (!is_imported()) return false;
    if (Py_TYPE(object) != &PyArray_Type) return describe_scalar(object, most, out);
    PyArray_Descr* const descr = PyArray_DESCR(as_numpy(object));
    if (!is_number(descr->type_num) || has_metadata(descr)) return false;
  } catch (nb::python_error&) {
    return false;
  }
  PyArrayObject* const x = as_numpy(object);
  PyArray_Descr* const descr = PyArray_DESCR(x);
  constexpr int kFlags = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED;
  if (!PyArray_ISNBO(descr->byteorder)) return false;
  if ((PyArray_FLAGS(x) & kFlags) != kFlags) return false;
  const auto nbytes = static_cast<size_t>(PyArray_NBYTES(x));
  if (nbytes >= most) return false;
  static_assert(sizeof(npy_intp) == sizeof(int64_t));
  out->type = descr->type_num;
  out->ndim = PyArray_NDIM(x);
  out->shape = reinterpret_cast<const int64_t*>(PyArray_DIMS(x));
  out->data = PyArray_BYTES(x);
  out->nbytes = nbytes;
  return true;
}

size_t inline_nbytes(int type, int ndim, const int64_t* shape) {
  constexpr int kMostAxes = 32;  // of NumPy 1
  if (!is_number(type) || ndim > kMostAxes) return SIZE_MAX;
  need_numpy();
  PyArray_Descr* const descr = PyArray_DescrFromType(type);
  const nb::object owner = owned(reinterpret_cast<PyObject*>(descr));
  auto nbytes = static_cast<uint64_t>(PyDataType_ELSIZE(descr));
  for (int i = 0; i < ndim; ++i) {
    if (shape[i] < 0 || __builtin_mul_overflow(nbytes, static_cast<uint64_t>(shape[i]), &nbytes))
      return SIZE_MAX;
  }
  return nbytes;
}

nb::object make_inline_scalar(int type, const char* data) {
  PyArray_Descr* const descr = PyArray_DescrFromType(type);
  const nb::object owner = owned(reinterpret_cast<PyObject*>(descr));
  alignas(16) char element[sizeof(InlineArray::scalar)];
  std::memcpy(element, data, static_cast<size_t>(PyDataType_ELSIZE(descr)));
  return owned(PyArray_Scalar(element, descr, nullptr));
}

nb::object make_inline(const InlineArray& array, bool is_writable) {
  // NumPy's own memory is not aligned so far: the array is a view of a larger one.
  auto room = static_cast<npy_intp>(array.nbytes + kAlignment);
  const nb::object base = owned(PyArray_SimpleNew(1, &room, NPY_UBYTE));
  void* data = PyArray_DATA(as_numpy(base.ptr()));
  data = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(data) + kAlignment - 1) & ~(kAlignment - 1));
  std::memcpy(data, array.data, array.nbytes);
  nb::object made = owned(PyArray_SimpleNewFromData(
      array.ndim, reinterpret_cast<const npy_intp*>(array.shape), array.type, data));
  check_python(PyArray_SetBaseObject(as_numpy(made.ptr()), nb::object(base).release().ptr()));
  if (!is_writable) PyArray_CLEARFLAGS(as_numpy(made.ptr()), NPY_ARRAY_WRITEABLE);
  return made;
}

}  // namespace tenon::python
