/* SPDX-License-Identifier: Apache-2.0
 * fill.c - cc -O3 -shared -fPIC fill.c -o libfill.so */
#include <stddef.h>
#include <stdint.h>

int fill(float* data, int64_t* label, size_t n, uint64_t seed) {
  for (size_t i = 0; i < n; ++i) {
    label[i] = (int64_t)((seed + i) % 2);
    for (size_t k = 0; k < 4; ++k) data[4 * i + k] = (float)(label[i] ? k : 3 - k);
  }
  return 0; /* anything else is an error, raised at this batch's place */
}
