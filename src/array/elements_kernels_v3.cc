// SPDX-License-Identifier: Apache-2.0
//
// The kernels for x86-64-v3; compiled with -march=x86-64-v3.
#if defined(__x86_64__)
#define TENON_KERNELS_NAME kKernelsV3
#define TENON_KERNELS_TEXT "x86-64-v3"
#include "array/elements_kernels.inc"
#endif
