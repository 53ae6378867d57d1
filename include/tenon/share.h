/* SPDX-License-Identifier: Apache-2.0
 *
 * share.h - the part of the C ABI on arrays that several processes use. Included by tenon.h.
 *
 * A shared array lies in memory that other processes of this user can map. They open it with a handle that
 * a process sends, or by its name. The memory exists as long as some process uses it, in whatever order the
 * processes end. Nothing remains afterwards.
 *
 * Leases, ops and calls take turns with those of the other processes, in the order of their arrival. A view
 * needs a lease. When a process ends, in whatever way, everything that it held is released. If it was
 * writing, accesses fail with TENON_ERR_OWNER_DIED until the bytes are overwritten or declared valid.
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

enum tenon_shared_flags {
  TENON_HUGE_PAGES = 1 << 0, /* from the reserved huge page pool; NO_MEMORY if it is empty */
  TENON_POPULATED = 1 << 1,  /* maps all pages into this process now */
  /* Of a channel: if there is one of this name, it is opened, whatever its options are, in one step with the
   * look for it. Compare them with tenon_channel_describe and the functions after it. \since 0.7 */
  TENON_OPEN_EXISTING = 1 << 2
};

typedef struct tenon_shared_options {
  uint32_t struct_size;
  uint32_t flags;    /* TENON_HUGE_PAGES, TENON_POPULATED, TENON_OPEN_EXISTING */
  int32_t numa_node; /* the node of the memory; -1: any */
  int32_t reserved;
  const char* name; /* letters, digits and _ - . (at most 100), for tenon_shared_attach; NULL: none */
  /* {TENON_CUDA, i}; type 0 or TENON_CPU: the host. A device takes no flags and no numa_node. Memory on a
   * device comes in steps of 2 MiB and ends with this process: accesses of other processes fail with
   * OWNER_DIED from then on, also those that overwrite. It is freed when no process uses it any more. */
  tenon_device device; /* \since 0.6 */
} tenon_shared_options;

/* New shared memory, contiguous in C order. All of it is allocated when this function returns. flags:
 * TENON_ZEROED, TENON_SUBBYTE_PADDED. options: may be NULL. Fails with VALUE (shape, name, options; the name
 * is taken), TYPE, NO_MEMORY (the message has the numbers), SYSTEM (no free file descriptor; the driver
 * cannot share memory of the device), and on a device as tenon_device_describe. */
TENON_API tenon_status tenon_shared_create(tenon_dtype dtype, int32_t ndim, const int64_t* shape,
                                           uint32_t flags, const tenon_shared_options* options,
                                           tenon_array** out, tenon_error* error);

/* Opens the array that a process of this user shares under a name. flags: TENON_READONLY maps the memory
 * read-only, so that a write ends the process, unless this process has already mapped it for writing. Fails
 * with NOT_FOUND, VALUE (the memory is damaged, or of another version of Tenon), NO_MEMORY, SYSTEM. */
TENON_API tenon_status tenon_shared_attach(const char* name, uint32_t flags, tenon_array** out,
                                           tenon_error* error);

TENON_API int32_t tenon_array_is_shared(const tenon_array* array);

/* The data with which another process opens the array. Its bytes can be sent unchanged over any
 * connection. */
#define TENON_MAX_HANDLE_NBYTES 1152
typedef struct tenon_handle {
  uint32_t nbytes; /* number of bytes of data that are used */
  unsigned char data[TENON_MAX_HANDLE_NBYTES];
} tenon_handle;

/* Creates a handle. It keeps the memory until a process has opened it, or this process has ended.
 * tenon_handle_limit and tenon_shared_revoke shorten this time. Fails with TYPE (the array is not shared),
 * NO_MEMORY (16,384 handles of other arrays in the same memory are unopened), SYSTEM. */
TENON_API tenon_status tenon_shared_send(tenon_array* array, tenon_handle* out, tenon_error* error);

/* Limits how long a handle of this process keeps the memory: while the process receiver runs (0: any process
 * may receive it), and at most timeout_ns (< 0: no limit; 0: not any more). The memory is freed within one
 * second. Opening the handle later succeeds if some process has the array then. Fails with NOT_FOUND (there
 * is no process receiver), VALUE (this process has not sent the handle), NO_MEMORY (16,384 handles were
 * unopened when it, or a later one that shares its record, was made: then it has no limits). */
