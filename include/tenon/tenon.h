/* SPDX-License-Identifier: Apache-2.0
 *
 * tenon.h - the C ABI of Tenon: arrays whose memory is lent, not copied.
 *
 * Conventions, for every function below:
 *
 *  - Handles are opaque and counted: *_create, *_copy and every other function with an `out` handle
 *    give one reference to the caller; *_retain adds one; *_release gives one back and cannot fail.
 *    Releasing NULL does nothing. Handles may be used and released from any thread; an array handle
 *    is immutable, so threads may share one.
 *  - A fallible function returns a tenon_status, TENON_OK (0) on success. Its last parameter is an
 *    optional error struct of the caller; on failure it receives code and message, and the outputs
 *    are left as they were. On success it is not touched.
 *  - Structs that callers fill begin with struct_size = sizeof(the struct), so that they can grow.
 *    Unknown flag bits are refused.
 *  - Shapes and strides count elements; names that end in nbytes count bytes; times are nanoseconds.
 *  - Strings are UTF-8 and end with NUL. No C++ exception crosses this boundary in either direction:
 *    callbacks must not throw.
 *  - \since gives the C ABI version (tenon/version.h) in which a section appeared.
 */
#ifndef TENON_TENON_H_
#define TENON_TENON_H_

#include "tenon/core.h"
#include "tenon/feed.h"
#include "tenon/share.h"
#include "tenon/trace.h"

#endif /* TENON_TENON_H_ */
