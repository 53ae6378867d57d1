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

/* Append-only. In brackets: the Python exception with the same meaning. */
enum tenon_status_code {
  TENON_OK = 0,
  TENON_ERR_VALUE = 1,           /* an argument has an invalid value [ValueError] */
  TENON_ERR_TYPE = 2,            /* an argument or dtype has the wrong type [TypeError] */
  TENON_ERR_BUFFER = 3,          /* memory cannot be exchanged as requested [BufferError] */
  TENON_ERR_INDEX = 4,           /* an index is out of range for its axis [IndexError] */
  TENON_ERR_NO_MEMORY = 5,       /* [MemoryError] */
  TENON_ERR_NOT_FOUND = 6,       /* a library, symbol or name does not exist [FileNotFoundError] */
  TENON_ERR_TIMEOUT = 7,         /* the time limit has passed [TimeoutError] */
  TENON_ERR_CLOSED = 8,          /* the object has been closed [ValueError] */
  TENON_ERR_OP = 9,              /* user code failed: a generator, a native function [OpError] */
  TENON_ERR_SYSTEM = 10,         /* a system call failed [OSError] */
  TENON_ERR_INTERNAL = 11,       /* a defect of Tenon [RuntimeError] */
  TENON_ERR_LEASE_CONFLICT = 12, /* a holder of the memory excludes this access [LeaseConflict] */
  TENON_ERR_LEASE_ESCAPED = 13,  /* a view outlived the lease under which it was taken [LeaseEscaped] */
  TENON_ERR_DEADLOCK = 14,       /* the wait would never end [DeadlockError] */
  TENON_ERR_MOVED = 15,          /* the memory has been moved out of the array [MovedError] */
  TENON_ERR_INTERRUPTED = 16,    /* a hook ended the wait (tenon_set_wait_hooks) */
  TENON_ERR_OWNER_DIED = 17,     /* a process that was writing the memory has died [OwnerDied] */
  TENON_ERR_GONE = 18            /* a message of a tensor pool has ended [MessageGone] \since 0.6 */
};

typedef struct tenon_error {
  uint32_t struct_size;
  tenon_status code;
  char message[512]; /* always ends with NUL; truncated if longer */
  int32_t op_code;   /* TENON_ERR_OP: the result of the user's function; OWNER_DIED: the pid;
                      * GONE: TENON_GONE_*; else 0 */
} tenon_error;

#define TENON_ERROR_INIT {(uint32_t)sizeof(tenon_error), 0, {0}, 0}

/* The name of a status, for example "TENON_ERR_VALUE"; "unknown status" for others. Never NULL. */
TENON_API const char* tenon_status_name(tenon_status status);

/* ------------------------------------------------------------------------------------ version
 * \since 0.1 */

/* The ABI version of the loaded library, which may be newer than this header. This function never changes. */
TENON_API void tenon_abi_version(uint32_t* major, uint32_t* minor);

/* The package version, for example "0.1.0". */
TENON_API const char* tenon_version(void);

/* -------------------------------------------------------------------------- dtypes and devices
 * \since 0.1
 *
 * Both have the layout and the codes of DLPack 1.3 (DLDataType, DLDevice). An element consists of `lanes`
 * values of `bits` bits. Elements whose size is not a whole number of bytes (fp6, fp4) are packed, the first
 * one in the lowest bits. With TENON_SUBBYTE_PADDED each element takes whole bytes instead. */

typedef struct tenon_dtype {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} tenon_dtype;

