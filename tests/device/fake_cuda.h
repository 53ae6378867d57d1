/* SPDX-License-Identifier: Apache-2.0
 *
 * A fake CUDA driver for tests: libtenon_fake_cuda.so exports the functions of the driver API that Tenon
 * uses, and those below, by which a test steers it. No GPU takes part. TENON_CUDA_DRIVER=<path of the
 * library> makes Tenon open it.
 *
 * How it differs from a driver, always to the disadvantage of the program under test:
 * - Device memory faults when the host touches it. New memory is filled with 0xCD, freed memory of which
 *   another process has a mapping with 0xDD. Work that touches memory outside of one live allocation fails
 *   with CUDA_ERROR_ILLEGAL_ADDRESS, and its context for good.
 * - A copy reads its source when it runs, also from pageable memory, in several steps between which other
 *   streams run. Work starts late. Which stream runs next is drawn by a seed. Nothing waits for work but
 *   what must.
 * - cuMemFree and cuMemFreeHost do not wait for work that uses the memory.
 *
 * Settings are a list "key=value,key=value". A process takes them from the environment variable
 * TENON_FAKE_CUDA at its first call; fake_cuda_configure() adds to them.
 *   devices=1          number of devices (0: cuInit gives CUDA_ERROR_NO_DEVICE)
 *   first=0            the first device that this process sees, of those of the machine: their UUIDs differ
 *   memory=1073741824  bytes of each device
 *   seed=1             of the order in which streams run
 *   delay_us=50        work starts up to this much later (sometimes 10 times as much); 0: at once
 *   delay_calls=0      if not 0, in place of delay_us: work starts up to so many calls of the driver later
 *                      (sometimes 10 times as many), and runs in threads that call it. No time is lost
 *   version=12050      of the driver; functions that are newer are missing
 *   missing=A+B        functions that cuGetProcAddress does not find, by their names there
 *   pools=1, vmm=1, ipc=1, register=1   0: the devices do not have the feature
 *   fail=NAME:N:ERROR  as fake_cuda_fail(); fail_copy=N:ERROR  as fake_cuda_fail_copy()
 *   verbose=1          problems that the driver finds go to stderr
 *   strict_end=1       the driver ends in exit(), in a handler that cuInit registers. A call that runs then
 *                      or begins later ends the process with the status 99
 *
 * Streams and events are handles of the driver API, as void*; results are CUresult. All functions may be
 * called by any thread.
 */
#ifndef TENON_TESTS_FAKE_CUDA_H
#define TENON_TESTS_FAKE_CUDA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FAKE_CUDA_API __attribute__((visibility("default")))

/* Returns 0, or -1 for settings that it does not understand. devices and memory count before cuInit only. */
FAKE_CUDA_API int fake_cuda_configure(const char* settings);
/* Forgets everything: contexts, memory, streams, events, failures, counts; settings are the defaults again.
 * No other thread may be in a call. */
FAKE_CUDA_API void fake_cuda_reset(void);

/* The n-th call of the exported function from now on returns error and does nothing else; n = 0: every
 * call. Failures add up; fake_cuda_fail(NULL, 0, 0) forgets all. Returns -1 for a name that is not
 * exported. */
FAKE_CUDA_API int fake_cuda_fail(const char* function, uint64_t n, int error);
/* The n-th copy or memset that runs from now on fails with error, and with it the context of its stream. */
FAKE_CUDA_API void fake_cuda_fail_copy(uint64_t n, int error);

/* From now on calls of the exported function wait, after they were counted, until
 * fake_cuda_release_calls(). Returns -1 for a name that is not exported. */
FAKE_CUDA_API int fake_cuda_hold_calls(const char* function);
FAKE_CUDA_API void fake_cuda_release_calls(void);

/* A count by its name: the calls of an exported function ("cuMemcpyAsync"), "copies.K" and "bytes.K" of the
 * copies that have run, K of h2d, d2h, d2d, h2h, and "pageable" for those of them with pageable memory,
 * "live.K", K of device, pinned, registered, managed, ipc, physical, mapped, reserved, streams, events,
 * contexts, "executed" for all finished work, "problems" for errors that the driver found in the program. 0
 * for another name. */
FAKE_CUDA_API uint64_t fake_cuda_count(const char* what);
/* Sets all counts to 0 but those that begin with "live.". */
FAKE_CUDA_API void fake_cuda_reset_counts(void);
/* The last problem in words, empty if there was none. */
FAKE_CUDA_API void fake_cuda_last_problem(char* text, size_t size);

/* Finished work in the order in which it ended. */
typedef struct {
  uint64_t sequence; /* in the order of submission, over all streams */
  const void* stream;
  const char* name; /* the function that submitted it */
} fake_cuda_entry;
/* Copies the last n entries or fewer, oldest first, and returns their number. The log has the last 65536. */
FAKE_CUDA_API size_t fake_cuda_log(fake_cuda_entry* entries, size_t n);

/* Nothing of the stream runs until fake_cuda_resume(). A kernel that takes long. */
FAKE_CUDA_API int fake_cuda_hold(void* stream);
FAKE_CUDA_API int fake_cuda_resume(void* stream);
/* Submits a kernel: a function that runs in the order of the stream, in a thread of the driver. It must not
 * block. A result other than 0 is an error of the context. */
FAKE_CUDA_API int fake_cuda_launch(void* stream, int (*kernel)(void* argument), void* argument);
/* Reads or writes memory as a kernel does, now. For kernels, and for a test that looks at what nothing
 * uses. Returns CUDA_ERROR_ILLEGAL_ADDRESS for what is not one live allocation. */
FAKE_CUDA_API int fake_cuda_read(void* to, uint64_t from, size_t nbytes);
FAKE_CUDA_API int fake_cuda_write(uint64_t to, const void* from, size_t nbytes);

/* Memory as of cuMemAllocManaged, freed with cuMemFree: the host may touch it. */
FAKE_CUDA_API int fake_cuda_alloc_managed(uint64_t* address, size_t nbytes);

/* As cuStreamBeginCapture and cuStreamEndCapture (the work of the capture is dropped). mode: 0 global, 1
 * thread-local, 2 relaxed. The end returns CUDA_ERROR_STREAM_CAPTURE_INVALIDATED if a forbidden call has
 * spoilt the capture, else 0, and writes the number of captured calls to n_captured if it is not NULL. */
FAKE_CUDA_API int fake_cuda_begin_capture(void* stream, int mode);
FAKE_CUDA_API int fake_cuda_end_capture(void* stream, uint64_t* n_captured);

#ifdef __cplusplus
}
#endif

#endif /* TENON_TESTS_FAKE_CUDA_H */
