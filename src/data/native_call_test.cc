// SPDX-License-Identifier: Apache-2.0
//
// Oracle: 200 functions with random signatures, compiled as any C++ function is, write down what they
// receive. Called through NativeCall with random values, each must have received those values.
#include "data/native_call.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/seed.h"

namespace tenon::impl {
namespace {

template <class T>
struct Named {
  using Type = T;
  const char* name;
};

constexpr std::tuple kTypes{
    Named<float*>{"float *"},
    Named<const double*>{"const double *"},
    Named<void*>{"void *"},
    Named<bool>{"bool"},
    Named<signed char>{"signed char"},
    Named<uint8_t>{"uint8_t"},
    Named<short>{"short"},
    Named<uint16_t>{"uint16_t"},
    Named<int>{"int"},
    Named<unsigned>{"unsigned"},
    Named<int64_t>{"int64_t"},
    Named<size_t>{"size_t"},
    Named<float>{"float"},
    Named<double>{"double"},
    Named<float>{"float"},
    Named<double>{"double"},
};
constexpr size_t kTypeCount = std::tuple_size_v<decltype(kTypes)>;

constexpr std::tuple kResults{
    Named<void>{"void"},         Named<bool>{"bool"},         Named<int8_t>{"int8_t"},
    Named<uint8_t>{"uint8_t"},   Named<int16_t>{"int16_t"},   Named<uint16_t>{"uint16_t"},
    Named<int32_t>{"int32_t"},   Named<uint32_t>{"uint32_t"}, Named<int64_t>{"int64_t"},
    Named<uint64_t>{"uint64_t"}, Named<float>{"float"},       Named<double>{"double"},
};
constexpr size_t kResultCount = std::tuple_size_v<decltype(kResults)>;

// A value as the bits that the interface carries.
template <class T>
tenon_value to_value(T x) {
  tenon_value value{};
  if constexpr (std::is_pointer_v<T>) {
    value.u = reinterpret_cast<uintptr_t>(x);
  } else if constexpr (std::is_floating_point_v<T>) {
    value.f = x;
  } else if constexpr (std::is_signed_v<T>) {
    value.i = x;
  } else {
    value.u = x;
  }
  return value;
}

// Random bits as a value that T can hold. Never NaN, which conversions may change.
template <class T>
T from_bits(uint64_t bits) {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<T>(bits);
  } else if constexpr (std::is_same_v<T, bool>) {
    return (bits & 1) != 0;
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(
        std::ldexp(static_cast<double>(static_cast<int32_t>(bits)), static_cast<int>(bits >> 58)));
  } else {
    return static_cast<T>(bits);
  }
}

template <class T>
tenon_value value_from_bits([[maybe_unused]] uint64_t bits) {
  if constexpr (std::is_void_v<T>) {
    return {};
  } else {
    return to_value(from_bits<T>(bits));
  }
}

// What the callee saw, and what it is to return.
uint64_t received[kMaxParameters];
uint64_t result_bits = 0;

template <class Result, class... Arguments>
[[gnu::noinline]] Result callee(Arguments... arguments) {
  [[maybe_unused]] size_t i = 0;
  ((received[i++] = to_value(arguments).u), ...);
  if constexpr (!std::is_void_v<Result>) return from_bits<Result>(result_bits);
}

using Types = std::decay_t<decltype(kTypes)>;
template <uint64_t seed, size_t i>
constexpr size_t kTypeAt = split_mix(seed * 100 + i) % kTypeCount;
template <uint64_t seed, size_t i>
using TypeAt = typename std::tuple_element_t<kTypeAt<seed, i>, Types>::Type;

// A function with its prototype, and how to make the values to send. Not a template: it compiles once.
struct Signature {
  std::string text;
  void* function = nullptr;
  std::vector<tenon_value (*)(uint64_t bits)> arguments;
  tenon_value (*result)(uint64_t bits) = nullptr;

