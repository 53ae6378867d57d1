/* SPDX-License-Identifier: Apache-2.0
 * consume.c - cc consume.c -ltenon -o consume
 *
 * A feed and its consumer in C: the function of fill.c generates in a thread of the feed, and the loop reads
 * each batch where it was filled.
 *
 *     ./consume ./libfill.so
 */
#include <stdint.h>
#include <stdio.h>
#include <tenon/tenon.h>

enum { ROWS = 64, COLUMNS = 4, BATCHES = 100 };

static int fail(const tenon_error* error) {
  fprintf(stderr, "%s\n", error->message);
  return 1;
}

/* Of how many rows the label says whether they rise. */
static int64_t rows_that_are_right(tenon_batch* batch) {
  tenon_array* const data = tenon_batch_array(batch, 0);
  tenon_array* const label = tenon_batch_array(batch, 1);
  const float* const x = tenon_array_describe(data)->data;
  const int64_t* const y = tenon_array_describe(label)->data;
  int64_t right = 0;
  for (int i = 0; i < ROWS; ++i) right += (x[COLUMNS * i] < x[COLUMNS * i + COLUMNS - 1]) == (y[i] == 1);
  tenon_array_release(label);
  tenon_array_release(data);
  return right;
}

int main(int argc, char** argv) {
  const int64_t data_shape[] = {ROWS, COLUMNS}, label_shape[] = {ROWS};
  const tenon_field fields[] = {{"data", {TENON_FLOAT, 32, 1}, 2, data_shape},
                                {"label", {TENON_INT, 64, 1}, 1, label_shape}};
  tenon_error error = TENON_ERROR_INIT;
  tenon_function* function = NULL;
  tenon_schema* schema = NULL;
  tenon_generator generator;
  tenon_feed* feed = NULL;
  tenon_feed_options options = {.struct_size = sizeof options, .workers = 1, .slots = 4, .batches = BATCHES};
  int64_t right = 0;

  if (tenon_function_load(argc > 1 ? argv[1] : "./libfill.so",
                          "int fill(float *data, int64_t *label, size_t n, uint64_t seed)", 0, &function,
                          &error) != TENON_OK ||
      tenon_schema_create(2, fields, &schema, &error) != TENON_OK ||
      tenon_function_bind(function, schema, 0, NULL, &generator, &error) != TENON_OK ||
      tenon_feed_create(&generator, schema, &options, &feed, &error) != TENON_OK ||
      tenon_feed_begin(feed, &error) != TENON_OK) {
    return fail(&error);
  }
  for (;;) {
    tenon_batch* batch = NULL;
    if (tenon_feed_next(feed, -1, &batch, &error) != TENON_OK) return fail(&error);
    if (batch == NULL) break; /* the end of the epoch */
    right += rows_that_are_right(batch);
    tenon_batch_release(batch); /* its slot is filled again */
  }
  tenon_feed_release(feed);
  tenon_schema_release(schema);
  tenon_function_release(function);
  printf("%d of %d rows are right\n", (int)right, ROWS * BATCHES);
  return right == ROWS * BATCHES ? 0 : 1;
}
