// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tenon::impl {

inline constexpr size_t kMessageSize = 4096;  // ends with NUL

// Why a batch cannot be delivered. Plain data.
struct TicketFailure {
  int32_t kind = 0;
  int32_t code = 0;
  int32_t worker = -1;
  int64_t pid = 0;
  int32_t exit_signal = 0;
  int32_t exit_code = -1;
  int32_t was_begun = 1;  // no bool: it lies in memory that other processes write
  char message[kMessageSize] = "";

  void set_message(const char* text) noexcept {
    std::strncpy(message, text, sizeof message - 1);
    message[sizeof message - 1] = '\0';
  }
};

}  // namespace tenon::impl
