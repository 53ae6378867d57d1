// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "python.h"

namespace tenon::python {

bool has_dlpack(nb::handle object);

// The memory of an object with __dlpack__, or of a capsule. may_copy: false asks the producer not to copy;
// device: also from memory that only a device can read, which its producer then copies to the host.
Array import_dlpack(nb::handle object, bool may_copy = true, bool to_host = false);

void add_from_dlpack(nb::module_& module);

}  // namespace tenon::python
