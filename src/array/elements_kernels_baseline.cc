// SPDX-License-Identifier: Apache-2.0
//
// The kernels for every processor of the architecture.
#define TENON_KERNELS_NAME kKernelsBaseline
#define TENON_KERNELS_TEXT "baseline"
#include "array/elements_kernels.inc"