TENON_API tenon_status tenon_handle_limit(const tenon_handle* handle, uint32_t receiver, int64_t timeout_ns,
                                          tenon_error* error);

/* Lets so many processes open a handle of this process, and writes that into the handle: it keeps the memory
 * until then, and further processes fail with GONE. opens 0: any number, until the handle is revoked or this
 * process has ended. A second open in one process is not counted; one by a process that dies afterwards is.
 * Without this call, the first open ends what the handle keeps, and it can be opened as long as some process
 * has the array. Fails with VALUE (this process has not sent the handle, or it has ended; opens is over
 * 65,534), NO_MEMORY (as tenon_handle_limit). \since 0.6 */
TENON_API tenon_status tenon_handle_set_opens(tenon_handle* handle, uint32_t opens, tenon_error* error);

/* Ends the effect of all unopened handles of the array that this process has sent: they do not keep the
 * memory any more. count receives their number; may be NULL. Fails with TYPE (the array is not shared). */
TENON_API tenon_status tenon_shared_revoke(tenon_array* array, uint32_t* count, tenon_error* error);

/* Opens a handle on the same machine, as the same user. A handle can be opened several times while the memory
 * exists. Fails with NOT_FOUND (no process has the array any more; another machine, user or PID namespace; on
 * a device: the process that created it has ended, or this one does not see the device), VALUE (the bytes are
 * not a handle), GONE (with tenon_handle_set_opens; op_code: TENON_GONE_*), NO_MEMORY, SYSTEM. */
TENON_API tenon_status tenon_shared_open(const void* data, uint64_t nbytes, tenon_array** out,
                                         tenon_error* error);
/* The same for transports whose receiver must not fail: if the array cannot be opened, *out is an array of
 * its dtype and shape that has no memory, and each use of it fails with the error. Fails with VALUE (the
 * bytes are not a handle), NO_MEMORY. \since 0.6 */
TENON_API tenon_status tenon_shared_receive(const void* data, uint64_t nbytes, tenon_array** out,
                                            tenon_error* error);
/* Keeps the memory of a handle that another process has sent, and that may end, beside that process: until
 * the handle has ended, or timeout_ns have passed (< 0: no limit). The memory is freed within one second
 * after that. A later call sets a new limit. is_kept receives 0 if the handle has ended already, or if a
 * third process keeps it, too; may be NULL. Changes nothing if this process has sent the handle. Fails as
 * tenon_shared_open, but not with GONE. \since 0.6 */
TENON_API tenon_status tenon_handle_take_over(const void* data, uint64_t nbytes, int64_t timeout_ns,
                                              int32_t* is_kept, tenon_error* error);
/* 1: a handle that this process has sent keeps the memory: as many processes as may have not opened it yet.
 * \since 0.6 */
TENON_API int32_t tenon_handle_is_unopened(const void* data, uint64_t nbytes);

/* ------------------------------------------------------------------------ turns between processes */

/* Bytes that a process was writing when it ended may be half written. A call, and a lease with neither
 * TENON_IGNORE_OWNER_DIED nor TENON_OVERWRITE, fail with OWNER_DIED (op_code: the pid) until these bytes are
 * overwritten successfully, or until tenon_array_clear_error declares them valid. */

/* For tenon_lease_options: no limit for waits inside of this process; waits for another process end as
 * tenon_set_lock_timeout says. */
#define TENON_DEFAULT_TIMEOUT INT64_MIN

/* Sets how long calls, and leases with TENON_DEFAULT_TIMEOUT, wait for other processes. After this time they
 * fail with TIMEOUT, which names the holder. Default 5 s; < 0: no limit. Returns the previous value. */
TENON_API int64_t tenon_set_lock_timeout(int64_t timeout_ns);

/* ------------------------------------------------------------------------------------- arenas
 *
 * An arena is one buffer that holds the arrays of one layout at a time. Its lock also protects the current
 * layout: a read of a layout returns the elements of this layout, or fails. */

typedef struct tenon_arena tenon_arena;

typedef struct tenon_layout {
  const char* name; /* unique in the arena */
  int32_t n;
  int32_t reserved;
  const tenon_field* fields; /* n arrays of any shape; each is aligned to 64 bytes */
} tenon_layout;

/* New memory with the size of the largest layout. options: as for tenon_shared_create; NULL: not shared.
 * Fails with VALUE (names, shapes), TYPE, and as tenon_shared_create. */
