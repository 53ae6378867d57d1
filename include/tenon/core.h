/* SPDX-License-Identifier: Apache-2.0
 *
 * core.h - the part of the C ABI that the others need: errors, dtypes, arrays, leases, views, ops, native
 * functions. Included by tenon.h, which says the conventions.
 */
#ifndef TENON_CORE_H_
#define TENON_CORE_H_

#include <stddef.h>
#include <stdint.h>

#include "tenon/version.h"

#if defined(__GNUC__)
#define TENON_API __attribute__((visibility("default")))
#else
#define TENON_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------- errors
 * \since 0.1 */

typedef int32_t tenon_status;

/* Append-only. In brackets: the Python exception of the same meaning. */
enum {
  TENON_OK = 0,
  TENON_ERR_VALUE = 1,           /* an argument has a value that cannot work [ValueError] */
  TENON_ERR_TYPE = 2,            /* an argument or dtype is of the wrong kind [TypeError] */
  TENON_ERR_BUFFER = 3,          /* memory cannot be exchanged as asked [BufferError] */
  TENON_ERR_INDEX = 4,           /* an index lies outside of its axis [IndexError] */
  TENON_ERR_NO_MEMORY = 5,       /* [MemoryError] */
  TENON_ERR_NOT_FOUND = 6,       /* a library, symbol or name does not exist [FileNotFoundError] */
  TENON_ERR_TIMEOUT = 7,         /* the time given has passed [TimeoutError] */
  TENON_ERR_CLOSED = 8,          /* the object has been closed [ValueError] */
  TENON_ERR_OP = 9,              /* code of the user failed: a generator, a native function [OpError] */
  TENON_ERR_SYSTEM = 10,         /* the operating system refused [OSError] */
  TENON_ERR_INTERNAL = 11,       /* a defect of Tenon [RuntimeError] */
  TENON_ERR_LEASE_CONFLICT = 12, /* somebody holds the memory in a way that excludes this [LeaseConflict] */
  TENON_ERR_LEASE_ESCAPED = 13,  /* a view outlived the lease under which it was taken [LeaseEscaped] */
  TENON_ERR_DEADLOCK = 14,       /* the wait would not end [DeadlockError] */
  TENON_ERR_MOVED = 15,          /* the memory has been moved out of the array [MovedError] */
  TENON_ERR_INTERRUPTED = 16,    /* a wait was ended by a hook (tenon_set_wait_hooks) */
  TENON_ERR_OWNER_DIED = 17      /* a process that was writing the memory has died [OwnerDied] */
};

typedef struct tenon_error {
  uint32_t struct_size;
  tenon_status code;
  char message[512]; /* always ends with NUL; cut when longer */
  int32_t op_code; /* with TENON_ERR_OP what the user's function returned, with OWNER_DIED the pid; else 0 */
} tenon_error;

#define TENON_ERROR_INIT {(uint32_t)sizeof(tenon_error), 0, {0}, 0}

/* The name of a status, as "TENON_ERR_VALUE"; "unknown status" for others. Never NULL. */
TENON_API const char* tenon_status_name(tenon_status status);

/* ------------------------------------------------------------------------------------ version
 * \since 0.1 */

/* The version of the library that runs, which may be newer than this header. Never changes. */
TENON_API void tenon_abi_version(uint32_t* major, uint32_t* minor);

/* The package version as "0.1.0". */
TENON_API const char* tenon_version(void);

/* -------------------------------------------------------------------------- dtypes and devices
 * \since 0.1
 *
 * Both have the layout and the codes of DLPack 1.3 (DLDataType, DLDevice). An element is lanes
 * values of bits bits. Elements that are no whole number of bytes (fp6, fp4) lie packed, the first
 * in the lowest bits, unless the array says TENON_SUBBYTE_PADDED: then each takes whole bytes. */

typedef struct tenon_dtype {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} tenon_dtype;

enum {
  TENON_INT = 0,
  TENON_UINT = 1,
  TENON_FLOAT = 2,
  TENON_BFLOAT = 4,
  TENON_COMPLEX = 5,
  TENON_BOOL = 6,
  TENON_FLOAT8_E3M4 = 7,
  TENON_FLOAT8_E4M3 = 8,
  TENON_FLOAT8_E4M3B11FNUZ = 9,
  TENON_FLOAT8_E4M3FN = 10,
  TENON_FLOAT8_E4M3FNUZ = 11,
  TENON_FLOAT8_E5M2 = 12,
  TENON_FLOAT8_E5M2FNUZ = 13,
  TENON_FLOAT8_E8M0FNU = 14,
  TENON_FLOAT6_E2M3FN = 15,
  TENON_FLOAT6_E3M2FN = 16,
  TENON_FLOAT4_E2M1FN = 17
};

