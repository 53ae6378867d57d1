// SPDX-License-Identifier: Apache-2.0
//
// The one exception type inside the library, and helpers to build its message. A message says what was
// wrong, with the values, and what to do. The boundary (capi/boundary.h) turns an Error into a status.
#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>

#include "tenon/tenon.h"

namespace tenon::impl {

enum class Code : int32_t {
  kValue = TENON_ERR_VALUE,
  kType = TENON_ERR_TYPE,
  kBuffer = TENON_ERR_BUFFER,
  kIndex = TENON_ERR_INDEX,
  kNoMemory = TENON_ERR_NO_MEMORY,
  kNotFound = TENON_ERR_NOT_FOUND,
  kTimeout = TENON_ERR_TIMEOUT,
  kClosed = TENON_ERR_CLOSED,
  kOp = TENON_ERR_OP,
  kSystem = TENON_ERR_SYSTEM,
  kInternal = TENON_ERR_INTERNAL,
  kLeaseConflict = TENON_ERR_LEASE_CONFLICT,
  kLeaseEscaped = TENON_ERR_LEASE_ESCAPED,
  kDeadlock = TENON_ERR_DEADLOCK,
  kMoved = TENON_ERR_MOVED,
  kInterrupted = TENON_ERR_INTERRUPTED,
  kOwnerDied = TENON_ERR_OWNER_DIED,
  kGone = TENON_ERR_GONE,
};

class Error : public std::exception {
 public:
  Error(Code code, std::string message, int32_t op_code = 0)
      : code_(code), op_code_(op_code), message_(std::move(message)) {}

  Code code() const noexcept { return code_; }
  // With Code::kOp the result of the user's function, with Code::kOwnerDied the pid of the process,
  // with Code::kGone the reason (TENON_GONE_*).
  int32_t op_code() const noexcept { return op_code_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  Code code_;
  int32_t op_code_;
  std::string message_;
};

namespace detail {
inline std::string text_of(std::string_view s) { return std::string(s); }
inline std::string text_of(char c) { return std::string(1, c); }
std::string text_of(double value);
template <std::integral T>
std::string text_of(T value) {
  return std::to_string(value);
}
}  // namespace detail

// Joins strings, characters and numbers to one text.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string text;
  (text.append(detail::text_of(parts)), ...);
  return text;
}

// "(2, 3)", "(4,)", "()": a shape as Python prints it.
std::string shape_text(std::span<const int64_t> shape);
// "strides of (3, 1) elements": Python counts strides in bytes.
std::string strides_text(std::span<const int64_t> strides);

// "0x7f00deadbeef".
std::string address_text(const void* address);

template <class... Parts>
Error make_error(Code code, const Parts&... parts) {
  return Error(code, concat(parts...));
}
template <class... Parts>
[[noreturn]] void throw_error(Code code, const Parts&... parts) {
  throw make_error(code, parts...);
}

}  // namespace tenon::impl
