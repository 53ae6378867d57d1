// SPDX-License-Identifier: Apache-2.0
#include "counts.h"

#include <array>
#include <string_view>

#include "frames.h"

namespace tenon::python {
namespace {

constexpr std::array<const char*, 3> kNames = {"owned", "lent", "strict"};
Counting chosen = Counting::kStrict;  // under the GIL

void set_counting(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name != kNames[i]) continue;
    chosen = Counting{static_cast<int>(i)};
    forget_names();
    return;
  }
  raise(PyExc_ValueError, "a way of counting is one of 'owned', 'lent' and 'strict'");
}

Py_ssize_t references(const nb::list& holder) {
  PyObject* const object = PyList_GetItem(holder.ptr(), PyList_Size(holder.ptr()) - 1);
  if (object == nullptr) nb::raise_python_error();
  return references_to(object) - 1;
}

}  // namespace

Counting counting() noexcept { return chosen; }

void add_counts(nb::module_& module) {
  module.def(
      "set_counting", [](const nb::str& name) { set_counting(text_of(name)); }, nb::arg("name"),
      "How references of variables are counted: 'owned', 'lent' or 'strict' (python/src/counts.h).");
  module.def(
      "counting", [] { return kNames[static_cast<size_t>(chosen)]; }, "What set_counting() was given.");
  module.def(
      "references", references, nb::arg("holder"), nb::sig("def references(holder: list[Any]) -> int"),
      "The references to the last object of a list besides that of the list. The object is no argument,\n"
      "because some versions of Python count those and others do not.");
}

}  // namespace tenon::python
