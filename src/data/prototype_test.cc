// SPDX-License-Identifier: Apache-2.0
#include "data/prototype.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace tenon::impl {
namespace {

DType type_of(const std::string& declaration) {
  return parse_prototype("void f(" + declaration + ")").parameters.at(0).dtype;
}

std::string error_of(const std::string& text) {
  try {
    parse_prototype(text);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kValue) << text;
    return e.what();
  }
  ADD_FAILURE() << "accepted: " << text;
  return "";
}

TEST(Prototype, ReadsNameResultAndParameters) {
  const Prototype p = parse_prototype("int fill(float *data, const int64_t *label, size_t n);");
  EXPECT_EQ(p.name, "fill");
  EXPECT_TRUE(p.result.is_status);
  EXPECT_EQ(p.result.dtype, DType(TENON_INT, 32));
  ASSERT_EQ(p.parameters.size(), 3u);
  EXPECT_EQ(p.parameters[0].name, "data");
  EXPECT_TRUE(p.parameters[0].is_pointer);
  EXPECT_FALSE(p.parameters[0].is_const);
  EXPECT_EQ(p.parameters[0].dtype, DType(TENON_FLOAT, 32));
  EXPECT_EQ(p.parameters[1].name, "label");
  EXPECT_TRUE(p.parameters[1].is_const);
  EXPECT_EQ(p.parameters[1].dtype, DType(TENON_INT, 64));
  EXPECT_FALSE(p.parameters[2].is_pointer);
  EXPECT_EQ(p.parameters[2].dtype, DType(TENON_UINT, sizeof(size_t) * 8));
  EXPECT_EQ(p.text, "int fill(float *data, const int64_t *label, size_t n)");
}

TEST(Prototype, EveryArithmeticTypeHasItsWidthAndSign) {
  const DType long_type(TENON_INT, sizeof(long) * 8);
  const DType ulong_type(TENON_UINT, sizeof(long) * 8);
  const struct {
    const char* text;
    DType dtype;
  } cases[] = {
      {"signed char", {TENON_INT, 8}},
      {"unsigned char", {TENON_UINT, 8}},
      {"char", {std::is_signed_v<char> ? TENON_INT : TENON_UINT, 8}},
      {"short", {TENON_INT, 16}},
      {"short int", {TENON_INT, 16}},
      {"int short unsigned", {TENON_UINT, 16}},
      {"signed short", {TENON_INT, 16}},
      {"int", {TENON_INT, 32}},
      {"signed", {TENON_INT, 32}},
      {"unsigned", {TENON_UINT, 32}},
      {"unsigned int", {TENON_UINT, 32}},
      {"int unsigned", {TENON_UINT, 32}},
      {"long", long_type},
      {"long int", long_type},
      {"unsigned long", ulong_type},
      {"long unsigned int", ulong_type},
      {"long long", {TENON_INT, 64}},
      {"long long int", {TENON_INT, 64}},
      {"unsigned long long", {TENON_UINT, 64}},
      {"long unsigned long", {TENON_UINT, 64}},
      {"float", {TENON_FLOAT, 32}},
      {"double", {TENON_FLOAT, 64}},
      {"bool", {TENON_BOOL, 8}},
      {"_Bool", {TENON_BOOL, 8}},
      {"int8_t", {TENON_INT, 8}},
      {"uint8_t", {TENON_UINT, 8}},
      {"int16_t", {TENON_INT, 16}},
      {"uint16_t", {TENON_UINT, 16}},
      {"int32_t", {TENON_INT, 32}},
      {"uint32_t", {TENON_UINT, 32}},
      {"int64_t", {TENON_INT, 64}},
      {"uint64_t", {TENON_UINT, 64}},
      {"ssize_t", {TENON_INT, sizeof(size_t) * 8}},
      {"ptrdiff_t", {TENON_INT, 64}},
      {"uintptr_t", {TENON_UINT, 64}},
      {"const double", {TENON_FLOAT, 64}},
      {"double const", {TENON_FLOAT, 64}},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(type_of(c.text), c.dtype) << c.text;
    EXPECT_EQ(type_of(std::string(c.text) + " *p"), c.dtype) << c.text;
  }
}

