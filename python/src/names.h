// SPDX-License-Identifier: Apache-2.0
//
// Which references to an object are plain names: variables, containers, cells of closures, attributes of
// instances of Python classes, variables of suspended generators and of finished functions in tracebacks. Of
// variables, only those that count (counts.h).
// A plain name gives code the object and nothing else. Any other reference, of a tensor, a memoryview,
// a capsule, or on the evaluation stack of a function that another thread runs, may stand beside an address
// that was taken from the object before.
#pragma once

#include "python.h"

namespace tenon::python {

enum class NameSearch : int {
  kNearby,    // variables of this thread's functions, what those refer to, and on a traceback; microseconds
  kThorough,  // all threads, and all objects that the garbage collector knows; milliseconds
};

// If all references to the ended array in holder are plain names, but for that of holder, a list of it
// alone that belongs to the caller: makes the array release the memory, and empties the list. (A list,
// because some versions of Python count the arguments of a call and others do not.) No other code runs
// between the count and the release. False: there are other references, or that cannot be found out.
// Requires the GIL; may run a collection, and with it finalizers, before it counts. Throws
// nb::python_error. traceback: null, or of the exception in flight. frame: null, or of the block that ends.
bool release_if_named(PyObject* holder, PyObject* traceback, NameSearch search, PyObject* frame);

// Makes ended views release their memory if only names refer to them by now (tenon/_sync/endings.py).
// Requires the GIL. Throws nb::python_error.
void release_retained();

// Whether a view of a block that wrote may have outlived it and show bytes of the NDArray. Requires the GIL.
bool has_outlived_views(PyObject* array) noexcept;

void add_names(nb::module_& module);

}  // namespace tenon::python
