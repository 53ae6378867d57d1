/* SPDX-License-Identifier: Apache-2.0
 *
 * pool.h - the part of the C ABI on tensor pools. Included by tenon.h.
 *
 * A tensor pool is memory of one process from which it sends arrays to other processes of this user. The
 * program carries the bytes of a message over a connection of its own. The process that opens the message has
 * the arrays in place.
 *
 * A message keeps its memory until it ends: because so many processes have opened it, because its time limit
 * has passed, because its receivers have ended, because it was revoked, or because its sender has ended.
 * Afterwards the arrays of the processes that have opened it keep the memory, in whatever order the processes
 * end. A process that is killed loses what it holds.
 *
 * An array of a pool ends with the message that sends it: every use of it is refused from then on. A frozen
 * array is read-only and may be sent repeatedly. Other processes do not wait for leases on arrays of a pool,
 * so nobody writes the memory of a message while it has more than one reader.
 *
 * \since 0.6
 */
#ifndef TENON_POOL_H_
#define TENON_POOL_H_

#include "tenon/core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The memory is pinned for copies to and from GPUs: by this process, and by processes that open a message and
 * use a GPU of CUDA then. Each piece of 2 to 64 MiB is pinned when its first array is made or opened in a
 * process. It stays allocated as long as the pool, also if it is free. A private copy (tenon_message_open of
 * memory that others read) is not pinned.
 * When an array is released, the memory is used again after all work that the process has submitted to its
 * GPUs before: see device.h. Before an array is sent, the work that writes it has to be done. */
#define TENON_POOL_PINNED 1u
/* The caller tries again by itself after a call without room. So such a call is not counted as refused: the
 * caller counts with tenon_tensor_pool_note what it refuses. \since 0.7 */
#define TENON_POOL_NOTES_REFUSALS 2u

typedef struct tenon_pool_options {
  uint32_t struct_size;
  uint32_t flags;         /* TENON_POOL_PINNED, TENON_POOL_NOTES_REFUSALS */
  uint64_t budget_nbytes; /* the memory of all arrays, in whole pages; it is taken when it is needed */
  uint64_t idle_nbytes;   /* free memory that stays allocated; more is returned after one second */
  int64_t timeout_ns;     /* the time limit of messages; < 0: none */
} tenon_pool_options;

/* A counted reference to a pool. It belongs to the process that has created it: in a forked child, every call
 * fails with VALUE. Messages and arrays stay valid after the last release. */
typedef struct tenon_tensor_pool tenon_tensor_pool;

/* Fails with VALUE (options), NO_MEMORY (the address space), SYSTEM. TENON_POOL_PINNED: also as
 * tenon_device_describe. */
TENON_API tenon_status tenon_tensor_pool_create(const tenon_pool_options* options, tenon_tensor_pool** out,
                                                tenon_error* error);
TENON_API void tenon_tensor_pool_retain(tenon_tensor_pool* pool);
TENON_API void tenon_tensor_pool_release(tenon_tensor_pool* pool);

/* New memory of the pool, contiguous in C order, aligned to a page. Its elements have no defined values. If
 * there is no room, waits so long for it; 0: fails at once; < 0: no limit. Fails with VALUE (shape; the array
 * is larger than the budget), TYPE, NO_MEMORY (the pool is full: the message says which processes and
 * messages hold the memory; or the system has no memory), TIMEOUT (the same after a wait), INTERRUPTED,
 * SYSTEM (also if the driver refuses to pin the memory). */
TENON_API tenon_status tenon_tensor_pool_empty(tenon_tensor_pool* pool, tenon_dtype dtype, int32_t ndim,
                                               const int64_t* shape, int64_t timeout_ns, tenon_array** out,
                                               tenon_error* error);

/* A read-only array on the memory of an array of the pool, with its shape. The given array ends. A frozen
 * array is returned as it is. Fails with TYPE (not an array of a pool of this process), and as
 * tenon_array_move_out. */
TENON_API tenon_status tenon_tensor_pool_freeze(tenon_tensor_pool* pool, tenon_array* array,
                                                tenon_array** out, tenon_error* error);

/* 1: the array lies in this pool and can be sent, after which it has ended; 2: it can be sent repeatedly (a
 * frozen array of any pool of this process, or a read-only one of a message that this process has opened);
 * 0: it cannot be sent. */
TENON_API int32_t tenon_tensor_pool_owns(tenon_tensor_pool* pool, const tenon_array* array);

typedef struct tenon_message_options {
  uint32_t struct_size;
  uint32_t opens;            /* so many processes may open it (at most 65534); 0: no limit */
  int64_t timeout_ns;        /* it ends after this time; < 0: the limit of the pool */
  const uint32_t* receivers; /* pids: it ends after all of these have ended; NULL: any process */
  uint32_t n_receivers;
  uint32_t reserved;
  const char* tag;  /* for tenon_tensor_pool_revoke; NULL: none */
  const char* site; /* the line of the caller, as "file.py:123", for tenon ls; may be NULL */
} tenon_message_options;

