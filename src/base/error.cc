// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

#include <cinttypes>
#include <cstdio>

namespace tenon::impl {

std::string detail::text_of(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%g", value);
  return buffer;
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  if (shape.size() == 1) text += ',';
  return text += ')';
}

std::string strides_text(std::span<const int64_t> strides) {
  return concat("strides of ", shape_text(strides), " elements");
}

std::string address_text(const void* address) {
  char buffer[24];
  std::snprintf(buffer, sizeof buffer, "0x%" PRIxPTR, reinterpret_cast<uintptr_t>(address));
  return buffer;
}

}  // namespace tenon::impl
