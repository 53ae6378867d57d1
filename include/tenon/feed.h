/* SPDX-License-Identifier: Apache-2.0
 *
 * feed.h - the part of the C ABI on feeds: schemas, generators, batches. Included by tenon.h.
 *
 * A feed runs a generator in worker threads or worker processes. The workers fill slots, which are allocated
 * and touched once. The consumer gets the filled slots as batches, in the order of their index, and reads
 * them in place. A slot is filled again when the last array and view of its batch are gone, in any order.
 *
 * \since 0.1
 */
#ifndef TENON_FEED_H_
#define TENON_FEED_H_

#include "tenon/core.h"
#include "tenon/request.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------- schemas */

typedef struct tenon_schema tenon_schema;

typedef struct tenon_field {
  const char* name; /* an identifier, unique in the schema */
  tenon_dtype dtype;
  int32_t ndim;         /* >= 1: axis 0 counts the rows of the batch; equal for all fields */
  const int64_t* shape; /* every entry > 0 */
} tenon_field;

TENON_API tenon_status tenon_schema_create(int32_t n, const tenon_field* fields, tenon_schema** out,
                                           tenon_error* error);
TENON_API void tenon_schema_retain(tenon_schema* schema);
TENON_API void tenon_schema_release(tenon_schema* schema);
TENON_API int32_t tenon_schema_field_count(const tenon_schema* schema);
TENON_API tenon_field tenon_schema_field(const tenon_schema* schema, int32_t i);
TENON_API int64_t tenon_schema_rows(const tenon_schema* schema);
TENON_API uint64_t tenon_schema_nbytes(const tenon_schema* schema); /* payload bytes of a batch */

/* ---------------------------------------------------------------------------------- generators */

/* Fills slots. Without TENON_THREADSAFE one thread at a time calls fill, in the order of (epoch, index). In a
 * feed with worker processes each process calls its own copy, and the flag has no effect. The feed calls drop
 * once, in its own process, after the last fill. */
typedef struct tenon_generator {
  uint32_t struct_size;
  uint32_t flags; /* TENON_THREADSAFE, TENON_IS_INDEXED, TENON_HAS_STATE, TENON_STARTS_THREADS */
  void* context;
  tenon_fill_function fill;
  void (*drop)(void* context); /* may be NULL; may come after tenon_feed_close; in no thread of start */
  const char* name;            /* for messages; copied */

  /* Each of the following may be NULL. They are called in the feed's process. */

  /* Called before each batch, one call at a time, in the order of (epoch, index). May write the
   * attachment. */
  tenon_fill_function prepare;
  /* Starts worker process number worker, which must call tenon_worker_join(link). Returns 0, or a code and a
   * text. *pid 0 means a thread of this process, which cannot be watched or killed; tenon_feed_close waits
   * for it only in tenon_worker_next; who has started it joins it: see also TENON_STARTS_THREADS. If start is
   * NULL, the feed forks, and the child calls fill. Called from a thread of the feed. */
  int32_t (*start)(void* context, int32_t worker, const char* link, int64_t* pid, char* message,
                   size_t message_size);
  /* Called after the end of such a process; sets *status as waitpid does. NULL: the feed calls waitid. */
  void (*reap)(void* context, int32_t worker, int64_t pid, int32_t* status);
  /* Called in a process that the feed has forked, before it ends. */
  void (*leave)(void* context, int32_t worker);
} tenon_generator;

/* The interface of a worker, for processes and threads that the start function of a generator has started.
 * Must be used by one thread. */
typedef struct tenon_worker tenon_worker;

/* Fails with NOT_FOUND (the feed does not exist any more; a thread has joined with this link), VALUE (not a
 * valid link). */
TENON_API tenon_status tenon_worker_join(const char* link, tenon_worker** out, tenon_error* error);
/* Waits for the next request, at most timeout_ns (< 0: no limit). The request is valid until it is
 * answered. Fails with TIMEOUT, CLOSED (the feed is closed, or its process has ended). */
TENON_API tenon_status tenon_worker_next(tenon_worker* worker, int64_t timeout_ns,
                                         tenon_fill_request* request, tenon_error* error);
/* The current request with all members of this version. tenon_worker_next writes only those before
 * epoch_seed, as older callers have no room for more. NULL: there is no request. Since 0.6. */
