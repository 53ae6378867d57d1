// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "numpy_lend.h"

namespace tenon::python {

// Which code may write to a NumPy array while its memory is lent.
enum class LendMode {
  kReadonly,  // the borrower: the array's flag is cleared while it is lent
  kWritable,  // both
  kMove,      // the borrower, for ever: nothing else refers to the array
};

// x's memory as an array. Requires: x is a NumPy array. Throws TypeError, ValueError.
Array lend_numpy(nb::handle x, LendMode mode, LentBy by = LentBy::kTenon);

// Both return an empty Array if object is no NumPy array, and import NumPy only if object may be one. The
// first shares the memory and refuses what cannot be shared; the second copies byte-swapped and unaligned
// arrays.
Array share_if_numpy(nb::handle object, LendMode mode = LendMode::kWritable);
Array read_if_numpy(nb::handle object);

// object is of a subclass of numpy.ndarray that decides itself what __dlpack__ exports.
bool overrides_dlpack(nb::handle object);

// Throws TypeError if value is a NumPy array whose values are not in its memory, such as a masked array, or a
// list or tuple with one. NumPy would read its memory. lend_numpy() checks its array itself.
void check_values(nb::handle value, int depth = 0);

void add_from_numpy(nb::module_& module);

}  // namespace tenon::python
