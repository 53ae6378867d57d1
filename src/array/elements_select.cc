// SPDX-License-Identifier: Apache-2.0
#include "array/elements_select.h"

namespace tenon::impl {
namespace {

#if defined(__x86_64__)
#if defined(__clang__) && __clang_major__ < 17
// This Clang does not know the levels by name. No processor has these features without the rest of the level.
bool has_v3() noexcept {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma");
}
bool has_v4() noexcept {
  return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
#else
bool has_v3() noexcept { return __builtin_cpu_supports("x86-64-v3"); }
bool has_v4() noexcept { return __builtin_cpu_supports("x86-64-v4"); }
#endif
#endif

}  // namespace

std::span<const Kernels* const> available_kernels() {
#if defined(__x86_64__)
  static constexpr const Kernels* kTables[] = {&kKernelsBaseline, &kKernelsV3, &kKernelsV4};
  static const size_t count = has_v4() ? 3 : has_v3() ? 2 : 1;
  return {kTables, count};
#else
  static constexpr const Kernels* kTables[] = {&kKernelsBaseline};
  return kTables;
#endif
}

}  // namespace tenon::impl
