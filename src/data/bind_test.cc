// SPDX-License-Identifier: Apache-2.0
#include "data/bind.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "array/array.h"
#include "base/error.h"
#include "data/request_testing.h"

namespace tenon::impl {
namespace {

const std::vector<int64_t> kShape{4, 2};
const std::vector<int64_t> kRows{4};

Ref<Schema> schema() {
  const tenon_field fields[]{{"data", DType(TENON_FLOAT, 32), 2, kShape.data()},
                             {"label", DType(TENON_INT, 64), 1, kRows.data()}};
  return Schema::make(fields);
}

struct Seen {
  float* data;
  int64_t* label;
  const double* table;
  uint64_t n, index, seed;
  int epoch, worker, level;
  double gain;
} seen;

int fill_all(float* data, int64_t* label, const double* table, size_t n, uint64_t index, int epoch,
             uint64_t seed, int worker, int8_t level, double gain) {
  seen = {data, label, table, n, index, seed, epoch, worker, level, gain};
  return level;
}

Ref<NativeFunction> function(const std::string& parameters, const char* result = "int") {
  return NativeFunction::create(reinterpret_cast<void*>(fill_all),
                                std::string(result) + " fill(" + parameters + ")", false);
}

tenon_constant number(const char* name, int64_t value) {
  tenon_constant constant{name, nullptr, {}};
  constant.value.i = value;
  return constant;
}

tenon_constant array(const char* name, const Ref<Array>& value) {
  return {name, reinterpret_cast<tenon_array*>(value.get()), {}};
}

TEST(Bind, EveryParameterGetsItsFieldConstantOrBatchNumber) {
  const Ref<Array> table = Array::create(DType(TENON_FLOAT, 64), kRows);
  tenon_constant gain{"gain", nullptr, {}};
  gain.value.f = 0.5;
  const std::vector<tenon_constant> constants{gain, number("level", -3), array("table", table)};
  tenon_generator generator = bind_function(
      function("float *data, int64_t *label, const double *table, size_t n, uint64_t index, int epoch, "
               "uint64_t seed, int worker, int8_t level, double gain"),
      *schema(), constants);
  EXPECT_STREQ(generator.name, "fill");
  EXPECT_EQ(generator.flags, uint32_t{TENON_IS_INDEXED});

  float data[8];
  int64_t label[4];
  void* fields[]{data, label};
  const tenon_fill_request request = request_of(3, fields, 17, 5, ~uint64_t{0});
  EXPECT_EQ(generator.fill(generator.context, &request, nullptr, 0), -3);
  EXPECT_EQ(seen.data, data);
  EXPECT_EQ(seen.label, label);
  EXPECT_EQ(seen.table, static_cast<const void*>(table->data()));
  EXPECT_EQ(seen.n, 4u);
  EXPECT_EQ(seen.index, 17u);
  EXPECT_EQ(seen.epoch, 5);
  EXPECT_EQ(seen.seed, ~uint64_t{0});
  EXPECT_EQ(seen.worker, 3);
  EXPECT_EQ(seen.level, -3);
  EXPECT_EQ(seen.gain, 0.5);
  generator.drop(generator.context);
}

TEST(Bind, AConstantArrayIsHeldWithAnOpenViewUntilDrop) {
  const Ref<Array> table = Array::create(DType(TENON_FLOAT, 64), kRows);
  const Ref<Array> scratch = Array::create(DType(TENON_UINT, 8), kRows);
  const std::vector<tenon_constant> constants{array("table", table), array("scratch", scratch)};
  tenon_generator generator = bind_function(
      function("float *data, int64_t *label, const double *table, void *scratch"), *schema(), constants);
  EXPECT_EQ(table->storage().region().views().readers, 1u);
  EXPECT_EQ(table->storage().region().views().writers, 0u);
  EXPECT_EQ(scratch->storage().region().views().writers, 1u);
  generator.drop(generator.context);
  EXPECT_EQ(table->storage().region().views().readers, 0u);
  EXPECT_EQ(scratch->storage().region().views().writers, 0u);
}

TEST(Bind, ASeedIsCutToItsParameter) {
  tenon_generator generator = bind_function(function("float *data, int64_t *label, const double *table, "
                                                     "size_t n, uint64_t index, int epoch, unsigned seed"),
                                            *schema(), std::vector<tenon_constant>{{"table", nullptr, {}}});
  void* fields[]{nullptr, nullptr};
  const tenon_fill_request request = request_of(0, fields, 0, 0, 0xabcdef0123456789);
  generator.fill(generator.context, &request, nullptr, 0);
  EXPECT_EQ(static_cast<uint32_t>(seen.seed), 0x23456789u);
  EXPECT_EQ(seen.table, nullptr);
  generator.drop(generator.context);
}

TEST(Bind, EightBitIntegersOfEitherSignAreBytes) {
  const Ref<Array> bytes = Array::create(DType(TENON_UINT, 8), kRows);
  const std::vector<tenon_constant> constants{array("bytes", bytes)};
  tenon_generator generator =
      bind_function(function("float *data, int64_t *label, const signed char *bytes"), *schema(), constants);
  generator.drop(generator.context);
}

TEST(Bind, WhatDoesNotFitIsRefusedByName) {
  const Ref<Array> doubles = Array::create(DType(TENON_FLOAT, 64), kShape);
  const Ref<Array> transposed = transpose(*doubles, nullptr);
  const Ref<Array> readonly = as_readonly(*doubles);
  const std::string both = "float *data, int64_t *label, ";
  const struct {
    std::string parameters;
    std::vector<tenon_constant> constants;
    Code code;
    const char* words;
    const char* result = "int";
  } cases[] = {
      {"float *data", {}, Code::kValue, "takes the field 'label'"},
      {both + "int level", {}, Code::kValue, "parameter 'level' of 'fill' is not bound"},
      {"float *data, int64_t *, int n", {}, Code::kValue, "an unnamed parameter"},
      {"double *data, int64_t *label", {}, Code::kType, "field 'data' is float32"},
      {"float data, int64_t *label", {}, Code::kType, "make it a pointer"},
      {"const float *data, int64_t *label", {}, Code::kType, "could not fill"},
      {both + "double n", {}, Code::kType, "the n of a batch is an integer"},
      {both + "int *index", {}, Code::kType, "the index of a batch is an integer"},
      {both + "int16_t epoch", {}, Code::kType, "at least 32 bits"},
      {both + "bool n", {}, Code::kValue, "bool holds 0 to 1"},
      {both + "int8_t level", {number("level", 128)}, Code::kValue, "int8 holds -128 to 127"},
      {both + "uint16_t level", {number("level", -1)}, Code::kValue, "uint16 holds 0 to 65535"},
      {both + "int n", {number("level", 1)}, Code::kValue, "takes the constant 'level'"},
      {both + "int level", {number("level", 1), number("level", 2)}, Code::kValue, "two constants"},
      {both + "int n", {number("data", 1)}, Code::kValue, "is a field of the batch and a constant"},
      {both + "int level", {array("level", doubles)}, Code::kType, "is an array"},
      {both + "const float *t", {array("t", doubles)}, Code::kType, "constant 't' is float64"},
      {both + "const double *t", {array("t", transposed)}, Code::kBuffer, "not C-contiguous"},
      {both + "double *t", {array("t", readonly)}, Code::kBuffer, "read-only"},
      {"float *data, int64_t *label", {}, Code::kType, "returns int64", "int64_t"},
  };
  for (const auto& c : cases) {
    try {
      bind_function(function(c.parameters, c.result), *schema(), c.constants);
      ADD_FAILURE() << "accepted: " << c.parameters;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), c.code) << e.what();
      EXPECT_NE(std::string(e.what()).find(c.words), std::string::npos) << e.what();
    }
  }
  EXPECT_EQ(doubles->storage().region().views().readers + doubles->storage().region().views().writers, 0u);
}

}  // namespace
}  // namespace tenon::impl
