// SPDX-License-Identifier: Apache-2.0
#include "ipc/schema.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "base/error.h"

namespace tenon::impl {
namespace {

constexpr DType kF4(TENON_FLOAT, 32);
constexpr DType kI8(TENON_INT, 64);

tenon_field field(const char* name, DType dtype, const std::vector<int64_t>& shape) {
  return {name, dtype, static_cast<int32_t>(shape.size()), shape.data()};
}

TEST(Schema, FieldsLieAlignedAndApart) {
  const std::vector<int64_t> images{64, 3, 7, 5};
  const std::vector<int64_t> labels{64};
  const std::vector<int64_t> bytes{64, 1};
  const tenon_field fields[]{field("data", kF4, images), field("flag", DType(TENON_BOOL, 8), bytes),
                             field("label", kI8, labels)};
  const Ref<Schema> schema = Schema::make(fields);
  EXPECT_EQ(schema->rows(), 64);
  EXPECT_EQ(schema->nbytes(), 64u * 3 * 7 * 5 * 4 + 64 * 8 + 64);
  size_t end = 0;
  for (const SchemaField& f : schema->fields()) {
    EXPECT_EQ(f.offset % kFieldAlignment, 0u) << f.name;
    EXPECT_GE(f.offset, end) << f.name;
    end = f.offset + f.nbytes;
  }
  EXPECT_EQ(schema->fields_nbytes(), end);
  EXPECT_EQ(schema->find("label"), 2);
  EXPECT_EQ(schema->find("labels"), -1);
}

TEST(Schema, WhatCannotBeABatchIsRefusedByName) {
  const std::vector<int64_t> four{4};
  const std::vector<int64_t> five{5, 2};
  const std::vector<int64_t> empty{4, 0};
  const std::vector<int64_t> none{};
  const std::vector<int64_t> negative{-4};
  const std::vector<int64_t> huge{1, int64_t{1} << 61};
  const struct {
    std::vector<tenon_field> fields;
    Code code;
    const char* words;
  } cases[] = {
      {{}, Code::kValue, "at least one field"},
      {{field("", kF4, four)}, Code::kValue, "not an identifier"},
      {{field(nullptr, kF4, four)}, Code::kValue, "not an identifier"},
      {{field("2d", kF4, four)}, Code::kValue, "'2d' is not an identifier"},
      {{field("my data", kF4, four)}, Code::kValue, "not an identifier"},
      {{field("x", kF4, four), field("x", kI8, four)}, Code::kValue, "two fields are named 'x'"},
      {{field("x", kF4, four), field("y", kI8, five)},
       Code::kValue,
       "field 'y' has 5 rows (axis 0), field 'x' has 4"},
      {{field("x", kF4, empty)}, Code::kValue, "(4, 0) is empty"},
      {{field("x", kF4, none)}, Code::kValue, "has no axis"},
      {{field("x", kF4, negative)}, Code::kValue, "-4"},
      {{field("x", kF4, huge)}, Code::kValue, ""},
      {{field("x", DType(TENON_FLOAT4_E2M1FN, 4), four)}, Code::kType, "'x'"},
      {{field("x", DType(TENON_FLOAT, 31), four)}, Code::kType, ""},
  };
  for (const auto& c : cases) {
    try {
      Schema::make(c.fields);
      ADD_FAILURE() << "accepted: " << c.words;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), c.code) << e.what();
      EXPECT_NE(std::string(e.what()).find(c.words), std::string::npos) << e.what();
    }
  }
}

TEST(Schema, FieldsThatTogetherLeave62BitsAreRefused) {
  const std::vector<int64_t> large{1, int64_t{1} << 57};
  std::vector<std::string> names;
  for (int i = 0; i < 17; ++i) names.push_back(concat("field", i));
  std::vector<tenon_field> fields;
  for (const std::string& name : names) fields.push_back(field(name.c_str(), kF4, large));
  try {
    Schema::make(fields);
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kValue);
    EXPECT_NE(std::string(e.what()).find("62 bits"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace tenon::impl
