// SPDX-License-Identifier: Apache-2.0
//
// The parts of the type NDArray (ndarray_type.cc) by the files that define them, and the methods that
// nanobind adds to it afterwards. The functions of the module that make arrays are declared here, too.
#pragma once

#include <vector>

#include "python.h"

namespace tenon::python {

struct Parts {
  std::vector<PyType_Slot> slots;
  std::vector<PyMethodDef> methods;
  std::vector<PyGetSetDef> attributes;

  template <class Function>
  void add_slot(int id, Function* function) {
    slots.push_back({id, reinterpret_cast<void*>(function)});
  }
};

void add_attributes(Parts& parts);
void add_missing_attributes(Parts& parts);
void add_indexing(Parts& parts);
void add_operators(Parts& parts);
void add_conversions(Parts& parts);
void add_buffer_protocol(Parts& parts);
void add_dlpack_methods(Parts& parts);
void add_block_methods(Parts& parts);

// Raises the error of the last refused buffer again, if it was one of the array.
void raise_refused_buffer(PyObject* array);

// Whether raise_refused_buffer() would raise.
bool has_refused_buffer(PyObject* array) noexcept;

// These need the type to exist.
void add_window_methods(nb::module_& module);
void add_element_methods(nb::module_& module);
void add_exchange_methods(nb::module_& module);
void add_conversion_methods();
void add_arrow_export();
void add_devices(nb::module_& module);
void add_memory(nb::module_& module);
void add_share(nb::module_& module);
void add_trace(nb::module_& module);
void add_arena(nb::module_& module);
void add_channel(nb::module_& module);
void add_tensor_pool(nb::module_& module);

}  // namespace tenon::python
