/* SPDX-License-Identifier: Apache-2.0
 *
 * A plug-in in C for the tests. Its batches tell who filled them and with what; the configuration makes it
 * fail and lie. Counts its states, and the calls that met another one in the same state. The macro TABLE
 * makes a library that is no plug-in, or a damaged one.
 */
#include "tenon/plugin.h"

#include <stdio.h>

enum { COLUMNS = 8, MAX_ROWS = 1 << 20 };

typedef struct state {
  int32_t worker;
  uint64_t seed;
  uint64_t fills;
  int busy;
  int64_t rows;
  int64_t fail_at;   /* -1: at none */
  int64_t end_at;    /* likewise */
  int64_t shrink_at; /* likewise: a batch of one row */
  char lie[32];
  char text[700];
  int64_t data_shape[2];
  int64_t label_shape[1];
  tenon_plugin_field fields[2];
  const tenon_plugin_field* given;
  int32_t n_given;
} state;

static int64_t open_states, all_opened, all_closed, described_only, overlaps;

TENON_PLUGIN_EXPORT int64_t count_open(void) { return __atomic_load_n(&open_states, __ATOMIC_SEQ_CST); }
TENON_PLUGIN_EXPORT int64_t count_opened(void) { return __atomic_load_n(&all_opened, __ATOMIC_SEQ_CST); }
TENON_PLUGIN_EXPORT int64_t count_closed(void) { return __atomic_load_n(&all_closed, __ATOMIC_SEQ_CST); }
TENON_PLUGIN_EXPORT int64_t count_described(void) {
  return __atomic_load_n(&described_only, __ATOMIC_SEQ_CST);
}
TENON_PLUGIN_EXPORT int64_t count_overlaps(void) { return __atomic_load_n(&overlaps, __ATOMIC_SEQ_CST); }

static void add(int64_t* counter, int64_t n) { __atomic_fetch_add(counter, n, __ATOMIC_SEQ_CST); }

static void enter(state* self) {
  if (__atomic_exchange_n(&self->busy, 1, __ATOMIC_SEQ_CST) != 0) add(&overlaps, 1);
}

static void leave(state* self) { __atomic_store_n(&self->busy, 0, __ATOMIC_SEQ_CST); }

/* Configuration: rows, fail_open (a text; for workers only), fail_at (an index), text (of that failure),
 * end_at, shrink_at, lie. */
static int32_t plugin_open(const tenon_plugin_setup* setup, void** out, char* message, size_t message_size) {
  state* self;
  char fail_open[64] = "";
  if (setup->struct_size < sizeof *setup) return 1;
  if (tenon_plugin_string(setup->config, "fail_open", fail_open, sizeof fail_open) == 1 &&
      setup->worker >= 0) {
    *out = &open_states; /* must not be closed */
    snprintf(message, message_size, "%s", fail_open);
    return 5;
  }
  self = calloc(1, sizeof *self);
  if (self == NULL) return 2;
  self->worker = setup->worker;
  self->seed = setup->seed;
  self->rows = 4;
  self->fail_at = self->end_at = self->shrink_at = -1;
  self->given = setup->fields;
  self->n_given = setup->n_fields;
  if (tenon_plugin_integer(setup->config, "rows", &self->rows) < 0 || self->rows < 1 ||
      self->rows > MAX_ROWS) {
    snprintf(message, message_size, "rows must be an integer from 1 to %d", MAX_ROWS);
    free(self);
    return 3;
  }
  tenon_plugin_integer(setup->config, "fail_at", &self->fail_at);
  tenon_plugin_integer(setup->config, "end_at", &self->end_at);
  tenon_plugin_integer(setup->config, "shrink_at", &self->shrink_at);
  tenon_plugin_string(setup->config, "lie", self->lie, sizeof self->lie);
  tenon_plugin_string(setup->config, "text", self->text, sizeof self->text);
  add(&open_states, 1);
  add(&all_opened, 1);
  if (self->worker < 0) add(&described_only, 1);
  *out = self;
  return 0;
}

static int is_lie(const state* self, const char* lie) { return strcmp(self->lie, lie) == 0; }

static int32_t plugin_describe(void* context, const tenon_plugin_field** fields, int32_t* n_fields,
                               char* message, size_t message_size) {
  state* const self = context;
  enter(self);
  self->data_shape[0] = self->label_shape[0] = self->rows;
  self->data_shape[1] = COLUMNS;
  self->fields[0] = (tenon_plugin_field){"data", "uint64", 2, self->data_shape};
  self->fields[1] = (tenon_plugin_field){"label", "i8", 1, self->label_shape};
  *fields = self->fields;
  *n_fields = 2;
  if (is_lie(self, "no list")) *fields = NULL;
  if (is_lie(self, "no fields")) *n_fields = 0;
  if (is_lie(self, "negative")) *n_fields = -3;
  if (is_lie(self, "many")) *n_fields = INT32_MAX;
  if (is_lie(self, "no name")) self->fields[1].name = NULL;
  if (is_lie(self, "bad name")) self->fields[1].name = "a b";
  if (is_lie(self, "twice")) self->fields[1].name = "data";
  if (is_lie(self, "attribute")) self->fields[1].name = "index"; /* in C a name like any other */
  if (is_lie(self, "no dtype")) self->fields[1].dtype = NULL;
  if (is_lie(self, "bad dtype")) self->fields[1].dtype = "float33";
  if (is_lie(self, "no shape")) self->fields[1].shape = NULL;
  if (is_lie(self, "no axes")) self->fields[1].ndim = 0;
  if (is_lie(self, "many axes")) self->fields[1].ndim = 1000;
  if (is_lie(self, "other rows")) self->label_shape[0] += 1;
  if (is_lie(self, "negative rows")) self->label_shape[0] = -4;
  if (is_lie(self, "huge")) self->data_shape[0] = self->label_shape[0] = INT64_MAX;
  if (is_lie(self, "for workers") && self->worker >= 0) self->data_shape[1] += 1;
  leave(self);
  if (is_lie(self, "refuses")) {
    snprintf(message, message_size, "nothing to describe");
    return 6;
  }
  return 0;
}