TENON_API tenon_status tenon_arena_create(int32_t n, const tenon_layout* layouts,
                                          const tenon_shared_options* options, tenon_arena** out,
                                          tenon_error* error);
/* An arena over a contiguous array of any dtype. It keeps the array alive. Only this object knows the current
 * layout. Fails with VALUE (the array is too small, or not aligned), BUFFER (read-only). */
TENON_API tenon_status tenon_arena_over(int32_t n, const tenon_layout* layouts, tenon_array* buffer,
                                        tenon_arena** out, tenon_error* error);
/* The arena of another process. memory: its memory (tenon_arena_memory there), attached or opened here. Fails
 * with VALUE (the memory contains no arena). */
TENON_API tenon_status tenon_arena_open(tenon_array* memory, tenon_arena** out, tenon_error* error);
TENON_API void tenon_arena_retain(tenon_arena* arena);
TENON_API void tenon_arena_release(tenon_arena* arena);

/* The array to send to other processes: a new reference; NULL for an arena over a buffer. */
TENON_API tenon_array* tenon_arena_memory(tenon_arena* arena);
/* An array of all bytes of the layouts: a new reference, for leases and for tenon_array_holders. */
TENON_API tenon_array* tenon_arena_data(tenon_arena* arena);
TENON_API uint64_t tenon_arena_nbytes(const tenon_arena* arena);       /* of the largest layout */
TENON_API uint64_t tenon_arena_total_nbytes(const tenon_arena* arena); /* sum over all layouts */
/* The layouts, in their order; {0} if the index is out of range. Their pointers are valid as long as the
 * arena. `fields` is NULL: use tenon_arena_field. */
TENON_API int32_t tenon_arena_layout_count(const tenon_arena* arena);
TENON_API tenon_layout tenon_arena_layout(const tenon_arena* arena, int32_t layout);
TENON_API tenon_field tenon_arena_field(const tenon_arena* arena, int32_t layout, int32_t field);

/* The index of the current layout; -1: none yet. generation receives the number of changes; may be NULL. Both
 * are reliable only under a lease. */
TENON_API int32_t tenon_arena_active(const tenon_arena* arena, uint64_t* generation);

/* Takes a lease under which the arrays of a layout may be used. A write lease changes the arena to the layout
 * if necessary. Then the elements are invalid, and earlier failures of the memory are cleared. Fails as
 * tenon_lease_acquire, with NOT_FOUND (no such layout) and LEASE_CONFLICT (a read, but the arena has another
 * layout; a change, but views of the other layout exist or the caller uses it). */
TENON_API tenon_status tenon_arena_use(tenon_arena* arena, const char* layout,
                                       const tenon_lease_options* options, tenon_lease* lease,
                                       tenon_error* error);

/* The same for an asynchronous task: as tenon_lease_request, but with tenon_arena_enter instead of
 * tenon_lease_check. */
TENON_API tenon_status tenon_arena_request(tenon_arena* arena, const tenon_lease_options* options,
                                           tenon_lease* lease, void (*done)(void* context), void* context,
                                           int32_t* is_granted, tenon_error* error);
/* Enters a layout under a lease that was granted to tenon_arena_request. Fails as tenon_arena_use; the lease
 * is then not held. Fails with VALUE if the lease does not belong to this arena; it is then still held. */
TENON_API tenon_status tenon_arena_enter(tenon_arena* arena, const char* layout, tenon_lease* lease,
                                         tenon_error* error);

/* An array of a layout. Use it only under tenon_arena_use of that layout: at other times its bytes may belong
 * to another layout. Fails with INDEX. */
TENON_API tenon_status tenon_arena_array(tenon_arena* arena, int32_t layout, int32_t field, tenon_array** out,
                                         tenon_error* error);

/* ---------------------------------------------------------------------------------------- observers */

/* Describes the shared memory that processes of this user have open, its participants, and what they hold and
 * wait for; and the feeds that have a memory file. The result is a JSON document in ASCII (docs/inspect.md).
 * The function only reads: it joins no segment, waits for no process, and reports what is wrong with damaged
 * memory. Free *out with tenon_text_free. Fails with NO_MEMORY, SYSTEM (no free file descriptor). */
TENON_API tenon_status tenon_shared_describe(char** out, tenon_error* error);