enum tenon_dtype_code {
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

enum tenon_device_type {
  TENON_CPU = 1,
  TENON_CUDA = 2,
  TENON_CUDA_HOST = 3,
  TENON_ROCM_HOST = 11,
  TENON_CUDA_MANAGED = 13
};

/* The dtype with this name: "float32", "f4", "bool", "bfloat16", "float8_e4m3fn", "float4_e2m1fn_x2", ...
 * Fails with TENON_ERR_TYPE for unknown names. */
TENON_API tenon_status tenon_dtype_from_name(const char* name, tenon_dtype* out, tenon_error* error);

/* Writes the canonical name to a buffer of the caller, truncated to size bytes including the NUL. */
TENON_API void tenon_dtype_name(tenon_dtype dtype, char* buffer, size_t size);

/* Fails with TENON_ERR_TYPE for codes and widths that DLPack 1.3 does not define. */
TENON_API tenon_status tenon_dtype_check(tenon_dtype dtype, tenon_error* error);

/* ------------------------------------------------------------------------------------- arrays
 * \since 0.1
 *
 * A storage is one allocation with its owner. An array is a typed, strided part of a storage and keeps it
 * alive. Shape, dtype and address of an array never change; only the elements do. */

typedef struct tenon_array tenon_array;

enum tenon_array_flags {
  TENON_READONLY = 1 << 0,       /* elements cannot be written through this array */
  TENON_SUBBYTE_PADDED = 1 << 1, /* each sub-byte element takes whole bytes */
  TENON_ZEROED = 1 << 2          /* creation only: all bytes are zero */
};

/* The largest number of axes. NumPy has the same limit. */
#define TENON_MAX_NDIM 64

/* Describes an array. It exists and is constant as long as the array exists. */
typedef struct tenon_array_desc {
  uint32_t struct_size;
  uint32_t flags; /* TENON_READONLY, TENON_SUBBYTE_PADDED */
  void* data;     /* element 0; NULL only if size is 0 */
  tenon_device device;
  int32_t ndim;
  tenon_dtype dtype;
  const int64_t* shape;   /* ndim entries; never NULL if ndim > 0 */
  const int64_t* strides; /* ndim entries, in elements; given for contiguous arrays too */
  int64_t size;           /* number of elements */
  uint64_t nbytes;        /* size elements, packed; less than the span of a strided array */
  uint64_t itemsize;      /* bytes of an element; 0 if elements are packed below a byte */
} tenon_array_desc;

TENON_API const tenon_array_desc* tenon_array_describe(const tenon_array* array);

/* New memory, contiguous in C order, aligned to at least 64 bytes (to pages from 1 MiB on).
 * flags: TENON_ZEROED, TENON_SUBBYTE_PADDED. device: TENON_CPU, or as device.h says.
 * Fails with VALUE (negative or overflowing shape), TYPE, NO_MEMORY. */
TENON_API tenon_status tenon_array_create(tenon_dtype dtype, int32_t ndim, const int64_t* shape,
                                          tenon_device device, uint32_t flags, tenon_array** out,
                                          tenon_error* error);

/* Existing memory, for tenon_array_adopt. */
typedef struct tenon_adoption {
  uint32_t struct_size;
  uint32_t flags; /* TENON_READONLY, TENON_SUBBYTE_PADDED */
  void* data;     /* element 0 */
  tenon_device device;
  int32_t ndim;
  tenon_dtype dtype;
  const int64_t* shape;
  const int64_t* strides; /* in elements; NULL: C order */
  void* extent; /* start of the allocation that contains the elements; NULL: the span of the elements */
  uint64_t extent_nbytes;
  void* owner;                  /* the argument of deleter */
  void (*deleter)(void* owner); /* may be NULL if the memory outlives every array */
} tenon_adoption;

/* An array over existing memory. The deleter runs exactly once, on any thread, after the last array and view
 * are gone. On failure it does not run, and the memory still belongs to the caller.
 * Bytes that Tenon already knows (an overlapping adoption, the memory of an array) share the region and the
 * queue of the known memory.
 * Fails with VALUE (shape, strides that leave the extent, overflow, NULL data), TYPE, BUFFER
 * (device that the host cannot read, address not aligned to the element's natural alignment). */
TENON_API tenon_status tenon_array_adopt(const tenon_adoption* adoption, tenon_array** out,
                                         tenon_error* error);

/* Another array on memory that Tenon already knows. *out shares the storage if the described elements lie
 * completely inside of an existing storage that has a deleter and allows the access that the flags request.
 * Then owner and deleter are not used and still belong to the caller. Otherwise *out is NULL.
 * Fails as tenon_array_adopt. */
TENON_API tenon_status tenon_array_alias(const tenon_adoption* adoption, tenon_array** out,
                                         tenon_error* error);

TENON_API void tenon_array_retain(tenon_array* array);
TENON_API void tenon_array_release(tenon_array* array);

/* The owner that was given at adoption, if the array's storage was adopted with this deleter; else NULL. */
TENON_API void* tenon_array_owner(const tenon_array* array, void (*deleter)(void* owner));

/* Memory that was moved out of an array. */
typedef struct tenon_memory {
  uint32_t struct_size;
  int32_t is_readonly;
  void* data;
  uint64_t nbytes;
  void* owner; /* call deleter(owner) once to free the memory, if deleter is not NULL */
  void (*deleter)(void* owner);
} tenon_memory;

/* Takes the memory out of the array's storage and gives it to the caller. From then on, this array and every
 * other array on the storage fail with MOVED. Waits for ops that were pushed before. site: the line of the
 * program, for messages; NULL or a text that is never freed. Fails with LEASE_CONFLICT (a view, lease or op
 * holds the memory, or another array was imported over the same bytes), DEADLOCK, OP, INTERRUPTED, MOVED. */
TENON_API tenon_status tenon_array_move_out(tenon_array* array, const char* site, tenon_memory* out,
                                            tenon_error* error);

/* The site at which the memory of the array was moved out ("" if it is unknown, or if there never was memory:
 * tenon_shared_receive); NULL if it was not moved. */
TENON_API const char* tenon_array_moved_at(const tenon_array* array);

/* An array with the same shape and dtype on new, zeroed memory. For a caller that overwrites all elements and
 * leaves the old values to their readers. Fails with BUFFER (read-only), VALUE (the array is only a part of
 * its memory, or not in C order), LEASE_CONFLICT (a writable view is open; its writes would be lost), MOVED,
 * NO_MEMORY. */
TENON_API tenon_status tenon_array_renew(tenon_array* array, tenon_array** out, tenon_error* error);

/* An array on the same elements that does not take part in the queue: it waits for no other access, and no
 * other access waits for it. Its users must order their accesses themselves. It keeps the memory alive. */
TENON_API tenon_status tenon_array_unchecked(tenon_array* array, tenon_array** out, tenon_error* error);

/* A number that changes when elements may have changed: after every write through this library, and with
 * every call of this function while a writable view is open. Waits do not change it. */
TENON_API uint64_t tenon_array_version(const tenon_array* array);

/* --------------------------------------------------------------------------- views of an array
 * \since 0.1
 *
 * All share the storage of the source and never copy. Only reshape may copy, if the caller allows it. */

enum tenon_index_kind {
  TENON_INDEX_AT = 0,
  TENON_INDEX_SLICE = 1,
  TENON_INDEX_NEW_AXIS = 2,
  TENON_INDEX_ELLIPSIS = 3
};

/* An omitted slice bound. */
#define TENON_OMITTED INT64_MIN

/* One item of a basic index. Negative and omitted bounds have the same meaning as in Python. */
typedef struct tenon_index {
  int32_t kind;
  int32_t reserved;
  int64_t start; /* TENON_INDEX_AT: the position */
  int64_t stop;
  int64_t step;
} tenon_index;

/* array[indices]. Fails with INDEX (out of range, too many indices), VALUE (step 0, two ellipses, a packed
 * sub-byte array that does not begin at a byte or has gaps). */
TENON_API tenon_status tenon_array_index(tenon_array* array, int32_t n, const tenon_index* indices,
                                         tenon_array** out, tenon_error* error);

enum tenon_copy_mode { TENON_COPY_IF_NEEDED = 0, TENON_COPY_NEVER = 1, TENON_COPY_ALWAYS = 2 };

/* The same elements in C order with another shape; one entry may be -1. Fails with VALUE (the sizes differ;
 * with TENON_COPY_NEVER: no strides describe the result). */
TENON_API tenon_status tenon_array_reshape(tenon_array* array, int32_t ndim, const int64_t* shape,
                                           int32_t copy, tenon_array** out, tenon_error* error);

/* The array with its axes in the given order; axes == NULL reverses them. Fails with VALUE. */
TENON_API tenon_status tenon_array_transpose(tenon_array* array, const int32_t* axes, tenon_array** out,
                                             tenon_error* error);

/* The bytes of a C-contiguous array, from byte_offset on, as elements of another dtype. If shape is NULL,
 * ndim is ignored, and the result has the array's shape with the last axis scaled. Fails with VALUE (length
 * or alignment does not fit; the message has the numbers and a valid offset), TYPE. */
TENON_API tenon_status tenon_array_reinterpret(tenon_array* array, tenon_dtype dtype, int32_t ndim,
                                               const int64_t* shape, uint64_t byte_offset, tenon_array** out,
                                               tenon_error* error);

/* The array broadcast to shape by NumPy's rules. The result is read-only, because its elements share bytes.
 * Fails with VALUE. */
TENON_API tenon_status tenon_array_broadcast(tenon_array* array, int32_t ndim, const int64_t* shape,
                                             tenon_array** out, tenon_error* error);

/* A read-only array on the same elements. */
TENON_API tenon_status tenon_array_readonly(tenon_array* array, tenon_array** out, tenon_error* error);

TENON_API int32_t tenon_array_is_contiguous(const tenon_array* array); /* in C order */

/* -------------------------------------------------------------------------- elements of arrays
 * \since 0.1
 *
 * These functions run in the calling thread and return when they are done. */

/* dst[...] = src. Removes surplus leading axes of length 1 from src, broadcasts it to the shape of dst, and
 * casts as C does, without saturation. The result of casting NaN or a value out of range to an integer
 * depends on the machine. src and dst may overlap. Fails with VALUE (shapes), TYPE (no cast between the
 * dtypes), BUFFER (dst is read-only). */
TENON_API tenon_status tenon_array_copy_to(tenon_array* src, tenon_array* dst, tenon_error* error);

/* dst[...] = *value, where value points to one element of value_dtype. Fails as tenon_array_copy_to. */
TENON_API tenon_status tenon_array_fill(tenon_array* dst, const void* value, tenon_dtype value_dtype,
                                        tenon_error* error);

/* New memory in C order with the elements of array, cast to dtype. */
TENON_API tenon_status tenon_array_copy(tenon_array* array, tenon_dtype dtype, tenon_array** out,
                                        tenon_error* error);

/* --------------------------------------------------------------------------------- host views
 * \since 0.1
 *
 * A view is raw access to an array's memory from outside of the library. Code that uses the memory without a
 * lease, a call or an op must open a view, because Tenon sees no other access. A view keeps the storage
 * alive. */

typedef struct tenon_view {
  void* reserved[16]; /* zero before the first use; must not move while open */
} tenon_view;

#define TENON_VIEW_INIT {{0}}

enum tenon_access { TENON_READ = 0, TENON_WRITE = 1, TENON_WRITE_OR_READ = 2 };

/* access: TENON_READ, TENON_WRITE, or TENON_WRITE_OR_READ, which means read inside of the caller's own read
 * lease, and write otherwise. Waits for ops on the memory that were pushed before. site: the line of the
 * program, for messages; NULL or a text that exists as long as the view.
 * Fails with BUFFER (a read-only array), LEASE_CONFLICT, DEADLOCK, INTERRUPTED, OP (the values
 * are invalid). */
TENON_API tenon_status tenon_view_open(tenon_view* view, tenon_array* array, int32_t access, const char* site,
                                       tenon_error* error);

/* The access of an open view: TENON_READ or TENON_WRITE. */
TENON_API int32_t tenon_view_access(const tenon_view* view);

/* Idempotent. May be called from any thread. */
TENON_API void tenon_view_close(tenon_view* view);

/* The number of open views of an array's storage, including DLPack exports. */
typedef struct tenon_view_count {
  uint32_t readers;
  uint32_t writers;
} tenon_view_count;

TENON_API tenon_view_count tenon_array_views(const tenon_array* array);

/* Numbers of objects in this process, for tests and leak checks. */
typedef struct tenon_statistics {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t storages;        /* alive */
  uint64_t regions;         /* disjoint ranges of memory that they cover */
  uint64_t heap_nbytes;     /* allocated by tenon_array_create and alive */
  uint64_t views;           /* open views, including DLPack exports */
  uint64_t failed_deleters; /* deleters that threw */
} tenon_statistics;

TENON_API void tenon_statistics_get(tenon_statistics* out);

/* ------------------------------------------------------------------------------------- leases
 * \since 0.1
 *
 * The memory of an array has one queue. It holds ops (see below) and leases in the order of their arrival.
 * Reads run together, and a write runs alone. Accesses to different bytes do not conflict. A lease belongs
 * to its thread: accesses of that thread to the array use the lease. */

typedef struct tenon_lease {
  void* reserved[32]; /* zero before the first use; must not move while held or requested */
} tenon_lease;

#define TENON_LEASE_INIT {{0}}

enum tenon_lease_flags {
  TENON_OVERWRITE = 1 << 0,         /* with TENON_WRITE: every element is written before any is read */
  TENON_IGNORE_OWNER_DIED = 1 << 1, /* for a lease: accept what a dead writer left (share.h) */
  TENON_BORROWED = 1 << 2           /* for a use of an op: the caller keeps the array until the op is done */
};

typedef struct tenon_lease_options {
  uint32_t struct_size;
  int32_t access;     /* TENON_READ, TENON_WRITE */
  uint32_t flags;     /* TENON_OVERWRITE, TENON_IGNORE_OWNER_DIED */
  uint32_t thread;    /* the owner's thread number (gettid); 0: the calling thread */
  uint64_t task;      /* an asynchronous task on that thread; 0: none */
  int64_t timeout_ns; /* < 0: no limit; or TENON_DEFAULT_TIMEOUT (tenon/share.h) */
  const char* site;   /* as for tenon_view_open */
} tenon_lease_options;

/* Waits until the lease is granted. Fails with BUFFER (TENON_WRITE on a read-only array), TIMEOUT, DEADLOCK
 * (it would wait for itself), LEASE_CONFLICT (a write under the caller's own read lease; in the body of an op
 * that has not declared the array), OP (the values are invalid, and TENON_OVERWRITE is not set),
 * INTERRUPTED, OWNER_DIED. */
TENON_API tenon_status tenon_lease_acquire(tenon_lease* lease, tenon_array* array,
                                           const tenon_lease_options* options, tenon_error* error);

/* Idempotent. May be called from any thread, and never waits. Returns not 0 if a view that was taken under
 * the lease is still open. Until it is closed, the view continues the lease: other threads wait for it, and
 * the thread of the lease may act under it. */
TENON_API int32_t tenon_lease_release(tenon_lease* lease);

/* Releases a lease whose write was not completed. The values are invalid until they are overwritten. */
TENON_API int32_t tenon_lease_fail(tenon_lease* lease, const char* message);

/* Removes the owner of the lease. Any thread may release it, and deadlocks through it are not detected. */
TENON_API void tenon_lease_detach(tenon_lease* lease);

/* tenon_lease_acquire for an asynchronous task, whose thread must not block. *is_granted is 1 if the lease is
 * held. If it is 0, done(context) is called once when the lease has been granted, on any thread, possibly
 * before this function returns. Before that, only tenon_lease_cancel may be called; afterwards call
 * tenon_lease_check. timeout_ns is not used. Fails as tenon_lease_acquire, with DEADLOCK at once; then done
 * is not called. */
TENON_API tenon_status tenon_lease_request(tenon_lease* lease, tenon_array* array,
                                           const tenon_lease_options* options, void (*done)(void* context),
                                           void* context, int32_t* is_granted, tenon_error* error);

/* Cancels a request. Not 0: done will not be called. 0: the lease was already granted, and done has been or
 * will be called. After that call the lease must be released; it counts as not written. */
TENON_API int32_t tenon_lease_cancel(tenon_lease* lease);

/* For a task that has waited for long. Writes to text (size bytes with the NUL, truncated) what a request
 * that has not been checked waits for. Reports views that outlived their lease and block it, by the hook
 * `report`, once each. text NULL: only reports these views, after the first second. Returns 0 if nothing
 * blocks the request, or if text is NULL. Calls the hooks and the finder in this thread; the caller must not
 * hold a lock that they need. \since 0.3 */
TENON_API int32_t tenon_lease_report(tenon_lease* lease, char* text, size_t size);

/* Must be called when the lease is granted and before the use. Fails with OP as tenon_lease_acquire; then the
 * lease is not held. */
TENON_API tenon_status tenon_lease_check(tenon_lease* lease, tenon_error* error);

enum tenon_holder_kind {
  TENON_HOLDER_VIEW = 0,
  TENON_HOLDER_OP = 1,
  TENON_HOLDER_LEASE = 2,
  TENON_HOLDER_CALL = 3,
  TENON_HOLDER_PROCESS = 4 /* another process that uses the memory */
};

/* A holder of the memory of an array, or a waiter for it. */
typedef struct tenon_holder {
  int32_t kind;       /* TENON_HOLDER_* */
  int32_t access;     /* TENON_READ, TENON_WRITE */
  int32_t is_granted; /* 0: it is waiting */
  uint32_t thread;    /* the thread that took or pushed it; for a process: the pid */
  int64_t age_ns;
  char name[64];  /* of an op, call or wait; the command of a process; truncated */
  char site[192]; /* truncated */
} tenon_holder;

/* Writes at most n holders (the queue, views, other processes). Returns the total number. */
TENON_API int32_t tenon_array_holders(tenon_array* array, int32_t n, tenon_holder* out);

/* 1: a view that shows bytes of the array was taken under a lease or a call of this thread, or in the op that
 * it runs, and is still open. The lease may have ended. \since 0.6 */
TENON_API int32_t tenon_array_has_own_views(tenon_array* array);

/* Hooks for the runtime of a language with its own lock and signal handlers. Each may be NULL. */
typedef struct tenon_wait_hooks {
  uint32_t struct_size;
  int32_t reserved;
  void* (*begin)(void); /* before the calling thread sleeps: releases the lock */
  /* Every 50 ms, less often if more than 64 threads wait, and after signals. Not 0: the wait fails with
   * INTERRUPTED. */
  int32_t (*poll)(void* token);
  void (*end)(void* token);       /* acquires the lock again */
  uint64_t (*current_task)(void); /* the asynchronous task that runs; 0: none */
  /* Once in each period of reports: what a wait waits for. Also once for each view that outlived its lease
   * and has blocked others for a second. Called in the thread that waits; for a wait of another process, in a
   * thread of the library. */
  void (*report)(const char* text);
  /* In a wait for open views, after 50 ms and every 5 s: closes the views that are not referenced any more.
   * Not 0: no other thread of the language could close the rest, so the wait fails with DEADLOCK, unless all
   * of them are exports of DLPack, whose deleters may run on any thread. */
  int32_t (*is_alone)(void* token);
  /* Around bodies with TENON_NEEDS_LOCK, in threads of the engine: acquires the lock and returns a token, and
   * releases it. NULL: the lock cannot be acquired any more, and the body does not begin. \since 0.6 */
  void* (*enter)(void);
  void (*leave)(void* token);
} tenon_wait_hooks;

/* Must be called once, before any wait. Reports a value of TENON_REPORT_SECONDS that cannot be used. */
TENON_API void tenon_set_wait_hooks(const tenon_wait_hooks* hooks);

/* Sets the period of reports of long waits. Initially the environment variable TENON_REPORT_SECONDS, or 5 s.
 * <= 0: does not change. Returns the previous value. \since 0.6 */
TENON_API int64_t tenon_set_report_period(int64_t period_ns);
/* For waits of the language itself: the duration of a wait at its next report, after waited_ns. It is a
 * multiple of the period. \since 0.6 */
TENON_API int64_t tenon_next_report(int64_t waited_ns);

/* How a language says what keeps the views of a holder, for reports of long waits and errors that end one.
 * find() writes it into text (size bytes with the NUL; "" at first), as "variable `x` of main (train.py:12)",
 * or leaves it empty. holder is a view, or a lease under which one lives; begin to end are the addresses of
 * its bytes, which may be gone by now. Called without a lock of the library, in the thread that waits, before
 * or after end() of the hooks; of a wait of another process, in a thread of the library.
 * To be set once, before anything waits; NULL: none. \since 0.3 */
TENON_API void tenon_set_view_finder(void (*find)(const tenon_holder* holder, const void* begin,
                                                  const void* end, char* text, size_t size));

/* ---------------------------------------------------------------------------------------- ops
 * \since 0.1
 *
 * An op is work that declares what it reads and writes. It runs on a thread of the engine when it is granted
 * in every queue. Only pushed work is asynchronous. */

typedef struct tenon_op tenon_op;
typedef struct tenon_failure tenon_failure;

/* The use of an array by an op. The op keeps the array alive. With TENON_BORROWED (since 0.6) it does not:
 * the caller must keep a reference until the op is done. tenon_call_begin takes none. */
typedef struct tenon_use {
  tenon_array* array;
  int32_t access; /* TENON_READ, TENON_WRITE */
  uint32_t flags; /* TENON_OVERWRITE, TENON_BORROWED */
} tenon_use;

/* The behaviour if views of ordinary code conflict with an op. */
enum tenon_conflict_policy {
  TENON_CONFLICT_RAISE = 0, /* the push fails with LEASE_CONFLICT, and nothing is queued */
  TENON_CONFLICT_WAIT = 1,  /* the op waits until the views are closed */
  TENON_CONFLICT_IGNORE = 2 /* the caller promises not to use the views before the op is done */
};

typedef struct tenon_work {
  uint32_t struct_size;
  int32_t on_conflict; /* TENON_CONFLICT_* */
  void* context;
  /* Called once, on any thread. Not called if values that the op reads are invalid: the op fails then. It
   * must end the op with tenon_op_complete or tenon_op_fail, now or later, on any thread. It may not wait for
   * ops or leases. If it ends its thread (pthread_exit), the op fails, and a new thread takes the place of
   * the ended one. On a thread of the caller, and with TENON_NEEDS_LOCK, the process ends with a message. */
  void (*run)(void* context, tenon_op* op);
  void (*drop)(void* context); /* always called once, before the op is done; may be NULL */
  const char* name;            /* copied; may be NULL */
  const char* site;            /* the line that pushes it; copied; may be NULL */
  uint32_t flags;              /* TENON_NEEDS_LOCK; 0 if struct_size is smaller. \since 0.6 */
  uint32_t reserved;
} tenon_work;

enum tenon_work_flags {
  /* The body acquires the lock of a language. A thread of the engine acquires it before it begins the body,
   * by the hook `enter`. Until then, a thread that waits for the op, and that may have the lock, can run the
   * body itself. */
  TENON_NEEDS_LOCK = 1 << 0
};

/* Queues all uses together, or none. On failure drop is not called, and the context still belongs to the
 * caller. out may be NULL. Fails with VALUE, BUFFER (a write to a read-only array), LEASE_CONFLICT, CLOSED
 * (after tenon_engine_shut_down). */
TENON_API tenon_status tenon_push(const tenon_work* work, int32_t n, const tenon_use* uses, tenon_op** out,
                                  tenon_error* error);

/* Exactly one of these two must be called, once. */
TENON_API void tenon_op_complete(tenon_op* op);
/* message is copied. drop_payload(payload) is called once, after the last reference to the failure is
 * gone. */
TENON_API void tenon_op_fail(tenon_op* op, int32_t op_code, const char* message, void* payload,
                             void (*drop_payload)(void* payload));

/* Whether a view that was taken in the op's body is still open. For bindings, before they complete the
 * op. */
TENON_API int32_t tenon_op_has_views(const tenon_op* op);

TENON_API void tenon_op_retain(tenon_op* op);
TENON_API void tenon_op_release(tenon_op* op);
TENON_API int32_t tenon_op_is_done(const tenon_op* op);

/* Waits until the op is done. timeout_ns < 0: no limit, and this thread runs the op if it is ready. Fails
 * with TIMEOUT, DEADLOCK, INTERRUPTED, LEASE_CONFLICT (in the body of an op), OP (the op or memory that it
 * reads has failed; tenon_op_failure has the reason). */
TENON_API tenon_status tenon_op_wait(tenon_op* op, int64_t timeout_ns, tenon_error* error);

/* Calls done(context) once when the op is done, on the thread that ends it. If the op is already done, calls
 * it at once. Fails with NO_MEMORY. */
TENON_API tenon_status tenon_op_on_done(tenon_op* op, void (*done)(void* context), void* context,
                                        tenon_error* error);

typedef struct tenon_await {
  void* reserved[12]; /* zero before the first use; must not move between begin and end */
} tenon_await;

#define TENON_AWAIT_INIT {{0}}

/* Declares that a task on this thread waits for the op, so that deadlocks are detected. tenon_op_on_done
 * reports the end of the op. Fails with DEADLOCK (the op waits for a lease of this task, directly or through
 * others) and LEASE_CONFLICT (in the body of an op); the declaration is then not made. task: as in
 * tenon_lease_options. */
TENON_API tenon_status tenon_await_begin(tenon_await* awaited, tenon_op* op, uint64_t task,
                                         tenon_error* error);
TENON_API void tenon_await_end(tenon_await* awaited); /* idempotent */
/* As tenon_lease_report, of an await that has begun. \since 0.3 */
TENON_API int32_t tenon_await_report(tenon_await* awaited, char* text, size_t size);

/* Runs a ready op in this thread. Returns 1 if it ran one, 0 if none is ready, -1 if the engine has
 * threads. */
TENON_API int32_t tenon_engine_help(void);

/* Waits until all ops are done. Fails as tenon_op_wait, but not with OP; use tenon_failures_take for
 * failures. */
TENON_API tenon_status tenon_wait_all(int64_t timeout_ns, tenon_error* error);

/* A synchronous call that uses arrays from tenon_call_begin to tenon_call_end, both in the same thread. Begin
 * waits until all uses are granted, at the same time. Accesses of this thread to the arrays then use the
 * call. Views that are opened during the call may outlive it. uses: with TENON_OVERWRITE (since 0.3) the
 * values of the array are valid at the end of the call. name (of the call) and site are for messages and are
 * copied; site may be NULL. Fails with VALUE, BUFFER (a write to a read-only array), and as tenon_view_open.
 * \since 0.2 */
typedef struct tenon_call tenon_call;
TENON_API tenon_status tenon_call_begin(const char* name, const char* site, int32_t n, const tenon_use* uses,
                                        tenon_call** out, tenon_error* error);
TENON_API void tenon_call_end(tenon_call* call); /* call once; NULL does nothing */

/* TENON_READ: waits until all writes that were pushed before are done. TENON_WRITE: waits for all uses. Fails
 * as tenon_lease_acquire. */
TENON_API tenon_status tenon_array_wait(tenon_array* array, int32_t access, int64_t timeout_ns,
                                        tenon_error* error);

/* The reason why values are invalid. Reference-counted; constant. */
TENON_API tenon_failure* tenon_op_failure(tenon_op* op);          /* NULL: not done, or not failed */
TENON_API tenon_failure* tenon_array_failure(tenon_array* array); /* NULL: the values are valid */
/* The same, 1 or 0, without giving the failure to the caller: it is reported if no other call gets it.
 * \since 0.6 */
TENON_API int32_t tenon_array_has_value(tenon_array* array);
/* The failure that belongs to the last TENON_ERR_OP which a call in this thread returned. It can be taken
 * once, and is kept with its payload until it is taken or replaced by the next one. NULL: it came from no
 * op. */
TENON_API tenon_failure* tenon_failure_last(void);
/* Takes a failure that occurred since the last call; NULL: there is no further one. */
TENON_API tenon_failure* tenon_failures_take(void);
TENON_API void tenon_failure_release(tenon_failure* failure);
/* report(failure) is called once for each op that has failed by itself, when no caller has seen the failure
 * (no call returned TENON_ERR_OP for it, none of the functions above returned it) and only
 * tenon_failures_take could still return it: the op is released, and the memory without a value is gone or
 * was overwritten.
 * tenon_failures_report and tenon_engine_shut_down report the rest. Failures that a caller of tenon_wait_all
 * can take are left to it, and a forked child reports none of its parent. report gets a reference
 * (tenon_failure_release). It is called on any thread, also on one that holds locks of the caller, so it must
 * not wait. NULL, as at first: nothing is reported. \since 0.5 */
TENON_API void tenon_set_failure_hook(void (*report)(tenon_failure* failure));
/* Reports each failure that no caller has seen yet, for a process that ends without tenon_engine_shut_down.
 * \since 0.5 */
TENON_API void tenon_failures_report(void);
TENON_API const char* tenon_failure_message(const tenon_failure* failure);
TENON_API const char* tenon_failure_op(const tenon_failure* failure);
TENON_API const char* tenon_failure_site(const tenon_failure* failure);
TENON_API int32_t tenon_failure_code(const tenon_failure* failure);
/* The payload, if it was given with this drop_payload; else NULL, so that bindings do not mix their
 * payloads. */
TENON_API void* tenon_failure_payload(const tenon_failure* failure, void (*drop_payload)(void* payload));

/* Declares the bytes of the array valid. For shared arrays it waits as long as tenon_set_lock_timeout says.
 * If the lock is not granted in that time, nothing changes, and tenon_array_make_consistent reports it. */
TENON_API void tenon_array_clear_error(tenon_array* array);
/* The same with a status that says whether it was done (as pthread_mutex_consistent). Fails with VALUE (array
 * is NULL), and for shared bytes with TIMEOUT, DEADLOCK, LEASE_CONFLICT, INTERRUPTED. \since 0.3 */
TENON_API tenon_status tenon_array_make_consistent(tenon_array* array, tenon_error* error);

/* Selects the engine. name: "pool", "inline", "seeded:N" or "default". workers: 0 means one for each
 * processor. Waits for all ops first. Fails with VALUE, TIMEOUT, SYSTEM. */
TENON_API tenon_status tenon_engine_set(const char* name, int32_t workers, tenon_error* error);
TENON_API void tenon_engine_name(char* buffer, size_t size);
/* Limits the number of unfinished ops and the bytes of memory that they use. Each array is counted once;
 * memory of less than 64 KiB is not counted. At a limit, a push waits until the number has fallen to half of
 * the limit. 0: no limit. TENON_KEEP: does not change the limit. The defaults are 10,000 ops and half of the
 * machine's memory. */
TENON_API void tenon_engine_set_limits(uint64_t ops, uint64_t nbytes);
#define TENON_KEEP UINT64_MAX
TENON_API uint64_t tenon_engine_unfinished(void);
/* For use before a fork: waits until no body runs except the caller's own. Fails with TIMEOUT. */
TENON_API tenon_status tenon_engine_wait_for_bodies(int64_t timeout_ns, tenon_error* error);
/* Refuses further pushes and waits for the ops that can end. Fails with TIMEOUT, DEADLOCK. */
TENON_API tenon_status tenon_engine_shut_down(int64_t timeout_ns, tenon_error* error);

/* ------------------------------------------------------------------------------------- DLPack
 * \since 0.1
 *
 * The structs are those of DLPack 1.3 (tenon/dlpack.h or the official dlpack/dlpack.h). An export counts as
 * an open view until its deleter runs: of a read-only array as a reader, else as a writer. Deleters may run
 * on any thread and do not need Python. */

struct DLManagedTensor;
struct DLManagedTensorVersioned;

enum tenon_export_flags {
  TENON_EXPORT_FOR_READ = 1 << 0, /* the consumer promises to only read: the view counts as a reader, and
                                     the legacy struct may export a read-only array */
  TENON_EXPORT_COPIED = 1 << 1    /* sets IS_COPIED: the array is a copy for this consumer */
};

/* site: as for tenon_view_open. Fails as tenon_view_open. */
TENON_API tenon_status tenon_array_to_dlpack(tenon_array* array, uint32_t flags, const char* site,
                                             struct DLManagedTensorVersioned** out, tenon_error* error);

/* The legacy struct has no READ_ONLY flag. So a read-only array without TENON_EXPORT_FOR_READ fails with
 * BUFFER. */
TENON_API tenon_status tenon_array_to_dlpack_legacy(tenon_array* array, uint32_t flags, const char* site,
                                                    struct DLManagedTensor** out, tenon_error* error);

/* Always consumes the tensor: the new array owns it, or its deleter has been called. flags: TENON_READONLY
 * imports it read-only. For an unknown major version, only the deleter is called. Fails with BUFFER (version,
 * device, malformed tensor), TYPE (dtype), VALUE (shape). */
TENON_API tenon_status tenon_array_from_dlpack(struct DLManagedTensorVersioned* tensor, uint32_t flags,
                                               tenon_array** out, tenon_error* error);
TENON_API tenon_status tenon_array_from_dlpack_legacy(struct DLManagedTensor* tensor, uint32_t flags,
                                                      tenon_array** out, tenon_error* error);

/* --------------------------------------------------------------------------- native functions
 * \since 0.1
 *
 * A function of a shared library, called by its C prototype:
 *     int fill(float *data, int64_t *label, size_t n)
 * Parameters are pointers to numbers (const: the function only reads), integers and floating-point numbers.
 * The library is never unloaded. A result of type int is a status: non-zero means failure. */

typedef struct tenon_function tenon_function;

enum tenon_function_flags {
  TENON_THREADSAFE = 1 << 0
}; /* several threads may call the function at the same time */

/* path: a library file, or NULL for a symbol that is already in the process. Fails with NOT_FOUND (library,
 * symbol), VALUE (prototype; the message shows the position of the error). */
TENON_API tenon_status tenon_function_load(const char* path, const char* prototype, uint32_t flags,
                                           tenon_function** out, tenon_error* error);

/* The same for an address. name may be NULL. */
TENON_API tenon_status tenon_function_create(void* address, const char* prototype, uint32_t flags,
                                             tenon_function** out, tenon_error* error);

TENON_API void tenon_function_retain(tenon_function* function);
TENON_API void tenon_function_release(tenon_function* function);

/* A parameter or a result. */
typedef struct tenon_parameter {
  const char* name; /* "" if the prototype has none; exists as long as the function */
  int32_t is_pointer;
  int32_t is_const;  /* pointers: the function only reads */
  int32_t is_void;   /* 1: void* (any dtype), or no result. 2: a pointer to a type that is unknown here, which
                      * takes an address */
  int32_t is_status; /* a result of type int */
  tenon_dtype dtype; /* of the number, or of the target of the pointer */
} tenon_parameter;

TENON_API const char* tenon_function_name(const tenon_function* function);
TENON_API const char* tenon_function_prototype(const tenon_function* function);
TENON_API int32_t tenon_function_parameter_count(const tenon_function* function);
/* i counts from 0; i == -1 is the result. */
TENON_API tenon_parameter tenon_function_parameter(const tenon_function* function, int32_t i);

/* One argument: integers are sign- or zero-extended in i, floating-point numbers are in f. */
typedef union tenon_value {
  int64_t i;
  uint64_t u;
  double f;
  void* p;
} tenon_value;

/* Calls the function in this thread. If the function is not thread-safe, one call runs at a time and others
 * wait. result may be NULL. Fails with OP if a status result is non-zero (error->op_code).
 * If the function ends its thread (pthread_exit) in an op's body or in fill, that ends with it. Elsewhere the
 * process ends with a message. */
TENON_API tenon_status tenon_function_call(tenon_function* function, int32_t n, const tenon_value* arguments,
                                           tenon_value* result, tenon_error* error);

#ifdef __cplusplus
}
#endif
#endif /* TENON_CORE_H_ */
