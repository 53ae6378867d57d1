// SPDX-License-Identifier: Apache-2.0
#include "array/dtype.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <iterator>

#include "base/error.h"

namespace tenon::impl {
namespace {

static_assert(std::endian::native == std::endian::little, "names such as '<f4' mean the native byte order");

struct DTypeName {
  const char* name;
  const char* short_name;  // of the array interface; null: has none
  uint8_t code;
  uint8_t bits;
};

// Every type with one lane. The names are those of NumPy, ml_dtypes and PyTorch.
constexpr DTypeName kEntries[] = {
    {"bool", "b1", TENON_BOOL, 8},
    {"int8", "i1", TENON_INT, 8},
    {"int16", "i2", TENON_INT, 16},
    {"int32", "i4", TENON_INT, 32},
    {"int64", "i8", TENON_INT, 64},
    {"uint8", "u1", TENON_UINT, 8},
    {"uint16", "u2", TENON_UINT, 16},
    {"uint32", "u4", TENON_UINT, 32},
    {"uint64", "u8", TENON_UINT, 64},
    {"float16", "f2", TENON_FLOAT, 16},
    {"float32", "f4", TENON_FLOAT, 32},
    {"float64", "f8", TENON_FLOAT, 64},
    {"bfloat16", nullptr, TENON_BFLOAT, 16},
    {"complex32", nullptr, TENON_COMPLEX, 32},
    {"complex64", "c8", TENON_COMPLEX, 64},
    {"complex128", "c16", TENON_COMPLEX, 128},
    {"float8_e3m4", nullptr, TENON_FLOAT8_E3M4, 8},
    {"float8_e4m3", nullptr, TENON_FLOAT8_E4M3, 8},
    {"float8_e4m3b11fnuz", nullptr, TENON_FLOAT8_E4M3B11FNUZ, 8},
    {"float8_e4m3fn", nullptr, TENON_FLOAT8_E4M3FN, 8},
    {"float8_e4m3fnuz", nullptr, TENON_FLOAT8_E4M3FNUZ, 8},
    {"float8_e5m2", nullptr, TENON_FLOAT8_E5M2, 8},
    {"float8_e5m2fnuz", nullptr, TENON_FLOAT8_E5M2FNUZ, 8},
    {"float8_e8m0fnu", nullptr, TENON_FLOAT8_E8M0FNU, 8},
    {"float6_e2m3fn", nullptr, TENON_FLOAT6_E2M3FN, 6},
    {"float6_e3m2fn", nullptr, TENON_FLOAT6_E3M2FN, 6},
    {"float4_e2m1fn", nullptr, TENON_FLOAT4_E2M1FN, 4},
};

const DTypeName* find(DType dtype) {
  const auto* entry = std::ranges::find_if(
      kEntries, [&](const DTypeName& e) { return e.code == dtype.code && e.bits == dtype.bits; });
  return entry == std::end(kEntries) ? nullptr : entry;
}

// For each code, a bit for each listed width of whole bytes. It makes the check of every import fast.
constexpr auto kByteWidths = [] {
  std::array<uint32_t, TENON_FLOAT4_E2M1FN + 1> widths{};
  for (const DTypeName& entry : kEntries) {
    if (entry.bits % 8 == 0) widths[entry.code] |= uint32_t{1} << entry.bits / 8;
  }
  return widths;
}();

bool is_listed(DType dtype) noexcept {
  if (dtype.bits % 8 != 0) return find(dtype) != nullptr;
  return dtype.code < kByteWidths.size() && (kByteWidths[dtype.code] >> dtype.bits / 8 & 1) != 0;
}

const DTypeName* find_name(std::string_view name) {
  const auto* entry = std::ranges::find(kEntries, name, &DTypeName::name);
  return entry == std::end(kEntries) ? nullptr : entry;
}

const DTypeName* find_short_name(std::string_view name) {
  if (name == "?") name = "b1";
  const auto* entry = std::ranges::find_if(
      kEntries, [&](const DTypeName& e) { return e.short_name != nullptr && name == e.short_name; });
  return entry == std::end(kEntries) ? nullptr : entry;
}

// The N of "_xN"; 0 if it is not a number of lanes.
int lanes_of(std::string_view digits) {
  int lanes = 0;
  const char* end = digits.data() + digits.size();
  const auto [rest, error] = std::from_chars(digits.data(), end, lanes);
  if (error != std::errc() || rest != end || digits[0] == '0') return 0;
  return lanes >= 1 && lanes <= UINT16_MAX ? lanes : 0;
}

[[noreturn]] void throw_unknown(std::string_view name) {
  std::string known;
  for (const DTypeName& entry : kEntries) known.append(known.empty() ? "" : ", ").append(entry.name);
  throw_error(Code::kType, "unknown dtype '", name, "': known are ", known,
              ", their short names such as f4 where NumPy has one, and vectors such as float32_x2");
}

}  // namespace

uint32_t DType::alignment() const {
  const uint32_t part = code == TENON_COMPLEX ? bits / 16u : bits / 8u;
  return std::clamp(part, 1u, 8u);
}

std::string DType::name() const {
  const DTypeName* entry = find(*this);
  std::string text = entry != nullptr ? entry->name : concat("dtype(code=", code, ", bits=", bits, ")");
  if (lanes != 1) text += concat("_x", lanes);
  return text;
}

DType dtype_from_name(std::string_view name) {
  if (name.starts_with('>')) {
    throw_error(Code::kType, "dtype '", name, "' has byte-swapped elements: convert to '<", name.substr(1),
                "' first");
  }
  std::string_view base = name;
  int lanes = 1;
  if (const size_t suffix = name.rfind("_x"); suffix != std::string_view::npos) {
    lanes = lanes_of(name.substr(suffix + 2));
    base = name.substr(0, suffix);
  }
  const bool has_order = !base.empty() && std::string_view("<=|").find(base[0]) != std::string_view::npos;
  const DTypeName* entry = has_order ? nullptr : find_name(base);
  if (entry == nullptr) entry = find_short_name(has_order ? base.substr(1) : base);
  if (entry == nullptr || lanes == 0) throw_unknown(name);
  return DType(entry->code, entry->bits, lanes);
}

void check_dtype(DType dtype) {
  if (dtype.lanes == 0) {
    throw_error(Code::kType, "dtype with code ", dtype.code, " has 0 lanes: at least 1 is needed");
  }
  if (is_listed(dtype)) return;
  std::string widths;
  for (const DTypeName& entry : kEntries) {
    if (entry.code != dtype.code) continue;
    widths.append(widths.empty() ? "" : ", ").append(std::to_string(entry.bits));
  }
  if (widths.empty()) {
    throw_error(Code::kType, "dtype code ", dtype.code,
                " is not supported: known are those of DLPack 1.3, 0 to ", int{TENON_FLOAT4_E2M1FN},
                " without 3 (opaque handles)");
  }
  throw_error(Code::kType, "dtype code ", dtype.code, " with ", dtype.bits,
              " bits is not supported: known widths are ", widths);
}

}  // namespace tenon::impl
