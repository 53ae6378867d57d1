/* SPDX-License-Identifier: Apache-2.0
 *
 * trace.h - the part of the C ABI that writes what goes on in this process as a timeline. Included by
 * tenon.h.
 *
 * The file is what Perfetto (ui.perfetto.dev) and chrome://tracing open: ops, leases, the fills and slots of
 * feeds, and waits, each from when to when. docs/trace.md says what stands where.
 *
 * \since 0.1
 */
#ifndef TENON_TRACE_H_
#define TENON_TRACE_H_

#include "tenon/core.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tenon_trace_counts {
  uint64_t events; /* ops, leases, fills, batches in slots and waits that were kept */
  uint64_t lost;   /* that came when the trace was full */
} tenon_trace_counts;

#define TENON_TRACE_CAPACITY 200000

/* Begins a trace of this process; the file is made (or emptied) now, and written by tenon_trace_end. Of more
 * than capacity events (at least 1, less than 2^22) the first ones are kept. Each takes about 400 bytes of
 * memory, from when it comes to the end of the trace. A forked child has no trace. Fails with VALUE (one runs
 * already; capacity), NOT_FOUND (no such folder), SYSTEM (the file cannot be written), NO_MEMORY. */
TENON_API tenon_status tenon_trace_begin(const char* path, uint64_t capacity, tenon_error* error);

/* Ends it and writes the file. counts: may be NULL. In any case no trace runs afterwards. Fails with VALUE
 * (none runs), SYSTEM (the file could not be written), NO_MEMORY. */
TENON_API tenon_status tenon_trace_end(tenon_trace_counts* counts, tenon_error* error);

#ifdef __cplusplus
}
#endif

#endif /* TENON_TRACE_H_ */
