// SPDX-License-Identifier: Apache-2.0
//
// Calls of a generator's functions.
#pragma once

#include <cstdint>
#include <cstdio>

#include "base/foreign_call.h"
#include "tenon/tenon.h"

namespace tenon::impl {

using GeneratorEntry = int32_t (*)(void* context, const tenon_fill_request* request, char* message,
                                   size_t message_size);

// Calls fill or prepare of a generator. It may neither throw nor end its thread; where it does, the result is
// -1 and the message says so.
inline int32_t call_generator(GeneratorEntry entry, void* context, const tenon_fill_request& request,
                              char* message, size_t message_size) noexcept {
  int32_t code = -1;
  const auto run = [&] { code = entry(context, &request, message, message_size); };
  try {
    if (!has_returned(run)) std::snprintf(message, message_size, "%s", kEndedThread);
  } catch (...) {
    std::snprintf(message, message_size, "a C++ exception left it, which no generator may let happen");
  }
  message[message_size - 1] = '\0';
  return code;
}

}  // namespace tenon::impl
