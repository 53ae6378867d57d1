// SPDX-License-Identifier: Apache-2.0
//
// Calls that touch many elements. Large ones run without the GIL.
#pragma once

#include "python.h"

namespace tenon::python {

// The dtype with a counterpart in Python that holds every value of dtype. Throws TypeError for vectors.
DType wide_type_of(DType dtype);

// Warns as NumPy if a cast drops imaginary parts. Throws the warning where warnings are errors.
void check_cast(DType from, DType to);

// New memory in C order, on the device of source.
Array copied(const Array& source, DType dtype);
inline Array copied(const Array& source) { return copied(source, source.dtype()); }

// A writable array with the elements of a read-only one, whose writes nobody else sees: see
// tenon_array_lazy_copy. Empty: it is not of an item that others read.
Array lazy_copy_of_item(const Array& source, bool may_copy = true);
// That, or copied().
Array lazily_copied(const Array& source);

// destination[...] = source, broadcast and cast. Throws ValueError when destination is read-only.
void copy_elements(const Array& source, const Array& destination);

// destination[...] = value, an element of dtype.
void fill_elements(const Array& destination, const void* value, DType dtype);

// Of an axis with more than one element.
inline bool has_negative_stride(const tenon_array_desc& array) noexcept {
  for (int32_t i = 0; i < array.ndim; ++i) {
    if (array.strides[i] < 0 && array.shape[i] > 1) return true;
  }
  return false;
}

// The way out for a caller that would write to a read-only array.
inline constexpr char kHowToWrite[] =
    "write to a.copy(), which is the only way for a frozen array; if the memory is another library's and may "
    "be written, import it with tn.from_dlpack(x, writable=True)";

// Throws ValueError when array is read-only.
void check_writable(const Array& array);

}  // namespace tenon::python