TENON_API const tenon_fill_request* tenon_worker_request(const tenon_worker* worker);
/* Takes memory for the first nbytes of the current request's slot, where the slots are sparse. Without it the
 * first write to each page takes memory, and the kernel ends the process if there is none. Fails with VALUE
 * (no request; more than the slot has), NO_MEMORY. */
TENON_API tenon_status tenon_worker_commit(tenon_worker* worker, uint64_t nbytes, tenon_error* error);
/* Answers the request. code and message: as from the fill function of a generator. */
TENON_API void tenon_worker_answer(tenon_worker* worker, int32_t code, const char* message);
TENON_API void tenon_worker_leave(tenon_worker* worker);

/* Further flags of tenon_generator. Since 0.6. */
enum tenon_generator_flags {
  /* A batch depends only on its index, seed and epoch, and not on the batches before it. */
  TENON_IS_INDEXED = 1 << 8,
  /* fill writes and restores states, as tenon/request.h says. Each worker has a state of its own, so worker
   * number i fills every batch whose turn is i: see TENON_ROUND_ROBIN. */
  TENON_HAS_STATE = 1 << 9,
  /* start starts threads of this process: *pid is always 0. The threads take their batches themselves: the
   * feed has neither threads nor a memory file for them, whether TENON_PROCESSES is set or not. */
  TENON_STARTS_THREADS = 1 << 10
};

/* A constant for tenon_function_bind: an array or (void pointers and those to unknown types) an address for a
 * pointer parameter, a number for other parameters. */
typedef struct tenon_constant {
  const char* name;
  tenon_array* array; /* NULL: use value */
  tenon_value value;  /* i for integer parameters, f for floating-point parameters, p for pointers */
} tenon_constant;

/* A generator that calls function. Each parameter is bound by its name to a field of the schema, to a
 * constant, or else to one of n, index, epoch, seed, epoch_seed, worker. With index or seed it has
 * TENON_IS_INDEXED. The generator keeps the function and the arrays alive. Fails with VALUE (a
 * parameter with an unknown name, a field or constant without a parameter), TYPE (dtype of a field or
 * constant, a result that is neither int nor void), BUFFER (an array that is not C-contiguous, or a read-only
 * array for a parameter that is not const). */
TENON_API tenon_status tenon_function_bind(tenon_function* function, const tenon_schema* schema, int32_t n,
                                           const tenon_constant* constants, tenon_generator* out,
                                           tenon_error* error);

/* ------------------------------------------------------------------------------------ plug-ins
 *
 * A plug-in is a shared library with the table of tenon/plugin.h. That header describes the calls. */

typedef struct tenon_plugin_options {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t seed;      /* the seed of the feed; plug-ins get it in open */
  const char* config; /* a JSON object; NULL: "{}" */
} tenon_plugin_options;

/* A generator that runs the plug-in of the library at path, with one state for each worker. schema: the
 * schema of the batches; NULL: the one that the plug-in describes. described receives a reference to the
 * schema; may be NULL. options may be NULL. Fails with NOT_FOUND (library, table), VALUE (a table of another
 * ABI or with missing functions, invalid fields, fields that differ from schema, no schema at all), TYPE
 * (dtypes), OP (open or describe of the plug-in failed; with its text). */
TENON_API tenon_status tenon_plugin_open(const char* path, const tenon_plugin_options* options,
                                         tenon_schema* schema, tenon_schema** described, tenon_generator* out,
                                         tenon_error* error);

typedef struct tenon_plugin_info {
  uint32_t struct_size;
  uint32_t flags;    /* TENON_THREADSAFE, TENON_IS_INDEXED, TENON_HAS_STATE */
  const char* name;  /* never freed; NULL: the plug-in has no name */
  int32_t describes; /* not 0: the plug-in describes its fields */
  int32_t reserved;
} tenon_plugin_info;

/* Loads the library and reads its table. Opens no state. Fails as tenon_plugin_open. */
TENON_API tenon_status tenon_plugin_look(const char* path, tenon_plugin_info* out, tenon_error* error);

/* --------------------------------------------------------------------------------------- feeds */

typedef struct tenon_feed tenon_feed;
typedef struct tenon_batch tenon_batch;

