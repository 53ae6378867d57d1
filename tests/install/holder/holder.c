/* SPDX-License-Identifier: Apache-2.0
 *
 * A C library of someone else that writes to memory under Tenon's write lease. test_one_library.py loads it.
 */
#include <stdio.h>
#include <string.h>
#include <tenon/tenon.h>

/* Adopts n numbers and sets them to value under the write lease, which it waits for up to timeout_ns. Returns
 * the status; message is that of the error. */
__attribute__((visibility("default"))) int holder_fill(double* data, int64_t n, double value,
                                                       int64_t timeout_ns, char* message, size_t size) {
  tenon_error error = TENON_ERROR_INIT;
  tenon_adoption adoption;
  tenon_array* array = NULL;
  tenon_lease lease = TENON_LEASE_INIT;
  tenon_lease_options options;
  tenon_status status;

  memset(&adoption, 0, sizeof(adoption));
  adoption.struct_size = sizeof(adoption);
  adoption.data = data;
  adoption.device.type = TENON_CPU;
  adoption.ndim = 1;
  adoption.shape = &n;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.access = TENON_WRITE;
  options.timeout_ns = timeout_ns;

  status = tenon_dtype_from_name("f8", &adoption.dtype, &error);
  if (status == TENON_OK) status = tenon_array_adopt(&adoption, &array, &error);
  if (status == TENON_OK) status = tenon_lease_acquire(&lease, array, &options, &error);
  if (status == TENON_OK) {
    for (int64_t i = 0; i < n; ++i) data[i] = value;
    tenon_lease_release(&lease);
  }
  if (array != NULL) tenon_array_release(array);
  snprintf(message, size, "%s", error.message);
  return status;
}
