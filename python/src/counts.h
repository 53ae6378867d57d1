// SPDX-License-Identifier: Apache-2.0
//
// Counts of references, where a decision about memory depends on one. The rest of the extension, and the
// Python code of the package, read no count of their own (tools/check_sources.py).
//
// The rule: a count decides only where every reference that it can miss is excluded. An object, a dictionary,
// a container and a cell own their references, so each of them counts one. From CPython 3.14 on, a function
// pushes a local variable on its evaluation stack without a reference, and such a value may become a
// parameter of the function that it calls. So "nothing but the caller's own references" may be read from a
// count, but "nothing but these variables" only if it is certain that each of them counts one
// (tenon/_sync/counts.py). An uncertain reference keeps memory longer. It never frees, reuses, moves or lends
// memory. docs/dev/counting.md has the reasons.
#pragma once

#include "python.h"

namespace tenon::python {

enum class Counting : int {
  kOwned,   // each variable, and each value on an evaluation stack, counts one
  kLent,    // so does a variable, unless a running instruction may have lent the object without a reference
  kStrict,  // a variable of the block's own frame does, if it is no parameter and was not lent
};

// Of this interpreter, from the import of the package on. Requires the GIL.
Counting counting() noexcept;

// All references to the object that are counted. Requires the GIL.
inline Py_ssize_t references_to(PyObject* object) noexcept { return Py_REFCNT(object); }

void add_counts(nb::module_& module);

}  // namespace tenon::python
