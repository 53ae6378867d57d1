// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "python.h"

namespace tenon::python {

// Sets the Python exception that means the same as error. For callbacks that neither throw nor return one.
void set_error(const Error& error) noexcept;

// Lets functions bound by nanobind throw Error.
void add_errors(nb::module_& module);

}  // namespace tenon::python
