// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <gtest/gtest.h>

#include <string>

namespace tenon::impl {
namespace {

std::string nested(int depth) { return std::string(static_cast<size_t>(depth), '['); }

TEST(Json, ObjectsAreTaken) {
  for (const char* text :
       {"{}", " {\n} ", R"({"a": 1})", R"({"a":-0.5e+3,"b":[],"c":[1,2 , {"d":"}"}],"e":true,"f":null})",
        R"({"": "\"\\\/\b\f\n\r\t\u00Af"})", "{\"\xc3\xa9\": 1E9, \"b\": 0}", "{\"a\": \"\xff\"}"}) {
    EXPECT_TRUE(is_json_object(text)) << text;
  }
  EXPECT_TRUE(is_json_object("{\"a\":" + nested(99) + std::string(99, ']') + "}"));
}

TEST(Json, OtherTextsAreNot) {
  for (const char* text : {"",
                           " ",
                           "[]",
                           "3",
                           "\"a\"",
                           "null",
                           "{",
                           "}",
                           "{} {}",
                           "{}x",
                           "{,}",
                           "{1: 2}",
                           "{a: 2}",
                           R"({"a"})",
                           R"({"a":})",
                           R"({"a": 1,})",
                           R"({"a": 1 "b": 2})",
                           R"({"a": 01})",
                           R"({"a": 1.})",
                           R"({"a": .5})",
                           R"({"a": +1})",
                           R"({"a": 1e})",
                           R"({"a": -})",
                           R"({"a": NaN})",
                           R"({"a": truth})",
                           R"({"a": [1,]})",
                           R"({"a": [1})",
                           R"({"a": "3})",
                           R"({"a": "\x"})",
                           R"({"a": "\u12g4"})",
                           R"({"a": "\u12)",
                           R"({"a": "\)",
                           "{\"a\": \"\n\"}",
                           R"({'a': 1})",
                           R"({"a": 1)"}) {
    EXPECT_FALSE(is_json_object(text)) << text;
  }
  EXPECT_FALSE(is_json_object("{\"a\":" + nested(1'000'000)));
  EXPECT_FALSE(is_json_object("{\"a\":" + nested(100) + std::string(100, ']') + "}"));
}

}  // namespace
}  // namespace tenon::impl
