// SPDX-License-Identifier: Apache-2.0
//
// For tests: the Error that a call throws.
#pragma once

#include <optional>
#include <string>

#include "base/error.h"

namespace tenon::impl {

template <class Call>
std::optional<Error> error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

// Code{0} if the call throws none. message and op_code are set if it throws one.
template <class Call>
Code code_of(Call&& call, std::string* message = nullptr, int32_t* op_code = nullptr) {
  const std::optional<Error> error = error_of(call);
  if (error && message != nullptr) *message = error->what();
  if (error && op_code != nullptr) *op_code = error->op_code();
  return error ? error->code() : Code{0};
}

// "" if the call throws none.
template <class Call>
std::string message_of(Call&& call) {
  const std::optional<Error> error = error_of(call);
  return error ? error->what() : "";
}

}  // namespace tenon::impl
