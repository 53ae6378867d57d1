/* SPDX-License-Identifier: Apache-2.0
 *
 * The native data source of the demo: draws handwritten digits of 8 x 8 pixels at random, turns, scales and
 * shifts each by a fraction of a pixel, adds noise and writes them where it is told. It knows nothing of
 * Tenon, allocates nothing and keeps no state, so any number of threads may call it. The same seed gives the
 * same batch. Needs the C library and libm only.
 *
 * The random numbers are those of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
 * generators, 2014).
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
  kSide = 8,
  kPixels = kSide * kSide,
  kMargin = 4, /* the largest turn, scale and shift together stay inside it */
  kPaddedSide = kSide + 2 * kMargin,
  kSubsamples = 2 /* per pixel and axis */
};

static const float kMaxTurn = 0.21f; /* radians, about 12 degrees */
static const float kMaxZoom = 0.10f;
static const float kMaxShift = 0.9f; /* pixels */
static const float kNoise = 0.05f;   /* standard deviation; ink is 1 */

static uint64_t next_random(uint64_t* state) {
  uint64_t z = (*state += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/* In [-limit, limit). */
static float uniform(uint64_t* state, float limit) {
  return ((float)(next_random(state) >> 40) * 0x1p-23f - 1.0f) * limit;
}

/* The sum of four uniform 16-bit numbers, scaled to mean 0 and standard deviation 1. */
static float nearly_normal(uint64_t bits) {
  const uint32_t sum =
      (uint32_t)((bits & 0xFFFF) + (bits >> 16 & 0xFFFF) + (bits >> 32 & 0xFFFF) + (bits >> 48));
  return ((float)sum - 131070.0f) * (1.0f / 37837.0f);
}

static float bilinear(const float* padded, float y, float x) {
  const int row = (int)y, column = (int)x; /* both are positive */
  const float v = y - (float)row, u = x - (float)column;
  const float* p = padded + row * kPaddedSide + column;
  const float top = p[0] + u * (p[1] - p[0]);
  const float bottom = p[kPaddedSide] + u * (p[kPaddedSide + 1] - p[kPaddedSide]);
  return top + v * (bottom - top);
}

static void transform(float* out, const float* image, uint64_t* state) {
  float padded[kPaddedSide * kPaddedSide] = {0};
  for (int row = 0; row < kSide; row++)
    memcpy(padded + (row + kMargin) * kPaddedSide + kMargin, image + row * kSide, kSide * sizeof(float));

  const float angle = uniform(state, kMaxTurn), zoom = 1.0f + uniform(state, kMaxZoom);
  const float c = cosf(angle) * zoom, s = sinf(angle) * zoom;
  const float middle = 0.5f * (kSide - 1);
  const float center_y = kMargin + middle + uniform(state, kMaxShift);
  const float center_x = kMargin + middle + uniform(state, kMaxShift);

  for (int i = 0; i < kPixels; i++) {
    float ink = 0.0f;
    for (int k = 0; k < kSubsamples * kSubsamples; k++) {
      const float y = (float)(i / kSide) + (float)(k / kSubsamples) * 0.5f - 0.25f - middle;
      const float x = (float)(i % kSide) + (float)(k % kSubsamples) * 0.5f - 0.25f - middle;
      ink += bilinear(padded, center_y + c * y - s * x, center_x + s * y + c * x);
    }
    out[i] = ink * (1.0f / (kSubsamples * kSubsamples)) + kNoise * nearly_normal(next_random(state));
  }
}

/* Fills data (n x 8 x 8) and label (n) with n digits drawn from images (count x 8 x 8) and labels (count).
 * Returns 0, or 1 when there is nothing to draw from. */
int augment(float* data, int64_t* label, size_t n, const float* images, const int64_t* labels, size_t count,
            uint64_t seed) {
  if (count == 0) return 1;
  for (size_t i = 0; i < n; i++) {
    uint64_t state = seed + i * 0xD1342543DE82EF95u;
    next_random(&state);
    const size_t drawn = (size_t)(next_random(&state) % count);
    label[i] = labels[drawn];
    transform(data + i * kPixels, images + drawn * kPixels, &state);
  }
  return 0;
}
