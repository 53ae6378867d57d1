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
                                3};
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
    OK(tenon_feed_next(feed, -1, &batch, &error));
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

void client_plugins(void) {
  look_at_it();
  run_it();
}
