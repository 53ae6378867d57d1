// SPDX-License-Identifier: Apache-2.0
//
// Arguments of functions that CPython calls directly (METH_FASTCALL | METH_KEYWORDS): names are compared by
// address first, because the interpreter interns them.
#pragma once

#include <array>
#include <string>

#include "python.h"

namespace tenon::python {

// The parameters of one function. A static object; N names, of which the first n_positional may also be
// given by position, and the first n_required must be given. advice: what the error for another name adds.
template <size_t N>
class FastParameters {
 public:
  constexpr FastParameters(const char* function, std::array<const char*, N> names, size_t n_positional,
                           size_t n_required, const char* advice = "") noexcept
      : function_(function),
        names_(names),
        n_positional_(n_positional),
        n_required_(n_required),
        advice_(advice) {}

  // Borrowed references; nullptr for arguments that were not given. Throws TypeError.
  std::array<PyObject*, N> parse(PyObject* const* arguments, Py_ssize_t n, PyObject* keywords) {
    std::array<PyObject*, N> values{};
    if (static_cast<size_t>(n) > n_positional_) {
      raise(PyExc_TypeError, "%s() takes at most %zu positional argument%s (%zd given)", function_,
            n_positional_, n_positional_ == 1 ? "" : "s", n);
    }
    for (Py_ssize_t i = 0; i < n; ++i) values[static_cast<size_t>(i)] = arguments[i];
    const Py_ssize_t n_keywords = keywords == nullptr ? 0 : PyTuple_Size(keywords);
    for (Py_ssize_t i = 0; i < n_keywords; ++i)
      take_keyword(PyTuple_GetItem(keywords, i), arguments[n + i], values);
    for (size_t i = 0; i < n_required_; ++i) {
      if (values[i] == nullptr) raise(PyExc_TypeError, "%s() needs the argument '%s'", function_, names_[i]);
    }
    return values;
  }

 private:
  void take_keyword(PyObject* keyword, PyObject* value, std::array<PyObject*, N>& values) {
    size_t at = 0;
    while (at < N && interned_[at] != keyword) ++at;
    for (size_t i = 0; at == N && i < N; ++i) {
      if (interned_[i] == nullptr)
        interned_[i] = owned(PyUnicode_InternFromString(names_[i])).release().ptr();
      if (PyUnicode_Compare(interned_[i], keyword) == 0) at = i;
    }
    if (at == N) {
      std::string known;
      for (const char* const name : names_) known.append(known.empty() ? "" : ", ").append(name);
      raise(PyExc_TypeError, "%s() has no argument '%U': its arguments are %s%s", function_, keyword,
            known.c_str(), advice_);
    }
    if (values[at] != nullptr)
      raise(PyExc_TypeError, "%s() got the argument '%s' twice", function_, names_[at]);
    values[at] = value;
  }

  const char* function_;
  std::array<const char*, N> names_;
  size_t n_positional_;
  size_t n_required_;
  const char* advice_;
  std::array<PyObject*, N> interned_{};
};

// The table entry of a fast function; body returns a new reference or throws.
using FastBody = PyObject* (*)(PyObject* self, PyObject* const* arguments, Py_ssize_t n, PyObject* keywords);
template <FastBody body>
PyObject* fast(PyObject* self, PyObject* const* arguments, Py_ssize_t n, PyObject* keywords) noexcept {
  return guarded([&] { return body(self, arguments, n, keywords); });
}
template <FastBody body>
PyMethodDef fast_method(const char* name, const char* documentation) noexcept {
  const auto function = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&fast<body>));
  return {name, function, METH_FASTCALL | METH_KEYWORDS, documentation};
}

// Adds method, which must live for ever, to the module.
inline void add_function(nb::module_& module, PyMethodDef* method) {
  const nb::object name = module.attr("__name__");
  module.attr(method->ml_name) = owned(PyCFunction_NewEx(method, module.ptr(), name.ptr()));
}

}  // namespace tenon::python
