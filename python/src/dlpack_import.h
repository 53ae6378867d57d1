// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "python.h"

namespace tenon::python {

bool has_dlpack(nb::handle object);

// The memory of an object with __dlpack__, or of a capsule. may_copy: false asks the producer not to copy;
// to_host: also from memory that only a device can read, which its producer then copies to the host.
// is_writable: so is a legacy tensor, which cannot say whether it is, unless it is a capsule of ours.
Array import_dlpack(nb::handle object, bool may_copy = true, bool to_host = false, bool is_writable = false);

void add_from_dlpack(nb::module_& module);

}  // namespace tenon::python
