/* SPDX-License-Identifier: Apache-2.0
 *
 * The C client's part on making arrays: created memory, adopted memory with its deleter, handles, copies
 * and fills, announced views.
 */
#include <string.h>

#include "client.h"

static void created_memory(void) {
  tenon_error error = TENON_ERROR_INIT;
  tenon_array *array = NULL, *kept = NULL;
  const int64_t shape[3] = {2, 3, 4}, negative[1] = {-1}, huge[2] = {INT64_MAX, 3}, empty[2] = {0, 5};
  const tenon_array_desc* desc;
  int64_t i;
  OK(tenon_array_create(client_int32, 3, shape, client_cpu, TENON_ZEROED, &array, &error));
  desc = tenon_array_describe(array);
  CHECK(desc->struct_size >= sizeof *desc && desc->flags == 0 && desc->ndim == 3);
  CHECK(desc->size == 24 && desc->nbytes == 96 && desc->itemsize == 4);
  CHECK(memcmp(desc->shape, shape, sizeof shape) == 0);
  CHECK(desc->strides[0] == 12 && desc->strides[1] == 4 && desc->strides[2] == 1);
  CHECK((uintptr_t)desc->data % 64 == 0);
  CHECK(desc->device.type == TENON_CPU && desc->device.id == 0 && desc->dtype.bits == 32);
  for (i = 0; i < 24; i++) CHECK(((const int32_t*)desc->data)[i] == 0);
  tenon_array_retain(array);
  tenon_array_release(array);
  CHECK(desc == tenon_array_describe(array));
  tenon_array_release(array);

  FAILS(TENON_ERR_VALUE, tenon_array_create(client_int32, 1, negative, client_cpu, 0, &kept, &error));
  FAILS(TENON_ERR_VALUE, tenon_array_create(client_int32, 2, huge, client_cpu, 0, &kept, &error));
  FAILS(TENON_ERR_VALUE, tenon_array_create(client_int32, 3, shape, client_cpu, 1u << 31, &kept, &error));
  CHECK(kept == NULL);

  OK(tenon_array_create(client_int32, 2, empty, client_cpu, 0, &array, &error));
  CHECK(tenon_array_describe(array)->size == 0);
  tenon_array_release(array);
  OK(tenon_array_create(client_int32, 0, NULL, client_cpu, 0, &array, &error));
  CHECK(tenon_array_describe(array)->size == 1 && tenon_array_describe(array)->ndim == 0);
  tenon_array_release(array);
  tenon_array_release(NULL);
}

static void count_call(void* owner) { ++*(int*)owner; }
static void other_deleter(void* owner) { (void)owner; }

static tenon_adoption adoption_of(float* data, const int64_t* shape, int* calls) {
  tenon_adoption adoption;
  memset(&adoption, 0, sizeof adoption);
  adoption.struct_size = sizeof adoption;
  adoption.data = data;
  adoption.device = client_cpu;
  adoption.ndim = 1;
  adoption.dtype = client_float32;
  adoption.shape = shape;
  adoption.owner = calls;
  adoption.deleter = count_call;
  return adoption;
}

