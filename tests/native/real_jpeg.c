/* SPDX-License-Identifier: Apache-2.0
 *
 * libjpeg-turbo decodes into the rows of a batch: row i of batch k is picture k * n + i of a row of JPEGs
 * that lie one behind the other. Does not use Tenon. */
#include <stddef.h>
#include <stdint.h>
#include <turbojpeg.h>

int fill(uint8_t* image, int64_t* number, size_t n, uint64_t index, const uint8_t* jpegs,
         const int64_t* offsets, uint64_t count, int height, int width) {
  const tjhandle decoder = tjInitDecompress();
  int code = decoder == NULL ? 1 : 0;
  for (size_t i = 0; code == 0 && i < n; ++i) {
    const uint64_t k = (index * n + i) % count;
    const unsigned long size = (unsigned long)(offsets[k + 1] - offsets[k]);
    unsigned char* const row = image + i * (size_t)height * (size_t)width * 3;
    number[i] = (int64_t)k;
    /* Fails where the picture is damaged; a picture of another size would be scaled: refused. */
    int w = 0, h = 0, sampling = 0, space = 0;
    if (tjDecompressHeader3(decoder, jpegs + offsets[k], size, &w, &h, &sampling, &space) != 0)
      code = 2;
    else if (w != width || h != height)
      code = 3;
    else if (tjDecompress2(decoder, jpegs + offsets[k], size, row, width, 3 * width, height, TJPF_RGB,
                           TJFLAG_ACCURATEDCT) != 0)
      code = 4;
  }
  if (decoder != NULL) tjDestroy(decoder);
  return code;
}
