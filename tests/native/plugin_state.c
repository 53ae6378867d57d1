/* SPDX-License-Identifier: Apache-2.0
 *
 * Plug-ins with and without a state for the tests of resuming. Each batch has the number of the fills of its
 * state so far, or depends on the index. CASE makes tables of other kinds. */
#include <stdio.h>

#include "tenon/plugin.h"

#ifndef CASE
#define CASE 0
#endif

typedef struct walk {
  int64_t at, worker;
  int64_t fail_save; /* the number of the fill after which save fails; 0: none */
} walk;

static const int64_t shape[1] = {2};
static const tenon_plugin_field fields[] = {{"x", "int64", 1, shape}, {"seen", "uint64", 1, shape}};

static int32_t walk_open(const tenon_plugin_setup* setup, void** state, char* message, size_t message_size) {
  walk* self = calloc(1, sizeof *self);
  (void)message, (void)message_size;
  if (self == NULL) return 1;
  self->worker = setup->worker;
  tenon_plugin_integer(setup->config, "fail_save", &self->fail_save);
  *state = self;
  return 0;
}

static int32_t walk_describe(void* state, const tenon_plugin_field** described, int32_t* n_fields,
                             char* message, size_t message_size) {
  (void)state, (void)message, (void)message_size;
  *described = fields;
  *n_fields = 2;
  return 0;
}

static int32_t walk_fill(void* state, const tenon_fill_request* request, char* message, size_t message_size) {
  walk* self = state;
  int64_t* x = request->fields[0];
  uint64_t* seen = request->fields[1];
  (void)message, (void)message_size;
  ++self->at;
  x[0] = x[1] = CASE == 2 ? (int64_t)request->index : self->at * 100 + self->worker;
  seen[0] = seen[1] = request->epoch_seed;
  return 0;
}

static void walk_close(void* state) { free(state); }

static int32_t walk_save(void* state, void* bytes, uint64_t size, uint64_t* nbytes, char* message,
                         size_t message_size) {
  const walk* self = state;
  if (self->fail_save != 0 && self->fail_save == self->at) {
    snprintf(message, message_size, "no disk");
    return 6;
  }
  *nbytes = sizeof self->at;
  if (size >= sizeof self->at) memcpy(bytes, &self->at, sizeof self->at);
  return 0;
}

static int32_t walk_restore(void* state, const void* bytes, uint64_t nbytes, char* message,
                            size_t message_size) {
  walk* self = state;
  if (nbytes != sizeof self->at) {
    snprintf(message, message_size, "a state of %d bytes", (int)nbytes);
    return 7;
  }
  memcpy(&self->at, bytes, sizeof self->at);
  return 0;
}

#define ENTRIES walk_open, walk_describe, walk_fill, walk_close

static const tenon_plugin tables[] = {
    {sizeof(tenon_plugin), TENON_PLUGIN_ABI, TENON_PLUGIN_THREADSAFE, 0, "walk", ENTRIES, walk_save,
     walk_restore},
    /* 1: of version 2, whose table ends before save; what is behind it means nothing */
    {offsetof(tenon_plugin, save), 2, TENON_PLUGIN_THREADSAFE, 0, "old walk", ENTRIES, walk_save, NULL},
    /* 2: its batches depend on their index only */
    {sizeof(tenon_plugin), TENON_PLUGIN_ABI, TENON_PLUGIN_THREADSAFE | TENON_PLUGIN_IS_INDEXED, 0, "indexed",
     ENTRIES, NULL, NULL},
    /* 3: without restore */
    {sizeof(tenon_plugin), TENON_PLUGIN_ABI, 0, 0, "half", ENTRIES, walk_save, NULL},
    /* 4: a flag that version 2 did not have */
    {offsetof(tenon_plugin, save), 2, TENON_PLUGIN_IS_INDEXED, 0, "flags", ENTRIES, NULL, NULL}};

TENON_PLUGIN_EXPORT const tenon_plugin* tenon_plugin_table(void) { return &tables[CASE]; }
