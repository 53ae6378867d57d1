/* SPDX-License-Identifier: Apache-2.0
 *
 * The generator of every contender: writes all of a buffer, as fast as memory takes it. */
#include <stddef.h>

static int fill_one(float* data, size_t n, float first) {
  for (size_t i = 0; i < n; ++i) data[i] = first;
  return 0;
}

int fill(float* data, size_t n, size_t per_row) { return fill_one(data, n * per_row, 1.0f); }

#define P(k) float* a##k
#define F(k) fill_one(a##k, n* per_row, 1.0f)
int fill_many(P(00), P(01), P(02), P(03), P(04), P(05), P(06), P(07), P(08), P(09), P(10), P(11), P(12), P(13),
              P(14), P(15), P(16), P(17), P(18), P(19), P(20), P(21), P(22), P(23), P(24), P(25), P(26), P(27),
              P(28), P(29), size_t n, size_t per_row) {
  return F(00) | F(01) | F(02) | F(03) | F(04) | F(05) | F(06) | F(07) | F(08) | F(09) | F(10) | F(11) | F(12) |
         F(13) | F(14) | F(15) | F(16) | F(17) | F(18) | F(19) | F(20) | F(21) | F(22) | F(23) | F(24) | F(25) |
         F(26) | F(27) | F(28) | F(29);
}
