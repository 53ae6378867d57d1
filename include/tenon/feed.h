/* SPDX-License-Identifier: Apache-2.0
 *
 * feed.h - the part of the C ABI on feeds: schemas, generators, batches. Included by tenon.h.
 *
 * A feed runs a generator in worker threads or worker processes. It fills slots (allocated and touched once)
 * with batches; the consumer gets them in order of index and reads them in place. A slot is filled again
 * when the last array and view of its batch has gone, in any order.
 *
 * \since 0.1
 */
#include "tenon/tenon.h" /* outside of the guard: it includes this file, before others that need it */

#ifndef TENON_FEED_H_
#define TENON_FEED_H_

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------- schemas */

typedef struct tenon_schema tenon_schema;

typedef struct tenon_field {
  const char* name; /* an identifier, unique in the schema */
  tenon_dtype dtype;
  int32_t ndim;         /* >= 1: axis 0 counts the rows of the batch, the same for every field */
  const int64_t* shape; /* every entry > 0 */
} tenon_field;

TENON_API tenon_status tenon_schema_create(int32_t n, const tenon_field* fields, tenon_schema** out,
                                           tenon_error* error);
TENON_API void tenon_schema_retain(tenon_schema* schema);
TENON_API void tenon_schema_release(tenon_schema* schema);
TENON_API int32_t tenon_schema_field_count(const tenon_schema* schema);
TENON_API tenon_field tenon_schema_field(const tenon_schema* schema, int32_t i);
TENON_API int64_t tenon_schema_rows(const tenon_schema* schema);
TENON_API uint64_t tenon_schema_nbytes(const tenon_schema* schema); /* payload of a batch */

/* ---------------------------------------------------------------------------------- generators */

/* One batch to be filled. */
typedef struct tenon_fill_request {
  uint32_t struct_size;
  int32_t worker;      /* from 0 */
  void* const* fields; /* in schema order; C-contiguous, aligned to 256 bytes */
  int64_t n;           /* rows wanted */
  uint64_t index;      /* of the batch in its epoch */
  uint64_t epoch;      /* from 0 */
  uint64_t seed;       /* a function of (the feed's seed, epoch, index) alone */
} tenon_fill_request;

/* Fills slots. fill returns 0, or a code that is not 0 and may write a text into message
 * (message_size bytes with the NUL). Without TENON_THREADSAFE one thread at a time calls it, in
 * order of (epoch, index). The feed calls drop once, after the last fill. */
typedef struct tenon_generator {
  uint32_t struct_size;
  uint32_t flags; /* TENON_THREADSAFE */
  void* context;
  int32_t (*fill)(void* context, const tenon_fill_request* request, char* message, size_t message_size);
  void (*drop)(void* context); /* may be NULL */
  const char* name;            /* for messages; copied */
} tenon_generator;

/* A constant for tenon_function_bind: an array for a pointer, a number for the others. */
typedef struct tenon_constant {
  const char* name;
  tenon_array* array; /* NULL: use value */
  tenon_value value;  /* of the parameter's kind: i for integers, f for floating point */
} tenon_constant;

/* A generator that calls function. Each parameter binds by name: to a field of the schema, to a
 * constant, else to one of n, index, epoch, seed, worker. The generator keeps function and arrays
 * alive. Fails with VALUE (a parameter that binds to nothing, a field or constant that no parameter
 * takes), TYPE (dtype of a field or constant, a result that is neither int nor void), BUFFER (an
 * array that is not C-contiguous, or read-only and the parameter is not const). */
TENON_API tenon_status tenon_function_bind(tenon_function* function, const tenon_schema* schema, int32_t n,
                                           const tenon_constant* constants, tenon_generator* out,
                                           tenon_error* error);

/* ------------------------------------------------------------------------------------ plug-ins
 *
 * A plug-in is a shared library with the table of tenon/plugin.h, which says what is called when. */

typedef struct tenon_plugin_options {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t seed;      /* the feed's: plug-ins see it at open */
  const char* config; /* a JSON object; NULL: "{}" */
} tenon_plugin_options;

/* A generator that runs the plug-in in the library path, with a state for each worker. schema: of the
 * batches; NULL: what the plug-in describes. described may be NULL, else it receives a reference to the
 * schema. options may be NULL. Fails with NOT_FOUND (library, table), VALUE (a table of another ABI or with
 * gaps, fields that cannot be or are not those of schema, no schema at all), TYPE (dtypes), OP (open or
 * describe of the plug-in failed; with its text). */
