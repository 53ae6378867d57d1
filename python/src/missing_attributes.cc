// SPDX-License-Identifier: Apache-2.0
//
// Attributes of NumPy's arrays that NDArrays do not have: the AttributeError names the expression that works.
// Each is a descriptor that raises. A hook of the type for missing attributes would cost every call of a
// method that exists. hasattr(a, name) is False, and dir(a) does not list them.
#include <array>

#include "ndarray_parts.h"

namespace tenon::python {
namespace {

struct Missing {
  const char* name;
  const char* use;
};

constexpr std::array kMissing{
    Missing{"all", "np.all(a)"},
    Missing{"any", "np.any(a)"},
    Missing{"argmax", "np.argmax(a)"},
    Missing{"argmin", "np.argmin(a)"},
    Missing{"argpartition", "np.argpartition(a, ...)"},
    Missing{"argsort", "np.argsort(a)"},
    Missing{"byteswap", "np.asarray(a).byteswap()"},
    Missing{"clip", "np.clip(a, ...)"},
    Missing{"conj", "np.conj(a)"},
    Missing{"conjugate", "np.conjugate(a)"},
    Missing{"cumprod", "np.cumprod(a)"},
    Missing{"cumsum", "np.cumsum(a)"},
    Missing{"diagonal", "np.diagonal(a)"},
    Missing{"dot", "np.dot(a, ...)"},
    Missing{"flat", "np.asarray(a).flat"},
    Missing{"flatten", "np.asarray(a).flatten()"},
    Missing{"imag", "np.imag(a)"},
    Missing{"mT", "np.asarray(a).mT"},
    Missing{"nonzero", "np.nonzero(a)"},
    Missing{"partition", "np.asarray(a).partition(...)"},
    Missing{"prod", "np.prod(a)"},
    Missing{"put", "np.put(a, ...)"},
    Missing{"real", "np.real(a)"},
    Missing{"repeat", "np.repeat(a, ...)"},
    Missing{"round", "np.round(a)"},
    Missing{"searchsorted", "np.searchsorted(a, ...)"},
    Missing{"sort", "np.asarray(a).sort()"},
    Missing{"squeeze", "np.squeeze(a)"},
    Missing{"std", "np.std(a)"},
    Missing{"swapaxes", "np.swapaxes(a, ...)"},
    Missing{"take", "np.take(a, ...)"},
    Missing{"tofile", "np.asarray(a).tofile(...)"},
    Missing{"trace", "np.trace(a)"},
    Missing{"var", "np.var(a)"},
};

PyObject* raise_missing(PyObject* self, void* closure) noexcept {
  const Missing& missing = *static_cast<const Missing*>(closure);
  PyObject* const text =
      PyUnicode_FromFormat("'tenon.NDArray' object has no attribute '%s': use %s", missing.name, missing.use);
  PyObject* const arguments = text == nullptr ? nullptr : Py_BuildValue("(N)", text);
  PyObject* const named = Py_BuildValue("{s:s,s:O}", "name", missing.name, "obj", self);
  if (arguments != nullptr && named != nullptr) {
    PyObject* const error = PyObject_Call(PyExc_AttributeError, arguments, named);
    if (error != nullptr) PyErr_SetObject(PyExc_AttributeError, error);
    Py_XDECREF(error);
  }
  Py_XDECREF(arguments);
  Py_XDECREF(named);
  return nullptr;
}

int refuse_missing(PyObject* self, PyObject*, void* closure) noexcept {
  (void)raise_missing(self, closure);
  return -1;
}

PyObject* list_attributes(PyObject* self, PyObject*) noexcept {
  PyObject* const names =
      PyObject_CallMethod(reinterpret_cast<PyObject*>(&PyBaseObject_Type), "__dir__", "O", self);
  if (names == nullptr) return nullptr;
  for (Py_ssize_t i = PyList_Size(names); i-- > 0;) {
    PyObject* const name = PyList_GetItem(names, i);
    for (const Missing& missing : kMissing) {
      if (PyUnicode_CompareWithASCIIString(name, missing.name) != 0) continue;
      if (PyList_SetSlice(names, i, i + 1, nullptr) == 0) break;
      Py_DECREF(names);
      return nullptr;
    }
  }
  return names;
}

}  // namespace

void add_missing_attributes(Parts& parts) {
  for (const Missing& missing : kMissing) {
    parts.attributes.push_back({missing.name, raise_missing, refuse_missing, "Not an attribute of NDArrays.",
                                const_cast<Missing*>(&missing)});
  }
  parts.methods.push_back({"__dir__", list_attributes, METH_NOARGS, nullptr});
}

}  // namespace tenon::python