static void adopted_memory(void) {
  tenon_error error = TENON_ERROR_INIT;
  float memory[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  const int64_t six[1] = {6}, two[1] = {2}, back[1] = {-2}, outside[1] = {4};
  const int64_t third = 3;
  int calls = 0, others = 0;
  tenon_array *array = NULL, *second = NULL, *none = NULL;
  tenon_adoption adoption = adoption_of(memory, six, &calls), part;

  OK(tenon_array_adopt(&adoption, &array, &error));
  CHECK(tenon_array_describe(array)->data == memory);
  CHECK(tenon_array_owner(array, count_call) == &calls);
  CHECK(tenon_array_owner(array, other_deleter) == NULL);

  /* Known memory: another handle, whose owner is not used. */
  part = adoption_of(memory + 2, two, &others);
  OK(tenon_array_alias(&part, &second, &error));
  CHECK(second != NULL && tenon_array_describe(second)->data == memory + 2);
  part = adoption_of(memory + 6, two, &others);
  none = second;
  OK(tenon_array_alias(&part, &none, &error));
  CHECK(none == NULL);
  tenon_array_release(array);
  CHECK(calls == 0);
  tenon_array_release(second);
  CHECK(calls == 1 && others == 0);

  /* Negative strides, and strides that leave the memory given. */
  adoption = adoption_of(memory + 7, outside, &calls);
  adoption.strides = back;
  adoption.extent = memory;
  adoption.extent_nbytes = sizeof memory;
  adoption.flags = TENON_READONLY;
  OK(tenon_array_adopt(&adoption, &array, &error));
  CHECK(client_element(array, &third) == 1.0f);
  CHECK(tenon_array_describe(array)->flags == TENON_READONLY);
  tenon_array_release(array);
  CHECK(calls == 2);
  adoption.data = memory + 5;
  FAILS(TENON_ERR_VALUE, tenon_array_adopt(&adoption, &array, &error));
  adoption = adoption_of((float*)((char*)memory + 1), two, &calls);
  FAILS(TENON_ERR_BUFFER, tenon_array_adopt(&adoption, &array, &error));
  CHECK(calls == 2);
}

static void copies_and_fills(void) {
  tenon_error error = TENON_ERROR_INIT;
  tenon_array *source = client_counting(2, 3), *copy = NULL, *fixed = NULL;
  const double half = 0.5;
  const int32_t seven = 7;
  const int64_t last[2] = {1, 2};
  const tenon_dtype float64 = {TENON_FLOAT, 64, 1};
  uint64_t before;
  OK(tenon_array_copy(source, client_int32, &copy, &error));
  CHECK(((const int32_t*)tenon_array_describe(copy)->data)[5] == 5);
  before = tenon_array_version(copy);
  OK(tenon_array_fill(copy, &seven, client_int32, &error));
  CHECK(tenon_array_version(copy) != before && tenon_array_version(copy) == tenon_array_version(copy));
  OK(tenon_array_copy_to(copy, source, &error));
  CHECK(client_element(source, last) == 7.0f);
  OK(tenon_array_fill(source, &half, float64, &error));
  CHECK(client_element(source, last) == 0.5f);
  OK(tenon_array_readonly(source, &fixed, &error));
  FAILS(TENON_ERR_BUFFER, tenon_array_fill(fixed, &half, float64, &error));
  FAILS(TENON_ERR_BUFFER, tenon_array_copy_to(copy, fixed, &error));
  tenon_array_release(fixed);
  tenon_array_release(copy);
  copy = client_counting(3, 2);
  FAILS(TENON_ERR_VALUE, tenon_array_copy_to(copy, source, &error));
  tenon_array_release(copy);
  tenon_array_release(source);
}

/* An open view keeps the memory and is counted, and closing it twice is harmless. */
static void memory_that_changes_hands(void) {
  tenon_error error = TENON_ERROR_INIT;
  tenon_array *array = client_counting(2, 3), *fresh = NULL, *unchecked = NULL;
  tenon_memory memory;
  tenon_view view = TENON_VIEW_INIT;
  const int64_t last[2] = {1, 2};
  OK(tenon_array_unchecked(array, &unchecked, &error));
  CHECK(tenon_array_describe(unchecked)->data == tenon_array_describe(array)->data);
  OK(tenon_view_open(&view, unchecked, TENON_WRITE, NULL, &error));
  OK(tenon_array_renew(array, &fresh, &error)); /* a view outside of the contract is in nobody's way */
  CHECK(tenon_array_describe(fresh)->data != tenon_array_describe(array)->data);
  tenon_view_close(&view);
  tenon_array_release(unchecked);
  tenon_array_release(fresh);
  memset(&memory, 0, sizeof memory);
  FAILS(TENON_ERR_VALUE, tenon_array_move_out(array, "client_arrays.c", &memory, &error));
  memory.struct_size = sizeof memory;
  CHECK(tenon_array_moved_at(array) == NULL);
  OK(tenon_array_move_out(array, "client_arrays.c", &memory, &error));
  CHECK(strcmp(tenon_array_moved_at(array), "client_arrays.c") == 0);
  CHECK(memory.nbytes == 24 && !memory.is_readonly);
  CHECK(((float*)memory.data)[5] == client_element(array, last));
  CHECK(tenon_view_open(&view, array, TENON_READ, NULL, &error) == TENON_ERR_MOVED);
  CHECK(strstr(error.message, "client_arrays.c") != NULL);
  tenon_array_release(array);
  ((float*)memory.data)[5] = 1;
  memory.deleter(memory.owner);
}

static void announced_views(void) {
  tenon_error error = TENON_ERROR_INIT;
  tenon_view reader = TENON_VIEW_INIT, writer = TENON_VIEW_INIT;
  tenon_array *array = client_counting(2, 2), *fixed = NULL;
  tenon_view_count count;
  float* data = (float*)tenon_array_describe(array)->data;
  uint64_t version;
  OK(tenon_array_readonly(array, &fixed, &error));
  FAILS(TENON_ERR_BUFFER, tenon_view_open(&writer, fixed, TENON_WRITE, NULL, &error));
  OK(tenon_view_open(&reader, fixed, TENON_READ, NULL, &error));
  OK(tenon_view_open(&writer, array, TENON_WRITE, NULL, &error));
  count = tenon_array_views(fixed);
  CHECK(count.readers == 1 && count.writers == 1);
  CHECK(tenon_view_access(&reader) == TENON_READ && tenon_view_access(&writer) == TENON_WRITE);
  version = tenon_array_version(array);
  CHECK(tenon_array_version(array) != version);
  tenon_view_close(&writer);
  tenon_view_close(&writer);
  count = tenon_array_views(array);
  CHECK(count.readers == 1 && count.writers == 0);
  tenon_array_release(fixed);
  tenon_array_release(array);
  CHECK(data[3] == 3.0f);
  tenon_view_close(&reader);
}

void client_arrays(void) {
  created_memory();
  adopted_memory();
  copies_and_fills();
  memory_that_changes_hands();
  announced_views();
}