/* An upper bound of the bytes of a message with these arrays. */
TENON_API uint64_t tenon_message_nbytes(tenon_array* const* arrays, uint32_t n);

/* Sends n arrays (n may be 0): writes the bytes of a message to data, which has room for so many, and their
 * number to *nbytes. The arrays of this pool that are not frozen end. If it fails, every array is as it was.
 * options: NULL is one open, and the limit of the pool. Fails with TYPE (an array cannot be sent), VALUE
 * (options, room), LEASE_CONFLICT (a view of an array is open, or its memory was imported elsewhere),
 * NOT_FOUND (a receiver does not exist), NO_MEMORY (too many messages of the pool have not ended), and as
 * tenon_array_move_out. */
TENON_API tenon_status tenon_tensor_pool_send(tenon_tensor_pool* pool, tenon_array* const* arrays, uint32_t n,
                                              const tenon_message_options* options, void* data, uint64_t room,
                                              uint64_t* nbytes, tenon_error* error);

/* Why a message cannot be opened: tenon_error.op_code of TENON_ERR_GONE. */
enum tenon_gone {
  TENON_GONE_OPENED = 1,    /* so many processes have opened it as may */
  TENON_GONE_EXPIRED = 2,   /* its time limit has passed */
  TENON_GONE_REVOKED = 3,   /* its sender has revoked it */
  TENON_GONE_SENDER = 4,    /* its sender has ended */
  TENON_GONE_RECEIVERS = 5, /* the processes for which it was have ended */
  TENON_GONE_UNKNOWN = 6    /* it ended so long ago that the reason is not known any more */
};

/* A message of nbytes bytes has at most nbytes / TENON_MESSAGE_NBYTES_PER_ARRAY arrays. */
#define TENON_MESSAGE_NBYTES_PER_ARRAY 32u

/* Opens a message: writes its arrays to `arrays`, which has room for so many, and their number to *n. An
 * array whose memory nobody else has (one open of an array that was not frozen) lies in place. With flags =
 * TENON_READONLY, the others lie in place and are read-only. Else they have memory of their own, so that no
 * other process sees a write. A second open in one process is not counted. After the end of the message it
 * succeeds as long as this process has the arrays. Fails with GONE, VALUE (not a message; damaged; too little
 * room), NOT_FOUND (of another machine, user or PID namespace), NO_MEMORY, SYSTEM. */
TENON_API tenon_status tenon_message_open(const void* data, uint64_t nbytes, uint32_t flags,
                                          tenon_array** arrays, uint32_t room, uint32_t* n,
                                          tenon_error* error);

/* The 32 random bytes of the pool of a message, and of a pool, which only processes of this user can read. So
 * a code computed with them shows that such a process has made what stands beside the message. Fails as
 * tenon_message_open, with GONE if no process has the pool any more. */
TENON_API tenon_status tenon_message_key(const void* data, uint64_t nbytes, unsigned char key[32],
                                         tenon_error* error);
TENON_API tenon_status tenon_tensor_pool_key(tenon_tensor_pool* pool, unsigned char key[32],
                                             tenon_error* error);

/* Ends the messages of the pool that have this tag and have not ended. *count (may be NULL): how many. */
TENON_API tenon_status tenon_tensor_pool_revoke(tenon_tensor_pool* pool, const char* tag, uint32_t* count,
                                                tenon_error* error);
/* Ends one message of this process. Does nothing if it has ended. Fails with VALUE (not a message of this
 * process). */
TENON_API tenon_status tenon_message_revoke(const void* data, uint64_t nbytes, tenon_error* error);

/* This process keeps a message of another one from now on, as if it had sent it, for timeout_ns (< 0: no
 * limit) at most. A later call sets a new limit. *is_kept (may be NULL) is 0 if it has ended, or if a third
 * process keeps it, too. Fails as tenon_message_open, but not with GONE. */
TENON_API tenon_status tenon_message_take_over(const void* data, uint64_t nbytes, int64_t timeout_ns,
                                               int32_t* is_kept, tenon_error* error);
/* 1: the message, which this process has sent or opened, has not ended. */
TENON_API int32_t tenon_message_is_unopened(const void* data, uint64_t nbytes);

/* Containers: a process that shares neither the PID namespace nor /proc nor the user namespace with the
 * process of a pool cannot open the memory of its messages. It gets the memory at a Unix socket in a
 * directory that both see. Afterwards messages of the pool are opened as elsewhere. \since 0.7 */

/* Counted references. */
typedef struct tenon_pool_server tenon_pool_server;
typedef struct tenon_pool_link tenon_pool_link;

