// SPDX-License-Identifier: Apache-2.0
//
// Calls of the functions of generators and plug-ins.
#pragma once

#include <unistd.h>

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

// A start function has returned this number. It must not be sent signals unless it can be that of a worker:
// a number that is not positive is of several processes.
inline bool may_be_worker(int64_t pid) noexcept { return pid > 0 && pid <= INT32_MAX && pid != getpid(); }
inline std::string no_worker_text(int32_t worker, int64_t pid) {
  return concat("worker ", worker, " cannot be process ", pid, ", whose number its start has returned");
}

// Of a start function; the code of an exception is -1, with a text.
inline std::string start_failure_text(int32_t worker, bool has_ended, int32_t code, const char* text) {
  const bool has_text = text[0] != '\0';
  return concat("worker ", worker, has_ended ? " has ended, and is not started again" : " cannot be started",
                code == -1 && has_text ? "" : concat(" (code ", code, ")"), has_text ? ": " : "", text);
}

}  // namespace tenon::impl
