// SPDX-License-Identifier: Apache-2.0
//
// NumPy's dtypes for files that do not see NumPy's C API.
#pragma once

#include "python.h"

namespace tenon::python {

// The numpy.dtype of an element type. Throws TypeError where NumPy (with ml_dtypes) has none.
nb::object numpy_dtype_object(DType dtype);

// The element type of anything that numpy.dtype() takes. Throws TypeError.
DType dtype_from_numpy_object(nb::handle source);

}  // namespace tenon::python