TEST(Prototype, ConstBelongsToThePointeeOnEitherSide) {
  for (const char* text : {"const float *x", "float const *x", "float const*restrict x", "const float x[]",
                           "const float * const x", "const void *x"}) {
    const Parameter p = parse_prototype(std::string("void f(") + text + ")").parameters.at(0);
    EXPECT_TRUE(p.is_pointer) << text;
    EXPECT_TRUE(p.is_const) << text;
    EXPECT_EQ(p.name, "x") << text;
  }
  for (const char* text : {"float *const x", "float *restrict const x", "float * __restrict__ x",
                           "float x[8]", "float x[static 8]", "float x[][3]", "float x[n]"}) {
    const Parameter p = parse_prototype(std::string("void f(") + text + ")").parameters.at(0);
    EXPECT_TRUE(p.is_pointer) << text;
    EXPECT_FALSE(p.is_const) << text;
  }
  EXPECT_FALSE(parse_prototype("void f(const int n)").parameters.at(0).is_const);
}

TEST(Prototype, SpacesLinesAndCommentsDoNotMatter) {
  const Prototype p = parse_prototype(
      "  extern\tint\n fill ( float*data /* rows * 3 */,\n   unsigned   long\tn // count\n ) ;  ");
  EXPECT_EQ(p.name, "fill");
  ASSERT_EQ(p.parameters.size(), 2u);
  EXPECT_EQ(p.parameters[0].name, "data");
  EXPECT_EQ(p.parameters[1].name, "n");
  EXPECT_EQ(p.text, "extern int fill ( float*data , unsigned long n )");
}

TEST(Prototype, ParametersNeedNoNames) {
  const Prototype p = parse_prototype("double f(float *, int, const void*, char)");
  ASSERT_EQ(p.parameters.size(), 4u);
  for (const Parameter& parameter : p.parameters) EXPECT_EQ(parameter.name, "");
  EXPECT_TRUE(p.parameters[2].is_void);
  EXPECT_FALSE(p.result.is_status);
}

TEST(Prototype, AnEmptyListIsVoidOrNothing) {
  EXPECT_TRUE(parse_prototype("void f(void)").parameters.empty());
  EXPECT_TRUE(parse_prototype("void f( void );").parameters.empty());
  EXPECT_TRUE(parse_prototype("void f()").parameters.empty());
  EXPECT_TRUE(parse_prototype("void f()").result.is_void);
}

TEST(Prototype, OnlyAResultOfTypeIntIsAStatus) {
  for (const char* text : {"int f()", "signed int f()", "int signed f()", "const int f()", "signed f()"}) {
    EXPECT_TRUE(parse_prototype(text).result.is_status) << text;
  }
  for (const char* text : {"int32_t f()", "unsigned f()", "long f()", "short int f()", "long int f()",
                           "unsigned int f()", "void f()", "bool f()"}) {
    EXPECT_FALSE(parse_prototype(text).result.is_status) << text;
  }
}

TEST(Prototype, PointersToUnknownTypesAreHandles) {
  const struct {
    const char* parameter;
    const char* type;
    bool is_const;
  } cases[] = {{"sim_t *p", "sim_t *", false},
               {"const sim_t *p", "const sim_t *", true},
               {"sim_t const *restrict p", "const sim_t *", true},
               {"struct sim *p", "struct sim *", false},
               {"const union sim *const p", "const union sim *", true}};
  for (const auto& c : cases) {
    const Prototype p = parse_prototype(concat("int f(", c.parameter, ", size_t n)"));
    ASSERT_EQ(p.parameters.size(), 2u) << c.parameter;
    EXPECT_EQ(p.parameters[0].name, "p") << c.parameter;
    EXPECT_EQ(p.parameters[0].type_text(), c.type) << c.parameter;
    EXPECT_TRUE(p.parameters[0].is_pointer && p.parameters[0].is_void) << c.parameter;
    EXPECT_EQ(p.parameters[0].is_const, c.is_const) << c.parameter;
    EXPECT_FALSE(p.parameters[0].is_status) << c.parameter;
  }
  EXPECT_EQ(parse_prototype("int f(void *p)").parameters[0].opaque, "");
}

