// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"

#include <algorithm>

namespace tenon::impl {
namespace {

// The size of the first character of a text in UTF-8; 0: it is malformed, or a control character.
size_t character_size(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0; };
  const auto goes_on = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const unsigned head = byte(0);
  if (head < 0x80) return head >= 0x20 || head == '\n' || head == '\t' ? 1 : 0;
  if (head < 0xC2 || head > 0xF4 || !goes_on(1)) return 0;
  if (head < 0xE0) return 2;
  const unsigned second = byte(1);
  if (!goes_on(2) || (head == 0xE0 && second < 0xA0) || (head == 0xED && second > 0x9F)) return 0;
  if (head < 0xF0) return 3;
  return goes_on(3) && !(head == 0xF0 && second < 0x90) && !(head == 0xF4 && second > 0x8F) ? 4 : 0;
}

}  // namespace

std::string readable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t size = character_size(text);
    size > 0 ? result.append(text.substr(0, size)) : result.append("?");
    text.remove_prefix(std::max<size_t>(size, 1));
  }
  return result;
}

}  // namespace tenon::impl
