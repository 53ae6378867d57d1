// SPDX-License-Identifier: Apache-2.0
//
// The kinds of access to memory, reading and writing, and their words in messages.
#pragma once

#include <cstdint>

#include "tenon/core.h"

namespace tenon::impl {

enum class Access : uint8_t { kRead = TENON_READ, kWrite = TENON_WRITE };

// True if two accesses to the same bytes conflict.
constexpr bool in_conflict(Access a, Access b) noexcept { return a == Access::kWrite || b == Access::kWrite; }

// The right to write includes the right to read.
constexpr bool includes(Access granted, Access wanted) noexcept {
  return granted == Access::kWrite || wanted == Access::kRead;
}

// "to read it", "for reading", "that reads it".
constexpr const char* infinitive(Access access) noexcept {
  return access == Access::kWrite ? "write" : "read";
}
constexpr const char* gerund(Access access) noexcept {
  return access == Access::kWrite ? "writing" : "reading";
}
constexpr const char* third_person(Access access) noexcept {
  return access == Access::kWrite ? "writes" : "reads";
}

}  // namespace tenon::impl
