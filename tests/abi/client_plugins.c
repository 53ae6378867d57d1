/* SPDX-License-Identifier: Apache-2.0
 *
 * A feed from C that runs a plug-in, and the two calls that look at one. What plug-ins may do wrong:
 * data/plugin_test.cc. */
#include <string.h>

#include "client.h"

static void look_at_it(void) {
  tenon_plugin_info info;
  tenon_error error = TENON_ERROR_INIT;
  memset(&info, 0, sizeof info);
  FAILS(TENON_ERR_VALUE, tenon_plugin_look(TENON_TEST_PLUGIN, &info, &error)); /* no struct_size */
  info.struct_size = sizeof info;
  OK(tenon_plugin_look(TENON_TEST_PLUGIN, &info, &error));
  CHECK(strcmp(info.name, "telling") == 0);
  CHECK(info.flags == TENON_THREADSAFE && info.describes == 1);
  FAILS(TENON_ERR_NOT_FOUND, tenon_plugin_look("./no_such_plugin.so", &info, &error));
  FAILS(TENON_ERR_VALUE, tenon_plugin_look(NULL, &info, &error));
}

static void run_it(void) {
  tenon_plugin_options plugin_options = {sizeof plugin_options, 0, 5, "{\"rows\": 3}"};
  /* Of a caller that was compiled before rank was added. */
  tenon_feed_options options = {offsetof(tenon_feed_options, rank),
                                2,
                                6,
                                0,
                                4,
                                5,
                                TENON_ON_ERROR_RAISE,
                                0,
                                TENON_ON_STARVED_WAIT,
                                0,
                                0,
                                0,
                                7,
                                3,
                                0,
                                NULL};
  tenon_error error = TENON_ERROR_INIT;
  tenon_generator generator;
  tenon_schema* schema = NULL;
  tenon_feed* feed = NULL;
  tenon_batch* batch = NULL;
  uint64_t index;
  OK(tenon_plugin_open(TENON_TEST_PLUGIN, &plugin_options, NULL, &schema, &generator, &error));
  CHECK(tenon_schema_field_count(schema) == 2 && tenon_schema_rows(schema) == 3);
  options.struct_size = sizeof options;
  FAILS(TENON_ERR_VALUE, tenon_feed_create(&generator, schema, &options, &feed, &error));
  options.struct_size = offsetof(tenon_feed_options, rank);
  OK(tenon_feed_create(&generator, schema, &options, &feed, &error));
  OK(tenon_feed_begin(feed, &error));
  for (index = 0; index < 4; index++) {
    tenon_array* label;
    OK(tenon_feed_wait(feed, -1, &error));
    OK(tenon_feed_next(feed, 0, &batch, &error));
    label = tenon_batch_array(batch, 1);
    CHECK(((const int64_t*)tenon_array_describe(label)->data)[2] == (int64_t)index * 100 + 2);
    tenon_array_release(label);
    tenon_batch_release(batch);
    batch = NULL;
  }
  OK(tenon_feed_next(feed, -1, &batch, &error));
  CHECK(batch == NULL);
  OK(tenon_feed_close(feed, -1, &error));
  tenon_feed_release(feed);

  /* The schema is known now, and given; without options; nobody wants to hear it. */
  FAILS(TENON_ERR_VALUE, tenon_plugin_open(TENON_TEST_PLUGIN, NULL, schema, NULL, &generator, &error));
  plugin_options.config = "{\"rows\": 3}";
  OK(tenon_plugin_open(TENON_TEST_PLUGIN, &plugin_options, schema, NULL, &generator, &error));
  generator.drop(generator.context);
  plugin_options.config = "rows=3";
  FAILS(TENON_ERR_VALUE,
        tenon_plugin_open(TENON_TEST_PLUGIN, &plugin_options, NULL, NULL, &generator, &error));
  plugin_options.config = "{\"rows\": 0}";
  FAILS(TENON_ERR_OP, tenon_plugin_open(TENON_TEST_PLUGIN, &plugin_options, NULL, NULL, &generator, &error));
  CHECK(error.op_code == 3);
  tenon_schema_release(schema);
}

