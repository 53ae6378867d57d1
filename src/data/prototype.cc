// SPDX-License-Identifier: Apache-2.0
#include "data/prototype.h"

#include <sys/types.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/error.h"

namespace tenon::impl {
namespace {

template <class T>
constexpr DType integer_dtype() {
  return DType(std::numeric_limits<T>::is_signed ? TENON_INT : TENON_UINT, sizeof(T) * 8);
}

struct NamedType {
  std::string_view name;
  DType dtype;
};

constexpr std::array kTypedefs{
    NamedType{"int8_t", DType(TENON_INT, 8)},           NamedType{"int16_t", DType(TENON_INT, 16)},
    NamedType{"int32_t", DType(TENON_INT, 32)},         NamedType{"int64_t", DType(TENON_INT, 64)},
    NamedType{"uint8_t", DType(TENON_UINT, 8)},         NamedType{"uint16_t", DType(TENON_UINT, 16)},
    NamedType{"uint32_t", DType(TENON_UINT, 32)},       NamedType{"uint64_t", DType(TENON_UINT, 64)},
    NamedType{"size_t", integer_dtype<size_t>()},       NamedType{"ssize_t", integer_dtype<ssize_t>()},
    NamedType{"intptr_t", integer_dtype<intptr_t>()},   NamedType{"uintptr_t", integer_dtype<uintptr_t>()},
    NamedType{"intmax_t", integer_dtype<intmax_t>()},   NamedType{"uintmax_t", integer_dtype<uintmax_t>()},
    NamedType{"ptrdiff_t", integer_dtype<ptrdiff_t>()},
};

bool is_word_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_word_part(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// White space of any kind as one space, comments as none, so that a message can point into one line.
std::string one_line(std::string_view text) {
  std::string line;
  bool space = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i, 2) == "/*") {
      const size_t end = text.find("*/", i + 2);
      i = end == std::string_view::npos ? text.size() : end + 1;
      space = true;
    } else if (text.substr(i, 2) == "//") {
      i = std::min(text.find('\n', i), text.size());
      space = true;
    } else if (std::isspace(static_cast<unsigned char>(text[i])) != 0) {
      space = true;
    } else {
      if (space && !line.empty()) line += ' ';
      space = false;
      line += text[i];
    }
  }
  return line;
}

// The words of a type without const and the like, counted.
struct TypeWords {
  int count = 0;
  int longs = 0;
  bool is_void = false, is_bool = false, is_char = false, is_short = false, is_int = false;
  bool is_float = false, is_double = false, is_signed = false, is_unsigned = false;
  const NamedType* named = nullptr;
};

struct TypeWord {
  std::string_view text;
  bool TypeWords::* flag;
};

constexpr std::array kTypeWords{
    TypeWord{"void", &TypeWords::is_void},     TypeWord{"bool", &TypeWords::is_bool},
    TypeWord{"_Bool", &TypeWords::is_bool},    TypeWord{"char", &TypeWords::is_char},
    TypeWord{"short", &TypeWords::is_short},   TypeWord{"int", &TypeWords::is_int},
    TypeWord{"signed", &TypeWords::is_signed}, TypeWord{"unsigned", &TypeWords::is_unsigned},
    TypeWord{"float", &TypeWords::is_float},   TypeWord{"double", &TypeWords::is_double},
};

class Parser {
 public:
  explicit Parser(std::string_view text) : line_(one_line(text)) { advance(); }

