// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "python.h"

namespace tenon::python {

// Takes part in the waits of the C library.
void add_waiting(nb::module_& module);

// (message, op, site, code, exception or None).
nb::object describe_failure(const tenon_failure* failure);
// The same, or None. Takes over the failure.
nb::object failure_tuple(tenon_failure* failure);

// Leases, and ops whose bodies are Python's or native functions.
void add_leases(nb::module_& module);
void add_ops(nb::module_& module);

}  // namespace tenon::python
