// SPDX-License-Identifier: Apache-2.0
//
// Methods that nanobind binds to the hand-written type NDArray.
#pragma once

#include <utility>

#include "ndarray.h"

namespace tenon::python {

template <class Function, class... Extra>
void def_method(const char* name, Function&& function, const Extra&... extra) {
  nb::cpp_function_def(std::forward<Function>(function),
                       nb::scope(nb::handle(reinterpret_cast<PyObject*>(ndarray_type))), nb::name(name),
                       nb::is_method(), extra...);
}

}  // namespace tenon::python