/* flags of tenon_feed_options */
enum tenon_feed_flags {
  TENON_PROCESSES = 1 << 0,    /* workers are processes */
  TENON_ROUND_ROBIN = 1 << 1,  /* worker i modulo workers fills the batch at place i; else any */
  TENON_SHARED_SLOTS = 1 << 2, /* the slots lie in a memory file, also if workers are threads */
  /* A slot takes memory where it is written, and keeps it; the creation takes addresses only. The schema may
   * be much larger than the batches. A lack of memory is found at a batch: see tenon_worker_commit.
   * Since 0.5. */
  TENON_SPARSE_SLOTS = 1 << 3,
  /* Each epoch has the batches in another order, which depends only on seed and epoch. Needs batches >= 0.
   * Since 0.5. */
  TENON_SHUFFLE = 1 << 4
};

/* The behaviour if a generator fails at a batch, its process ends, or it takes too long. */
enum tenon_on_error {
  TENON_ON_ERROR_RAISE = 0, /* the consumer gets the failure at the batch's position; the epoch ends */
  TENON_ON_ERROR_SKIP = 1,  /* the consumer gets the next batch */
  TENON_ON_ERROR_RETRY = 2  /* the batch is filled again, up to retries times, by a new process or, after a
                             * fill that took too long, by a new thread; then as RAISE */
};

/* The behaviour if the consumer holds every slot and requests another batch. */
enum tenon_on_starved {
  TENON_ON_STARVED_WAIT = 0, /* waits until another thread releases a batch */
  TENON_ON_STARVED_COPY = 1, /* copies batches that would leave the workers no slot */
  TENON_ON_STARVED_GROW = 2, /* adds slots while memory is available */
  TENON_ON_STARVED_RAISE = 3 /* LEASE_CONFLICT */
};

typedef struct tenon_feed_options {
  uint32_t struct_size;
  int32_t workers; /* <= 3576; not thread-safe: one thread; 0 (since 0.5): tenon_feed_next fills */
  int32_t slots;   /* >= workers + 1, at most 32767 */
  uint32_t flags;
  int64_t batches; /* per epoch; -1: no end */
  uint64_t seed;
  int32_t on_error;
  int32_t retries;
  int32_t on_starved;
  int32_t reserved;
  /* For one batch; <= 0: no limit. A process that takes longer is killed. A thread is abandoned while a
   * consumer waits: another thread goes on in its place, with another slot. When it returns, its result is
   * dropped, and it ends. At most 8 threads of a feed are abandoned at a time, and none that runs a generator
   * without TENON_THREADSAFE: its batch fails, and so do those that no thread is left for. */
  int64_t fill_timeout_ns;
  uint64_t attachment_nbytes;
  /* Of world_size feeds with the same options and generator, this one delivers the batches at the places
   * rank, rank + world_size, ... of the epoch. 0 and 0, or 0 and 1: all, also if struct_size ends before
   * them. Since 0.5. */
  int32_t rank;
  int32_t world_size;
  /* The capacity for the state of a worker, for generators with TENON_HAS_STATE; 0: 64 KiB. Since 0.6. */
  uint64_t state_nbytes;
  /* With TENON_SHARED_SLOTS: the name by which other processes find the feed once it is served; NULL: it
   * is not to be served. Since 0.7. */
  const char* shared_name;
} tenon_feed_options;

/* Takes ownership of the generator: the feed drops it. On failure it still belongs to the caller.
 * Fails with VALUE (with TENON_PROCESSES also an array constant of tenon_function_bind that is not const),
 * NO_MEMORY, SYSTEM (threads, processes), OP (a worker process cannot be started). */
TENON_API tenon_status tenon_feed_create(const tenon_generator* generator, tenon_schema* schema,
                                         const tenon_feed_options* options, tenon_feed** out,
                                         tenon_error* error);

/* How the memory of the slots is copied to a device. Since 0.6. */
enum tenon_host_memory {
  TENON_HOST_PAGEABLE = 0,   /* by the driver, from pageable memory */
  TENON_HOST_REGISTERED = 1, /* directly: the slots are pinned where they lie */
  TENON_HOST_STAGED = 2      /* through two pinned slots, with a copy on the host */
};

/* Later batches lie on the device {TENON_CUDA, i}, in a ring of slots >= 2 device slots, or again on the
 * slots ({TENON_CPU, 0}). The current epoch ends, unless nothing changes. The feed copies batches ahead while
 * device slots are free: 3 let the next one be copied while the consumer still refers to the previous one. A
 * slot is filled again after the event of its copy, a device slot is used again when its batch, all arrays
 * and views, and the work given to their streams before are gone. on_starved means device slots; COPY and
 * GROW allocate memory on the device. A failed copy is an OP failure (TENON_NOT_COPIED) of tenon_feed_next,
 * or the values of the arrays are invalid. Fails with VALUE, CLOSED, NO_MEMORY, and as
 * tenon_device_describe; then batches lie on the slots. Since 0.6. */
