/* SPDX-License-Identifier: Apache-2.0
 *
 * A plug-in that reads windows of a sound file with libsndfile into the rows of a batch. Each worker has the
 * file open for itself, so that the seeking of one does not disturb another. */
#include <sndfile.h>
#include <stdio.h>

#include "tenon/plugin.h"

typedef struct sound {
  SNDFILE* file;
  SF_INFO info;
  int64_t window; /* frames */
  int64_t shape[3];
  int64_t start_shape[1];
  tenon_plugin_field fields[2];
} sound;

static int32_t sound_open(const tenon_plugin_setup* setup, void** state, char* message, size_t message_size) {
  char path[4096];
  int64_t rows = 16;
  sound* const self = calloc(1, sizeof *self);
  if (self == NULL) return 1;
  self->window = 256;
  if (tenon_plugin_string(setup->config, "path", path, sizeof path) != 1 ||
      tenon_plugin_integer(setup->config, "rows", &rows) < 0 ||
      tenon_plugin_integer(setup->config, "window", &self->window) < 0) {
    snprintf(message, message_size, "path, rows and window say what to read");
    free(self);
    return 2;
  }
  self->file = sf_open(path, SFM_READ, &self->info);
  if (self->file == NULL) {
    snprintf(message, message_size, "%s: %s", path, sf_strerror(NULL));
    free(self);
    return 3;
  }
  self->shape[0] = self->start_shape[0] = rows;
  self->shape[1] = self->window;
  self->shape[2] = self->info.channels;
  *state = self;
  return 0;
}

static int32_t sound_describe(void* state, const tenon_plugin_field** fields, int32_t* n_fields,
                              char* message, size_t message_size) {
  sound* const self = state;
  (void)message, (void)message_size;
  self->fields[0] = (tenon_plugin_field){"wave", "float32", 3, self->shape};
  self->fields[1] = (tenon_plugin_field){"start", "int64", 1, self->start_shape};
  *fields = self->fields;
  *n_fields = 2;
  return 0;
}

/* Row i of batch k begins at frame (k * rows + i) * window / 2. */
static int32_t sound_fill(void* state, const tenon_fill_request* request, char* message,
                          size_t message_size) {
  sound* const self = state;
  float* const wave = request->fields[0];
  int64_t* const start = request->fields[1];
  for (int64_t i = 0; i < request->rows; ++i) {
    float* const row = wave + i * self->window * self->shape[2];
    start[i] = ((int64_t)request->index * request->rows + i) * (self->window / 2);
    if (sf_seek(self->file, start[i], SEEK_SET) < 0 ||
        sf_readf_float(self->file, row, self->window) != self->window) {
      snprintf(message, message_size, "frame %lld is beyond the end", (long long)start[i]);
      return 4;
    }
  }
  return 0;
}

static void sound_close(void* state) {
  sound* const self = state;
  sf_close(self->file);
  free(self);
}

static const tenon_plugin table = {sizeof table,
                                   TENON_PLUGIN_ABI,
                                   TENON_PLUGIN_THREADSAFE,
                                   0,
                                   "sound",
                                   sound_open,
                                   sound_describe,
                                   sound_fill,
                                   sound_close,
                                   NULL,
                                   NULL};

TENON_PLUGIN_EXPORT const tenon_plugin* tenon_plugin_table(void) { return &table; }
