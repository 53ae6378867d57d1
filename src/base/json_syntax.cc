// SPDX-License-Identifier: Apache-2.0
#include "base/json_syntax.h"

#include <algorithm>
#include <cstddef>

namespace tenon::impl {
namespace {

constexpr int kDeepest = 100;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

// Each function takes what it is named after from the head of the text; false: it is not there.
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

bool is_json_object(std::string_view text) noexcept { return Reader(text).whole_object(); }

}  // namespace tenon::impl
