// SPDX-License-Identifier: Apache-2.0
//
// Small arrays and scalars of NumPy inside of the bytes of a message (message_format.h).
#pragma once

#include <cstdint>

#include "python.h"

namespace tenon::python {

struct InlineArray {
  int type = 0;  // NumPy's number
  int ndim = 0;
  const int64_t* shape = nullptr;
  const char* data = nullptr;
  size_t nbytes = 0;
  bool is_scalar = false;
  alignas(16) char scalar[32];  // its element
};

// Describes a NumPy array, not of a subclass, of numbers in the byte order of the machine, in C order, of
// fewer than `most` bytes; or such a scalar. False: the object is none.
bool describe_inline(PyObject* object, size_t most, InlineArray* out) noexcept;

// The bytes of the elements; SIZE_MAX: there is no such array.
size_t inline_nbytes(int type, int ndim, const int64_t* shape);

// A new array, aligned to 64 bytes. Requires: inline_nbytes() has accepted it.
nb::object make_inline(const InlineArray& array, bool is_writable);
nb::object make_inline_scalar(int type, const char* data);

}  // namespace tenon::python