TENON_API tenon_status tenon_feed_use_device(tenon_feed* feed, tenon_device device, int32_t slots,
                                             tenon_error* error);

/* Begins the next epoch and ends the previous one: undelivered batches are dropped, and delivered batches
 * stay valid. Fails with CLOSED. */
TENON_API tenon_status tenon_feed_begin(tenon_feed* feed, tenon_error* error);

/* Sets the epoch and the place in it at which the next tenon_feed_begin begins, to restore a position. With
 * a world_size it is a place of the whole epoch, and the ranks divide the batches from there on. The
 * generator is not checked: without TENON_IS_INDEXED it may fill other batches than it would have without the
 * seek. With TENON_HAS_STATE each worker begins there in the state from before its first batch;
 * tenon_feed_resume also restores states. */
TENON_API void tenon_feed_seek(tenon_feed* feed, uint64_t epoch, uint64_t place);
/* The current epoch, or the one that would begin, and the place of the batch that tenon_feed_next would
 * return: the number of batches before it, and its index unless TENON_SHUFFLE is set. With a world_size it is
 * the number of batches that all ranks have delivered when each has delivered as many as this one. */
TENON_API void tenon_feed_position(tenon_feed* feed, uint64_t* epoch, uint64_t* place);

/* A position together with the states of the generator, for generators with TENON_HAS_STATE. Since 0.6. */
typedef struct tenon_feed_place {
  uint32_t struct_size;
  int32_t workers;       /* the number of states: 0 if the generator has none */
  uint64_t epoch, place; /* as of tenon_feed_position */
  int32_t worker;        /* the worker that fills the batch at this position */
  int32_t ignored_index; /* not 0: a delivered batch had the note TENON_IGNORED_INDEX */
} tenon_feed_place;

typedef struct tenon_worker_state {
  const void* data; /* NULL: the worker has the state from before its first batch */
  uint64_t nbytes;
} tenon_worker_state;

/* What the consumer has been delivered: the position, and the state of each worker after its last batch that
 * was delivered or skipped, or that failed or ended the epoch. Later batches of the workers do not count. */
typedef struct tenon_feed_state tenon_feed_state;
TENON_API tenon_status tenon_feed_state_take(tenon_feed* feed, tenon_feed_state** out, tenon_error* error);
TENON_API void tenon_feed_state_describe(const tenon_feed_state* state, tenon_feed_place* out);
/* Valid as long as the state. */
TENON_API tenon_worker_state tenon_feed_state_get(const tenon_feed_state* state, int32_t worker);
TENON_API void tenon_feed_state_release(tenon_feed_state* state);
/* As tenon_feed_seek, with a state for each worker, which is copied. Fails with VALUE: place->workers is not
 * the number of states that the feed has, place->worker is none of them, or a state is larger than
 * state_nbytes. */
TENON_API tenon_status tenon_feed_resume(tenon_feed* feed, const tenon_feed_place* place,
                                         const tenon_worker_state* states, tenon_error* error);

/* The next batch of the epoch. At the end of the epoch *out is NULL, and the status is OK. Waits at most
 * timeout_ns (< 0: no limit). Fails with TIMEOUT (the message names what it waited for: the generator that is
 * busy, or the batches that hold every slot and the number of slots that would suffice), OP (the generator
 * failed at this batch; the epoch ends; see tenon_feed_failure_get), LEASE_CONFLICT (see
 * TENON_ON_STARVED_RAISE), CLOSED. */
TENON_API tenon_status tenon_feed_next(tenon_feed* feed, int64_t timeout_ns, tenon_batch** out,
                                       tenon_error* error);

/* Waits until tenon_feed_next would not wait; takes nothing. So a program that is interrupted in the wait
 * loses no batch. Fails with TIMEOUT, LEASE_CONFLICT and CLOSED, as tenon_feed_next. Since 0.6. */
TENON_API tenon_status tenon_feed_wait(tenon_feed* feed, int64_t timeout_ns, tenon_error* error);

