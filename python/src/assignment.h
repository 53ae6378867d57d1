// SPDX-License-Identifier: Apache-2.0
//
// Assignments a[...] = x, where x is a number, an array of any library or a list. The numbers of Python in x
// must fit the dtype. Arrays and NumPy's scalars have a dtype of their own and are cast as C does.
#pragma once

#include "python.h"

namespace tenon::python {

bool is_integer(DType dtype);
// Requires is_integer(dtype).
bool fits(int64_t value, DType dtype);

// destination[...] = value, broadcast and cast. Throws ValueError (read-only, shapes, NaN to integers),
// TypeError (complex to real), OverflowError (a number that an integer dtype cannot hold), before it writes.
void assign(const Array& destination, nb::handle value);

// Throws unless dtype holds each number of Python in value: a number, or nested lists. Other values pass.
void check_assignable(nb::handle value, DType dtype);

// value as an array, on its own memory where possible; read-only where its producer cannot say that it is
// writable. A NumPy array stays writable itself; a byte-swapped or unaligned one is copied.
// dtype: what the caller casts the array to, or null. The numbers of Python in value must fit it.
Array array_from(nb::handle value, const DType* dtype = nullptr);
}  // namespace tenon::python
