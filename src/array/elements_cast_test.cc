// SPDX-License-Identifier: Apache-2.0
//
// Every cast between two element types, on every instruction set, against a scalar reference that
// shares no code with the kernels: it decodes to long double, which holds all values exactly, and
// encodes by looking for the nearest value in the list of all values of a format.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "array/elements_select.h"

namespace tenon::impl {
namespace {

using Real = long double;
static_assert(std::numeric_limits<Real>::digits >= 64, "the reference must hold 64-bit integers");

struct Value {
  Real real;
  Real imaginary;
};

using Bytes = std::vector<std::byte>;

// A floating-point format of at most 16 bits, described by how it differs from IEEE 754.
struct SmallFloat {
  DType dtype;
  int exponent_bits;
  int mantissa_bits;
  int bias;
  bool has_infinity;
  bool has_ieee_nan;    // all NaNs in the topmost exponent; else there is one pattern (two with the sign)
  uint32_t single_nan;  // without the sign bit

  Real decode(uint32_t bits) const {
    const uint32_t sign = bits >> (exponent_bits + mantissa_bits) & 1;
    const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
    if (has_ieee_nan && exponent == (1 << exponent_bits) - 1) {
      if (mantissa != 0) return std::nanl("");
      return sign != 0 ? -HUGE_VALL : HUGE_VALL;
    }
    const uint32_t magnitude_mask = (1u << (exponent_bits + mantissa_bits)) - 1;
    if (!has_ieee_nan && single_nan == 0 && bits == magnitude_mask + 1) return std::nanl("");
    if (!has_ieee_nan && single_nan != 0 && (bits & magnitude_mask) == single_nan) return std::nanl("");
    const Real significand = exponent == 0 ? mantissa : mantissa + (1u << mantissa_bits);
    const Real magnitude = std::ldexp(significand, std::max(exponent, 1) - bias - mantissa_bits);
    return sign != 0 ? -magnitude : magnitude;
  }
};

constexpr SmallFloat kSmallFloats[] = {
    {{TENON_FLOAT, 16}, 5, 10, 15, true, true, 0},
    {{TENON_BFLOAT, 16}, 8, 7, 127, true, true, 0},
    {{TENON_FLOAT8_E3M4, 8}, 3, 4, 3, true, true, 0},
    {{TENON_FLOAT8_E4M3, 8}, 4, 3, 7, true, true, 0},
    {{TENON_FLOAT8_E4M3B11FNUZ, 8}, 4, 3, 11, false, false, 0},
    {{TENON_FLOAT8_E4M3FN, 8}, 4, 3, 7, false, false, 0x7f},
    {{TENON_FLOAT8_E4M3FNUZ, 8}, 4, 3, 8, false, false, 0},
    {{TENON_FLOAT8_E5M2, 8}, 5, 2, 15, true, true, 0},
    {{TENON_FLOAT8_E5M2FNUZ, 8}, 5, 2, 16, false, false, 0},
};

constexpr DType kE8M0(TENON_FLOAT8_E8M0FNU, 8);

constexpr DType kDTypes[] = {
    {TENON_BOOL, 8},
    {TENON_INT, 8},
    {TENON_INT, 16},
    {TENON_INT, 32},
    {TENON_INT, 64},
    {TENON_UINT, 8},
    {TENON_UINT, 16},
    {TENON_UINT, 32},
    {TENON_UINT, 64},
    {TENON_FLOAT, 32},
    {TENON_FLOAT, 64},
    {TENON_FLOAT, 16},
    {TENON_BFLOAT, 16},
    {TENON_FLOAT8_E3M4, 8},
    {TENON_FLOAT8_E4M3, 8},
    {TENON_FLOAT8_E4M3B11FNUZ, 8},
    {TENON_FLOAT8_E4M3FN, 8},
    {TENON_FLOAT8_E4M3FNUZ, 8},
    {TENON_FLOAT8_E5M2, 8},
    {TENON_FLOAT8_E5M2FNUZ, 8},
    kE8M0,
    {TENON_COMPLEX, 64},
    {TENON_COMPLEX, 128},
};

const SmallFloat* small_float(DType dtype) {
  const auto* found = std::ranges::find(kSmallFloats, dtype, &SmallFloat::dtype);
  return found == std::end(kSmallFloats) ? nullptr : found;
}

template <class T>
T read(const std::byte* address) {
  T value;
  std::memcpy(&value, address, sizeof value);
  return value;
}

template <class T>
void write(std::byte* address, T value) {
  std::memcpy(address, &value, sizeof value);
}

// ---- the reference.

Value decode(DType dtype, const std::byte* address) {
  const uint32_t bits = dtype.bits == 8    ? read<uint8_t>(address)
                        : dtype.bits == 16 ? read<uint16_t>(address)
                                           : 0;
  if (const SmallFloat* format = small_float(dtype)) return {format->decode(bits), 0};
  switch (dtype.code) {
    case TENON_BOOL: return {Real(bits != 0), 0};
    case TENON_FLOAT8_E8M0FNU: return {bits == 255 ? std::nanl("") : std::ldexp(Real(1), int(bits) - 127), 0};
    case TENON_INT:
      return {dtype.bits == 8    ? Real(read<int8_t>(address))
              : dtype.bits == 16 ? Real(read<int16_t>(address))
              : dtype.bits == 32 ? Real(read<int32_t>(address))
                                 : Real(read<int64_t>(address)),
              0};
    case TENON_UINT:
      return {dtype.bits <= 16   ? Real(bits)
              : dtype.bits == 32 ? Real(read<uint32_t>(address))
                                 : Real(read<uint64_t>(address)),
              0};
    case TENON_FLOAT: return {dtype.bits == 32 ? Real(read<float>(address)) : Real(read<double>(address)), 0};
  }
  if (dtype.bits == 64) return {read<float>(address), read<float>(address + 4)};
  return {read<double>(address), read<double>(address + 8)};
}

// All non-negative values of a format that are not NaN, with their bits, in rising order; then infinity
// or, in its place, what overflow becomes, at the value that the next step would have.
const std::vector<Real>& magnitudes(const SmallFloat& format) {
  static std::vector<Real> lists[std::size(kSmallFloats)];
  std::vector<Real>& list = lists[&format - kSmallFloats];
  if (list.empty()) {
    uint32_t bits = 0;
    for (; bits < 1u << (format.exponent_bits + format.mantissa_bits); ++bits) {
      const Real value = format.decode(bits);
      if (std::isnan(value) || std::isinf(value)) break;
      list.push_back(value);
    }
    list.push_back(2 * list[bits - 1] - list[bits - 2]);
  }
  return list;
}

uint32_t encode_small(const SmallFloat& format, Real value) {
  const uint32_t sign_bit = 1u << (format.exponent_bits + format.mantissa_bits);
  const bool has_negative_zero = format.has_ieee_nan || format.single_nan != 0;
  const std::vector<Real>& list = magnitudes(format);
  const uint32_t overflow = static_cast<uint32_t>(list.size()) - 1;
  const uint32_t nan = format.has_ieee_nan ? overflow + 1 : has_negative_zero ? format.single_nan : sign_bit;
  if (std::isnan(value)) return nan;
  const Real magnitude = std::fabs(value);
  auto above = static_cast<uint32_t>(std::ranges::lower_bound(list, magnitude) - list.begin());
  if (above > overflow) above = overflow;
  uint32_t nearest = above;
  if (above > 0 && magnitude < list[above]) {
    const Real to_below = magnitude - list[above - 1];
    const Real to_above = list[above] - magnitude;
    if (to_below < to_above || (to_below == to_above && above % 2 == 1)) nearest = above - 1;
  }
  if (nearest == overflow && !format.has_infinity)
    return nan | (has_negative_zero && value < 0 ? sign_bit : 0);
  if (nearest == 0 && !has_negative_zero) return 0;
  return nearest | (std::signbit(value) ? sign_bit : 0);
}

// Ties to the larger power; no zero, no sign, no infinity.
uint32_t encode_e8m0(Real value) {
  if (!(value > 0) || std::isinf(value)) return 255;
  uint32_t bits = 0;
  while (bits < 255 && value >= std::ldexp(Real(1.5), static_cast<int>(bits) - 127)) ++bits;
  return bits;
}

// Truncates to a signed integer of 32 or 64 bits, whose low bits are the result; what does not fit
// there, and NaN, is the smallest integer. Only uint64 knows more.
uint64_t encode_integer(DType dtype, Real value) {
  const bool is_unsigned = dtype.code == TENON_UINT;
  const Real truncated = std::trunc(value);
  if (is_unsigned && dtype.bits == 64 && truncated >= 0x1p63L) {
    return truncated < 0x1p64L ? static_cast<uint64_t>(truncated) : 0;
  }
  const int bits = dtype.bits == 64 || (is_unsigned && dtype.bits == 32) ? 64 : 32;
  const Real limit = std::ldexp(Real(1), bits - 1);
  const bool fits = truncated >= -limit && truncated < limit;
  return static_cast<uint64_t>(static_cast<int64_t>(fits ? truncated : -limit));
}

bool is_integer(DType dtype) { return dtype.code == TENON_INT || dtype.code == TENON_UINT; }

void encode(DType dtype, Value value, bool from_integer, std::byte* address) {
  if (const SmallFloat* format = small_float(dtype)) {
    const uint32_t bits = encode_small(*format, value.real);
    dtype.bits == 8 ? write(address, static_cast<uint8_t>(bits))
                    : write(address, static_cast<uint16_t>(bits));
  } else if (dtype == kE8M0) {
    write(address, static_cast<uint8_t>(encode_e8m0(value.real)));
  } else if (dtype.code == TENON_BOOL) {
    write(address, static_cast<uint8_t>(value.real != 0 || value.imaginary != 0));
  } else if (is_integer(dtype)) {
    const uint64_t bits = !from_integer    ? encode_integer(dtype, value.real)
                          : value.real < 0 ? static_cast<uint64_t>(static_cast<int64_t>(value.real))
                                           : static_cast<uint64_t>(value.real);
    std::memcpy(address, &bits, dtype.bits / 8);
  } else if (dtype.code == TENON_FLOAT) {
    dtype.bits == 32 ? write(address, static_cast<float>(value.real))
                     : write(address, static_cast<double>(value.real));
  } else if (dtype.bits == 64) {
    write(address, static_cast<float>(value.real));
    write(address + 4, static_cast<float>(value.imaginary));
  } else {
    write(address, static_cast<double>(value.real));
    write(address + 8, static_cast<double>(value.imaginary));
  }
}

bool is_same(DType dtype, const std::byte* a, const std::byte* b) {
  if (std::memcmp(a, b, dtype.padded_itemsize()) == 0) return true;
  const Value x = decode(dtype, a);
  const Value y = decode(dtype, b);
  const auto agree = [](Real p, Real q) {
    return (std::isnan(p) && std::isnan(q)) || (p == q && std::signbit(p) == std::signbit(q));
  };
  return agree(x.real, y.real) && agree(x.imaginary, y.imaginary);
}

// ---- sources.

// Where a rounding can go wrong: every value of the small formats, every midpoint between two of them,
// and the nearest neighbours of both in T.
template <class T>
std::vector<T> rounding_edges() {
  std::vector<T> edges;
  const auto push = [&](Real value) {
    const T x = static_cast<T>(value);
    constexpr T kInfinity = std::numeric_limits<T>::infinity();
    for (T y : {x, std::nextafter(x, kInfinity), std::nextafter(x, -kInfinity)}) {
      edges.push_back(y);
      edges.push_back(-y);
    }
  };
  for (const SmallFloat& format : kSmallFloats) {
    const std::vector<Real>& list = magnitudes(format);
    const size_t step = format.dtype.code == TENON_BFLOAT ? 7 : 1;
    for (size_t k = 0; k + 1 < list.size(); k += step) {
      push(list[k]);
      push((list[k] + list[k + 1]) / 2);
    }
    push(list.back());
  }
  for (int power = -150; power <= 130; ++power) {
    for (Real factor : {1.0L, 1.5L}) push(std::ldexp(factor, power));
  }
  for (int power : {7, 8, 15, 16, 31, 32, 53, 63, 64}) {
    for (Real offset : {-1.0L, -0.5L, 0.0L, 0.5L, 1.0L}) push(std::ldexp(1.0L, power) + offset);
  }
  for (T value :
       {std::numeric_limits<T>::max(), std::numeric_limits<T>::min(), std::numeric_limits<T>::denorm_min(),
        std::numeric_limits<T>::infinity(), std::numeric_limits<T>::quiet_NaN()}) {
    edges.push_back(value);
    edges.push_back(-value);
  }
  return edges;
}

template <class T>
std::vector<T> integer_edges() {
  std::mt19937_64 random(7);
  std::vector<T> edges;
  for (int power = 0; power < 64; ++power) {
    for (uint64_t top : {1u, 3u, 0x101u, 0x181u, 0x1000001u, 0x1800001u}) {
      for (int offset = -2; offset <= 2; ++offset) {
        const uint64_t value = (top << power) + static_cast<uint64_t>(offset);
        edges.push_back(static_cast<T>(value));
        edges.push_back(static_cast<T>(-value));
      }
    }
    for (int k = 0; k < 20; ++k) edges.push_back(static_cast<T>(random() >> power));
  }
  return edges;
}

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <class T>
Bytes all_patterns() {
  std::vector<T> values;
  for (uint32_t bits = 0; bits <= std::numeric_limits<T>::max(); ++bits)
    values.push_back(static_cast<T>(bits));
  return bytes_of(values);
}

template <class T>
Bytes complex_edges() {
  std::vector<T> parts;
  for (T x : {T(0), T(-0.0), T(1), T(-2.75), T(3e-45), T(7e4), T(1e30), T(INFINITY), T(NAN)}) {
    for (T y : {T(0), T(-0.0), T(1), T(1e-45), T(-INFINITY), T(NAN)}) parts.insert(parts.end(), {x, y});
  }
  std::mt19937_64 random(11);
  for (int k = 0; k < 2000; ++k)
    parts.push_back(static_cast<T>(std::ldexp(1.0, int(random() % 40) - 20) * int64_t(random() >> 40)));
  return bytes_of(parts);
}

Bytes sources(DType dtype) {
  if (dtype.code == TENON_COMPLEX) return dtype.bits == 64 ? complex_edges<float>() : complex_edges<double>();
  if (dtype.bits == 8) return all_patterns<uint8_t>();
  if (dtype.bits == 16) return all_patterns<uint16_t>();
  if (dtype.code == TENON_FLOAT) {
    return dtype.bits == 32 ? bytes_of(rounding_edges<float>()) : bytes_of(rounding_edges<double>());
  }
  return dtype.bits == 32 ? bytes_of(integer_edges<uint32_t>()) : bytes_of(integer_edges<uint64_t>());
}

std::string hex(const std::byte* address, size_t nbytes) {
  std::string text;
  for (size_t k = nbytes; k-- > 0;) {
    for (int digit : {int(address[k]) >> 4, int(address[k]) & 15}) text += "0123456789abcdef"[digit];
  }
  return text;
}

Bytes reference_cast(DType from, DType to, const Bytes& src) {
  const size_t n = src.size() / from.padded_itemsize();
  Bytes expected(n * to.padded_itemsize());
  const bool from_integer = is_integer(from) || from.code == TENON_BOOL;
  for (size_t k = 0; k < n; ++k) {
    const Value value = decode(from, &src[k * from.padded_itemsize()]);
    encode(to, value, from_integer, &expected[k * to.padded_itemsize()]);
  }
  return expected;
}

class Casts : public testing::TestWithParam<DType> {};

TEST_P(Casts, EveryTargetGetsTheReferenceValueOnEveryInstructionSet) {
  const DType from = GetParam();
  const Bytes src = sources(from);
  const int64_t n = static_cast<int64_t>(src.size() / from.padded_itemsize());
  const int64_t src_stride = from.padded_itemsize();
  for (DType to : kDTypes) {
    if (from == to) continue;
    ASSERT_TRUE(can_cast(from, to));
    const Bytes expected = reference_cast(from, to, src);
    const int64_t dst_stride = to.padded_itemsize();
    for (const Kernels* kernels : available_kernels()) {
      Bytes dst(expected.size());
      copy_elements(*kernels, StreamFrom{}, {dst.data(), to, 1, &n, &dst_stride},
                    {const_cast<std::byte*>(src.data()), from, 1, &n, &src_stride});
      int failures = 0;
      for (int64_t k = 0; k < n && failures < 5; ++k) {
        const std::byte* wanted = &expected[static_cast<size_t>(k * dst_stride)];
        const std::byte* got = &dst[static_cast<size_t>(k * dst_stride)];
        if (is_same(to, wanted, got)) continue;
        ++failures;
        ADD_FAILURE() << kernels->name << ": " << from.name() << " 0x"
                      << hex(&src[static_cast<size_t>(k * src_stride)], from.padded_itemsize()) << " -> "
                      << to.name() << " 0x" << hex(got, to.padded_itemsize()) << ", expected 0x"
                      << hex(wanted, to.padded_itemsize());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(From, Casts, testing::ValuesIn(kDTypes),
                         [](const testing::TestParamInfo<DType>& dtype) { return dtype.param.name(); });

TEST(CanCast, NumbersWithOneLaneAndEqualDTypesOnly) {
  const DType float6(TENON_FLOAT6_E2M3FN, 6);
  const DType pair(TENON_FLOAT, 32, 2);
  const DType number(TENON_FLOAT, 32);
  EXPECT_TRUE(can_cast(float6, float6));
  EXPECT_TRUE(can_cast(pair, pair));
  EXPECT_FALSE(can_cast(float6, number));
  EXPECT_FALSE(can_cast(number, float6));
  EXPECT_FALSE(can_cast(pair, number));
  EXPECT_FALSE(can_cast(number, pair));
  for (DType from : kDTypes) {
    for (DType to : kDTypes) EXPECT_TRUE(can_cast(from, to)) << from.name() << " " << to.name();
  }
}

TEST(Kernels, EveryInstructionSetHasTheSameCasts) {
  const Kernels& baseline = *available_kernels().front();
  for (const Kernels* kernels : available_kernels()) {
    for (int from = 0; from < kKindCount; ++from) {
      for (int to = 0; to < kKindCount; ++to) {
        EXPECT_EQ(kernels->cast[from][to] != nullptr, baseline.cast[from][to] != nullptr) << kernels->name;
      }
    }
  }
  EXPECT_EQ(&best_kernels(), available_kernels().back());
}

}  // namespace
}  // namespace tenon::impl
