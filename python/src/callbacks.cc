// SPDX-License-Identifier: Apache-2.0
#include "callbacks.h"

#include <array>

#include "errors.h"

namespace tenon::python {
namespace {

constexpr size_t kCount = static_cast<size_t>(Callback::kCount);

constexpr std::array<const char*, kCount> kNames = {
    "TenonError",
    "LeaseConflict",
    "LeaseEscaped",
    "DeadlockError",
    "MovedError",
    "OpError",
    "OwnerDied",
    "MessageGone",
    "copied_error",
    "op_error",
    "array_repr",
    "array_html",
    "array_format",
    "reduce_array",
    "array_ctypes",
    "array_function",
    "to_jax",
    "as_jax",
    "mxnet_context",
    "as_in_mxnet_context",
    "write_field",
    "lease",
    "leases",
    "enter_block",
    "enter_later",
    "nothing_later",
    "check_on_died",
    "give_back",
    "text_of",
    "end_views",
    "check_outlived",
    "warn_of_outlived",
    "release_retained",
    "wait_for_searches",
    "certainty_of",
    "is_one_name",
    "call_body",
    "check_result",
    "where_views_are_kept",
    "end_failed_body",
    "describe_outlived",
    "report_unseen",
    "op",
    "c_function",
    "iterable",
    "fill",
    "copy",
    "cast",
    "policy_of",
    "refuse_generators",
    "promise_of",
    "push_again",
    "drop_views",
    "find_views",
    "report",
    "dumps_parts",
    "loads_parts",
    "note_message",
};

std::array<PyObject*, kCount> table{};  // under the GIL

void set_callbacks(const nb::dict& callbacks) {
  std::array<PyObject*, kCount> given{};
  for (size_t i = 0; i < kCount; ++i) {
    given[i] = PyDict_GetItemString(callbacks.ptr(), kNames[i]);  // borrowed
    if (given[i] == nullptr) raise(PyExc_ValueError, "the callback %s is missing", kNames[i]);
    if (!PyCallable_Check(given[i])) raise(PyExc_TypeError, "the callback %s cannot be called", kNames[i]);
  }
  if (nb::len(callbacks) != kCount) {
    raise(PyExc_ValueError, "%zd callbacks were given, but the extension has %zd", nb::len(callbacks),
          kCount);
  }
  for (size_t i = 0; i < kCount; ++i) {
    PyObject* const former = table[i];
    table[i] = Py_NewRef(given[i]);
    Py_XDECREF(former);
  }
}

}  // namespace

nb::handle callback(Callback which) {
  PyObject* const found = table[static_cast<size_t>(which)];
  if (found == nullptr) {
    raise(PyExc_RuntimeError, "%s is not known yet: import tenon, not tenon._core alone",
          kNames[static_cast<size_t>(which)]);
  }
  return found;
}

void add_callbacks(nb::module_& module) {
  module.def("set_callbacks", set_callbacks, nb::arg("callbacks"),
             nb::sig("def set_callbacks(callbacks: dict[str, Callable[..., Any]]) -> None"),
             "Gives the extension what it calls in Python, all of it by name. For tenon/_callbacks.py.");
}

}  // namespace tenon::python