typedef struct tenon_device {
  int32_t type;
  int32_t id;
} tenon_device;

enum { TENON_CPU = 1, TENON_CUDA_HOST = 3, TENON_ROCM_HOST = 11, TENON_CUDA_MANAGED = 13 };

/* dtype from a name: "float32", "f4", "bool", "bfloat16", "float8_e4m3fn", "float4_e2m1fn_x2", ...
 * Fails with TENON_ERR_TYPE for unknown names. */
TENON_API tenon_status tenon_dtype_from_name(const char* name, tenon_dtype* out, tenon_error* error);

/* The canonical name into a buffer of the caller, cut at size bytes with the NUL. */
TENON_API void tenon_dtype_name(tenon_dtype dtype, char* buffer, size_t size);

/* Fails with TENON_ERR_TYPE for codes and widths that DLPack 1.3 does not define. */
TENON_API tenon_status tenon_dtype_check(tenon_dtype dtype, tenon_error* error);

/* ------------------------------------------------------------------------------------- arrays
 * \since 0.1
 *
 * A storage is one allocation with its owner; an array is a typed, strided window on a storage and
 * keeps it alive. Arrays are immutable as handles: only the elements change. */

typedef struct tenon_array tenon_array;

enum {
  TENON_READONLY = 1 << 0,       /* elements may not be written through this array */
  TENON_SUBBYTE_PADDED = 1 << 1, /* each sub-byte element takes whole bytes */
  TENON_ZEROED = 1 << 2          /* creation only: all bytes are zero */
};

/* The largest number of axes. NumPy has the same limit. */
#define TENON_MAX_NDIM 64

/* What an array is. Lives and is constant as long as the array; read it without any call. */
typedef struct tenon_array_desc {
  uint32_t struct_size;
  uint32_t flags; /* TENON_READONLY, TENON_SUBBYTE_PADDED */
  void* data;     /* element 0; NULL only when size is 0 */
  tenon_device device;
  int32_t ndim;
  tenon_dtype dtype;
  const int64_t* shape;   /* ndim entries; never NULL when ndim > 0 */
  const int64_t* strides; /* ndim entries, in elements, also for contiguous arrays */
  int64_t size;           /* number of elements */
  uint64_t nbytes;        /* size elements packed; for strided arrays less than they span */
  uint64_t itemsize;      /* bytes of an element; 0 when elements are packed below a byte */
} tenon_array_desc;

TENON_API const tenon_array_desc* tenon_array_describe(const tenon_array* array);

/* New memory, contiguous in C order, aligned to at least 64 bytes (pages from 1 MiB on).
 * flags: TENON_ZEROED, TENON_SUBBYTE_PADDED. device: TENON_CPU.
 * Fails with VALUE (negative or overflowing shape), TYPE, NO_MEMORY. */
TENON_API tenon_status tenon_array_create(tenon_dtype dtype, int32_t ndim, const int64_t* shape,
                                          tenon_device device, uint32_t flags, tenon_array** out,
                                          tenon_error* error);

/* Memory of someone else. */
typedef struct tenon_adoption {
  uint32_t struct_size;
  uint32_t flags; /* TENON_READONLY, TENON_SUBBYTE_PADDED */
  void* data;     /* element 0 */
  tenon_device device;
  int32_t ndim;
  tenon_dtype dtype;
  const int64_t* shape;
  const int64_t* strides; /* in elements; NULL: C order */
  void* extent; /* start of the allocation in which the elements lie; NULL: the elements' own span */
  uint64_t extent_nbytes;
  void* owner;                  /* handed to deleter */
  void (*deleter)(void* owner); /* may be NULL: the memory outlives every array */
} tenon_adoption;

/* An array over existing memory. The deleter runs exactly once, from any thread, after the last
 * array and view has gone. On failure it does not run: the memory stays the caller's.
 * Bytes that Tenon knows already (an overlapping adoption, an array's own memory) join the contract
 * of the memory known.
 * Fails with VALUE (shape, strides that leave the extent, overflow, NULL data), TYPE, BUFFER
 * (device that the host cannot read, address not aligned to the element's natural alignment). */