enum tenon_failure_kind {
  TENON_FAILED = 0,    /* the generator returned a code; NO_MEMORY: there was none for the batch's slot, and
                          the epoch ends whatever on_error says */
  TENON_DIED = 1,      /* its process ended */
  TENON_HUNG = 2,      /* it took longer than fill_timeout_ns */
  TENON_NOT_COPIED = 3 /* the batch could not be copied to its device; since 0.6 */
};

/* The last failure that tenon_feed_next returned. */
typedef struct tenon_feed_failure {
  uint32_t struct_size;
  int32_t kind;
  int32_t code;        /* the result of the generator */
  int32_t worker;      /* -1: in prepare, or not known */
  int64_t pid;         /* of the worker process; 0: a thread */
  int32_t exit_signal; /* the signal that ended the process; 0: none */
  int32_t exit_code;   /* of the process; -1: it did not exit, or how is not known */
  uint64_t epoch;
  uint64_t index;
  char text[4096]; /* the text of the generator; the error's message may contain only a part of it */
} tenon_feed_failure;

TENON_API void tenon_feed_failure_get(tenon_feed* feed, tenon_feed_failure* out);

/* Ends the epoch early. Returns at once. */
TENON_API void tenon_feed_end(tenon_feed* feed);

/* Stops the workers and waits for them, at most timeout_ns (< 0: no limit). Delivered batches stay valid.
 * Idempotent. Fails with TIMEOUT if a generator does not return: its thread is then abandoned, and everything
 * that it uses stays allocated. Workers that run no generator may have 10 s more, on a busy machine. */
TENON_API tenon_status tenon_feed_close(tenon_feed* feed, int64_t timeout_ns, tenon_error* error);

/* The last release of an open feed closes it, as tenon_feed_close does with a timeout of 1 s. */
TENON_API void tenon_feed_release(tenon_feed* feed);

typedef struct tenon_feed_statistics {
  uint32_t struct_size;
  int32_t workers;
  int32_t slots;
  int32_t slots_free;    /* empty */
  int32_t slots_filling; /* a worker is writing */
  int32_t slots_ready;   /* filled, not delivered */
  int32_t slots_held;    /* delivered, and an array or view of the batch exists */
  int32_t reserved;
  uint64_t batches;                /* delivered since creation */
  uint64_t nbytes;                 /* payload delivered since creation */
  uint64_t fill_ns;                /* time in the generator, over all workers */
  uint64_t starved_ns;             /* time in tenon_feed_next */
  uint64_t blocked_ns;             /* time that workers waited for a free slot */
  uint64_t slot_nbytes;            /* bytes of a slot with alignment */
  void* memory;                    /* the slots: slots * slot_nbytes bytes */
  uint64_t blocked_by_consumer_ns; /* the part of blocked_ns while filled batches were ready */
  uint64_t skipped;                /* batches that were skipped after a failure */
  uint64_t retried;                /* repeated fills */
  uint64_t restarted;              /* restarted processes */
  uint64_t copied;                 /* batches that were copied because slots were missing */
  uint64_t oldest_epoch;           /* the batch that is held longest; valid if oldest_ns != 0 */
  uint64_t oldest_index;
  uint64_t oldest_ns;  /* since its delivery */
  uint64_t memory_at;  /* the offset of the slots in memory_file */
  int32_t memory_file; /* descriptor of the slots' memory file, owned by the feed; -1: none */
  int32_t reserved2;
  uint64_t unwritten; /* fills that returned TENON_UNWRITTEN; since 0.5 */
  uint64_t abandoned; /* threads that took longer than fill_timeout_ns and were abandoned; since 0.5 */
  /* Since 0.6: where batches are delivered. */
  tenon_device device;
  int32_t device_slots;      /* 0: batches lie on the slots */
  int32_t device_slots_held; /* copied to, delivered, or in use by work on a stream */
  int32_t host_memory;       /* TENON_HOST_*: from where they are copied */
  int32_t reserved3;
} tenon_feed_statistics;

TENON_API void tenon_feed_statistics_get(tenon_feed* feed, tenon_feed_statistics* out);

/* Copies the oldest text that was not taken yet, for a log: on an abandoned thread (the generator, the batch,
 * the thread and the time), on the 10th, 100th, ... batch that was skipped after a failure, and on the first
 * batch of TENON_UNWRITTEN, as its message says. Returns 0 if there is none. Since 0.5. */
TENON_API int32_t tenon_feed_report_take(tenon_feed* feed, char* text, size_t text_size);

