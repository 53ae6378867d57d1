/* SPDX-License-Identifier: Apache-2.0
 *
 * The generator of every contender: writes all of a buffer, as fast as memory takes it. */
#include <stddef.h>

static int fill_one(float* data, size_t n, float first) {
  for (size_t i = 0; i < n; ++i) data[i] = first;
  return 0;
}

int fill(float* data, size_t n, size_t per_row) { return fill_one(data, n * per_row, 1.0f); }

enum { N_ARRAYS = 30 };

/* Thirty arrays of a batch, each a parameter of its own. */
int fill_many(float* a00, float* a01, float* a02, float* a03, float* a04, float* a05, float* a06, float* a07,
              float* a08, float* a09, float* a10, float* a11, float* a12, float* a13, float* a14, float* a15,
              float* a16, float* a17, float* a18, float* a19, float* a20, float* a21, float* a22, float* a23,
              float* a24, float* a25, float* a26, float* a27, float* a28, float* a29, size_t n,
              size_t per_row) {
  float* const arrays[N_ARRAYS] = {a00, a01, a02, a03, a04, a05, a06, a07, a08, a09, a10, a11, a12, a13, a14,
                                   a15, a16, a17, a18, a19, a20, a21, a22, a23, a24, a25, a26, a27, a28, a29};
  for (int i = 0; i < N_ARRAYS; ++i) (void)fill_one(arrays[i], n * per_row, 1.0f);
  return 0;
}