TENON_API tenon_status tenon_array_adopt(const tenon_adoption* adoption, tenon_array** out,
                                         tenon_error* error);

/* Another handle on memory that is known to Tenon: when the described elements lie wholly inside a
 * living storage that has a deleter and allows what the flags ask for, *out shares that storage (owner
 * and deleter are not used and stay the caller's); else *out is NULL. Fails as tenon_array_adopt. */
TENON_API tenon_status tenon_array_alias(const tenon_adoption* adoption, tenon_array** out,
                                         tenon_error* error);

TENON_API void tenon_array_retain(tenon_array* array);
TENON_API void tenon_array_release(tenon_array* array);

/* The owner given at adoption if the array's storage was adopted with this deleter, else NULL. */
TENON_API void* tenon_array_owner(const tenon_array* array, void (*deleter)(void* owner));

/* Memory that was moved out of an array. */
typedef struct tenon_memory {
  uint32_t struct_size;
  int32_t is_readonly;
  void* data;
  uint64_t nbytes;
  void* owner; /* deleter(owner) gives the memory back: to be called once, if it is not NULL */
  void (*deleter)(void* owner);
} tenon_memory;

/* Takes the memory out of the array's storage: it is the caller's, and the array, like every other one on the
 * storage, fails with MOVED from then on. Waits for work that was pushed before. site: where, for messages;
 * NULL or a text that lives for ever. Fails with LEASE_CONFLICT (a view, lease or op holds the memory, or
 * another array was imported over the same bytes), DEADLOCK, OP, INTERRUPTED, MOVED. */
TENON_API tenon_status tenon_array_move_out(tenon_array* array, const char* site, tenon_memory* out,
                                            tenon_error* error);

/* Where the memory of the array was moved out ("" if that is not known); NULL: it was not. */
TENON_API const char* tenon_array_moved_at(const tenon_array* array);

/* An array as this one on new memory, zeroed: for who overwrites all of it, and leaves the old values to
 * their readers. Fails with BUFFER (read-only), VALUE (the array is a part of its memory, or not in C order),
 * LEASE_CONFLICT (a writable view is open, whose writes would be lost), NO_MEMORY. */
TENON_API tenon_status tenon_array_renew(tenon_array* array, tenon_array** out, tenon_error* error);

/* The same window outside of the contract: it waits for nobody, nobody waits for it, and its users order
 * their accesses themselves. Keeps the memory alive. */
TENON_API tenon_status tenon_array_unchecked(tenon_array* array, tenon_array** out, tenon_error* error);

/* A number that has moved when elements may have changed: after every write through this library,
 * and at every call while a writable view is open. */
TENON_API uint64_t tenon_array_version(const tenon_array* array);

/* --------------------------------------------------------------------------- views of an array
 * \since 0.1
 *
 * All share the storage of the source and never copy, except reshape when it is allowed to. */

enum { TENON_INDEX_AT = 0, TENON_INDEX_SLICE = 1, TENON_INDEX_NEW_AXIS = 2, TENON_INDEX_ELLIPSIS = 3 };

/* A slice bound that was left out. */
#define TENON_OMITTED INT64_MIN

/* One item of a basic index, with Python's meaning of negative and omitted bounds. */
typedef struct tenon_index {
  int32_t kind;
  int32_t reserved;
  int64_t start; /* AT: the position */
  int64_t stop;
  int64_t step;
} tenon_index;

/* array[indices]. Fails with INDEX (outside of the axis, too many indices), VALUE (step 0, two
 * ellipses, a packed sub-byte view that does not begin on a byte or leaves gaps). */
TENON_API tenon_status tenon_array_index(tenon_array* array, int32_t n, const tenon_index* indices,
                                         tenon_array** out, tenon_error* error);

enum { TENON_COPY_IF_NEEDED = 0, TENON_COPY_NEVER = 1, TENON_COPY_ALWAYS = 2 };

/* The same elements in C order in another shape; one entry may be -1. Fails with VALUE (sizes
 * differ; with TENON_COPY_NEVER: no strides describe it). */
TENON_API tenon_status tenon_array_reshape(tenon_array* array, int32_t ndim, const int64_t* shape,
                                           int32_t copy, tenon_array** out, tenon_error* error);

