/* SPDX-License-Identifier: Apache-2.0
 *
 * zlib inflates into a batch: batch k is stream k of a row of gzip streams. Does not use Tenon. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <zlib.h>

int fill(int16_t* samples, size_t n, uint64_t index, const uint8_t* streams, const int64_t* offsets,
         uint64_t count, uint64_t columns) {
  const uint64_t k = index % count;
  const size_t wanted = n * columns * sizeof *samples;
  z_stream z;
  int code;
  memset(&z, 0, sizeof z);
  z.next_in = (Bytef*)(streams + offsets[k]);
  z.avail_in = (uInt)(offsets[k + 1] - offsets[k]);
  z.next_out = (Bytef*)samples;
  z.avail_out = (uInt)wanted;
  if (inflateInit2(&z, 16 + MAX_WBITS) != Z_OK) return 1;
  code = inflate(&z, Z_FINISH);
  inflateEnd(&z);
  if (code == Z_DATA_ERROR) return 2;
  return code == Z_STREAM_END && z.total_out == wanted ? 0 : 3;
}
