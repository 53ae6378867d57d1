/* SPDX-License-Identifier: Apache-2.0
 *
 * tenon.h - the C ABI of Tenon: arrays whose memory is shared without copies.
 *
 * Conventions, for every function below:
 *
 *  - Handles are opaque and reference-counted. *_create, *_copy and every other function with an `out`
 *    handle give one reference to the caller. *_retain adds a reference. *_release drops one and cannot
 *    fail; with NULL it does nothing. Handles may be used and released from any thread. An array handle
 *    is immutable, so several threads may use the same one.
 *  - A function that can fail returns a tenon_status, TENON_OK (0) on success. Its last parameter is an
 *    optional error struct of the caller. On failure it receives the code and the message, and the outputs
 *    do not change. On success the error struct does not change.
 *  - Structs that callers fill begin with struct_size = sizeof(the struct), so that later versions can add
 *    members. Unknown flag bits are an error.
 *  - Shapes and strides count elements. Names that end in nbytes count bytes. Times are nanoseconds.
 *  - Strings are UTF-8 and end with NUL. No C++ exception crosses this boundary in either direction, so
 *    callbacks must not throw.
 *  - "Fails with VALUE" means that the function returns TENON_ERR_VALUE.
 *  - A process uses one copy of the library, the one that was loaded first. In another copy, every function
 *    with an error struct fails with SYSTEM and names the files of both.
 *  - \since gives the C ABI version (tenon/version.h) in which a section appeared.
 */
#ifndef TENON_TENON_H_
#define TENON_TENON_H_

#include "tenon/core.h"
#include "tenon/device.h"
#include "tenon/feed.h"
#include "tenon/pool.h"
#include "tenon/share.h"
#include "tenon/trace.h"

#endif /* TENON_TENON_H_ */