TEST(Prototype, WhatCannotBePassedIsRefusedWithThePlace) {
  const struct {
    const char* text;
    const char* words;
    size_t at;  // of the caret
  } cases[] = {
      {"int f(struct point p)", "structs", 6},
      {"int f(union u p)", "structs", 6},
      {"int f(enum color *c)", "enum", 6},
      {"int f(enum color c)", "enum", 6},
      {"int f(int (*callback)(int))", "function pointers", 10},
      {"int f(int n, ...)", "variable arguments", 13},
      {"int f(long double x)", "long double", 6},
      {"int f(double long x)", "long double", 6},
      {"int f(float **rows)", "pointers to pointers", 13},
      {"int f(float *const *rows)", "pointers to pointers", 19},
      {"int f(float *rows[])", "arrays of pointers", 6},
      {"int f(float &x)", "references", 12},
      {"int f(FILE file)", "'FILE' is not a type", 6},
      {"int f(FILE **file)", "pointers to pointers", 12},
      {"int f(volatile int *x)", "'volatile' is not a type", 6},
      {"int f(long long long x)", "three times", 16},
      {"int f(int int x)", "twice", 10},
      {"int f(unsigned float x)", "do not make a type", 6},
      {"int f(signed unsigned x)", "do not make a type", 6},
      {"int f(short long x)", "do not make a type", 6},
      {"int f(void x)", "cannot be void", 6},
      {"int f(void x[])", "no arrays of void", 6},
      {"int f(int a, void)", "cannot be void", 13},
      {"int f(int a, int a)", "second parameter", 13},
      {"int f(int a,)", "a type is missing", 12},
      {"int f(int a", "expected ')'", 11},
      {"int f(int a[3)", "expected ']'", 13},
      {"int f(int 3)", "expected ')'", 10},
      {"int (int a)", "function pointers", 4},
      {"int f", "expected '('", 5},
      {"int f(int a) noexcept", "should end", 13},
      {"int f(int a); int g()", "should end", 14},
      {"char *name(void)", "returns a pointer", 6},
      {"sim_t *sim_new(void)", "as uintptr_t", 7},
      {"", "a type is missing", 0},
      {"fill(float *data)", "'fill' is not a type", 0},
  };
  for (const auto& c : cases) {
    const std::string message = error_of(c.text);
    EXPECT_NE(message.find(c.words), std::string::npos) << message;
    const size_t last_line = message.rfind('\n') + 1;
    EXPECT_EQ(message.find('^') - last_line, c.at + 2) << message;
    EXPECT_NE(message.find(std::string("\n  ") + c.text + "\n"), std::string::npos) << message;
  }
}

TEST(Prototype, ALongPrototypeIsShownAroundThePlace) {
  std::string text = "int f(";
  for (int i = 0; i < 20; ++i) text += "float *parameter" + std::to_string(i) + ", ";
  const std::string message = error_of(text + "float **last, int n)");
  EXPECT_LT(message.size(), 400u);
  const size_t caret_line = message.rfind('\n');
  const size_t shown_line = message.rfind('\n', caret_line - 1);
  const size_t column = message.find('^', caret_line) - caret_line;
  EXPECT_EQ(message.substr(shown_line + column, 6), "*last,");
}

TEST(Prototype, MoreParametersThanCanBePassedAreRefused) {
  std::string text = "void f(int a0";
  for (int i = 1; i < kMaxParameters; ++i) text += ", int a" + std::to_string(i);
  EXPECT_EQ(parse_prototype(text + ")").parameters.size(), size_t{kMaxParameters});
  EXPECT_NE(error_of(text + ", int last)").find("more than 32"), std::string::npos);
}

}  // namespace
}  // namespace tenon::impl