typedef struct tenon_worker_statistics {
  uint32_t struct_size;
  int32_t worker;
  int64_t pid; /* of the process; 0: a thread, or no process at the moment */
  uint64_t fills;
  uint64_t fill_ns;     /* total */
  uint64_t fill_p50_ns; /* quantiles over all fills since creation, with a precision of 1/8 */
  uint64_t fill_p99_ns;
  uint64_t failures;
} tenon_worker_statistics;

TENON_API void tenon_worker_statistics_get(tenon_feed* feed, int32_t worker, tenon_worker_statistics* out);

/* A delivered batch. The batch and each of its arrays keep the slot. */
TENON_API uint64_t tenon_batch_index(const tenon_batch* batch);
TENON_API uint64_t tenon_batch_epoch(const tenon_batch* batch);
/* The bytes that fill attached; valid as long as the batch. */
TENON_API const void* tenon_batch_attachment(const tenon_batch* batch, uint64_t* nbytes);
/* The array of field i: a new reference, writable, with the shape that was filled. Cannot fail. */
TENON_API tenon_array* tenon_batch_array(tenon_batch* batch, int32_t i);
TENON_API void tenon_batch_retain(tenon_batch* batch);
TENON_API void tenon_batch_release(tenon_batch* batch);

/* ------------------------------------------------------------------------------------- serving
 *
 * A feed with shared_name can be served: processes of this user attach to it by that name, and receive its
 * batches in place of tenon_feed_next. No batch passes a thread of the feed's process. One thread there calls
 * tenon_feed_serve_wait in a loop: it begins the epochs, and gives back what killed processes had. Since
 * 0.7. */

enum tenon_serve_mode {
  TENON_SERVE_QUEUE = 0,    /* each batch goes to one consumer, which may write to it */
  TENON_SERVE_BROADCAST = 1 /* each batch goes to all consumers, read-only */
};

typedef struct tenon_serve_options {
  uint32_t struct_size;
  int32_t mode;
  int32_t consumers; /* the first epoch begins when so many processes have begun to iterate */
  int32_t reserved;
  const void* note; /* bytes for consumers, at most 8 KiB; copied at the first call of a feed */
  uint64_t note_nbytes;
} tenon_serve_options;

/* Gives the feed its name at the first call, and waits for consumers from then on. While it is served,
 * tenon_feed_begin and tenon_feed_next fail with VALUE. Fails with VALUE (no name, or another process has it;
 * another mode than before; one slot; it is being served), CLOSED. */
TENON_API tenon_status tenon_feed_serve(tenon_feed* feed, const tenon_serve_options* options,
                                        tenon_error* error);

enum tenon_serve_what {
  TENON_SERVE_NOTHING = 0,
  TENON_SERVE_GATHERED = 1,    /* so many consumers are there: tenon_feed_serve_next begins the first epoch */
  TENON_SERVE_EPOCH_ENDED = 2, /* for all consumers: tenon_feed_serve_next begins the next one */
  TENON_SERVE_OVER = 3         /* tenon_feed_serve_end or tenon_feed_close was called */
};

typedef struct tenon_serve_report {
  uint32_t struct_size;
  int32_t what;
  int32_t consumers;
  int32_t unread;      /* batches that wait for a consumer */
  int32_t has_failure; /* with EPOCH_ENDED: a failure has ended it; tenon_feed_failure_get tells more */
  int32_t is_filled;   /* the unread batches are the last ones of the epoch */
  uint64_t batches;    /* for consumers, so far */
} tenon_serve_report;

/* Does what the server has to do, in this thread, until there is something to report, at most timeout_ns
 * (< 0: no limit); then *out has NOTHING. With workers = 0 it fills. Fails with VALUE (the feed has no
 * name). */
TENON_API tenon_status tenon_feed_serve_wait(tenon_feed* feed, int64_t timeout_ns, tenon_serve_report* out,
                                             tenon_error* error);
/* Begins an epoch: after GATHERED or EPOCH_ENDED. Fails with CLOSED. */
TENON_API tenon_status tenon_feed_serve_next(tenon_feed* feed, tenon_error* error);
/* After GATHERED: where the i-th consumer that called tenon_attached_resume wants to begin; ranks: what it
 * has given. *out is NULL if there are not so many. */
TENON_API tenon_status tenon_feed_serve_wanted(tenon_feed* feed, int32_t i, tenon_feed_state** out,
                                               int32_t ranks[2], tenon_error* error);
