// SPDX-License-Identifier: Apache-2.0
#include "data/native_call.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/foreign_call.h"
#include "sync/actor.h"

#if defined(__x86_64__) && !defined(__ILP32__) && !defined(_WIN32)
#define TENON_INTEGER_REGISTERS 6
#elif defined(__aarch64__) && defined(__AARCH64EL__) && !defined(__ILP32__) && !defined(__APPLE__) && \
    !defined(_WIN32)
#define TENON_INTEGER_REGISTERS 8
#endif

// Clang's check of indirect calls looks for the callee's own type, which is not known here.
#if defined(__clang__)
#define TENON_CALLS_ANY_TYPE __attribute__((no_sanitize("function")))
#else
#define TENON_CALLS_ANY_TYPE
#endif

namespace tenon::impl {

#if defined(TENON_INTEGER_REGISTERS)
namespace {

// The words of a call: integer registers, floating-point registers, stack.
constexpr size_t kIntegers = TENON_INTEGER_REGISTERS;
constexpr size_t kFloats = 8;
constexpr size_t kStack = kIntegers + kFloats;

// A call pushes the smallest of these numbers of stack words that is enough.
constexpr std::array<size_t, 4> kStackSizes{0, 4, 12, kMaxParameters - kIntegers};
constexpr size_t kWords = kStack + kStackSizes.back();

template <size_t>
using IntegerWord = uint64_t;
template <size_t>
using FloatWord = double;

template <class Result, size_t... I, size_t... F, size_t... S>
TENON_CALLS_ANY_TYPE uint64_t call(void* address, const uint64_t* words, std::index_sequence<I...>,
                                   std::index_sequence<F...>, std::index_sequence<S...>) {
  using Function = Result (*)(IntegerWord<I>..., FloatWord<F>..., IntegerWord<S>...);
  const Result result = reinterpret_cast<Function>(address)(
      words[I]..., std::bit_cast<double>(words[kIntegers + F])..., words[kStack + S]...);
  if constexpr (std::is_same_v<Result, float>) {
    return std::bit_cast<uint32_t>(result);
  } else {
    return std::bit_cast<uint64_t>(result);
  }
}

template <class Result, size_t stack_words>
uint64_t invoke(void* address, const uint64_t* words) {
  return call<Result>(address, words, std::make_index_sequence<kIntegers>{},
                      std::make_index_sequence<kFloats>{}, std::make_index_sequence<stack_words>{});
}

using Invoke = uint64_t (*)(void*, const uint64_t*);

template <class Result, size_t... Size>
Invoke invoke_with(size_t stack_words, std::index_sequence<Size...>) {
  constexpr std::array<Invoke, sizeof...(Size)> table{invoke<Result, kStackSizes[Size]>...};
  const auto enough = std::ranges::lower_bound(kStackSizes, stack_words);
  return table[static_cast<size_t>(enough - kStackSizes.begin())];
}

Invoke choose_invoke(const Parameter& result, size_t stack_words) {
  constexpr auto sizes = std::make_index_sequence<kStackSizes.size()>{};
  if (!result.is_floating()) return invoke_with<uint64_t>(stack_words, sizes);
  return result.dtype.bits == 32 ? invoke_with<float>(stack_words, sizes)
                                 : invoke_with<double>(stack_words, sizes);
}

// A callee leaves the bits above a narrow result undefined.
tenon_value extended(DType dtype, uint64_t bits) {
  tenon_value value{};
  const int unused = 64 - dtype.bits;
  if (dtype.code == TENON_FLOAT) {
    value.f =
        dtype.bits == 32 ? std::bit_cast<float>(static_cast<uint32_t>(bits)) : std::bit_cast<double>(bits);
  } else if (dtype.code == TENON_INT) {
    value.i = static_cast<int64_t>(bits << unused) >> unused;
  } else {
    value.u = bits << unused >> unused;
  }
  return value;
}

}  // namespace

NativeCall::NativeCall(void* address, const Prototype& prototype)
    : address_(address),
      name_(prototype.name),
      result_dtype_(prototype.result.dtype),
      is_void_(prototype.result.is_void) {
  size_t integers = 0;
  size_t floats = 0;
  size_t stack_words = 0;
  for (const Parameter& parameter : prototype.parameters) {
    const bool is_floating = parameter.is_floating();
    size_t word = 0;
    if (is_floating && floats < kFloats) {
      word = kIntegers + floats++;
    } else if (!is_floating && integers < kIntegers) {
      word = integers++;
    } else {
      word = kStack + stack_words++;
    }
    steps_.push_back({is_floating && parameter.dtype.bits == 32, static_cast<uint8_t>(word)});
  }
  invoke_ = choose_invoke(prototype.result, stack_words);
}

tenon_value NativeCall::operator()(const tenon_value* arguments) const {
  std::array<uint64_t, kWords> words{};
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Step step = steps_[i];
    words[step.word] =
        step.is_float32 ? std::bit_cast<uint32_t>(static_cast<float>(arguments[i].f)) : arguments[i].u;
  }
  uint64_t bits = 0;
  call_foreign([&] { bits = invoke_(address_, words.data()); },
               [&] {
                 if (!this_thread.may_end) end_process("native function", name_.c_str());
               });
  return is_void_ ? tenon_value{} : extended(result_dtype_, bits);
}

#else  // another calling convention

NativeCall::NativeCall(void* address, const Prototype& prototype)
    : address_(address), invoke_(nullptr), is_void_(prototype.result.is_void) {
  throw_error(Code::kSystem, "calling '", prototype.name,
              "': native functions can be called on x86-64 and AArch64 Linux only");
}

tenon_value NativeCall::operator()(const tenon_value*) const { return {}; }

#endif

}  // namespace tenon::impl
