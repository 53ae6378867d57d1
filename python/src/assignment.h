// SPDX-License-Identifier: Apache-2.0
//
// Assignments a[...] = x, where x is a number, an array of any library or a list.
#pragma once

#include "python.h"

namespace tenon::python {

// destination[...] = value, broadcast and cast. Throws ValueError (read-only, shapes, NaN to integers),
// TypeError, OverflowError (an int that the dtype cannot hold).
void assign(const Array& destination, nb::handle value);

// value as an array, on its own memory where possible; read-only where its producer cannot say that it is
// writable. A NumPy array stays writable itself; a byte-swapped or unaligned one is copied.
Array array_from(nb::handle value);
}  // namespace tenon::python