/* Axes in the order given; axes == NULL reverses them. Fails with VALUE. */
TENON_API tenon_status tenon_array_transpose(tenon_array* array, const int32_t* axes, tenon_array** out,
                                             tenon_error* error);

/* The bytes of a C-contiguous array, from byte_offset on, as elements of another dtype.
 * shape == NULL (then ndim is ignored): the array's shape with the last axis scaled.
 * Fails with VALUE (length or alignment does not fit; the message names the numbers and the offset
 * that would work), TYPE. */
TENON_API tenon_status tenon_array_reinterpret(tenon_array* array, tenon_dtype dtype, int32_t ndim,
                                               const int64_t* shape, uint64_t byte_offset, tenon_array** out,
                                               tenon_error* error);

/* The array stretched to shape by NumPy's broadcasting rules; the result is read-only, because its
 * elements share bytes. Fails with VALUE. */
TENON_API tenon_status tenon_array_broadcast(tenon_array* array, int32_t ndim, const int64_t* shape,
                                             tenon_array** out, tenon_error* error);

/* The same window, read-only. */
TENON_API tenon_status tenon_array_readonly(tenon_array* array, tenon_array** out, tenon_error* error);

TENON_API int32_t tenon_array_is_contiguous(const tenon_array* array); /* in C order */

/* -------------------------------------------------------------------------- elements of arrays
 * \since 0.1
 *
 * Host calls: they run in the calling thread and return when done. */

/* dst[...] = src: broadcasts src (less surplus leading axes of length 1) to the shape of dst and casts as C
 * does, saturating nowhere; NaN and values out of range become integers as on the machine. Overlap is fine.
 * Fails with VALUE (shapes), TYPE (no cast between the dtypes), BUFFER (dst is read-only). */
TENON_API tenon_status tenon_array_copy_to(tenon_array* src, tenon_array* dst, tenon_error* error);

/* dst[...] = *value, a single element of value_dtype. Fails as tenon_array_copy_to. */
TENON_API tenon_status tenon_array_fill(tenon_array* dst, const void* value, tenon_dtype value_dtype,
                                        tenon_error* error);

/* New memory in C order with the elements of array, cast to dtype. */
TENON_API tenon_status tenon_array_copy(tenon_array* array, tenon_dtype dtype, tenon_array** out,
                                        tenon_error* error);

/* --------------------------------------------------------------------------------- host views
 * \since 0.1
 *
 * Every raw access from outside the library to an array's memory is announced: the one place in
 * which views of a storage are counted. A view keeps the storage alive. */

typedef struct tenon_view {
  void* reserved[16]; /* zero before the first use; must not move while open */
} tenon_view;

#define TENON_VIEW_INIT {{0}}

enum { TENON_READ = 0, TENON_WRITE = 1, TENON_WRITE_OR_READ = 2 };

/* access: TENON_READ, TENON_WRITE, or TENON_WRITE_OR_READ: for writing, but for reading inside of the
 * caller's own lease for reading. Waits for work on the memory that was pushed before. site: where the
 * view is taken, for messages; NULL or a text that lives as long as the view.
 * Fails with BUFFER (a read-only array), LEASE_CONFLICT, DEADLOCK, INTERRUPTED, OP (it holds no value). */
TENON_API tenon_status tenon_view_open(tenon_view* view, tenon_array* array, int32_t access, const char* site,
                                       tenon_error* error);

/* TENON_READ or TENON_WRITE: what an open view may do. */
TENON_API int32_t tenon_view_access(const tenon_view* view);

/* Idempotent; from any thread. */
TENON_API void tenon_view_close(tenon_view* view);

/* Open views of the storage of an array, DLPack exports included. */
typedef struct tenon_view_count {
  uint32_t readers;
  uint32_t writers;
} tenon_view_count;

TENON_API tenon_view_count tenon_array_views(const tenon_array* array);

/* What lives in this process: for tests and leak checks. */
typedef struct tenon_statistics {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t storages;        /* alive */
  uint64_t regions;         /* disjoint stretches of memory that they cover */
  uint64_t heap_nbytes;     /* allocated by tenon_array_create and alive */
  uint64_t views;           /* open views, DLPack exports included */
  uint64_t failed_deleters; /* deleters that threw */
} tenon_statistics;

TENON_API void tenon_statistics_get(tenon_statistics* out);

