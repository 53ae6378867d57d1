// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "python.h"

namespace tenon::python {

// The memory of an object with __dlpack__ or MXNet's verbs, or of a capsule. may_copy: false asks the
// producer not to copy; to_host: also from memory that only a device can read, which its producer then copies
// to the host. is_writable: so is a legacy tensor, which cannot say whether it is, unless it is a capsule of
// ours; of MXNet's verbs, the one for writing is called.
Array import_dlpack(nb::handle object, bool may_copy = true, bool to_host = false, bool is_writable = false);

// MXNet's arrays have no __dlpack__, but two methods that return legacy capsules: to_dlpack_for_read() and
// to_dlpack_for_write(). Each waits for MXNet's engine, so it is called before the caller gets access to any
// array. True for objects of any class in Python that has both and no __dlpack__, but for our own arrays.
bool has_verbs(nb::handle object);
// What an object with these methods lends for an access, read-only for Access::kRead; other objects as they
// are.
nb::object without_verbs(nb::handle object, Access access);
// Throws TypeError for an object with these methods, as an argument of an op, which runs later.
void refuse_verbs(nb::handle object);

// What is written to, or read, of an object with __dlpack__ or with MXNet's verbs; empty if it has neither.
Array share_if_dlpack(nb::handle object, Access access);

void add_from_dlpack(nb::module_& module);

}  // namespace tenon::python
