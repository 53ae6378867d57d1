// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <cstdio>

namespace tenon::impl {
namespace {

constexpr uint32_t kReplacement = 0xFFFD;  // of what is no UTF-8

// The first character of a text that is not empty, and its bytes.
uint32_t first_of(std::string_view text, size_t* nbytes) noexcept {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const uint32_t lead = byte(0);
  *nbytes = 1;
  if (lead < 0x80) return lead;
  const size_t n = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (lead < 0xC0 || lead >= 0xF8 || text.size() < n) return kReplacement;
  uint32_t code = lead & (0x7F >> n);
  for (size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return kReplacement;
    code = code << 6 | (byte(i) & 0x3F);
  }
  if (code < kLeast[n] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return kReplacement;
  *nbytes = n;
  return code;
}

}  // namespace

void Json::quote(std::string_view value) {
  const auto escape = [this](uint32_t unit) {
    char escaped[8];
    std::snprintf(escaped, sizeof escaped, "\\u%04x", unit & 0xFFFF);
    text_ += escaped;
  };
  text_ += '"';
  while (!value.empty()) {
    size_t nbytes = 0;
    const uint32_t code = first_of(value, &nbytes);
    value.remove_prefix(nbytes);
    if (code == '"' || code == '\\') text_ += '\\';
    if (code >= 0x20 && code < 0x7F) {
      text_ += static_cast<char>(code);
    } else if (code < 0x10000) {
      escape(code);
    } else {
      escape(0xD800 + ((code - 0x10000) >> 10));
      escape(0xDC00 + ((code - 0x10000) & 0x3FF));
    }
  }
  text_ += '"';
}

}  // namespace tenon::impl
