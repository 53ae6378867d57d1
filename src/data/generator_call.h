// SPDX-License-Identifier: Apache-2.0
//
// Calls of the functions of generators and plug-ins.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "base/error.h"
#include "base/foreign_call.h"
#include "tenon/tenon.h"

namespace tenon::impl {

// Returns the result of call(). If it throws or ends its thread, the result is -1 and the message says so.
template <class Call>
int32_t call_checked(char* message, size_t message_size, Call call) noexcept {
  int32_t code = -1;
  const auto run = [&] { code = call(); };
  try {
    if (!has_returned(run)) std::snprintf(message, message_size, "%s", kEndedThread);
  } catch (...) {
    std::snprintf(message, message_size, "a C++ exception left it");
  }
  message[message_size - 1] = '\0';
  return code;
}

// "returned 3", or "failed": an exception or the end of a thread, which a message describes, has no code.
inline std::string failed_text(int32_t code, const char* message) {
  return code == -1 && message[0] != '\0' ? "failed" : concat("returned ", code);
}

// Calls fill or prepare of a generator.
inline int32_t call_generator(tenon_fill_function function, void* context, const tenon_fill_request& request,
                              char* message, size_t message_size) noexcept {
  return call_checked(message, message_size,
                      [&] { return function(context, &request, message, message_size); });
}

}  // namespace tenon::impl
