// SPDX-License-Identifier: Apache-2.0
//
// JSON (RFC 8259): a writer of documents, and a check of texts from callers. A plug-in reads its
// configuration with tenon/plugin.h, which needs no library.
#pragma once

#include <concepts>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace tenon::impl {

// Writes one JSON document, in ASCII.
class Json {
 public:
  // A number that is already written as text.
  struct Number {
    std::string text;
  };

  // Writes a value: a bool, an integer, a Number, a text, the value of an optional (null if it is empty), a
  // list of values, an object whose members a function without parameters writes, or an object of a type that
  // has a function write_json(Json&, const T&).
  template <class T>
  void value(const T& v) {
    if constexpr (std::is_invocable_v<const T&>) {
      enclose('{', '}', v);
    } else if constexpr (std::same_as<T, bool>) {
      raw(v ? "true" : "false");
    } else if constexpr (std::integral<T>) {
      raw(std::to_string(v));
    } else if constexpr (std::same_as<T, Number>) {
      raw(v.text);
    } else if constexpr (std::convertible_to<const T&, std::string_view>) {
      separate();
      quote(v);
    } else if constexpr (requires { v.has_value(); }) {
      v.has_value() ? value(*v) : raw("null");
    } else if constexpr (requires { v.begin(); }) {
      enclose('[', ']', [&] {
        for (const auto& item : v) value(item);
      });
    } else {
      write_json(*this, v);
    }
  }
  // A member of an object.
  template <class T>
  Json& member(std::string_view name, const T& v) {
    separate();
    quote(name);
    text_ += ": ";
    needs_comma_ = false;
    value(v);
    return *this;
  }

  std::string take() { return std::move(text_); }

 private:
  template <class Body>
  void enclose(char open, char close, const Body& body) {
    separate();
    text_ += open;
    needs_comma_ = false;
    body();
    text_ += close;
    needs_comma_ = true;
  }
  void raw(std::string_view text) {
    separate();
    text_ += text;
  }
  void separate() {
    if (needs_comma_) text_ += ", ";
    needs_comma_ = true;
  }
  void quote(std::string_view value);

  std::string text_;
  bool needs_comma_ = false;
};

// For values that mean "unknown": written as null.
inline std::optional<std::string_view> not_empty(const std::string& text) {
  return text.empty() ? std::nullopt : std::optional<std::string_view>(text);
}
template <class T>
std::optional<T> unless(std::type_identity_t<T> unknown, T value) {
  return value == unknown ? std::nullopt : std::optional(value);
}

// True for exactly one object, nested at most 100 deep. Bytes beyond ASCII count as UTF-8.
bool is_json_object(std::string_view text) noexcept;

}  // namespace tenon::impl
