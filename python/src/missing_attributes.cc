// SPDX-License-Identifier: Apache-2.0
//
// Attributes of NumPy's arrays that NDArrays do not have: the AttributeError names an expression that works.
// Each is a descriptor that raises. A hook of the type for missing attributes would slow down every call of a
// method that exists. hasattr(a, name) is False, and dir(a) does not list them.
#include <algorithm>
#include <span>
#include <string_view>

#include "ndarray_parts.h"

namespace tenon::python {
namespace {

constexpr const char* kFunctions[] = {
    "all",  "any",     "argmax", "argmin", "argsort", "conj",    "conjugate", "cumprod", "cumsum", "diagonal",
    "imag", "nonzero", "prod",   "real",   "round",   "squeeze", "std",       "trace",   "var"};
constexpr const char* kFunctionsOfMore[] = {"argpartition", "clip",         "dot",      "put",
                                            "repeat",       "searchsorted", "swapaxes", "take"};
constexpr const char* kMembers[] = {"flat", "mT"};
// An array that is made from an address would not hold the memory (docs/numpy.md).
constexpr const char* kInterfaces[] = {"__array_interface__"};
constexpr const char* kMethods[] = {"byteswap", "flatten", "sort"};
constexpr const char* kMethodsOfMore[] = {"partition", "tofile"};

struct Missing {
  const char* use;  // a format with the name
  std::span<const char* const> names;
};
constexpr Missing kMissing[] = {
    {"np.%s(a)", kFunctions},
    {"np.%s(a, ...)", kFunctionsOfMore},
    {"np.asarray(a).%s", kMembers},
    {"np.asarray(a) in place of a, as in PIL.Image.fromarray(np.asarray(a))", kInterfaces},
    {"np.asarray(a).%s()", kMethods},
    {"np.asarray(a).%s(...)", kMethodsOfMore}};

// Null for the name of another attribute.
const char* use_of(std::string_view name) noexcept {
  for (const Missing& missing : kMissing) {
    if (std::ranges::find(missing.names, name) != missing.names.end()) return missing.use;
  }
  return nullptr;
}

// Without an exception of C++: NumPy asks each array for its __array_interface__.
void set_missing_error(PyObject* self, const char* name) {
  const nb::object use = owned(PyUnicode_FromFormat(use_of(name), name));
  const nb::object text =
      owned(PyUnicode_FromFormat("'tenon.NDArray' object has no attribute '%s': use %U", name, use.ptr()));
  const nb::object error = owned(PyObject_CallFunctionObjArgs(PyExc_AttributeError, text.ptr(), nullptr));
  const nb::str attribute(name);
  check_python(PyObject_SetAttrString(error.ptr(), "name", attribute.ptr()));
  check_python(PyObject_SetAttrString(error.ptr(), "obj", self));
  PyErr_SetObject(PyExc_AttributeError, error.ptr());
}

PyObject* get_missing(PyObject* self, void* name) noexcept {
  return guarded([&]() -> PyObject* {
    set_missing_error(self, static_cast<const char*>(name));
    return nullptr;
  });
}

int set_missing(PyObject* self, PyObject*, void* name) noexcept {
  return guarded([&]() -> int {
    set_missing_error(self, static_cast<const char*>(name));
    return -1;
  });
}

PyObject* list_attributes(PyObject* self, PyObject*) noexcept {
  return guarded([self] {
    const nb::handle object(reinterpret_cast<PyObject*>(&PyBaseObject_Type));
    nb::list names;
    for (nb::handle name : nb::object(object.attr("__dir__")(nb::handle(self)))) {
      if (use_of(text_of(name)) == nullptr) names.append(name);
    }
    return names.release().ptr();
  });
}

}  // namespace

void add_missing_attributes(Parts& parts) {
  for (const Missing& missing : kMissing) {
    for (const char* const name : missing.names) {
      parts.attributes.push_back(
          {name, get_missing, set_missing, "Not an attribute of NDArrays.", const_cast<char*>(name)});
    }
  }
  parts.methods.push_back({"__dir__", list_attributes, METH_NOARGS, nullptr});
}

}  // namespace tenon::python
