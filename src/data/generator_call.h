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

// Returns the result of call(). If it throws, the result is -1 and the message says so. If it ends its
// thread, calls at_end().
template <class Call, class AtEnd>
int32_t call_checked(char* message, size_t message_size, Call call, AtEnd at_end) {
  int32_t code = -1;
  try {
    call_foreign([&] { code = call(); }, at_end);
  } catch (...) {
    if (is_end_of_thread()) throw;
    std::snprintf(message, message_size, "a C++ exception left it");
  }
  message[message_size - 1] = '\0';
  return code;
}

// "returned 3", or "failed": an exception, which a message describes, has no code.
inline std::string failed_text(int32_t code, const char* message) {
  return code == -1 && message[0] != '\0' ? "failed" : concat("returned ", code);
}

}  // namespace tenon::impl
