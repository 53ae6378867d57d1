// SPDX-License-Identifier: Apache-2.0
//
// Parses one C prototype, as "int fill(float *data, const int64_t *label, size_t n);". Accepts types that
// can be passed as a pointer, an integer or a floating-point number: the arithmetic types of C99, the
// names of stdint.h, size_t, ssize_t, ptrdiff_t, bool, pointers to them and void pointers, pointers to other
// types and structs as handles, array parameters, const and restrict. No other typedefs, no structs by value,
// no function pointers, no varargs, no preprocessor. The grammar is a part of C11 6.7.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "array/dtype.h"

namespace tenon::impl {

// The most parameters that a prototype may have.
inline constexpr int kMaxParameters = 32;

// A parameter or a result.
struct Parameter {
  std::string name;      // empty when the prototype gives none
  DType dtype{0, 0, 0};  // of the number, or of what the pointer points to; zero for void
  bool is_pointer = false;
  bool is_const = false;   // pointers: the function reads only
  bool is_void = false;    // void *, or no result, or:
  std::string opaque;      // the name of an unknown type to which it points: a handle, which is an address
  bool is_status = false;  // a result of type int

  bool is_floating() const { return !is_pointer && dtype.code == TENON_FLOAT; }
  bool is_integer() const { return !is_pointer && !is_void && dtype.code != TENON_FLOAT; }
  // "const float32 *", "int64": for messages.
  std::string type_text() const;
};

struct Prototype {
  std::string text;  // as given, with every run of white space as one space, no semicolon
  std::string name;
  Parameter result;
  std::vector<Parameter> parameters;
};

// Fails with kValue; the message shows the prototype and marks the place.
Prototype parse_prototype(std::string_view text);

}  // namespace tenon::impl
