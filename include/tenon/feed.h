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
#ifndef TENON_FEED_H_
#define TENON_FEED_H_

#include "tenon/core.h"

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
  /* By field its shape, as in the schema. A generator may make entries smaller, those of axis 0 in all
   * fields alike; what it has filled then is C-contiguous in the smaller shape. */
  int64_t* const* shapes;
  /* Bytes that travel with the batch: what prepare has written comes in, what fill writes goes out. */
  void* attachment;
  uint64_t attachment_size;    /* room: attachment_nbytes of the feed's options */
  uint64_t* attachment_nbytes; /* how many there are */
} tenon_fill_request;

/* Codes of fill and prepare that are no failures. */
enum {
  TENON_NO_BATCH = -2147483647,    /* nothing comes at this index: the consumer gets the next one */
  TENON_END_OF_EPOCH = -2147483646 /* the epoch ends before this index */
};

/* Fills slots. fill returns 0, one of the codes above, or another code: a failure, for which it may write a
 * text into message (message_size bytes with the NUL). Without TENON_THREADSAFE one thread at a time calls
 * it, in order of (epoch, index). In a feed with worker processes each calls it in a copy of its own, and the
 * flag does not matter. The feed calls drop once, in its own process, after the last fill. */
typedef struct tenon_generator {
  uint32_t struct_size;
  uint32_t flags; /* TENON_THREADSAFE */
  void* context;
  int32_t (*fill)(void* context, const tenon_fill_request* request, char* message, size_t message_size);
  void (*drop)(void* context); /* may be NULL */
  const char* name;            /* for messages; copied */

  /* All of these may be NULL. Called in the feed's process. */

  /* Before each batch, one at a time, in order of (epoch, index): may write the attachment. */
  int32_t (*prepare)(void* context, const tenon_fill_request* request, char* message, size_t message_size);
  /* Starts worker process number worker, which is to call tenon_worker_join(link); 0, or a code and a text.
   * *pid 0: a thread of this process, which can be neither watched nor killed. NULL: the feed forks, and the
   * child calls fill. Called from a thread of the feed. */
  int32_t (*start)(void* context, int32_t worker, const char* link, int64_t* pid, char* message,
                   size_t message_size);
  /* Such a process has ended: *status as waitpid gives it. NULL: the feed waits for it. */
  void (*reap)(void* context, int32_t worker, int64_t pid, int32_t* status);
  /* In a process that the feed has forked: it ends now. */
  void (*leave)(void* context, int32_t worker);
} tenon_generator;

/* A worker process' end of a feed: for what the start of a generator has started. Threads: one. */
typedef struct tenon_worker tenon_worker;

/* Fails with NOT_FOUND (the feed is not there any more), VALUE (no link). */
TENON_API tenon_status tenon_worker_join(const char* link, tenon_worker** out, tenon_error* error);
/* Waits for a batch to be filled, at most timeout_ns (< 0: for ever). The request is valid until it is
 * answered. Fails with TIMEOUT, CLOSED (the feed is closed, or its process has ended). */
TENON_API tenon_status tenon_worker_next(tenon_worker* worker, int64_t timeout_ns,
                                         tenon_fill_request* request, tenon_error* error);
/* The batch is filled: code and message as fill of a generator. */
TENON_API void tenon_worker_answer(tenon_worker* worker, int32_t code, const char* message);
TENON_API void tenon_worker_leave(tenon_worker* worker);

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

/* flags of tenon_feed_options */
enum {
  TENON_PROCESSES = 1 << 0,   /* workers are processes */
  TENON_ROUND_ROBIN = 1 << 1, /* batch i is filled by worker i modulo workers; else by whoever is free */
  TENON_SHARED_SLOTS = 1 << 2 /* the slots lie in a memory file, also for workers that are threads */
};

/* A generator fails at a batch, its process ends, or it takes too long. */
enum {
  TENON_ON_ERROR_RAISE = 0, /* the consumer gets the failure at the batch's place, and the epoch is over */
  TENON_ON_ERROR_SKIP = 1,  /* the consumer gets the next batch */
  TENON_ON_ERROR_RETRY = 2  /* the batch is filled again, by a new process, up to retries times; then RAISE */
};

/* The consumer holds every slot and asks for another batch. */
enum {
  TENON_ON_STARVED_WAIT = 0, /* until another thread lets go of one */
  TENON_ON_STARVED_COPY = 1, /* never comes to that: batches that would leave the workers none are copied */
  TENON_ON_STARVED_GROW = 2, /* there are more slots, as long as there is memory */
  TENON_ON_STARVED_RAISE = 3 /* LEASE_CONFLICT */
};

typedef struct tenon_feed_options {
  uint32_t struct_size;
  int32_t workers; /* >= 1; of threads, a generator that is not thread-safe gets one */
  int32_t slots;   /* >= workers + 1 */
  uint32_t flags;
  int64_t batches; /* per epoch; -1: an epoch does not end */
  uint64_t seed;
  int32_t on_error;
  int32_t retries;
  int32_t on_starved;
  int32_t reserved;
  int64_t fill_timeout_ns; /* of one batch; a process that takes longer is killed; <= 0: for ever */
  uint64_t attachment_nbytes;
} tenon_feed_options;

