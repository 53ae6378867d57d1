/* SPDX-License-Identifier: Apache-2.0
 *
 * request.h - the request to fill one batch, the same for generators of a process (tenon/feed.h) and for
 * plug-ins (tenon/plugin.h). No linking is needed.
 *
 * \since 0.1; the member rows: 0.4; TENON_UNWRITTEN: 0.5; the members from epoch_seed on: 0.6
 */
#ifndef TENON_REQUEST_H_
#define TENON_REQUEST_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tenon_fill_request {
  uint32_t struct_size;
  int32_t worker;      /* counts from 0 */
  void* const* fields; /* memory in schema order; C-contiguous, aligned to 256 bytes, with old contents */
  int64_t rows;        /* requested */
  uint64_t index;      /* of the batch in its epoch */
  uint64_t epoch;      /* counts from 0 */
  uint64_t seed;       /* depends only on the feed's seed, epoch and index, not on the number of workers */
  /* The shape of each field, as in the schema. A generator may reduce entries; axis 0 must stay equal in all
   * fields. The filled elements are then C-contiguous in the smaller shape. */
  int64_t* const* shapes;
  /* Bytes that are passed with the batch. fill reads what prepare wrote; the consumer gets what fill
   * wrote. */
  void* attachment;
  uint64_t attachment_size;    /* capacity: attachment_nbytes of the feed's options */
  uint64_t* attachment_nbytes; /* number of bytes used */

  uint64_t epoch_seed; /* depends only on the feed's seed and epoch: equal for all batches of an epoch */
  uint64_t flags;      /* TENON_RESUMED, TENON_RESTORE_STATE, TENON_RESTORE_START */
  uint64_t* notes;     /* fill may set TENON_IGNORED_INDEX */
  /* Of a generator with TENON_HAS_STATE. After the batch, also after a failure or an end of the epoch, fill
   * writes the state of the generator to state, and its size to *state_nbytes. */
  void* state;
  uint64_t state_size; /* capacity: state_nbytes of the feed's options */
  uint64_t* state_nbytes;
  uint64_t restore_nbytes; /* with TENON_RESTORE_STATE */
} tenon_fill_request;

/* flags of a request */
enum tenon_fill_flags {
  TENON_RESUMED = 1 << 0, /* the feed began this epoch, or an earlier one, at a position that was set */
  /* Before it fills the batch, the generator restores the state whose restore_nbytes bytes are in state. */
  TENON_RESTORE_STATE = 1 << 1,
  TENON_RESTORE_START = 1 << 2 /* the same, to the state that it had before its first batch */
};

/* notes of a fill */
enum tenon_fill_notes {
  TENON_IGNORED_INDEX = 1 << 0 /* it used neither index nor seed, so the batch depends on earlier batches */
};

/* Results of fill and prepare that are not failures. */
enum tenon_fill_result {
  TENON_NO_BATCH = -2147483647,     /* there is no batch with this index: the consumer gets the next one */
  TENON_END_OF_EPOCH = -2147483646, /* the epoch ends before this batch */
  TENON_UNWRITTEN = -2147483645     /* of fill: the batch is passed on, but a field was not written */
};

/* Fills one batch. Returns 0, one of the codes above, or another code, which means failure. For a failure it
 * may write a text to message (message_size bytes including the NUL). C++ exceptions must not leave it.
 * context: of the generator, or the state of a plug-in. */
typedef int32_t (*tenon_fill_function)(void* context, const tenon_fill_request* request, char* message,
                                       size_t message_size);

#ifdef __cplusplus
}
#endif

#endif /* TENON_REQUEST_H_ */
