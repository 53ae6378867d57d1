/* SPDX-License-Identifier: Apache-2.0
 *
 * The generator of every contender, which writes all of a buffer as fast as memory takes it, and the
 * consumer of every contender, which reads one byte of every page. Row i of batch k, of n rows, holds the
 * number of the row, k * n + i, modulo 1024. */
#include <stddef.h>
#include <stdint.h>

enum { kPage = 4096, kArrays = 30, kPerRow = 64, kNumbers = 1024 };

static int fill_one(float* data, size_t n, size_t per_row, uint64_t index) {
  for (size_t i = 0; i < n; ++i) {
    const float number = (float)((index * n + i) % kNumbers);
    float* const row = data + i * per_row;
    for (size_t j = 0; j < per_row; ++j) row[j] = number;
  }
  return 0;
}

int fill(float* a00, size_t n, uint64_t index, size_t per_row) { return fill_one(a00, n, per_row, index); }

/* Thirty arrays of a batch with rows of 64 numbers, each array a parameter of its own. */
int fill_many(float* a00, float* a01, float* a02, float* a03, float* a04, float* a05, float* a06, float* a07,
              float* a08, float* a09, float* a10, float* a11, float* a12, float* a13, float* a14, float* a15,
              float* a16, float* a17, float* a18, float* a19, float* a20, float* a21, float* a22, float* a23,
              float* a24, float* a25, float* a26, float* a27, float* a28, float* a29, size_t n,
              uint64_t index) {
  float* const arrays[kArrays] = {a00, a01, a02, a03, a04, a05, a06, a07, a08, a09, a10, a11, a12, a13, a14,
                                  a15, a16, a17, a18, a19, a20, a21, a22, a23, a24, a25, a26, a27, a28, a29};
  for (int i = 0; i < kArrays; ++i) (void)fill_one(arrays[i], n, kPerRow, index);
  return 0;
}

uint64_t read_pages(const void* const* arrays, const size_t* nbytes, size_t count) {
  uint64_t sum = 0;
  for (size_t k = 0; k < count; ++k) {
    const volatile unsigned char* const data = arrays[k];
    for (size_t i = 0; i < nbytes[k]; i += kPage) sum += data[i];
  }
  return sum;
}