/* Each batch has the number of fills so far, which is the state. */
static int32_t count_fills(void* context, const tenon_fill_request* request, char* message,
                           size_t message_size) {
  int64_t* count = context;
  (void)message, (void)message_size;
  CHECK(request->epoch_seed != request->seed);
  if ((request->flags & TENON_RESTORE_START) != 0) *count = 0;
  if ((request->flags & TENON_RESTORE_STATE) != 0) memcpy(count, request->state, sizeof *count);
  *(int64_t*)request->fields[0] = ++*count;
  memcpy(request->state, count, sizeof *count);
  *request->state_nbytes = sizeof *count;
  return 0;
}

static int64_t number_of_next(tenon_feed* feed) {
  tenon_error error = TENON_ERROR_INIT;
  tenon_batch* batch = NULL;
  tenon_array* array;
  int64_t number;
  OK(tenon_feed_next(feed, -1, &batch, &error));
  array = tenon_batch_array(batch, 0);
  number = *(const int64_t*)tenon_array_describe(array)->data;
  tenon_array_release(array);
  tenon_batch_release(batch);
  return number;
}

static void resume_it(void) {
  const int64_t shape[1] = {1};
  const tenon_field field = {"x", {TENON_INT, 64, 1}, 1, shape};
  int64_t count = 0, saved;
  uint64_t epoch, place_now;
  tenon_error error = TENON_ERROR_INIT;
  tenon_generator generator;
  tenon_feed_options options;
  tenon_schema* schema = NULL;
  tenon_feed* feed = NULL;
  tenon_feed_state* state = NULL;
  tenon_feed_place place;
  tenon_worker_state bytes;
  memset(&generator, 0, sizeof generator);
  generator.struct_size = sizeof generator;
  generator.flags = TENON_HAS_STATE;
  generator.context = &count;
  generator.fill = count_fills;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.workers = 1;
  options.slots = 4;
  options.batches = 6;
  OK(tenon_schema_create(1, &field, &schema, &error));
  OK(tenon_feed_create(&generator, schema, &options, &feed, &error));
  OK(tenon_feed_begin(feed, &error));
  CHECK(number_of_next(feed) == 1);
  CHECK(number_of_next(feed) == 2);

  OK(tenon_feed_state_take(feed, &state, &error));
  memset(&place, 0, sizeof place);
  place.struct_size = sizeof place;
  tenon_feed_state_describe(state, &place);
  CHECK(place.workers == 1 && place.epoch == 0 && place.place == 2 && place.worker == 0);
  CHECK(place.ignored_index == 0);
  CHECK(tenon_feed_state_get(state, 1).data == NULL);
  bytes = tenon_feed_state_get(state, 0);
  CHECK(bytes.nbytes == sizeof saved);
  memcpy(&saved, bytes.data, sizeof saved);
  CHECK(saved == 2);

  while (place.place < 5) CHECK(number_of_next(feed) == (int64_t)++place.place);
  place.place = 2;
  OK(tenon_feed_resume(feed, &place, &bytes, &error));
  tenon_feed_state_release(state); /* the feed has a copy */
  bytes.data = &saved;
  OK(tenon_feed_begin(feed, &error));
  tenon_feed_position(feed, &epoch, &place_now);
  CHECK(epoch == 0 && place_now == 2);
  CHECK(number_of_next(feed) == 3);
  tenon_feed_seek(feed, 0, 0); /* which has no states */
  OK(tenon_feed_begin(feed, &error));
  CHECK(number_of_next(feed) == 1);

  place.worker = 1;
  FAILS(TENON_ERR_VALUE, tenon_feed_resume(feed, &place, &bytes, &error));
  place.worker = 0;
  place.workers = 0;
  FAILS(TENON_ERR_VALUE, tenon_feed_resume(feed, &place, NULL, &error));
  place.workers = 1;
  FAILS(TENON_ERR_VALUE, tenon_feed_resume(feed, &place, NULL, &error));
  place.struct_size = 4;
  FAILS(TENON_ERR_VALUE, tenon_feed_resume(feed, &place, &bytes, &error));
  OK(tenon_feed_close(feed, -1, &error));
  tenon_feed_release(feed);
  tenon_schema_release(schema);
}

void client_plugins(void) {
  look_at_it();
  run_it();
  resume_it();
}