  void check(uint64_t seed) const {
    SCOPED_TRACE(text);
    const NativeCall call(function, parse_prototype(text));
    for (uint64_t round = 0; round < 4; ++round) {
      std::vector<tenon_value> sent;
      for (const auto argument : arguments)
        sent.push_back(argument(split_mix(seed ^ (round << 32) ^ (sent.size() << 40))));
      std::ranges::fill(received, 0);
      result_bits = split_mix(seed + round);
      const tenon_value returned = call(sent.data());
      for (size_t i = 0; i < sent.size(); ++i) EXPECT_EQ(received[i], sent[i].u) << "argument " << i;
      EXPECT_EQ(returned.u, result(result_bits).u) << "result";
    }
  }
};

template <uint64_t seed, size_t... I>
void check_signature(std::index_sequence<I...>) {
  constexpr auto result = std::get<split_mix(seed) % kResultCount>(kResults);
  using Result = typename decltype(result)::Type;
  Signature signature;
  signature.text = std::string(result.name) + " f(";
  ((signature.text += (I > 0 ? ", " : ""), signature.text += std::get<kTypeAt<seed, I>>(kTypes).name), ...);
  signature.text += ")";
  signature.function = reinterpret_cast<void*>(callee<Result, TypeAt<seed, I>...>);
  signature.arguments = {value_from_bits<TypeAt<seed, I>>...};
  signature.result = value_from_bits<Result>;
  signature.check(seed);
}

template <uint64_t... seeds>
void check_signatures(std::integer_sequence<uint64_t, seeds...>) {
  (check_signature<seeds + 1>(std::make_index_sequence<split_mix(~seeds) % (kMaxParameters + 1)>{}), ...);
}

TEST(NativeCall, EveryArgumentAndResultArrivesForRandomSignatures) {
  check_signatures(std::make_integer_sequence<uint64_t, 200>{});
}

// Leaves rubbish above a narrow result, as a callee may.
uint64_t wide_result() { return 0xdeadbeefcafe8081; }

TEST(NativeCall, NarrowResultsAreExtendedFromTheirOwnBits) {
  const auto result = [](const char* text) {
    return NativeCall(reinterpret_cast<void*>(wide_result), parse_prototype(text))(nullptr);
  };
  EXPECT_EQ(result("int8_t f()").i, static_cast<int8_t>(0x81));
  EXPECT_EQ(result("uint8_t f()").u, 0x81u);
  EXPECT_EQ(result("int16_t f()").i, static_cast<int16_t>(0x8081));
  EXPECT_EQ(result("uint16_t f()").u, 0x8081u);
  EXPECT_EQ(result("int f()").i, static_cast<int32_t>(0xcafe8081));
  EXPECT_EQ(result("unsigned f()").u, 0xcafe8081u);
  EXPECT_EQ(result("uint64_t f()").u, 0xdeadbeefcafe8081u);
  EXPECT_EQ(result("void f()").u, 0u);
}

double sum_of_floats(float a, float b, float c, float d, float e, float f, float g, float h, float i,
                     double j, float k) {
  return a + b + c + d + e + f + g + h + i + j + k;
}

TEST(NativeCall, FloatsBeyondTheRegistersKeepTheirOrderOnTheStack) {
  const NativeCall call(
      reinterpret_cast<void*>(sum_of_floats),
      parse_prototype("double s(float, float, float, float, float, float, float, float, float, "
                      "double, float)"));
  std::vector<tenon_value> arguments;
  for (int i = 0; i < 11; ++i) arguments.push_back(to_value(static_cast<double>(1 << i)));
  EXPECT_EQ(call(arguments.data()).f, 2047.0);
}

TEST(NativeCall, SpecialFloatingPointValuesPassUnchanged) {
  const NativeCall call(reinterpret_cast<void*>(callee<double, double, float>),
                        parse_prototype("double f(double, float)"));
  for (double x :
       {-0.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::denorm_min()}) {
    const tenon_value sent[2]{to_value(x), to_value(static_cast<float>(-x))};
    call(sent);
    EXPECT_EQ(received[0], std::bit_cast<uint64_t>(x));
    EXPECT_EQ(received[1], std::bit_cast<uint64_t>(static_cast<double>(static_cast<float>(-x))));
  }
}

int ending_function(int code) {
  if (code == 7) pthread_exit(nullptr);
  return code;
}

TEST(NativeCall, AFunctionThatEndsItsThreadEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const NativeCall call(reinterpret_cast<void*>(ending_function), parse_prototype("int ending(int code)"));
  const tenon_value bad[1]{to_value(7)};
  EXPECT_DEATH((void)call(bad), "native function 'ending' did not return, because it ended its thread");
}

}  // namespace
}  // namespace tenon::impl