/* ------------------------------------------------------------------------------------- leases
 * \since 0.1
 *
 * The memory of an array has one queue. Ops (below) and leases stand in it in the order in which they
 * came; reads run together, a write runs alone; accesses to different bytes do not conflict. A lease
 * belongs to its thread: what that thread does to the array meanwhile acts under it. */

typedef struct tenon_lease {
  void* reserved[32]; /* zero before the first use; must not move while held or requested */
} tenon_lease;

#define TENON_LEASE_INIT {{0}}

enum {
  TENON_OVERWRITE = 1 << 0,        /* with TENON_WRITE: every element is written before any is read */
  TENON_IGNORE_OWNER_DIED = 1 << 1 /* of a lease: the memory as a dead writer left it (share.h) */
};

typedef struct tenon_lease_options {
  uint32_t struct_size;
  int32_t access;     /* TENON_READ, TENON_WRITE */
  uint32_t flags;     /* TENON_OVERWRITE, TENON_IGNORE_OWNER_DIED */
  uint32_t thread;    /* the kernel's number of the owner; 0: the calling thread */
  uint64_t task;      /* of an asynchronous program on that thread; 0: none */
  int64_t timeout_ns; /* < 0: for ever; or TENON_DEFAULT_TIMEOUT (tenon/share.h) */
  const char* site;   /* as of tenon_view_open */
} tenon_lease_options;

/* Waits for its turn. Fails with BUFFER (TENON_WRITE on a read-only array), TIMEOUT, DEADLOCK (it would wait
 * for itself), LEASE_CONFLICT (under the caller's own lease for reading; in the body of an op that has not
 * declared the array), OP (the memory holds no value, and this is no overwrite), INTERRUPTED, OWNER_DIED. */
TENON_API tenon_status tenon_lease_acquire(tenon_lease* lease, tenon_array* array,
                                           const tenon_lease_options* options, tenon_error* error);

/* Idempotent, from any thread; never waits. Not 0: a view that was taken under it lives on. Until that is
 * closed, it continues the lease: others wait for it, and the lease's thread acts under it. */
TENON_API int32_t tenon_lease_release(tenon_lease* lease);

/* Releases a lease whose writing did not end: the memory holds no value until it is overwritten. */
TENON_API int32_t tenon_lease_fail(tenon_lease* lease, const char* message);

/* From now on the lease belongs to nobody: any thread may release it, and no deadlock is seen in it. */
TENON_API void tenon_lease_detach(tenon_lease* lease);

/* tenon_lease_acquire for a task of an asynchronous program, whose thread must not sleep. *is_granted: 1: it
 * is held. 0: done(context) is called once when it has been granted, from any thread, perhaps before this
 * returns; nothing but tenon_lease_cancel may be called before that, then tenon_lease_check. timeout_ns is
 * not used. Fails as tenon_lease_acquire, with DEADLOCK at once; then done is not called. */
TENON_API tenon_status tenon_lease_request(tenon_lease* lease, tenon_array* array,
                                           const tenon_lease_options* options, void (*done)(void* context),
                                           void* context, int32_t* is_granted, tenon_error* error);

/* Takes a request back. Not 0: done will not be called. 0: it has been granted, and done has been or will be
 * called: from then on it is to be released, and counts as not written. */
TENON_API int32_t tenon_lease_cancel(tenon_lease* lease);

/* After a grant, before its use. Fails with OP as tenon_lease_acquire; the lease is not held then. */
TENON_API tenon_status tenon_lease_check(tenon_lease* lease, tenon_error* error);

enum { TENON_HOLDER_VIEW = 0, TENON_HOLDER_OP = 1, TENON_HOLDER_LEASE = 2, TENON_HOLDER_CALL = 3 };
enum { TENON_HOLDER_PROCESS = 4 }; /* another process that shares the memory */

/* Who holds the memory of an array, or waits for it. */
typedef struct tenon_holder {
  int32_t kind;       /* TENON_HOLDER_* */
  int32_t access;     /* TENON_READ, TENON_WRITE */
  int32_t is_granted; /* 0: it waits */
  uint32_t thread;    /* that took or pushed it; of a process: its number */
  int64_t age_ns;
  char name[64];  /* of an op, call or wait; the command of a process; cut */
  char site[192]; /* cut */
} tenon_holder;

/* Fills at most n of them (the queue, views, other processes); returns how many there are. */
TENON_API int32_t tenon_array_holders(tenon_array* array, int32_t n, tenon_holder* out);

