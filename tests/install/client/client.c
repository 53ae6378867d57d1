/* SPDX-License-Identifier: Apache-2.0
 *
 * The smallest C program that shows header and library fit: creates an array, reads it back.
 */
#include <stdio.h>
#include <tenon/tenon.h>

int main(void) {
  tenon_error error = TENON_ERROR_INIT;
  tenon_dtype dtype;
  const tenon_device cpu = {TENON_CPU, 0};
  const int64_t shape[2] = {2, 3};
  tenon_array* array = NULL;
  uint32_t major, minor;
  tenon_abi_version(&major, &minor);
  if (major != TENON_ABI_MAJOR || minor != TENON_ABI_MINOR) return 1;
  if (tenon_dtype_from_name("int64", &dtype, &error) != TENON_OK) return 2;
  if (tenon_array_create(dtype, 2, shape, cpu, TENON_ZEROED, &array, &error) != TENON_OK) {
    fprintf(stderr, "%s\n", error.message);
    return 3;
  }
  printf("C: %d bytes\n", (int)tenon_array_describe(array)->nbytes);
  tenon_array_release(array);
  return 0;
}
