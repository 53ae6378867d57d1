// SPDX-License-Identifier: Apache-2.0
//
// JSON (RFC 8259): writes documents, and checks the texts of others. Plug-ins read for themselves what such a
// text says.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace tenon::impl {

// Writes one JSON document, in ASCII. A body writes what lies between the brackets.
class Json {
 public:
  template <class Body>
  void object(Body body) {
    enclose('{', '}', body);
  }
  template <class Body>
  void array(Body body) {
    enclose('[', ']', body);
  }
  // The name of the value that is written next.
  Json& member(std::string_view name) {
    separate();
    quote(name);
    text_ += ": ";
    needs_comma_ = false;
    return *this;
  }
  void text(std::string_view value) {
    separate();
    quote(value);
  }
  template <std::integral T>
  void number(T value) {
    separate();
    text_ += std::to_string(value);
  }
  // A number that is written already.
  void digits(std::string_view value) {
    separate();
    text_ += value;
  }
  void boolean(bool value) {
    separate();
    text_ += value ? "true" : "false";
  }
  void null() {
    separate();
    text_ += "null";
  }
  // An empty text is null.
  void text_or_null(std::string_view value) { value.empty() ? null() : text(value); }

  std::string take() { return std::move(text_); }

 private:
  template <class Body>
  void enclose(char open, char close, Body body) {
    separate();
    text_ += open;
    needs_comma_ = false;
    body();
    text_ += close;
    needs_comma_ = true;
  }
  void separate() {
    if (needs_comma_) text_ += ", ";
    needs_comma_ = true;
  }
  void quote(std::string_view value);

  std::string text_;
  bool needs_comma_ = false;
};

// One object and nothing else, nested at most 100 deep. Bytes beyond ASCII are taken for UTF-8.
bool is_json_object(std::string_view text) noexcept;

}  // namespace tenon::impl