/* How a language with a lock of its own and handlers for signals takes part in waits. Each may be NULL. */
typedef struct tenon_wait_hooks {
  uint32_t struct_size;
  int32_t reserved;
  void* (*begin)(void);             /* before the calling thread sleeps: give the lock away */
  int32_t (*poll)(void* token);     /* every 50 ms and after signals; not 0 ends the wait as INTERRUPTED */
  void (*end)(void* token);         /* take the lock again */
  uint64_t (*current_task)(void);   /* of an asynchronous program; 0: none */
  void (*report)(const char* text); /* every 5 s of a wait: behind whom */
  /* In a wait behind open views, after 50 ms and every 5 s: closes those that nobody uses any more; not 0: no
   * other thread could close the rest, so that the wait is a DEADLOCK. */
  int32_t (*is_alone)(void* token);
} tenon_wait_hooks;

/* Once, before anything waits. */
TENON_API void tenon_set_wait_hooks(const tenon_wait_hooks* hooks);

/* ---------------------------------------------------------------------------------------- ops
 * \since 0.1
 *
 * An op is work that declares what it reads and writes. It runs when its turn has come in every queue,
 * on a thread of the engine. Only what is pushed is asynchronous. */

typedef struct tenon_op tenon_op;
typedef struct tenon_failure tenon_failure;

/* What an op does to an array. The op keeps the array alive. */
typedef struct tenon_use {
  tenon_array* array;
  int32_t access; /* TENON_READ, TENON_WRITE */
  uint32_t flags; /* TENON_OVERWRITE */
} tenon_use;

/* What happens where the views of ordinary code conflict with an op. */
enum {
  TENON_CONFLICT_RAISE = 0, /* the push fails with LEASE_CONFLICT, and nothing is queued */
  TENON_CONFLICT_WAIT = 1,  /* the op waits until they are closed */
  TENON_CONFLICT_IGNORE = 2 /* the caller promises that nobody uses them before the op is done */
};

typedef struct tenon_work {
  uint32_t struct_size;
  int32_t on_conflict; /* TENON_CONFLICT_* */
  void* context;
  /* Called once, on any thread, unless something that the op reads has failed. Ends the op by
   * tenon_op_complete or tenon_op_fail, now or later, on any thread. May not wait for ops or leases. */
  void (*run)(void* context, tenon_op* op);
  void (*drop)(void* context); /* called once in every case, before the op is done; may be NULL */
  const char* name;            /* copied; may be NULL */
  const char* site;            /* where it is pushed; copied; may be NULL */
} tenon_work;

/* All uses are queued together, or none. On failure drop is not called: the context stays the caller's.
 * out may be NULL. Fails with VALUE, BUFFER (writing to a read-only array), LEASE_CONFLICT, CLOSED (after
 * tenon_engine_shut_down). */
TENON_API tenon_status tenon_push(const tenon_work* work, int32_t n, const tenon_use* uses, tenon_op** out,
                                  tenon_error* error);

/* Exactly one of them, once. */
TENON_API void tenon_op_complete(tenon_op* op);
/* message is copied; drop_payload(payload) is called once when nobody needs the failure any more. */
TENON_API void tenon_op_fail(tenon_op* op, int32_t op_code, const char* message, void* payload,
                             void (*drop_payload)(void* payload));

/* A view that was taken in the op's body lives. For bindings, before they complete the op. */
TENON_API int32_t tenon_op_has_views(const tenon_op* op);

TENON_API void tenon_op_retain(tenon_op* op);
TENON_API void tenon_op_release(tenon_op* op);
TENON_API int32_t tenon_op_is_done(const tenon_op* op);

/* Waits until the op is done. timeout_ns < 0: for ever, and the op runs in this thread if it is ready. Fails
 * with TIMEOUT, DEADLOCK, INTERRUPTED, LEASE_CONFLICT (in the body of an op), OP (the op failed, or what it
 * reads: tenon_op_failure has the reason). */
TENON_API tenon_status tenon_op_wait(tenon_op* op, int64_t timeout_ns, tenon_error* error);

/* Calls done(context) once, when the op is done, on the thread that ends it; at once if it is. Fails with
 * NO_MEMORY. */
TENON_API tenon_status tenon_op_on_done(tenon_op* op, void (*done)(void* context), void* context,
                                        tenon_error* error);

typedef struct tenon_await {
  void* reserved[12]; /* zero before the first use; must not move between begin and end */
} tenon_await;