/* Releases what dead processes held in memory that other processes have: places, leases and handles. This is
 * never required, because the next user of the memory does the same. *out: a JSON document that lists what
 * was released; free it with tenon_text_free. Fails with NO_MEMORY, SYSTEM. */
TENON_API tenon_status tenon_shared_collect(char** out, tenon_error* error);

/* Frees a text that this library returned. NULL does nothing. */
TENON_API void tenon_text_free(char* text);

/* -------------------------------------------------------------------------------------- channels
 *
 * A channel passes slots of shared memory from producers to consumers without a copy. A process may be both.
 * The items of a channel have the same fields. In a channel of bytes, each item has as many bytes as it
 * needs. When a process ends, the items that it held are lost and their slots become free. Other processes
 * continue. */

typedef struct tenon_channel tenon_channel;
typedef struct tenon_item tenon_item;

enum tenon_channel_kind {
  TENON_CHANNEL_QUEUE = 0,     /* each item goes to one consumer, which may write to it */
  TENON_CHANNEL_BROADCAST = 1, /* each item goes to all consumers: to each opening that receives */
  TENON_CHANNEL_LATEST = 2     /* receivers get the newest item; producers never wait for them */
};
enum tenon_when_full {
  TENON_WHEN_FULL_WAIT = 0,        /* a broadcast without consumers drops its oldest item instead */
  TENON_WHEN_FULL_DROP_OLDEST = 1, /* the oldest item that no process holds; consumers may miss it */
  TENON_WHEN_FULL_RAISE = 2,       /* LEASE_CONFLICT; a broadcast without consumers: as WAIT */
  TENON_WHEN_FULL_KEEP = 3         /* wait, also for a consumer of a broadcast without consumers */
};

typedef struct tenon_channel_options {
  uint32_t struct_size;
  int32_t slots;     /* 1 to 4095; TENON_CHANNEL_LATEST: at least 3, or readers + 2 so that it never waits */
  int32_t mode;      /* TENON_CHANNEL_* */
  int32_t when_full; /* TENON_WHEN_FULL_*: the behaviour of a loan without a free slot */
} tenon_channel_options;

/* fields: arrays of any shape; each is aligned to 64 bytes. shared: as for tenon_shared_create; may be NULL.
 * Fails with VALUE, TYPE, NO_MEMORY, SYSTEM. */
TENON_API tenon_status tenon_channel_create(int32_t n, const tenon_field* fields,
                                            const tenon_channel_options* options,
                                            const tenon_shared_options* shared, tenon_channel** out,
                                            tenon_error* error);
/* A channel of bytes. options->slots: the number of items that exist at a time. nbytes: of all items
 * together. largest: of one item; 0: nbytes, in TENON_CHANNEL_LATEST a third, as it keeps its newest item
 * while the next one is written. The memory is taken when an item is written; slots times largest are
 * addresses alone. Memory is counted in whole pages. shared: without huge pages and populated pages.
 * Fails with VALUE, NO_MEMORY, SYSTEM. \since 0.7 */
TENON_API tenon_status tenon_channel_create_bytes(const tenon_channel_options* options, uint64_t nbytes,
                                                  uint64_t largest, const tenon_shared_options* shared,
                                                  tenon_channel** out, tenon_error* error);
/* Opens a channel. memory: its memory (tenon_channel_memory in another process), attached or opened here.
 * Fails with VALUE (the memory contains no channel). */
TENON_API tenon_status tenon_channel_open(tenon_array* memory, tenon_channel** out, tenon_error* error);
/* The same, for a consumer that wants something else. TENON_AWAIT_PRODUCERS: tenon_channel_receive returns
 * no OWNER_DIED, and CLOSED only if the last producer that has left has closed the channel: after a crash it
 * waits for one that comes back. TENON_RECEIVE_LATEST: of a broadcast it receives the newest item, and
 * producers do not wait for it; VALUE for a queue. Fails also for unknown flags. \since 0.7 */
enum tenon_channel_opening { TENON_AWAIT_PRODUCERS = 1, TENON_RECEIVE_LATEST = 2 };
TENON_API tenon_status tenon_channel_open_as(tenon_array* memory, uint32_t flags, tenon_channel** out,
                                             tenon_error* error);
TENON_API void tenon_channel_retain(tenon_channel* channel);
TENON_API void tenon_channel_release(tenon_channel* channel); /* the last release closes it */

