/* SPDX-License-Identifier: Apache-2.0
 *
 * The C client's part on views: each shares the memory of its source, which the test sees by pointer.
 */
#include "client.h"

static float* data_of(const tenon_array* array) { return (float*)tenon_array_describe(array)->data; }

static void indexing(void) {
  tenon_error error = TENON_ERROR_INIT;
  tenon_array *source = client_counting(3, 4), *view = NULL;
  const tenon_array_desc* desc;
  /* [1, ::-2] then [..., None] then [7] */
  const tenon_index row_backwards[2] = {{TENON_INDEX_AT, 0, 1, 0, 0},
                                        {TENON_INDEX_SLICE, 0, TENON_OMITTED, TENON_OMITTED, -2}};
  const tenon_index extended[2] = {{TENON_INDEX_ELLIPSIS, 0, 0, 0, 0}, {TENON_INDEX_NEW_AXIS, 0, 0, 0, 0}};
  const tenon_index outside[1] = {{TENON_INDEX_AT, 0, 7, 0, 0}};
  const tenon_index no_step[1] = {{TENON_INDEX_SLICE, 0, 0, 1, 0}};
  OK(tenon_array_index(source, 2, row_backwards, &view, &error));
  desc = tenon_array_describe(view);
  CHECK(desc->ndim == 1 && desc->shape[0] == 2 && desc->strides[0] == -2);
  CHECK(data_of(view) == data_of(source) + 7 && tenon_array_is_contiguous(view) == 0);
  tenon_array_release(view);
  OK(tenon_array_index(source, 2, extended, &view, &error));
  desc = tenon_array_describe(view);
  CHECK(desc->ndim == 3 && desc->shape[2] == 1 && data_of(view) == data_of(source));
  tenon_array_release(view);
  FAILS(TENON_ERR_INDEX, tenon_array_index(source, 1, outside, &view, &error));
  FAILS(TENON_ERR_VALUE, tenon_array_index(source, 1, no_step, &view, &error));
  tenon_array_release(source);
}

static void reshaping(void) {
  tenon_error error = TENON_ERROR_INIT;
  tenon_array *source = client_counting(3, 4), *view = NULL, *turned = NULL;
  const int64_t two_rows[2] = {2, -1}, wrong[1] = {13}, flat[1] = {12}, at[2] = {1, 2}, five[1] = {5};
  const int32_t swapped[2] = {1, 0}, twice[2] = {1, 1};
  OK(tenon_array_reshape(source, 2, two_rows, TENON_COPY_NEVER, &view, &error));
  CHECK(data_of(view) == data_of(source) && tenon_array_describe(view)->shape[1] == 6);
  CHECK(tenon_array_is_contiguous(view) == 1);
  tenon_array_release(view);
  FAILS(TENON_ERR_VALUE, tenon_array_reshape(source, 1, wrong, TENON_COPY_NEVER, &view, &error));
  OK(tenon_array_transpose(source, NULL, &turned, &error));
  CHECK(tenon_array_describe(turned)->shape[0] == 4 && client_element(turned, at) == 9.0f);
  tenon_array_release(turned);
  OK(tenon_array_transpose(source, swapped, &turned, &error));
  CHECK(data_of(turned) == data_of(source) && client_element(turned, at) == 9.0f);
  FAILS(TENON_ERR_VALUE, tenon_array_transpose(source, twice, &view, &error));
  FAILS(TENON_ERR_VALUE, tenon_array_reshape(turned, 1, flat, TENON_COPY_NEVER, &view, &error));
  OK(tenon_array_reshape(turned, 1, flat, TENON_COPY_IF_NEEDED, &view, &error));
  CHECK(data_of(view) != data_of(source) && client_element(view, five) == 9.0f);
  tenon_array_release(view);
  OK(tenon_array_reshape(source, 1, flat, TENON_COPY_ALWAYS, &view, &error));
  CHECK(data_of(view) != data_of(source));
  tenon_array_release(view);
  tenon_array_release(turned);
  tenon_array_release(source);
}

static void other_dtypes_and_shapes(void) {
  tenon_error error = TENON_ERROR_INIT;
  tenon_array *source = client_counting(2, 4), *view = NULL;
  const tenon_dtype bytes = {TENON_UINT, 8, 1}, float64 = {TENON_FLOAT, 64, 1};
  const int64_t three[1] = {3}, stretched[3] = {5, 2, 4}, unfit[2] = {2, 3}, at[3] = {4, 1, 1};
  OK(tenon_array_reinterpret(source, bytes, 0, NULL, 0, &view, &error));
  CHECK(tenon_array_describe(view)->shape[1] == 16);
  tenon_array_release(view);
  OK(tenon_array_reinterpret(source, client_int32, 1, three, 8, &view, &error));
  CHECK(data_of(view) == data_of(source) + 2 && tenon_array_describe(view)->dtype.code == TENON_INT);
  tenon_array_release(view);
  FAILS(TENON_ERR_VALUE, tenon_array_reinterpret(source, float64, 1, three, 4, &view, &error));
  OK(tenon_array_broadcast(source, 3, stretched, &view, &error));
  CHECK(data_of(view) == data_of(source) && client_element(view, at) == 5.0f);
  CHECK((tenon_array_describe(view)->flags & TENON_READONLY) != 0);
  tenon_array_release(view);
  FAILS(TENON_ERR_VALUE, tenon_array_broadcast(source, 2, unfit, &view, &error));
  OK(tenon_array_readonly(source, &view, &error));
  CHECK(data_of(view) == data_of(source));
  CHECK((tenon_array_describe(view)->flags & TENON_READONLY) != 0);
  tenon_array_release(view);
  tenon_array_release(source);
}

void client_views(void) {
  indexing();
  reshaping();
  other_dtypes_and_shapes();
}
