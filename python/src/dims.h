// SPDX-License-Identifier: Apache-2.0
//
// Shapes and axes from Python's ints, tuples and lists.
#pragma once

#include <array>
#include <span>

#include "python.h"

namespace tenon::python {

// At most TENON_MAX_NDIM numbers.
class Dims {
 public:
  // An int, or a sequence of ints; ints are whatever has __index__. what names it in messages.
  Dims(nb::handle source, const char* what);
  // For functions that are called as f((2, 3)) or f(2, 3).
  static Dims of_arguments(const nb::args& arguments, const char* what);

  std::span<const int64_t> span() const noexcept { return {values_.data(), n_}; }
  Shape shape() const noexcept { return span(); }
  int32_t size() const noexcept { return static_cast<int32_t>(n_); }
  int64_t operator[](size_t i) const noexcept { return values_[i]; }

 private:
  size_t n_ = 0;
  std::array<int64_t, TENON_MAX_NDIM> values_;
};

}  // namespace tenon::python