TENON_API tenon_array* tenon_channel_memory(tenon_channel* channel); /* the array to send: a new reference */
TENON_API tenon_channel_options tenon_channel_describe(const tenon_channel* channel);
TENON_API int32_t tenon_channel_field_count(const tenon_channel* channel);
TENON_API tenon_field tenon_channel_field(const tenon_channel* channel, int32_t i); /* {0} if out of range */
/* The bytes of all items of a channel of bytes, and (if not NULL) those of the largest one, in whole pages.
 * 0: its items have fields. \since 0.7 */
TENON_API uint64_t tenon_channel_nbytes(const tenon_channel* channel, uint64_t* largest);

/* Loans a free slot. Fill it, and then send or drop it (tenon_item_release). site: the line of the caller,
 * for timelines; it is copied, and may be NULL. Fails with TIMEOUT (timeout_ns >= 0 has passed), INTERRUPTED,
 * CLOSED, LEASE_CONFLICT (the channel is full, with TENON_WHEN_FULL_RAISE; or this is a forked child, and it
 * has inherited views of the only free slots). A call that fails because there is no room is counted in
 * `refused` of the statistics, unless timeout_ns is TENON_WILL_RETRY (since 0.7): that is a timeout of 0 of a
 * caller that tries again by itself. */
#define TENON_WILL_RETRY (-INT64_MAX)
TENON_API tenon_status tenon_channel_loan(tenon_channel* channel, int64_t timeout_ns, const char* site,
                                          tenon_item** out, tenon_error* error);
/* Loans a slot with so many bytes from a channel of bytes. tenon_item_array(item, 0) is all of them; what is
 * not written has undefined values. Fails as tenon_channel_loan, and with VALUE (larger than the largest
 * item; the items of the channel have fields), NO_MEMORY. \since 0.7 */
TENON_API tenon_status tenon_channel_loan_bytes(tenon_channel* channel, uint64_t nbytes, int64_t timeout_ns,
                                                const char* site, tenon_item** out, tenon_error* error);
/* Changes the size of a loan of a channel of bytes; its first bytes and its arrays stay. Does not wait. Fails
 * with NO_MEMORY (the channel or the system has no room), VALUE (larger than the largest item; not such a
 * loan). \since 0.7 */
TENON_API tenon_status tenon_item_set_nbytes(tenon_item* item, uint64_t nbytes, tenon_error* error);
/* Sends a loan. The bytes of fields of which no array was made become 0. Later views, leases and ops of its
 * arrays fail with LEASE_CONFLICT. Fails with VALUE (the item is not a loan of this process, was sent, or is
 * being sent by another thread), CLOSED (the channel was closed here), LEASE_ESCAPED (a view of one of its
 * arrays is open, or a lease or an op uses one) and OP (an op failed to write one): the loan cannot be sent
 * any more. Release the item in any case, after the call. */
TENON_API tenon_status tenon_item_send(tenon_item* item, tenon_error* error);

/* Drops a loan: its arrays end as those of one that was sent, so that they do not keep the slot, unless a
 * view, a lease or an op uses one: then it becomes free with these and the arrays. Release the item after
 * the call. Fails with VALUE (as tenon_item_send). \since 0.7 */
TENON_API tenon_status tenon_item_drop(tenon_item* item, tenon_error* error);

/* Receives the next item. Fails with TIMEOUT, INTERRUPTED, OWNER_DIED (a producer has died, or a process that
 * has called tenon_channel_join and has not used the channel, and no item is left; returned once for each
 * consumer and each death, and the consumer may continue), CLOSED (the last producer has left and no item is
 * left; returned once, then the function waits for a new producer) and
 * LEASE_CONFLICT (a forked child has inherited a view of the slot). */
TENON_API tenon_status tenon_channel_receive(tenon_channel* channel, int64_t timeout_ns, const char* site,
                                             tenon_item** out, tenon_error* error);

/* Gives a received item back, of which there is no array and no other reference: it is received again, in a
 * broadcast by this opening, in a queue by any. Release it after the call. Fails with VALUE (not such an
 * item) and NO_MEMORY. \since 0.6 */
TENON_API tenon_status tenon_item_put_back(tenon_item* item, tenon_error* error);

/* Waits until tenon_channel_receive would not wait; receives nothing. For programs that must not block where
 * they receive. Fails with TIMEOUT, INTERRUPTED. */
TENON_API tenon_status tenon_channel_wait(tenon_channel* channel, int64_t timeout_ns, tenon_error* error);

