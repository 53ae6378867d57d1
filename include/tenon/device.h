/* SPDX-License-Identifier: Apache-2.0
 *
 * device.h - memory of GPUs: devices, copies in the order of their streams, exchange with frameworks on a
 * stream, pinned host memory. Included by tenon.h, which says the conventions.
 *
 * The driver of CUDA is opened at the first use and never linked: libcuda.so.1, or the library that the
 * environment variable TENON_CUDA_DRIVER names. Without it, each call that needs a device fails with
 * NOT_FOUND. In a process that was forked after CUDA had started, such calls fail with SYSTEM.
 *
 * Arrays on a device have the same queue as others. An op on a stream waits for earlier ops on streams by
 * events, without a wait of the host. All others (leases, calls, ops of the host) wait until its work is
 * done.
 */
#ifndef TENON_DEVICE_H_
#define TENON_DEVICE_H_

#include "tenon/core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------ devices
 * \since 0.6
 *
 * tenon_array_create makes arrays on {TENON_CPU, 0}, {TENON_CUDA, i} and {TENON_CUDA_HOST, 0} (pinned host
 * memory). Views of memory on {TENON_CUDA, i} that are not on a stream fail with BUFFER. tenon_array_copy_to
 * copies between any two of them, and tenon_array_fill fills any of them. Both return when the work is done.
 * What would need a kernel fails with VALUE, or with TYPE for a cast on the device; casts from or to an array
 * on the host are done on the host. */

/* The device with this name: "cpu", "cuda:1", "cuda" (the first), "cuda_host". Fails with VALUE. */
TENON_API tenon_status tenon_device_from_name(const char* name, tenon_device* out, tenon_error* error);

/* Writes the name to a buffer of the caller, truncated to size bytes including the NUL. */
TENON_API void tenon_device_name(tenon_device device, char* buffer, size_t size);

/* The number of devices of this type (TENON_CUDA) that this process sees. Fails with VALUE (another type),
 * NOT_FOUND (no driver), SYSTEM. */
TENON_API tenon_status tenon_device_count(int32_t type, int32_t* out, tenon_error* error);

typedef struct tenon_device_info {
  uint32_t struct_size;
  int32_t has_pools; /* allocates in the order of a stream */
  char model[96];    /* for example "NVIDIA H100"; truncated */
  uint64_t total_nbytes;
  uint64_t free_nbytes;
} tenon_device_info;

/* Fails as tenon_device_count, and with VALUE (there is no such device). */
TENON_API tenon_status tenon_device_describe(tenon_device device, tenon_device_info* out, tenon_error* error);

/* Of this process, for tests and leak checks. Opens no driver. */
typedef struct tenon_device_statistics {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t device_nbytes;     /* of arrays that were created on devices */
  uint64_t pinned_nbytes;     /* of arrays that were created in pinned memory */
  uint64_t registered_nbytes; /* by tenon_device_register */
  uint64_t events;            /* alive */
  uint64_t submitted;         /* ops and exports whose work on a stream is not known to be done; falls after
                                 the waits for them return */
} tenon_device_statistics;

TENON_API void tenon_device_statistics_get(tenon_device_statistics* out);

/* ------------------------------------------------------------------------------------- copies
 * \since 0.6 */

/* New memory on the device in C order, with the elements of array, cast to dtype. Returns when the copy is
 * done. Fails as tenon_array_create and tenon_array_copy_to. */
TENON_API tenon_status tenon_array_copy_on(tenon_array* array, tenon_dtype dtype, tenon_device device,
                                           tenon_array** out, tenon_error* error);

typedef struct tenon_copy_options {
  uint32_t struct_size;
  int32_t on_conflict; /* TENON_CONFLICT_* */
  const char* name;    /* of the op; NULL: "copy"; copied */
  const char* site;    /* as in tenon_work */
} tenon_copy_options;

/* Pushes the op dst[...] = src. Where a device takes part, it is an op on a stream: its body submits the
 * copy, and it is done when the copy is. Copies between arrays on the host run in a thread of the engine.
 * options and out may be NULL. Fails as tenon_push and tenon_array_copy_to. A copy to the host that would
 * need work of the host after that of the device (a cast, a broadcast) fails with TYPE or VALUE. */
TENON_API tenon_status tenon_push_copy(tenon_array* src, tenon_array* dst, const tenon_copy_options* options,
                                       tenon_op** out, tenon_error* error);

/* ------------------------------------------------------------------ exchange on a stream
 * \since 0.6
 *
 * The numbers of streams are those of DLPack in Python: 1 is the legacy default stream, 2 that of the thread,
 * a larger number is a handle (CUstream), and TENON_STREAM_NONE asks for no order. 0 fails with VALUE. */