static int32_t plugin_fill(void* context, const tenon_fill_request* request, char* message,
                           size_t message_size) {
  state* const self = context;
  uint64_t* const data = request->fields[0];
  int64_t* const label = request->fields[1];
  int64_t row;
  int32_t code = 0;
  enter(self);
  if (request->struct_size < sizeof *request || request->rows != self->rows || self->n_given != 2 ||
      strcmp(self->given[1].dtype, "int64") != 0 || self->given[0].shape[1] != COLUMNS) {
    code = 8;
  }
  for (row = 0; code == 0 && row < request->rows; ++row) {
    const uint64_t values[COLUMNS] = {(uint64_t)self->worker,
                                      (uint64_t)request->worker,
                                      self->seed,
                                      request->seed,
                                      request->index,
                                      request->epoch,
                                      self->fills,
                                      (uint64_t)(uintptr_t)self};
    memcpy(data + row * COLUMNS, values, sizeof values);
    label[row] = (int64_t)request->index * 100 + row;
  }
  ++self->fills;
  if ((int64_t)request->index == self->end_at) code = TENON_END_OF_EPOCH;
  if ((int64_t)request->index == self->shrink_at) request->shapes[0][0] = request->shapes[1][0] = 1;
  if ((int64_t)request->index == self->fail_at) {
    code = 7;
    if (is_lie(self, "endless text")) {
      memset(message, 'x', message_size); /* and no NUL */
    } else {
      snprintf(message, message_size, "%s", self->text);
    }
  }
  leave(self);
  return code;
}

static void plugin_close(void* context) {
  enter(context);
  add(&open_states, -1);
  add(&all_closed, 1);
  free(context);
}

#ifndef TABLE
#define TABLE 0
#endif

#define ENTRIES plugin_open, plugin_describe, plugin_fill, plugin_close, NULL, NULL

/* A library that was compiled for version 1, with the request of that version. */
typedef struct old_request {
  uint32_t struct_size;
  int32_t worker;
  uint64_t index, epoch, seed;
  int64_t rows;
  void* const* fields;
  int32_t n_fields, reserved;
} old_request;

static int32_t old_fill(void* context, const old_request* old, char* message, size_t message_size) {
  tenon_fill_request request;
  if (old->struct_size < 56 || old->n_fields != 2) return 9;
  memset(&request, 0, sizeof request);
  request.struct_size = sizeof request;
  request.worker = old->worker;
  request.index = old->index;
  request.epoch = old->epoch;
  request.seed = old->seed;
  request.rows = old->rows;
  request.fields = old->fields;
  return plugin_fill(context, &request, message, message_size);
}

static const tenon_plugin tables[] = {
    {sizeof(tenon_plugin), TENON_PLUGIN_ABI, TENON_PLUGIN_THREADSAFE, 0, "telling", ENTRIES},
    /* 1: of another ABI, which may not be read any further */
    {sizeof(tenon_plugin), TENON_PLUGIN_ABI + 6, 0, 0, (const char*)1, NULL, NULL, NULL, NULL, NULL, NULL},
    /* 2: short */
    {24, TENON_PLUGIN_ABI, 0, 0, (const char*)1, NULL, NULL, NULL, NULL, NULL, NULL},
    /* 3: a flag from the future */
    {sizeof(tenon_plugin), TENON_PLUGIN_ABI, 1 << 9, 0, "flags", ENTRIES},
    /* 4, 5, 6: gaps */
    {sizeof(tenon_plugin), TENON_PLUGIN_ABI, 0, 0, "gap", NULL, plugin_describe, plugin_fill, plugin_close,
     NULL, NULL},
    {sizeof(tenon_plugin), TENON_PLUGIN_ABI, 0, 0, "gap", plugin_open, plugin_describe, NULL, plugin_close,
     NULL, NULL},
    {sizeof(tenon_plugin), TENON_PLUGIN_ABI, 0, 0, "gap", plugin_open, plugin_describe, plugin_fill, NULL,
     NULL, NULL},
    /* 7: does not describe itself, has no name, is not thread-safe */
    {sizeof(tenon_plugin), TENON_PLUGIN_ABI, 0, 0, NULL, plugin_open, NULL, plugin_fill, plugin_close, NULL,
     NULL},
    /* 8: of version 1 */
    {sizeof(tenon_plugin), 1, TENON_PLUGIN_THREADSAFE, 0, "version 1", plugin_open, plugin_describe,
     (tenon_fill_function)(void (*)(void))old_fill, plugin_close, NULL, NULL},
    /* 9: of no version */
    {sizeof(tenon_plugin), 0, 0, 0, "none", ENTRIES}};

#if TABLE == 10
TENON_PLUGIN_EXPORT const tenon_plugin* tenon_plugin_tabel(void) { return tables; }
#else
TENON_PLUGIN_EXPORT const tenon_plugin* tenon_plugin_table(void) {
  return TABLE < 10 ? &tables[TABLE % 10] : NULL;
}
#endif