/* Consumers get the batches that are ready, as many as they may hold, and then their loops end. Any thread.
 * Idempotent. */
TENON_API void tenon_feed_serve_end(tenon_feed* feed);

typedef struct tenon_serve_counts {
  uint32_t struct_size;
  int32_t consumers;
  int32_t held; /* slots whose batches consumers have */
  int32_t reserved;
  uint64_t batches; /* that consumers have received */
  uint64_t nbytes;
  uint64_t starved_ns; /* that a consumer has waited for batches, on average */
} tenon_serve_counts;

/* Zeros for a feed without a name. */
TENON_API void tenon_feed_serve_counts_get(tenon_feed* feed, tenon_serve_counts* out);

/* A served feed, in a process that consumes. */
typedef struct tenon_attached tenon_attached;

/* Fails with NOT_FOUND (no feed is served by that name), VALUE (the name is that of something else, or its
 * memory is damaged; this process is attached to the feed already), SYSTEM. */
TENON_API tenon_status tenon_attach_feed(const char* name, tenon_attached** out, tenon_error* error);

typedef struct tenon_attached_info {
  uint32_t struct_size;
  int32_t mode;
  int32_t pid;        /* of the feed's process */
  int32_t tokens;     /* slots that consumers may have at a time */
  int32_t held;       /* that they have */
  int32_t consumers;  /* processes that iterate */
  int32_t is_serving; /* the first epoch has begun, and tenon_feed_serve_end was not called since */
  int32_t is_first;   /* no other consumer of a queue has got a batch before the last one that came here */
  uint64_t first_number, first_epoch, first_place; /* where the serving has begun; 0: it has not */
  uint64_t
      last_number;  /* of the last batch that was delivered here; numbers are comparable with first_number */
  const void* note; /* as tenon_serve_options; valid as long as the handle */
  uint64_t note_nbytes;
  const void* memory; /* where the slots are mapped in this process: the first one */
} tenon_attached_info;

TENON_API void tenon_attached_describe(tenon_attached* attached, tenon_attached_info* out);
/* Of its batches: a new reference. */
TENON_API tenon_schema* tenon_attached_schema(tenon_attached* attached);
/* Begins a loop over one epoch, or over what is left of it. Waits for nothing, or for a moment. Fails with
 * CLOSED (the feed is not served any more, and nothing is left; tenon_attached_close was called), OWNER_DIED
 * (a loop was told that before), VALUE (another thread waits in tenon_attached_next). */
TENON_API tenon_status tenon_attached_begin(tenon_attached* attached, tenon_error* error);
/* The next batch of the loop, at most after timeout_ns (< 0: no limit). At the end of the loop *out is
 * NULL, and the status is OK. Fails with TIMEOUT (the message names what it waited for; nothing was
 * taken), OP (the generator failed at this batch, for each consumer; the loop is over), OWNER_DIED
 * (nothing more is ready, and the feed's process has died), VALUE (the memory is damaged), CLOSED. */
TENON_API tenon_status tenon_attached_next(tenon_attached* attached, int64_t timeout_ns, tenon_batch** out,
                                           tenon_error* error);
/* The last failure of tenon_attached_next. */
TENON_API void tenon_attached_failure_get(tenon_attached* attached, tenon_feed_failure* out);
/* Before the first loop: the feed is to begin at this position, with these states of its generator, as
 * tenon_feed_resume. See tenon_feed_serve_wanted. Fails with VALUE (a loop has begun; another thread waits in
 * tenon_attached_next). */
TENON_API tenon_status tenon_attached_resume(tenon_attached* attached, const tenon_feed_place* place,
                                             const tenon_worker_state* states, const int32_t ranks[2],
                                             tenon_error* error);
/* The position of the feed behind the last batch that was delivered here. *is_gap: not 0 if other
 * consumers got batches in between. Fails with NOT_FOUND (no batch yet). */
TENON_API tenon_status tenon_attached_state_take(tenon_attached* attached, tenon_feed_state** out,
                                                 int32_t* is_gap, tenon_error* error);
/* Is no consumer any more. Ends a wait of another thread. Batches that it has stay valid. Idempotent. */
TENON_API void tenon_attached_close(tenon_attached* attached);
TENON_API void tenon_attached_release(tenon_attached* attached);

#ifdef __cplusplus
}
#endif

#endif /* TENON_FEED_H_ */