#define TENON_STREAM_NONE (-1)

/* tenon_array_to_dlpack for a consumer that uses the memory on a stream: work on the stream that follows the
 * call runs after the work on the array that was submitted before. For other work the call waits. The
 * deleter waits for nothing: later uses of the array wait for all work that the consumer had submitted to the
 * stream before it called the deleter. Arrays on the host ignore the stream, except those in managed memory.
 * While the stream is captured, the call fails with BUFFER where it cannot work. Fails as tenon_view_open. */
TENON_API tenon_status tenon_array_to_dlpack_on(tenon_array* array, uint32_t flags, int64_t stream,
                                                const char* site, struct DLManagedTensorVersioned** out,
                                                tenon_error* error);
TENON_API tenon_status tenon_array_to_dlpack_legacy_on(tenon_array* array, uint32_t flags, int64_t stream,
                                                       const char* site, struct DLManagedTensor** out,
                                                       tenon_error* error);

/* tenon_array_adopt for memory on a device that its library uses on a stream: Tenon uses the array after the
 * work that was submitted to the stream before the call. TENON_STREAM_NONE: the memory may be used at once.
 * Arrays on the host, also in pinned and managed memory, are not ordered: synchronize before the call.
 * device.id may be TENON_DEVICE_OF_MEMORY: the device that the driver names for data.
 * If Tenon knows bytes of the memory already, the call waits for the work on the stream. If tenon_array_alias
 * would find an array, *out is that, and the deleter has run when the call returns. tenon_array_owner of an
 * array that was ordered is NULL.
 * Fails as tenon_array_adopt and tenon_device_describe, and with BUFFER if the stream is captured or no
 * device holds the memory. */
#define TENON_DEVICE_OF_MEMORY (-1)
TENON_API tenon_status tenon_array_adopt_on(const tenon_adoption* adoption, int64_t stream, tenon_array** out,
                                            tenon_error* error);

/* A stream of the device that a producer can order its work with (the stream of __dlpack__). Tenon uses
 * an array that tenon_array_from_dlpack makes of memory on the device only after the work that was on this
 * stream when the array was made. Fails as tenon_device_describe. */
TENON_API tenon_status tenon_device_stream(tenon_device device, int64_t* out, tenon_error* error);

/* --------------------------------------------------------------------------- registered memory
 * \since 0.6
 *
 * Host memory that is pinned where it lies, for fast copies.
 *
 * The memory of arrays that are pinned (tenon_array_register, {TENON_CUDA_HOST, 0}, TENON_POOL_PINNED) may
 * still be copied by work on any stream of this process when the array is released, because other libraries
 * do not say which stream they use. So it is unpinned and freed after all work that this process has
 * submitted to its GPUs before the release. The release does not wait: a thread records an event of each
 * context (cuCtxRecordEvent, CUDA 12.5), or with older drivers synchronizes with it. If the driver fails, the
 * memory stays. Work in contexts that are not the primary one of their device is not seen. */

typedef struct tenon_registration tenon_registration;

/* Pins the pages of the bytes from data on, which have to exist until the release. Bytes inside of a
 * registered range share its registration. flags: TENON_READONLY. Fails with SYSTEM (the driver refuses; the
 * message has its reason), and as tenon_device_describe. */
TENON_API tenon_status tenon_device_register(void* data, uint64_t nbytes, uint32_t flags,
                                             tenon_registration** out, tenon_error* error);
/* The same for the storage of an array on the host, which the registration keeps alive. */
TENON_API tenon_status tenon_array_register(tenon_array* array, tenon_registration** out, tenon_error* error);
/* Of tenon_device_register: all work on the memory has to be done. Of tenon_array_register: does not wait.
 * The memory stays pinned, and the array alive, until the work that was submitted before is done. */
TENON_API void tenon_registration_release(tenon_registration* registration);

/* ------------------------------------------------------------------------- captures of graphs
 * \since 0.6
 *
 * While a stream is captured to a graph, the driver refuses to tell when all work is done, and the question
 * makes the capture invalid. So a program that has pinned arrays announces each capture, unless its stream is
 * ordered with the legacy stream. Captures are counted. Between the two calls no pinned memory is freed.
 * begin() waits for a question that is being asked, with drivers before CUDA 12.5 until all work is done. */
TENON_API void tenon_graph_capture_begin(void);
TENON_API void tenon_graph_capture_end(void);

#ifdef __cplusplus
}
#endif
#endif /* TENON_DEVICE_H_ */
