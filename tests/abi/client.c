/* SPDX-License-Identifier: Apache-2.0
 *
 * A strict C99 program that uses the whole array part of tenon.h as a stranger would, and then checks
 * that the library holds nothing any more. Names, versions and errors are tested here; the other parts
 * stand in client_*.c.
 */
#include "client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const tenon_dtype client_float32 = {TENON_FLOAT, 32, 1};
const tenon_dtype client_int32 = {TENON_INT, 32, 1};
const tenon_device client_cpu = {TENON_CPU, 0};

void client_check(int holds, const char* text, const char* file, int line) {
  if (holds) return;
  fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, text);
  exit(1);
}

void client_status(tenon_status got, tenon_status wanted, tenon_error* error, const char* text,
                   const char* file, int line) {
  const char* message = got == TENON_OK ? "" : error->message;
  int told = got == TENON_OK || (error->code == got && message[0] != '\0');
  if (got != wanted || !told) {
    fprintf(stderr, "%s:%d: %s gives %s \"%s\", wanted %s\n", file, line, text, tenon_status_name(got),
            message, tenon_status_name(wanted));
    exit(1);
  }
  error->code = TENON_OK;
  error->message[0] = '\0';
}

tenon_array* client_counting(int64_t rows, int64_t columns) {
  tenon_error error = TENON_ERROR_INIT;
  tenon_array* array = NULL;
  int64_t shape[2], i;
  shape[0] = rows;
  shape[1] = columns;
  OK(tenon_array_create(client_float32, 2, shape, client_cpu, 0, &array, &error));
  for (i = 0; i < rows * columns; i++) ((float*)tenon_array_describe(array)->data)[i] = (float)i;
  return array;
}

float client_element(const tenon_array* array, const int64_t* index) {
  const tenon_array_desc* desc = tenon_array_describe(array);
  int64_t offset = 0;
  int32_t axis;
  for (axis = 0; axis < desc->ndim; axis++) offset += index[axis] * desc->strides[axis];
  return ((const float*)desc->data)[offset];
}

static void names_of_dtypes(void) {
  tenon_error error = TENON_ERROR_INIT;
  tenon_dtype dtype = {0, 0, 0};
  const tenon_dtype seven_bits = {TENON_INT, 7, 1};
  char name[32];
  OK(tenon_dtype_from_name("f4", &dtype, &error));
  CHECK(memcmp(&dtype, &client_float32, sizeof dtype) == 0);
  tenon_dtype_name(dtype, name, sizeof name);
  CHECK(strcmp(name, "float32") == 0);
  tenon_dtype_name(dtype, name, 4);
  CHECK(strcmp(name, "flo") == 0);
  OK(tenon_dtype_check(dtype, &error));
  FAILS(TENON_ERR_TYPE, tenon_dtype_from_name("float33", &dtype, &error));
  FAILS(TENON_ERR_TYPE, tenon_dtype_check(seven_bits, &error));
}

static void versions_and_codes(void) {
  uint32_t major = 99, minor = 99;
  char text[32];
  tenon_abi_version(&major, &minor);
  CHECK(major == TENON_ABI_MAJOR && minor >= TENON_ABI_MINOR);
  sprintf(text, "%d.%d.%d", TENON_VERSION_MAJOR, TENON_VERSION_MINOR, TENON_VERSION_PATCH);
  CHECK(strcmp(tenon_version(), text) == 0);
  CHECK(strcmp(tenon_status_name(TENON_OK), "TENON_OK") == 0);
  CHECK(strcmp(tenon_status_name(TENON_ERR_INTERNAL), "TENON_ERR_INTERNAL") == 0);
  CHECK(strcmp(tenon_status_name(-7), "unknown status") == 0);
}

/* A caller may pass no error struct, or an older and shorter one: nothing beyond its end is written. */
static void errors_of_any_length(void) {
  struct {
    tenon_error error;
    char guard[8];
  } caller;
  tenon_dtype dtype = {9, 9, 9};
  const tenon_dtype before = dtype;
  uint32_t length;
  CHECK(tenon_dtype_from_name("no such dtype", &dtype, NULL) == TENON_ERR_TYPE);
  for (length = 16; length < sizeof(tenon_error); length += 100) {
    memset(&caller, 0x5a, sizeof caller);
    caller.error.struct_size = length;
    CHECK(tenon_dtype_from_name("no such dtype", &dtype, &caller.error) == TENON_ERR_TYPE);
    CHECK(caller.error.code == TENON_ERR_TYPE && caller.error.message[0] != '\0');
    CHECK(memchr(caller.error.message, '\0', length - 8) != NULL);
    CHECK(((const char*)&caller)[length] == 0x5a && caller.guard[0] == 0x5a);
  }
  CHECK(memcmp(&dtype, &before, sizeof dtype) == 0);
}

void client_names(void) {
  names_of_dtypes();
  versions_and_codes();
  errors_of_any_length();
}

int main(void) {
  tenon_statistics left;
  client_names();
  client_arrays();
  client_views();
  client_exchange();
  client_ops();
  client_share();
  client_pool();
  client_plugins();
  memset(&left, 0, sizeof left);
  left.struct_size = sizeof left;
  tenon_statistics_get(&left);
  CHECK(left.storages == 0 && left.regions == 0 && left.views == 0);
  CHECK(left.heap_nbytes == 0 && left.failed_deleters == 0);
  puts("the C client is content");
  return 0;
}