/* Takes over the generator: on success the feed drops it, on failure it stays the caller's.
 * Fails with VALUE, NO_MEMORY, SYSTEM (threads, processes), OP (a worker process cannot be started). */
TENON_API tenon_status tenon_feed_create(const tenon_generator* generator, tenon_schema* schema,
                                         const tenon_feed_options* options, tenon_feed** out,
                                         tenon_error* error);

/* Begins an epoch: the next one in number. The epoch before it ends here: its undelivered batches are
 * dropped, delivered ones stay valid. Fails with CLOSED. */
TENON_API tenon_status tenon_feed_begin(tenon_feed* feed, tenon_error* error);

/* The next tenon_feed_begin begins this epoch, at this batch: what a saved position needs. */
TENON_API void tenon_feed_seek(tenon_feed* feed, uint64_t epoch, uint64_t index);
/* The epoch that runs, or would be begun, and the batch that tenon_feed_next would give. */
TENON_API void tenon_feed_position(tenon_feed* feed, uint64_t* epoch, uint64_t* index);

/* The next batch of the epoch. *out is NULL at the end of the epoch (and the status OK). Waits at
 * most timeout_ns (< 0: for ever). Fails with TIMEOUT (the message says on what it waited: a
 * generator that is busy, or which batches hold every slot and how many slots would do), OP (the
 * generator failed at this batch; the epoch is over; tenon_feed_failure_get), LEASE_CONFLICT (see
 * TENON_ON_STARVED_RAISE), CLOSED. */
TENON_API tenon_status tenon_feed_next(tenon_feed* feed, int64_t timeout_ns, tenon_batch** out,
                                       tenon_error* error);

enum {
  TENON_FAILED = 0, /* the generator returned a code */
  TENON_DIED = 1,   /* its process ended */
  TENON_HUNG = 2    /* it took longer than fill_timeout_ns */
};

/* What the last failure was that tenon_feed_next told. */
typedef struct tenon_feed_failure {
  uint32_t struct_size;
  int32_t kind;
  int32_t code;        /* of the generator */
  int32_t worker;      /* -1: prepare */
  int64_t pid;         /* of the worker process; 0: a thread */
  int32_t exit_signal; /* that ended the process; 0: none did */
  int32_t exit_code;   /* with which the process ended; -1: it did not */
  uint64_t epoch;
  uint64_t index;
  char text[4096]; /* the generator's own; the error's message has as much of it as there is room for */
} tenon_feed_failure;

TENON_API void tenon_feed_failure_get(tenon_feed* feed, tenon_feed_failure* out);

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
  uint64_t batches;                /* delivered since creation */
  uint64_t nbytes;                 /* payload delivered since creation */
  uint64_t fill_ns;                /* time inside the generator, all workers */
  uint64_t starved_ns;             /* time in tenon_feed_next */
  uint64_t blocked_ns;             /* time workers waited for a free slot */
  uint64_t slot_nbytes;            /* bytes of a slot with alignment */
  void* memory;                    /* the slots: slots * slot_nbytes bytes */
  uint64_t blocked_by_consumer_ns; /* of blocked_ns: while filled batches lay ready */
  uint64_t skipped;                /* batches for which the consumer got the next one */
  uint64_t retried;                /* fills that were done again */
  uint64_t restarted;              /* processes that were started again */
  uint64_t copied;                 /* batches that were copied for want of slots */
  uint64_t oldest_epoch;           /* of the batch that is held longest; with oldest_ns != 0 */
  uint64_t oldest_index;
  uint64_t oldest_ns;  /* since its delivery */
  uint64_t memory_at;  /* where in memory_file the slots begin */
  int32_t memory_file; /* the descriptor of the slots' file, which is the feed's; -1: they lie in none */
  int32_t reserved2;
} tenon_feed_statistics;

TENON_API void tenon_feed_statistics_get(tenon_feed* feed, tenon_feed_statistics* out);

typedef struct tenon_worker_statistics {
  uint32_t struct_size;
  int32_t worker;
  int64_t pid; /* of the process; 0: a thread, or none just now */
  uint64_t fills;
  uint64_t fill_ns;     /* in all */
  uint64_t fill_p50_ns; /* quantiles, of all fills since creation, to an eighth of their value */
  uint64_t fill_p99_ns;
  uint64_t failures;
} tenon_worker_statistics;

TENON_API void tenon_worker_statistics_get(tenon_feed* feed, int32_t worker, tenon_worker_statistics* out);

/* A delivered batch. Its arrays keep the slot; so does the batch itself. */
TENON_API uint64_t tenon_batch_index(const tenon_batch* batch);
TENON_API uint64_t tenon_batch_epoch(const tenon_batch* batch);
/* What fill has attached; valid as long as the batch. */
TENON_API const void* tenon_batch_attachment(const tenon_batch* batch, uint64_t* nbytes);
/* The array of field i: a new reference, writable, in the shape to which it was filled. Cannot fail. */
TENON_API tenon_array* tenon_batch_array(tenon_batch* batch, int32_t i);
TENON_API void tenon_batch_retain(tenon_batch* batch);
TENON_API void tenon_batch_release(tenon_batch* batch);

#ifdef __cplusplus
}
#endif

#endif /* TENON_FEED_H_ */
