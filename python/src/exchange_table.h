// SPDX-License-Identifier: Apache-2.0
//
// The C exchange table of DLPack: that of NDArray, and the search for those of other types.
#pragma once

#include "python.h"
#include "tenon/feed.hpp"

namespace tenon::python {

// What is known of a type.
struct Exchange {
  PyTypeObject* type = nullptr;
  const DLPackExchangeAPI* table = nullptr;  // nullptr: use __dlpack__
  bool has_grad = false;                     // instances have requires_grad, as PyTorch's
  bool is_torch = false;                     // a class of PyTorch's tensors
  bool has_lazy_bits = false;                // instances have is_conj() and is_neg()
};

// Looked up once for each frequent type. The table is not used for subclasses that override
// __dlpack__ or intercept calls.
Exchange exchange_of(PyTypeObject* type);

// A PyTorch tensor on the memory of an array, for code that does not write to it.
nb::object tensor_for_read(const Array& array);
// PyTorch tensors on the fields of a batch, which need no NDArrays. trust: as of NDArray.torch().
nb::object tensors_of_batch(const Batch& batch, bool trust);

// Adds __dlpack_c_exchange_api__ to NDArray.
void add_exchange_table(nb::module_& module);

}  // namespace tenon::python
