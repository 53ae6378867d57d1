// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tenon::impl {
namespace {

std::string nested(int depth) { return std::string(static_cast<size_t>(depth), '['); }

struct Point {
  int x;
  bool is_set;
};
void write_json(Json& json, const Point& point) {
  json.value([&] { json.member("x", point.x).member("set", point.is_set); });
}

TEST(Json, ValuesAreWrittenByTheirType) {
  Json json;
  json.value([&] {
    json.member("empty", [] {})
        .member("number", Json::Number{"1.5"})
        .member("least", INT64_MIN)
        .member("points", std::vector<Point>{{1, true}, {-2, false}})
        .member("none", std::optional<Point>())
        .member("one", std::optional(Point{3, true}))
        .member("unknown", unless(-1, int64_t{-1}))
        .member("known", unless(-1, int64_t{0}))
        .member("no text", not_empty(""))
        .member("text", std::string_view("a"));
  });
  const std::string text = json.take();
  EXPECT_EQ(text,
            R"({"empty": {}, "number": 1.5, "least": -9223372036854775808, )"
            R"("points": [{"x": 1, "set": true}, {"x": -2, "set": false}], "none": null, )"
            R"("one": {"x": 3, "set": true}, "unknown": null, "known": 0, "no text": null, "text": "a"})");
  EXPECT_TRUE(is_json_object(text));
}

TEST(Json, TextIsEscapedWhateverItHolds) {
  Json json;
  json.value(std::vector<std::string>{
      "a\"b\\c\n\x7f",
      "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80",  // characters of two, three and four bytes
      "\xff\xc3|\xed\xa0\x80\xc0\xaf",         // only | is valid UTF-8
  });
  EXPECT_EQ(json.take(),
            "[\"a\\\"b\\\\c\\u000a\\u007f\", \"\\u00e9\\u20ac\\ud83d\\ude00\", "
            "\"\\ufffd\\ufffd|\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd\"]");
}

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
