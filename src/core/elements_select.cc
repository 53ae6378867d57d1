// SPDX-License-Identifier: Apache-2.0
#include "core/elements_select.h"

namespace tenon {

std::span<const Kernels* const> available_kernels() {
#if defined(__x86_64__)
  static constexpr const Kernels* kTables[] = {&kKernelsBaseline, &kKernelsV3, &kKernelsV4};
  static const size_t count = __builtin_cpu_supports("x86-64-v4")   ? 3
                              : __builtin_cpu_supports("x86-64-v3") ? 2
                                                                    : 1;
  return {kTables, count};
#else
  static constexpr const Kernels* kTables[] = {&kKernelsBaseline};
  return kTables;
#endif
}

}  // namespace tenon
