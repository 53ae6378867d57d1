/* SPDX-License-Identifier: Apache-2.0
 *
 * share.h - the part of the C ABI on arrays that several processes use. Included by tenon.h.
 *
 * A shared array lies in memory that other processes of this user map, too: they open it by a handle that
 * one of them sends, or by its name. The memory lives as long as some process uses it, in whatever order they
 * end, and leaves nothing behind.
 *
 * Leases, ops and calls on it take turns with those of the other processes, in the order in which they came;
 * a view needs a lease under which it is taken. What a process held when it ended, however that was, is free;
 * after the end of one that was writing, accesses fail with TENON_ERR_OWNER_DIED until the bytes are good.
 *
 * \since 0.1
 */
#ifndef TENON_SHARE_H_
#define TENON_SHARE_H_

#include "tenon/core.h"
#include "tenon/feed.h" /* tenon_field */

#ifdef __cplusplus
extern "C" {
#endif

/* -------------------------------------------------------------------------------- shared arrays */

enum {
  TENON_HUGE_PAGES = 1 << 0, /* of the pool that the administrator has set aside; else NO_MEMORY */
  TENON_POPULATED = 1 << 1   /* the pages are entered into this process' table now */
};

typedef struct tenon_shared_options {
  uint32_t struct_size;
  uint32_t flags;    /* TENON_HUGE_PAGES, TENON_POPULATED */
  int32_t numa_node; /* from which the memory is to come; -1: any */
  int32_t reserved;
  const char* name; /* letters, digits and _ - . (at most 100), for tenon_shared_attach; NULL: none */
} tenon_shared_options;

/* New memory, contiguous in C order, that can be shared; all of it is there when this returns. flags:
 * TENON_ZEROED, TENON_SUBBYTE_PADDED. options: may be NULL. Fails with VALUE (shape, name; the name is
 * taken), TYPE, NO_MEMORY (the message has the numbers), SYSTEM (no file descriptor is left). */
TENON_API tenon_status tenon_shared_create(tenon_dtype dtype, int32_t ndim, const int64_t* shape,
                                           uint32_t flags, const tenon_shared_options* options,
                                           tenon_array** out, tenon_error* error);

/* The array that a process of this user shares under a name. flags: TENON_READONLY; then, unless this process
 * has the memory for writing already, it is mapped so that a write ends the process. Fails with NOT_FOUND,
 * VALUE (it is damaged, or of another version of Tenon), NO_MEMORY, SYSTEM. */
TENON_API tenon_status tenon_shared_attach(const char* name, uint32_t flags, tenon_array** out,
                                           tenon_error* error);

TENON_API int32_t tenon_array_is_shared(const tenon_array* array);

/* What another process needs to open the array: bytes to be sent, as they are, by any way. */
#define TENON_MAX_HANDLE_NBYTES 1152
typedef struct tenon_handle {
  uint32_t nbytes; /* of data that are used */
  unsigned char data[TENON_MAX_HANDLE_NBYTES];
} tenon_handle;

/* The memory is kept until some process has opened this handle, or this one has ended, or as
 * tenon_handle_limit and tenon_shared_revoke say. Fails with TYPE (the array is not shared). */
TENON_API tenon_status tenon_shared_send(tenon_array* array, tenon_handle* out, tenon_error* error);

/* A handle that this process has sent keeps the memory from now on at most until then: as long as the process
 * receiver lives (0: any process may receive it), and for timeout_ns (< 0: without an end; 0: no longer).
 * Within a second the memory is free. Whoever opens the handle later succeeds if some process has the array
 * then. Fails with NOT_FOUND (there is no process receiver), VALUE (this process has not sent it; 24 handles
 * of the array were not opened yet when it was made: such a one has no limit but tenon_shared_revoke). */
TENON_API tenon_status tenon_handle_limit(const tenon_handle* handle, uint32_t receiver, int64_t timeout_ns,
                                          tenon_error* error);

/* The handles of the array that this process has sent, and nobody has opened, keep the memory no longer.
 * count: of them; may be NULL. Fails with TYPE (the array is not shared). */
TENON_API tenon_status tenon_shared_revoke(tenon_array* array, uint32_t* count, tenon_error* error);

/* Opens a handle on the same machine, as the same user. More than once works as long as the memory is there.
 * Fails with NOT_FOUND (nobody has the array any more; another machine, user or PID namespace), VALUE (these
 * bytes are no handle), NO_MEMORY, SYSTEM. */
TENON_API tenon_status tenon_shared_open(const void* data, uint64_t nbytes, tenon_array** out,
                                         tenon_error* error);

/* ------------------------------------------------------------------------ turns between processes */

/* What a process was writing when it ended, may be half written. A lease that says neither
 * TENON_IGNORE_OWNER_DIED nor TENON_OVERWRITE, and a call, fail with OWNER_DIED (op_code: the process), until
 * an overwrite of these bytes has succeeded, or tenon_array_clear_error says that they are good. */

/* In tenon_lease_options: for ever behind this process' own work, but behind another process for as long as
 * tenon_set_lock_timeout says. */
#define TENON_DEFAULT_TIMEOUT INT64_MIN

/* How long calls, and leases with TENON_DEFAULT_TIMEOUT, wait for other processes before they fail with
 * TIMEOUT, which names the one in the way. At first 5 s; < 0: for ever. Returns what it was. */
TENON_API int64_t tenon_set_lock_timeout(int64_t timeout_ns);

/* ------------------------------------------------------------------------------------- arenas
 *
 * One buffer that holds the arrays of one layout at one time and those of another one at another time. The
 * layout that it has is a part of what its lock guards: who reads one finds its elements, or an error. */

typedef struct tenon_arena tenon_arena;

typedef struct tenon_layout {
  const char* name; /* unique in the arena */
  int32_t n;
  int32_t reserved;
  const tenon_field* fields; /* n arrays of any shape; each begins on a multiple of 64 bytes */
} tenon_layout;

/* New memory, as large as the largest layout. options: as of tenon_shared_create; NULL: it is not shared.
 * Fails with VALUE (names, shapes), TYPE, and as tenon_shared_create. */
TENON_API tenon_status tenon_arena_create(int32_t n, const tenon_layout* layouts,
                                          const tenon_shared_options* options, tenon_arena** out,
                                          tenon_error* error);
/* Over a contiguous array of any dtype, which it keeps. Only this object knows the layout that it has. Fails
 * with VALUE (it is too small, or not aligned), BUFFER (read-only). */
TENON_API tenon_status tenon_arena_over(int32_t n, const tenon_layout* layouts, tenon_array* buffer,
                                        tenon_arena** out, tenon_error* error);
/* The arena of another process, in its memory (tenon_arena_memory there), which was attached or opened here.
 * Fails with VALUE (it holds none). */
TENON_API tenon_status tenon_arena_open(tenon_array* memory, tenon_arena** out, tenon_error* error);
TENON_API void tenon_arena_retain(tenon_arena* arena);
TENON_API void tenon_arena_release(tenon_arena* arena);

/* To be sent to other processes: a new reference; NULL for an arena over a buffer. */
TENON_API tenon_array* tenon_arena_memory(tenon_arena* arena);
/* All bytes of the layouts, a new reference: for leases, and for tenon_array_holders. */
TENON_API tenon_array* tenon_arena_data(tenon_arena* arena);
TENON_API uint64_t tenon_arena_nbytes(const tenon_arena* arena);       /* of the largest layout */
TENON_API uint64_t tenon_arena_total_nbytes(const tenon_arena* arena); /* of all of them side by side */
/* The layouts, in their order; {0} outside of them. What they point to lives as long as the arena. The fields
 * are NULL: tenon_arena_field. */
TENON_API int32_t tenon_arena_layout_count(const tenon_arena* arena);
TENON_API tenon_layout tenon_arena_layout(const tenon_arena* arena, int32_t layout);
TENON_API tenon_field tenon_arena_field(const tenon_arena* arena, int32_t layout, int32_t field);

/* The layout that it has, and (generation may be NULL) how often that was changed; -1: none yet. Certain only
 * under a lease. */
TENON_API int32_t tenon_arena_active(const tenon_arena* arena, uint64_t* generation);

/* Takes a lease under which the arrays of a layout may be used. For writing it changes the arena to the
 * layout if need be: then the elements have no values, and that the writing of others failed is of no
 * account. Fails as tenon_lease_acquire, with NOT_FOUND (no such
 * layout) and LEASE_CONFLICT (for reading, and it has another layout; to be changed, and views of the other
 * layout live on, or the caller uses it). */
TENON_API tenon_status tenon_arena_use(tenon_arena* arena, const char* layout,
                                       const tenon_lease_options* options, tenon_lease* lease,
                                       tenon_error* error);

/* The same for a task of an asynchronous program: as tenon_lease_request, but that tenon_arena_enter takes
 * the place of tenon_lease_check. */
TENON_API tenon_status tenon_arena_request(tenon_arena* arena, const tenon_lease_options* options,
                                           tenon_lease* lease, void (*done)(void* context), void* context,
                                           int32_t* is_granted, tenon_error* error);
/* Under a lease that tenon_arena_request was granted: the layout may be used from now on. Fails as
 * tenon_arena_use; then the lease is not held. VALUE: it is no lease of this arena's; then it is. */
TENON_API tenon_status tenon_arena_enter(tenon_arena* arena, const char* layout, tenon_lease* lease,
                                         tenon_error* error);

/* An array of a layout. It may be used under tenon_arena_use of that layout only: at other times its bytes
 * may be those of another one. Fails with INDEX. */
TENON_API tenon_status tenon_arena_array(tenon_arena* arena, int32_t layout, int32_t field, tenon_array** out,
                                         tenon_error* error);

/* ---------------------------------------------------------------------------------------- observers */

/* What shared memory the processes of this user have open, who takes part in it, who holds and awaits what:
 * one JSON document in ASCII, which docs/inspect.md describes. It only reads: it joins nothing, waits for
 * nobody, and says of damaged memory what is wrong with it. *out is the caller's, to be given back with
 * tenon_text_free. Fails with NO_MEMORY, SYSTEM (no file descriptor is left). */
TENON_API tenon_status tenon_shared_describe(char** out, tenon_error* error);

/* Gives back what dead processes held of memory that others have: their places, leases and handles. Whoever
 * comes next would do the same, so that this is never needed. *out: what was done, a JSON document as that of
 * tenon_shared_describe. Fails with NO_MEMORY, SYSTEM. */
TENON_API tenon_status tenon_shared_collect(char** out, tenon_error* error);

/* Of a text that this library has made. NULL: nothing. */
TENON_API void tenon_text_free(char* text);

/* -------------------------------------------------------------------------------------- channels
 *
 * Slots of shared memory that go from those who fill them to those who read them, without a copy. Any process
 * may do both. What a process held when it ended is lost, and its slots are free; the others go on. */

typedef struct tenon_channel tenon_channel;
typedef struct tenon_item tenon_item;

enum {
  TENON_CHANNEL_QUEUE = 0,     /* each item goes to one consumer, who may write it */
  TENON_CHANNEL_BROADCAST = 1, /* each item goes to all consumers */
  TENON_CHANNEL_LATEST = 2     /* whoever asks gets the newest; who sends, never waits for readers */
};
enum {
  TENON_WHEN_FULL_WAIT = 0,
  TENON_WHEN_FULL_DROP_OLDEST = 1, /* of those that nobody has received */
  TENON_WHEN_FULL_RAISE = 2        /* LEASE_CONFLICT */
};

typedef struct tenon_channel_options {
  uint32_t struct_size;
  int32_t slots;     /* 1 to 4095; TENON_CHANNEL_LATEST: at least 3, or readers + 2 so that it never waits */
  int32_t mode;      /* TENON_CHANNEL_* */
  int32_t when_full; /* TENON_WHEN_FULL_*: what who sends does without a free slot */
} tenon_channel_options;

/* fields: arrays of any shape; each begins on a multiple of 64 bytes. shared: as of tenon_shared_create; may
 * be NULL. Fails with VALUE, TYPE, NO_MEMORY, SYSTEM. */
TENON_API tenon_status tenon_channel_create(int32_t n, const tenon_field* fields,
                                            const tenon_channel_options* options,
                                            const tenon_shared_options* shared, tenon_channel** out,
                                            tenon_error* error);
/* In the memory of a channel (tenon_channel_memory in another process), which was attached or opened here.
 * Fails with VALUE (it holds none). */
TENON_API tenon_status tenon_channel_open(tenon_array* memory, tenon_channel** out, tenon_error* error);
TENON_API void tenon_channel_retain(tenon_channel* channel);
TENON_API void tenon_channel_release(tenon_channel* channel); /* with the last reference it is closed */

TENON_API tenon_array* tenon_channel_memory(tenon_channel* channel); /* to be sent: a new reference */
TENON_API tenon_channel_options tenon_channel_describe(const tenon_channel* channel);
TENON_API int32_t tenon_channel_field_count(const tenon_channel* channel);
TENON_API tenon_field tenon_channel_field(const tenon_channel* channel, int32_t i); /* {0} outside of them */

/* A free slot, to be filled, and then sent or dropped (tenon_item_release). site: as of tenon_view_open.
 * Fails with TIMEOUT (timeout_ns >= 0 has passed), INTERRUPTED, CLOSED, LEASE_CONFLICT (it is full, and
 * TENON_WHEN_FULL_RAISE). */
TENON_API tenon_status tenon_channel_loan(tenon_channel* channel, int64_t timeout_ns, const char* site,
                                          tenon_item** out, tenon_error* error);
/* Hands a loan on; its arrays may not be used any more. Fails with VALUE (it is none), LEASE_ESCAPED (an open
 * view of it: it is dropped then), TIMEOUT (to be tried again). It is to be released in any case. */
TENON_API tenon_status tenon_item_send(tenon_item* item, tenon_error* error);

/* The next item. Fails with TIMEOUT, INTERRUPTED, OWNER_DIED (a producer has died, and nothing that was sent
 * is left: each consumer is told once for each, and may go on), CLOSED (the last producer has gone, and
 * nothing is left: told once, then it waits for the next one). */
TENON_API tenon_status tenon_channel_receive(tenon_channel* channel, int64_t timeout_ns, const char* site,
                                             tenon_item** out, tenon_error* error);

/* Waits until tenon_channel_receive would not; takes nothing. For programs that must not sleep where they
 * receive. Fails with TIMEOUT, INTERRUPTED. */
TENON_API tenon_status tenon_channel_wait(tenon_channel* channel, int64_t timeout_ns, tenon_error* error);

/* A descriptor of this process for poll(), epoll and their kind. access: TENON_READ, it is readable while
 * tenon_channel_receive may have something to do, or the channel has ended; TENON_WRITE, the same for
 * tenon_channel_loan. It stays readable until that call finds nothing to do (TIMEOUT with a timeout of 0,
 * LEASE_CONFLICT): so after each wait call it until then. The descriptor is the channel's: neither to be read
 * nor closed, and valid until the last reference has gone. A forked child asks anew. Fails with SYSTEM (no
 * descriptor is left, or no thread). */
TENON_API tenon_status tenon_channel_fd(tenon_channel* channel, int32_t access, int32_t* out,
                                        tenon_error* error);

/* The array of a field: a new reference, which keeps the item. Read-only, but of a loan and in a queue. Fails
 * with INDEX. */
TENON_API tenon_status tenon_item_array(tenon_item* item, int32_t field, tenon_array** out,
                                        tenon_error* error);
TENON_API uint64_t tenon_item_sequence(const tenon_item* item); /* from 1; 0: it was not sent yet */
TENON_API void tenon_item_retain(tenon_item* item);
/* The slot is given back when the last of the item's references, arrays and views has gone, in any order. */
TENON_API void tenon_item_release(tenon_item* item);

/* Ends both ends in this process: producers and consumers elsewhere see it. Items in hand stay valid. */
TENON_API void tenon_channel_close(tenon_channel* channel);

typedef struct tenon_channel_statistics {
  uint32_t struct_size;
  int32_t ready;     /* slots that hold an item */
  int32_t in_use;    /* slots that some process holds */
  int32_t producers; /* processes */
  int32_t consumers;
  int32_t reserved;
  uint64_t sent;
  uint64_t received;
  uint64_t dropped; /* for lack of room */
  uint64_t deaths;  /* of producers */
} tenon_channel_statistics;

TENON_API void tenon_channel_statistics_get(tenon_channel* channel, tenon_channel_statistics* out);

#ifdef __cplusplus
}
#endif

#endif /* TENON_SHARE_H_ */
