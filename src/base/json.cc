// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>

namespace tenon::impl {
namespace {

constexpr uint32_t kReplacement = 0xFFFD;  // for bytes that are not UTF-8

// The first character of a non-empty text; *nbytes gets its length.
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

constexpr int kDeepest = 100;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

// Each function removes the element that it is named after from the start of the text. False: the text does
// not start with one.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool whole_object() { return object(0) && text_.empty(); }

 private:
  bool take(char c) {
    if (!text_.starts_with(c)) return false;
    text_.remove_prefix(1);
    return true;
  }

  bool take(std::string_view word) {
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }

  void blanks() { text_.remove_prefix(std::min(text_.find_first_not_of(" \t\r\n"), text_.size())); }

  bool take_token(char c) {
    blanks();
    const bool is_there = take(c);
    blanks();
    return is_there;
  }

  bool digits() {
    const auto end = std::ranges::find_if_not(text_, is_digit);
    const auto n = static_cast<size_t>(end - text_.begin());
    text_.remove_prefix(n);
    return n > 0;
  }

  bool number() {
    (void)take('-');
    if (!take('0') && !digits()) return false;
    if (take('.') && !digits()) return false;
    if (!take('e') && !take('E')) return true;
    if (!take('-')) (void)take('+');
    return digits();
  }

  bool escape() {
    if (text_.empty()) return false;
    const char c = text_.front();
    text_.remove_prefix(1);
    if (c != 'u') return std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos;
    if (text_.size() < 4 || !std::ranges::all_of(text_.substr(0, 4), is_hex)) return false;
    text_.remove_prefix(4);
    return true;
  }

  bool string() {
    if (!take('"')) return false;
    while (!take('"')) {
      if (text_.empty() || static_cast<unsigned char>(text_.front()) < 0x20) return false;
      if (take('\\')) {
        if (!escape()) return false;
      } else {
        text_.remove_prefix(1);
      }
    }
    return true;
  }

  bool member(int depth) { return string() && take_token(':') && value(depth); }

  bool object(int depth) {
    if (depth == kDeepest || !take_token('{')) return false;
    if (take_token('}')) return true;
    do {
      if (!member(depth + 1)) return false;
    } while (take_token(','));
    return take_token('}');
  }

  bool list(int depth) {
    if (depth == kDeepest || !take_token('[')) return false;
    if (take_token(']')) return true;
    do {
      if (!value(depth + 1)) return false;
    } while (take_token(','));
    return take_token(']');
  }

  bool value(int depth) {
    if (text_.starts_with('{')) return object(depth);
    if (text_.starts_with('[')) return list(depth);
    if (text_.starts_with('"')) return string();
    return take("true") || take("false") || take("null") || number();
  }

  std::string_view text_;
};

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

bool is_json_object(std::string_view text) noexcept { return Reader(text).whole_object(); }

}  // namespace tenon::impl
