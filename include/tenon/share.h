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
 * after the end of one that was writing, whoever comes next gets TENON_ERR_OWNER_DIED, once.
 *
 * \since 0.1
 */
#ifndef TENON_SHARE_H_
#define TENON_SHARE_H_

#include "tenon/tenon.h"

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

/* The memory is kept until some process has opened this handle, or this one has ended. Fails with TYPE (the
 * array is not shared). */
TENON_API tenon_status tenon_shared_send(tenon_array* array, tenon_handle* out, tenon_error* error);

/* Opens a handle on the same machine, as the same user. More than once works as long as the memory is there.
 * Fails with NOT_FOUND (nobody has the array any more; another machine, user or PID namespace), VALUE (these
 * bytes are no handle), NO_MEMORY, SYSTEM. */
TENON_API tenon_status tenon_shared_open(const void* data, uint64_t nbytes, tenon_array** out,
                                         tenon_error* error);

/* ------------------------------------------------------------------------ turns between processes */

/* Of the end of a process that was writing whoever comes next is told: a lease that says neither
 * TENON_IGNORE_OWNER_DIED nor TENON_OVERWRITE, or a call. It fails with OWNER_DIED (op_code is the number of
 * the process); then the memory counts as good. */

/* In tenon_lease_options: for ever behind this process' own work, but behind another process for as long as
 * tenon_set_lock_timeout says. */
#define TENON_DEFAULT_TIMEOUT INT64_MIN

/* How long calls, and leases with TENON_DEFAULT_TIMEOUT, wait for other processes before they fail with
 * TIMEOUT, which names the one in the way. At first 5 s; < 0: for ever. Returns what it was. */
TENON_API int64_t tenon_set_lock_timeout(int64_t timeout_ns);

#ifdef __cplusplus
}
#endif

#endif /* TENON_SHARE_H_ */