#define TENON_AWAIT_INIT {{0}}

/* Says that a task on this thread waits for the op, of whose end tenon_op_on_done tells it: so that waits for
 * each other are seen. Fails with DEADLOCK (the op waits behind a lease of its own, also around others)
 * and LEASE_CONFLICT (in the body of an op); nothing has begun then. task: as of tenon_lease_options. */
TENON_API tenon_status tenon_await_begin(tenon_await* await, tenon_op* op, uint64_t task, tenon_error* error);
TENON_API void tenon_await_end(tenon_await* await); /* idempotent */

/* Runs an op that is ready in this thread. 1: did; 0: none is ready; -1: the engine's own threads do that. */
TENON_API int32_t tenon_engine_help(void);

/* Waits until no op is unfinished. Fails as tenon_op_wait, but not with OP: tenon_failures_take. */
TENON_API tenon_status tenon_wait_all(int64_t timeout_ns, tenon_error* error);

/* A call that uses arrays from now on until its end, in the thread that begins and ends it: it waits until it
 * has all of them, at once. What its thread does to them meanwhile acts under it; views that are opened then
 * may live on. uses: without flags. name: of the call, and site: for messages; copied; site may be NULL.
 * Fails with VALUE, BUFFER (writing to a read-only array), and as tenon_view_open. \since 0.2 */
typedef struct tenon_call tenon_call;
TENON_API tenon_status tenon_call_begin(const char* name, const char* site, int32_t n, const tenon_use* uses,
                                        tenon_call** out, tenon_error* error);
TENON_API void tenon_call_end(tenon_call* call); /* once; NULL does nothing */

/* Waits until the writes (or all uses) that were pushed before are done. Fails as tenon_lease_acquire. */
TENON_API tenon_status tenon_array_wait(tenon_array* array, int32_t access, int64_t timeout_ns,
                                        tenon_error* error);

/* Why memory holds no value. Counted; constant. */
TENON_API tenon_failure* tenon_op_failure(tenon_op* op);          /* NULL: not done, or no failure */
TENON_API tenon_failure* tenon_array_failure(tenon_array* array); /* NULL: the array holds a value */
/* Behind the last TENON_ERR_OP that a call in this thread has returned: given once, and kept (with its
 * payload) until then or until the next. NULL: no op's. */
TENON_API tenon_failure* tenon_failure_last(void);
/* A failure that began since the last call; NULL: none is left. */
TENON_API tenon_failure* tenon_failures_take(void);
TENON_API void tenon_failure_release(tenon_failure* failure);
TENON_API const char* tenon_failure_message(const tenon_failure* failure);
TENON_API const char* tenon_failure_op(const tenon_failure* failure);
TENON_API const char* tenon_failure_site(const tenon_failure* failure);
TENON_API int32_t tenon_failure_code(const tenon_failure* failure);
/* The payload if it was given with this drop_payload, else NULL: nobody takes another's for its own. */
TENON_API void* tenon_failure_payload(const tenon_failure* failure, void (*drop_payload)(void* payload));

/* Its bytes are good, because the caller says so. Of shared ones waits as tenon_set_lock_timeout says. */
TENON_API void tenon_array_clear_error(tenon_array* array);

/* name: "pool", "inline", "seeded:N" or "default"; workers: 0 for one for each processor. Waits for all ops
 * first. Fails with VALUE, TIMEOUT, SYSTEM. */
TENON_API tenon_status tenon_engine_set(const char* name, int32_t workers, tenon_error* error);
TENON_API void tenon_engine_name(char* buffer, size_t size);
/* How many ops may be unfinished, and how many bytes of memory they may use (each array counted once, memory
 * of less than 64 KiB not), before a push waits until half of that is left. 0: any number; TENON_KEEP: as it
 * is. At first 10,000 ops and half of the machine's memory. */
TENON_API void tenon_engine_set_limits(uint64_t ops, uint64_t nbytes);
#define TENON_KEEP UINT64_MAX
TENON_API uint64_t tenon_engine_unfinished(void);
/* Before a fork: waits until no body runs but the caller's own. Fails with TIMEOUT. */
TENON_API tenon_status tenon_engine_wait_for_bodies(int64_t timeout_ns, tenon_error* error);
/* No further pushes; waits for what can end. Fails with TIMEOUT, DEADLOCK. */
TENON_API tenon_status tenon_engine_shut_down(int64_t timeout_ns, tenon_error* error);

