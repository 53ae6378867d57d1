/* SPDX-License-Identifier: Apache-2.0
 *
 * trace.h - the part of the C ABI that records a timeline of this process. Included by tenon.h.
 *
 * The file can be opened in Perfetto (ui.perfetto.dev) and chrome://tracing. It contains ops, leases, the
 * fills and slots of feeds, and waits, each with start and end. docs/trace.md describes its contents.
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
  uint64_t events; /* recorded ops, leases, fills, batches in slots and waits */
  uint64_t lost;   /* events after the trace was full */
} tenon_trace_counts;

#define TENON_TRACE_CAPACITY 200000

/* Begins a trace of this process. The file is created or truncated now, and written by tenon_trace_end. The
 * first `capacity` events are recorded (at least 1, less than 2^22). Each takes about 400 bytes of memory
 * until the end of the trace. A forked child has no trace. Fails with VALUE (a trace is already running;
 * capacity), NOT_FOUND (no such folder), SYSTEM (the file cannot be written), NO_MEMORY. */
TENON_API tenon_status tenon_trace_begin(const char* path, uint64_t capacity, tenon_error* error);

/* Ends the trace and writes the file. counts: may be NULL. No trace runs afterwards, also after a failure.
 * Fails with VALUE (no trace is running), SYSTEM (the file could not be written), NO_MEMORY. */
TENON_API tenon_status tenon_trace_end(tenon_trace_counts* counts, tenon_error* error);

#ifdef __cplusplus
}
#endif

#endif /* TENON_TRACE_H_ */
