// SPDX-License-Identifier: Apache-2.0
#include "array/dtype.h"

#include <gtest/gtest.h>

#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"

namespace tenon::impl {
namespace {

struct Case {
  const char* name;
  DType dtype;
  uint32_t itemsize;
  uint32_t alignment;
};

constexpr Case kCases[] = {
    {"bool", {TENON_BOOL, 8}, 1, 1},
    {"int8", {TENON_INT, 8}, 1, 1},
    {"int16", {TENON_INT, 16}, 2, 2},
    {"int32", {TENON_INT, 32}, 4, 4},
    {"int64", {TENON_INT, 64}, 8, 8},
    {"uint8", {TENON_UINT, 8}, 1, 1},
    {"uint16", {TENON_UINT, 16}, 2, 2},
    {"uint32", {TENON_UINT, 32}, 4, 4},
    {"uint64", {TENON_UINT, 64}, 8, 8},
    {"float16", {TENON_FLOAT, 16}, 2, 2},
    {"float32", {TENON_FLOAT, 32}, 4, 4},
    {"float64", {TENON_FLOAT, 64}, 8, 8},
    {"bfloat16", {TENON_BFLOAT, 16}, 2, 2},
    {"complex32", {TENON_COMPLEX, 32}, 4, 2},
    {"complex64", {TENON_COMPLEX, 64}, 8, 4},
    {"complex128", {TENON_COMPLEX, 128}, 16, 8},
    {"float8_e3m4", {7, 8}, 1, 1},
    {"float8_e4m3", {8, 8}, 1, 1},
    {"float8_e4m3b11fnuz", {9, 8}, 1, 1},
    {"float8_e4m3fn", {10, 8}, 1, 1},
    {"float8_e4m3fnuz", {11, 8}, 1, 1},
    {"float8_e5m2", {12, 8}, 1, 1},
    {"float8_e5m2fnuz", {13, 8}, 1, 1},
    {"float8_e8m0fnu", {14, 8}, 1, 1},
    {"float6_e2m3fn", {15, 6}, 1, 1},
    {"float6_e3m2fn", {16, 6}, 1, 1},
    {"float4_e2m1fn", {17, 4}, 1, 1},
    {"float4_e2m1fn_x2", {17, 4, 2}, 1, 1},
    {"float6_e3m2fn_x4", {16, 6, 4}, 3, 1},
    {"float32_x4", {TENON_FLOAT, 32, 4}, 16, 4},
    {"complex128_x3", {TENON_COMPLEX, 128, 3}, 48, 8},
    {"uint8_x65535", {TENON_UINT, 8, 65535}, 65535, 1},
};

std::string message_of(const std::string& name) {
  try {
    dtype_from_name(name);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kType) << name;
    return error.what();
  }
  ADD_FAILURE() << name << " was accepted";
  return "";
}

TEST(DType, CanonicalNamesGoBothWays) {
  for (const Case& c : kCases) {
    EXPECT_EQ(dtype_from_name(c.name), c.dtype) << c.name;
    EXPECT_EQ(c.dtype.name(), c.name);
    EXPECT_NO_THROW(check_dtype(c.dtype)) << c.name;
  }
}

TEST(DType, AlignsAsOneValueAndComplexAsItsParts) {
  for (const Case& c : kCases) {
    EXPECT_EQ(c.dtype.padded_itemsize(), c.itemsize) << c.name;
    EXPECT_EQ(c.dtype.alignment(), c.alignment) << c.name;
  }
}

TEST(DType, ShortNamesOfTheArrayInterfaceAreKnown) {
  EXPECT_EQ(dtype_from_name("?"), DType(TENON_BOOL, 8));
  EXPECT_EQ(dtype_from_name("b1"), DType(TENON_BOOL, 8));
  EXPECT_EQ(dtype_from_name("|b1"), DType(TENON_BOOL, 8));
  EXPECT_EQ(dtype_from_name("|u1"), DType(TENON_UINT, 8));
  EXPECT_EQ(dtype_from_name("<i2"), DType(TENON_INT, 16));
  EXPECT_EQ(dtype_from_name("=u8"), DType(TENON_UINT, 64));
  EXPECT_EQ(dtype_from_name("f2"), DType(TENON_FLOAT, 16));
  EXPECT_EQ(dtype_from_name("<f8"), DType(TENON_FLOAT, 64));
  EXPECT_EQ(dtype_from_name("c8"), DType(TENON_COMPLEX, 64));
  EXPECT_EQ(dtype_from_name("<c16"), DType(TENON_COMPLEX, 128));
  EXPECT_EQ(dtype_from_name("f4_x2"), DType(TENON_FLOAT, 32, 2));
}

TEST(DType, ByteSwappedNamesAreRefusedByName) {
  const std::string message = message_of(">f4");
  EXPECT_NE(message.find("'>f4'"), std::string::npos) << message;
  EXPECT_NE(message.find("byte-swapped"), std::string::npos) << message;
  EXPECT_NE(message.find("'<f4'"), std::string::npos) << message;
}

TEST(DType, UnknownNamesAreRefused) {
  std::istringstream words(
      "f3 float Float32 i16 c4 f16 b < | <float32 float128 S4 object _x2 float32_x float32_x0 float32_x65536 "
      "float32_x-1 float32_x+2 float32_x2x float32_x02 float32_x2_x2 float32_x99999999999999999999");
  std::vector<std::string> names{"", "float32 "};
  names.insert(names.end(), std::istream_iterator<std::string>(words), {});
  for (const std::string& name : names) {
    EXPECT_NE(message_of(name).find("unknown dtype '" + name + "'"), std::string::npos) << name;
  }
}

TEST(DType, EveryCodeAndWidthThatIsNotListedIsRefused) {
  for (int code = 0; code < 256; ++code) {
    for (int bits = 0; bits < 256; ++bits) {
      const DType dtype(code, bits);
      bool is_listed = false;
      for (const Case& c : kCases) is_listed |= c.dtype == dtype;
      if (is_listed) continue;
      EXPECT_THROW(check_dtype(dtype), Error) << code << " " << bits;
      EXPECT_EQ(dtype.name(), "dtype(code=" + std::to_string(code) + ", bits=" + std::to_string(bits) + ")");
      EXPECT_GE(dtype.alignment(), 1u);
    }
  }
  EXPECT_THROW(check_dtype(DType(TENON_FLOAT, 32, 0)), Error);
}

}  // namespace
}  // namespace tenon::impl