/* ------------------------------------------------------------------------------------- DLPack
 * \since 0.1
 *
 * The structs are those of DLPack 1.3 (tenon/dlpack.h or the official dlpack/dlpack.h). An export is
 * an open view until its deleter runs; deleters run on any thread and need no Python. */

struct DLManagedTensor;
struct DLManagedTensorVersioned;

enum {
  TENON_EXPORT_FOR_READ = 1 << 0, /* the consumer promises to read only: the view counts as a reader, a
                                     read-only array is allowed in the legacy struct */
  TENON_EXPORT_COPIED = 1 << 1    /* sets IS_COPIED: the caller made array for this consumer alone */
};

/* site: as of tenon_view_open. Fails as tenon_view_open. */
TENON_API tenon_status tenon_array_to_dlpack(tenon_array* array, uint32_t flags, const char* site,
                                             struct DLManagedTensorVersioned** out, tenon_error* error);

/* Cannot say READ_ONLY: fails with BUFFER for a read-only array without TENON_EXPORT_FOR_READ. */
TENON_API tenon_status tenon_array_to_dlpack_legacy(tenon_array* array, uint32_t flags, const char* site,
                                                    struct DLManagedTensor** out, tenon_error* error);

/* Consumes the tensor in every case: it is owned by the new array, or its deleter has been called.
 * flags: TENON_READONLY to import read-only. Of an unknown major version nothing but the deleter is
 * used. Fails with BUFFER (version, device, malformed tensor), TYPE (dtype), VALUE (shape). */
TENON_API tenon_status tenon_array_from_dlpack(struct DLManagedTensorVersioned* tensor, uint32_t flags,
                                               tenon_array** out, tenon_error* error);
TENON_API tenon_status tenon_array_from_dlpack_legacy(struct DLManagedTensor* tensor, uint32_t flags,
                                                      tenon_array** out, tenon_error* error);

/* --------------------------------------------------------------------------- native functions
 * \since 0.1
 *
 * A function of a shared library, called by its C prototype:
 *     int fill(float *data, int64_t *label, size_t n)
 * Parameters are pointers to numbers (const means: read), integers and floating-point numbers. The
 * library is never unloaded. A result of type int is a status: non-zero is a failure. */

typedef struct tenon_function tenon_function;

enum { TENON_THREADSAFE = 1 << 0 }; /* several threads may be inside the function at a time */

/* path: a library file, or NULL for a symbol already in the process. Fails with NOT_FOUND (library,
 * symbol), VALUE (prototype; the message shows the place). */
TENON_API tenon_status tenon_function_load(const char* path, const char* prototype, uint32_t flags,
                                           tenon_function** out, tenon_error* error);

/* The same for an address. name may be NULL. */
TENON_API tenon_status tenon_function_create(void* address, const char* prototype, uint32_t flags,
                                             tenon_function** out, tenon_error* error);

TENON_API void tenon_function_retain(tenon_function* function);
TENON_API void tenon_function_release(tenon_function* function);

/* A parameter or a result. */
typedef struct tenon_parameter {
  const char* name; /* "" where the prototype gives none; lives as long as the function */
  int32_t is_pointer;
  int32_t is_const;  /* pointers: the function reads only */
  int32_t is_void;   /* void* (any dtype), or no result */
  int32_t is_status; /* a result of type int */
  tenon_dtype dtype; /* of the number, or of what the pointer points to */
} tenon_parameter;

TENON_API const char* tenon_function_name(const tenon_function* function);
TENON_API const char* tenon_function_prototype(const tenon_function* function);
TENON_API int32_t tenon_function_parameter_count(const tenon_function* function);
/* i from 0; i == -1 is the result. */
TENON_API tenon_parameter tenon_function_parameter(const tenon_function* function, int32_t i);

/* The bits of one argument: integers sign- or zero-extended in i, floating point in f. */
typedef union tenon_value {
  int64_t i;
  uint64_t u;
  double f;
  void* p;
} tenon_value;

/* Calls it in this thread (a function that is not thread-safe: one call at a time, others wait).
 * result may be NULL. Fails with OP when a status result is non-zero (error->op_code). */
TENON_API tenon_status tenon_function_call(tenon_function* function, int32_t n, const tenon_value* arguments,
                                           tenon_value* result, tenon_error* error);

#ifdef __cplusplus
}
#endif
#endif /* TENON_CORE_H_ */