TENON_API tenon_status tenon_plugin_open(const char* path, const tenon_plugin_options* options,
                                         tenon_schema* schema, tenon_schema** described, tenon_generator* out,
                                         tenon_error* error);

typedef struct tenon_plugin_info {
  uint32_t struct_size;
  uint32_t flags;    /* TENON_THREADSAFE */
  const char* name;  /* lives for ever; NULL: the plug-in has none */
  int32_t describes; /* it knows its fields */
  int32_t reserved;
} tenon_plugin_info;

/* Loads the library and reads its table; opens no state. Fails as tenon_plugin_open. */
TENON_API tenon_status tenon_plugin_look(const char* path, tenon_plugin_info* out, tenon_error* error);

/* --------------------------------------------------------------------------------------- feeds */

typedef struct tenon_feed tenon_feed;
typedef struct tenon_batch tenon_batch;

typedef struct tenon_feed_options {
  uint32_t struct_size;
  int32_t workers; /* threads, >= 1; a generator that is not thread-safe is run by one */
  int32_t slots;   /* >= workers + 1 */
  int32_t reserved;
  int64_t batches; /* per epoch; -1: an epoch does not end */
  uint64_t seed;
} tenon_feed_options;

/* Takes over the generator: on success the feed drops it, on failure it stays the caller's.
 * Fails with VALUE, NO_MEMORY, SYSTEM (threads). */
TENON_API tenon_status tenon_feed_create(const tenon_generator* generator, tenon_schema* schema,
                                         const tenon_feed_options* options, tenon_feed** out,
                                         tenon_error* error);

/* Begins an epoch: the next one in number. The epoch before it ends here: its undelivered batches are
 * dropped, delivered ones stay valid. Fails with CLOSED. */
TENON_API tenon_status tenon_feed_begin(tenon_feed* feed, tenon_error* error);

/* The next batch of the epoch. *out is NULL at the end of the epoch (and the status OK). Waits at
 * most timeout_ns (< 0: for ever). Fails with TIMEOUT (the message says on what it waited: a
 * generator that is busy, or which batches hold every slot and how many slots would do), OP (the
 * generator failed at this batch; the epoch is over), CLOSED. */
TENON_API tenon_status tenon_feed_next(tenon_feed* feed, int64_t timeout_ns, tenon_batch** out,
                                       tenon_error* error);

/* Ends the epoch early. Returns at once. */
TENON_API void tenon_feed_end(tenon_feed* feed);

/* Stops the workers and waits for them, at most timeout_ns (< 0: for ever). Batches already
 * delivered stay valid. Idempotent. Fails with TIMEOUT when a generator does not return: its thread
 * is left behind with what it uses. */
TENON_API tenon_status tenon_feed_close(tenon_feed* feed, int64_t timeout_ns, tenon_error* error);

/* A feed that was not closed is closed as by tenon_feed_close(feed, 1 s). */
TENON_API void tenon_feed_release(tenon_feed* feed);

typedef struct tenon_feed_statistics {
  uint32_t struct_size;
  int32_t workers;
  int32_t slots;
  int32_t slots_free;    /* empty */
  int32_t slots_filling; /* a worker is writing */
  int32_t slots_ready;   /* filled, not delivered */
  int32_t slots_held;    /* delivered, and an array or view of the batch lives */
  int32_t reserved;
  uint64_t batches;     /* delivered since creation */
  uint64_t nbytes;      /* payload delivered since creation */
  uint64_t fill_ns;     /* time inside the generator, all workers */
  uint64_t starved_ns;  /* time in tenon_feed_next */
  uint64_t blocked_ns;  /* time workers waited for a free slot */
  uint64_t slot_nbytes; /* bytes of a slot with alignment */
  void* memory;         /* the slots: slots * slot_nbytes bytes */
} tenon_feed_statistics;

TENON_API void tenon_feed_statistics_get(tenon_feed* feed, tenon_feed_statistics* out);

/* A delivered batch. Its arrays keep the slot; so does the batch itself. */
TENON_API uint64_t tenon_batch_index(const tenon_batch* batch);
TENON_API uint64_t tenon_batch_epoch(const tenon_batch* batch);
/* The array of field i: a new reference, writable. Cannot fail. */
TENON_API tenon_array* tenon_batch_array(tenon_batch* batch, int32_t i);
TENON_API void tenon_batch_retain(tenon_batch* batch);
TENON_API void tenon_batch_release(tenon_batch* batch);

#ifdef __cplusplus
}
#endif

#endif /* TENON_FEED_H_ */