/* A file descriptor of this process for poll(), epoll and similar functions. access: with TENON_READ it is
 * readable while tenon_channel_receive may have something to do, or after the channel has ended. With
 * TENON_WRITE the same holds for tenon_channel_loan. It stays readable until that call finds nothing to do
 * (TIMEOUT with a timeout of 0, LEASE_CONFLICT), so repeat the call until then after each wait. The
 * descriptor belongs to the channel: do not read from it or close it. It is valid until the last reference is
 * released. A forked child must call this function again. Fails with SYSTEM (no free descriptor, or no
 * thread). */
TENON_API tenon_status tenon_channel_fd(tenon_channel* channel, int32_t access, int32_t* out,
                                        tenon_error* error);

/* The array of a field: a new reference, which keeps the item. It is read-only, except for a loan and for an
 * item of a queue. The threads of this process may use it without a lease. Leases and ops of it take turns.
 * Fails with INDEX, and with LEASE_CONFLICT if the item was sent or dropped. */
TENON_API tenon_status tenon_item_array(tenon_item* item, int32_t field, tenon_array** out,
                                        tenon_error* error);
/* A writable array with the elements of a read-only array of a received item. Nobody else sees what is
 * written to it. One of 4 MiB or more keeps the item: it lies in private pages, each of which is copied
 * when it is written to. Others are copied, unless copy is TENON_COPY_NEVER, and so are those for which the
 * system refuses private pages. *out is NULL if the array is not of such an item: tenon_array_copy copies it.
 * Fails as that, and with BUFFER (TENON_COPY_NEVER, and it must be copied). \since 0.6 */
TENON_API tenon_status tenon_array_lazy_copy(tenon_array* array, int32_t copy, tenon_array** out,
                                             tenon_error* error);
/* Gives the read-only arrays in a shared mapping lazy copies, too. The caller has mapped a memory file from
 * offset on, and adopts arrays there. It promises that nobody writes to the bytes of a read-only one as long
 * as it or a lazy copy of it exists. Keeps a descriptor of its own. Release it after the last of these
 * arrays. Fails with VALUE, NO_MEMORY, SYSTEM (no descriptor is left). \since 0.6 */
typedef struct tenon_lent tenon_lent;
TENON_API tenon_status tenon_mapping_lend(int fd, uint64_t offset, const void* data, uint64_t nbytes,
                                          tenon_lent** out, tenon_error* error);
TENON_API void tenon_lent_release(tenon_lent* lent);
TENON_API uint64_t tenon_item_sequence(const tenon_item* item); /* counts from 1; 0: not sent yet */
TENON_API void tenon_item_retain(tenon_item* item);
/* The slot becomes free when the last reference, array and view of the item is gone, in any order. */
TENON_API void tenon_item_release(tenon_item* item);

/* From now on, consumers are told of the death of this process (OWNER_DIED) also if it has neither loaned nor
 * received before: it may have been about to. Does nothing after tenon_channel_close. Fails with SYSTEM.
 * \since 0.6 */
TENON_API tenon_status tenon_channel_join(tenon_channel* channel, tenon_error* error);
/* Closes the channel for this process, as a producer and as a consumer. Other processes are notified. Items
 * that this process has stay valid. */
TENON_API void tenon_channel_close(tenon_channel* channel);

typedef struct tenon_channel_statistics {
  uint32_t struct_size;
  int32_t ready;     /* slots with an item that a consumer may receive */
  int32_t in_use;    /* slots that some process holds */
  int32_t producers; /* processes */
  int32_t consumers;
  int32_t reserved;
  uint64_t sent;
  uint64_t received;
  uint64_t dropped; /* because no slot was free */
  uint64_t deaths;  /* that consumers were told of, or will be */
  /* \since 0.7 */
  uint64_t refused;          /* loans that failed because there was no room */
  uint64_t nbytes;           /* of all items together, at most */
  uint64_t used_nbytes;      /* of the items that are ready or that some process has */
  uint64_t committed_nbytes; /* memory of the slots */
  uint64_t largest_sent_nbytes;
} tenon_channel_statistics;

/* Writes as many fields as out->struct_size has room for: at least those before 0.7, else nothing. */
TENON_API void tenon_channel_statistics_get(tenon_channel* channel, tenon_channel_statistics* out);

#ifdef __cplusplus
}
#endif

#endif /* TENON_SHARE_H_ */