  Prototype run() {
    Prototype prototype;
    if (token_ == "extern") advance();
    prototype.result = declaration_type();
    if (prototype.result.is_pointer) {
      fail(
          "a function that returns a pointer cannot be used; declare the result of one that returns a handle "
          "as uintptr_t");
    }
    if (at_word()) {
      prototype.name = take();
    } else {
      fail("the name of the function is missing here");
    }
    expect("(");
    parse_parameters(prototype.parameters);
    expect(")");
    if (token_ == ";") advance();
    if (!token_.empty()) fail("the prototype should end here");
    prototype.text = line_.substr(0, line_.find_last_not_of(" ;") + 1);
    return prototype;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const { fail_at(at_, what); }

  [[noreturn]] void fail_at(size_t at, std::string_view what) const {
    constexpr size_t kBefore = 60, kShown = 120;
    const size_t from = at > kBefore ? at - kBefore : 0;
    throw_error(Code::kValue, "prototype: ", what, "\n  ", line_.substr(from, kShown), "\n  ",
                std::string(at - from, ' '), "^");
  }

  bool at_word() const { return !token_.empty() && is_word_start(token_[0]); }

  void advance() {
    at_ = end_;
    while (at_ < line_.size() && line_[at_] == ' ') ++at_;
    end_ = at_;
    if (at_ < line_.size()) {
      const std::string_view rest = std::string_view(line_).substr(at_);
      if (is_word_part(rest[0])) {
        while (end_ < line_.size() && is_word_part(line_[end_])) ++end_;
      } else {
        end_ += rest.starts_with("...") ? 3 : 1;
      }
    }
    token_ = std::string_view(line_).substr(at_, end_ - at_);
  }

  std::string take() {
    std::string text(token_);
    advance();
    return text;
  }

  void expect(std::string_view text) {
    if (token_ != text) fail(concat("expected '", text, "'"));
    advance();
  }

  bool take_restrict() {
    if (token_ != "restrict" && token_ != "__restrict" && token_ != "__restrict__") return false;
    advance();
    return true;
  }

  // True if the token was a word of the type.
  bool take_type_word(TypeWords& words) {
    const auto word = std::ranges::find(kTypeWords, token_, &TypeWord::text);
    const auto named = std::ranges::find(kTypedefs, token_, &NamedType::name);
    if (token_ == "long") {
      if (++words.longs > 2) fail("there is no type with three times 'long'");
    } else if (word != kTypeWords.end()) {
      if (words.*word->flag) fail("this word stands twice in the type");
      words.*word->flag = true;
    } else if (named != kTypedefs.end() && words.count == 0) {
      words.named = &*named;
    } else {
      return false;
    }
    ++words.count;
    advance();
    return true;
  }

  DType number_dtype(const TypeWords& words, size_t at) const {
    const bool is_unsigned = words.is_unsigned;
    const int code = is_unsigned ? TENON_UINT : TENON_INT;
    const int sign_words = static_cast<int>(words.is_signed) + static_cast<int>(is_unsigned);
    const int others = words.count - sign_words;  // beside signed and unsigned
    if (words.longs > 0 && words.is_double) fail_at(at, "long double cannot be passed; write double");
    if (sign_words <= 1) {
      if (words.named != nullptr && words.count == 1) return words.named->dtype;
      if (words.is_bool && words.count == 1) return DType(TENON_BOOL, 8);
      if (words.is_float && words.count == 1) return DType(TENON_FLOAT, 32);
      if (words.is_double && words.count == 1) return DType(TENON_FLOAT, 64);
      if (words.is_char && others == 1) return sign_words == 0 ? integer_dtype<char>() : DType(code, 8);
      const int others_than_int = others - static_cast<int>(words.is_int);
      if (words.is_short && others_than_int == 1) return DType(code, sizeof(short) * 8);
      if (words.longs == 1 && others_than_int == 1) return DType(code, sizeof(long) * 8);
      if (words.longs == 2 && others_than_int == 2) return DType(code, sizeof(long long) * 8);
      if (others_than_int == 0) return DType(code, sizeof(int) * 8);
    }
    fail_at(at, "these words do not make a type");
  }

  [[noreturn]] void fail_unknown_type() const {
    if (token_ == "...") fail("functions with variable arguments cannot be called");
    if (token_ == "struct" || token_ == "union") {
      fail("structs and unions cannot be passed by value, only pointers to them");
    }
    if (token_ == "enum") fail("enums are not known here; write the integer type, mostly int");
    if (!at_word()) fail("a type is missing here");
    fail(concat("'", token_, "' is not a type that can be passed: numbers of C and stdint.h, and pointers"));
  }

  // "sim_t *", "struct sim const *": the type of a pointer to what is not known here. False: it is none, and
  // nothing has changed.
  bool take_opaque(Parameter& type) {
    const size_t at = at_, end = end_;
    const std::string_view token = token_;
    std::string name;
    if (token_ == "struct" || token_ == "union") {
      name = take() + " ";
    } else if (token_ == "enum") {
      return false;
    }
    if (at_word()) {
      name += take();
      const bool is_const = token_ == "const";
      if (is_const) advance();
      if (token_ == "*") {
        type.opaque = std::move(name);
        type.is_const |= is_const;
        return true;
      }
    }
    at_ = at;
    end_ = end;
    token_ = token;
    return false;
  }

  // Specifiers and pointer: "const float *restrict".
  Parameter declaration_type() {
    Parameter type;
    TypeWords words;
    const size_t at = at_;
    while (true) {
      if (token_ == "const") {
        type.is_const = true;
        advance();
      } else if (!take_type_word(words)) {
        break;
      }
    }
    if (words.count == 0 && !take_opaque(type)) fail_unknown_type();
    type.is_void = words.is_void || !type.opaque.empty();
    if (!type.is_void) {
      type.dtype = number_dtype(words, at);
    } else if (words.count > 1) {
      fail_at(at, "these words do not make a type");
    }
    type.is_status =
        words.count > 0 && words.count == static_cast<int>(words.is_int) + static_cast<int>(words.is_signed);
    if (token_ == "&") fail("references are C++; write a pointer");
    if (token_ == "*") {
      type.is_pointer = true;
      advance();
      bool is_qualified = true;
      while (is_qualified) {
        is_qualified = take_restrict();
        if (token_ == "const") {
          advance();
          is_qualified = true;
        }
      }
      if (token_ == "*") fail("pointers to pointers cannot be passed");
    }
    if (token_ == "(") fail("function pointers cannot be passed");
    return type;
  }

  // "[]", "[static 8]", "[n]": an array parameter is a pointer (C11 6.7.6.3).
  bool take_array_bounds() {
    if (token_ != "[") return false;
    while (token_ != "]") {
      advance();
      if (token_.empty() || token_ == ")") fail("expected ']'");
    }
    advance();
    return true;
  }

  Parameter parameter() {
    const size_t at = at_;
    Parameter parameter = declaration_type();
    if (at_word()) parameter.name = take();
    bool is_array = false;
    while (take_array_bounds()) is_array = true;
    if (is_array) {
      if (parameter.is_pointer) fail_at(at, "arrays of pointers cannot be passed");
      if (parameter.is_void) fail_at(at, "there are no arrays of void");
      parameter.is_pointer = true;
    }
    if (parameter.is_void && !parameter.is_pointer) fail_at(at, "a parameter cannot be void");
    parameter.is_const = parameter.is_const && parameter.is_pointer;
    parameter.is_status = false;
    return parameter;
  }

  bool is_empty_list() {
    if (token_ == ")") return true;
    if (token_ != "void") return false;
    const size_t close = line_.find_first_not_of(' ', end_);
    if (close == std::string::npos || line_[close] != ')') return false;
    advance();
    return true;
  }

  void parse_parameters(std::vector<Parameter>& parameters) {
    if (is_empty_list()) return;
    while (true) {
      const size_t at = at_;
      Parameter next = parameter();
      if (!next.name.empty() &&
          std::ranges::find(parameters, next.name, &Parameter::name) != parameters.end()) {
        fail_at(at, concat("a second parameter is named '", next.name, "'"));
      }
      if (parameters.size() == kMaxParameters) {
        fail_at(at, concat("more than ", kMaxParameters, " parameters"));
      }
      parameters.push_back(std::move(next));
      if (token_ != ",") return;
      advance();
    }
  }

  std::string line_;
  std::string_view token_;  // empty at the end
  size_t at_ = 0;           // of token_ in line_
  size_t end_ = 0;
};

}  // namespace

std::string Parameter::type_text() const {
  std::string text = !opaque.empty() ? opaque : is_void ? "void" : dtype.name();
  if (is_pointer) text = concat(is_const ? "const " : "", text, " *");
  return text;
}

Prototype parse_prototype(std::string_view text) { return Parser(text).run(); }

}  // namespace tenon::impl
