// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "python.h"

namespace tenon::python {

// Whether the memory of this NumPy array has moved out of an NDArray, and no other array refers to it.
bool has_moved_memory(PyObject* numpy_array) noexcept;

// For code that makes a second array over bytes that other arrays may have, with a queue of its own.
void note_second_queue() noexcept;

void add_ownership(nb::module_& module);

}  // namespace tenon::python