#define TENON_NO_GROUP UINT32_MAX

/* Serves a pool of this process at a new socket, in a thread, to processes of this user. group:
 * TENON_NO_GROUP, or the number of a group of this process, to whose processes the pool is served, too. They
 * must be trusted: each of them can make this process crash, or run code as its user. A pool has one group at
 * most. backlog: connections that may wait (64 is usual). The socket is removed with the last release, and at
 * the end of the process; one that a killed process has left is replaced. A forked child does not serve. What
 * processes have got stays theirs. Fails with SYSTEM (another process listens at the path; it is no socket;
 * there is no /proc), VALUE (path: 1 to 107 bytes, of a file system; group: this process is not in it, or the
 * pool has another one), TIMEOUT (another process makes a socket in the directory). */
TENON_API tenon_status tenon_tensor_pool_serve(tenon_tensor_pool* pool, const char* path, int32_t backlog,
                                               uint32_t group, tenon_pool_server** out, tenon_error* error);
TENON_API void tenon_pool_server_retain(tenon_pool_server* server);
TENON_API void tenon_pool_server_release(tenon_pool_server* server);

/* Lets this process and its forked children open messages of the pool that is served at the path, and those
 * of other pools that its process knows: of messages that it has sent on, and that were offered to it. With
 * the last release of the link, no further memory can be got; what is open stays open. group: TENON_NO_GROUP,
 * or the number of a group of this process in which the process that serves may be, if it is of another user.
 * Fails with NOT_FOUND (no process serves there, or one of another time namespace), TIMEOUT, INTERRUPTED,
 * VALUE (path; another version; this process is not in the group), SYSTEM (it is of another user; no file
 * descriptor is left), NO_MEMORY. */
TENON_API tenon_status tenon_pool_attach(const char* path, int64_t timeout_ns, uint32_t group,
                                         tenon_pool_link** out, tenon_error* error);
TENON_API void tenon_pool_link_retain(tenon_pool_link* link);
TENON_API void tenon_pool_link_release(tenon_pool_link* link);
/* The process that serves, and processes that are attached to it, can open messages of this pool of this
 * process, whose memory is given to the group of the link. Fails as tenon_pool_attach, and with VALUE (the
 * pool has another group). */
TENON_API tenon_status tenon_pool_link_offer(tenon_pool_link* link, tenon_tensor_pool* pool,
                                             tenon_error* error);

typedef struct tenon_pool_stats {
  uint32_t struct_size;
  uint32_t blocks; /* arrays and messages of all processes lie in so many pieces of memory */
  uint64_t budget_nbytes;
  uint64_t used_nbytes; /* of the blocks */
  uint64_t idle_nbytes; /* allocated, and free */
  uint64_t committed_nbytes;
  uint32_t messages; /* that have not ended */
  uint32_t waiting;  /* threads that wait for room */
  /* \since 0.7 */
  uint32_t processes; /* that use one of the blocks, this one among them */
  uint32_t reserved;
  uint64_t unopened; /* messages that have not ended and that no process has opened */
  uint64_t unopened_nbytes;
  uint64_t held; /* blocks that other processes use */
  uint64_t held_nbytes;
  /* Since the creation of the pool: */
  uint64_t sent; /* messages */
  uint64_t sent_nbytes;
  uint64_t opened;         /* messages that have ended because they were opened as often as they may be, */
  uint64_t expired;        /* because of their time limit, */
  uint64_t revoked;        /* because they were revoked, */
  uint64_t receivers_gone; /* because their receivers have ended */
  uint64_t inlined;        /* messages of tenon_tensor_pool_note, and their bytes */
  uint64_t inlined_nbytes;
  uint64_t refused; /* calls that failed because the pool had no room */
  uint64_t waits;   /* of threads, for room, that have ended */
  uint64_t waited_ns;
} tenon_pool_stats;

/* Writes as many fields as out->struct_size has room for. */
TENON_API tenon_status tenon_tensor_pool_stats(tenon_tensor_pool* pool, tenon_pool_stats* out,
                                               tenon_error* error);
/* Adds to the counters of the pool what its caller has done: calls that it has refused because there was no
 * room, and messages whose arrays it has put into bytes of its own for that reason, with the number of these
 * bytes. \since 0.7 */
TENON_API tenon_status tenon_tensor_pool_note(tenon_tensor_pool* pool, uint64_t refused, uint64_t inlined,
                                              uint64_t inlined_nbytes, tenon_error* error);

/* Waits until all messages of this process with a number of opens have ended, so long at most. Returns how
 * many have not. For the end of a program. */
TENON_API uint32_t tenon_tensor_pools_linger(int64_t timeout_ns);

#ifdef __cplusplus
}
#endif

#endif /* TENON_POOL_H_ */
