// SPDX-License-Identifier: Apache-2.0
//
// What `with a.read() as v:` and `with a.write() as v:` enter: a hand-written type, because a block that
// accesses one element should be as fast as a lock of multiprocessing. For tasks of asyncio, and for a
// function that repairs, tenon/_sync/lease.py takes the lease.
#pragma once

#include "python.h"

namespace tenon::python {

// Opens the view of a block that is being entered, under a lease that was taken for it. keeper owns the
// lease.
nb::object open_block(nb::handle block, tenon_lease& lease, nb::object keeper);

void add_block(nb::module_& module);

}  // namespace tenon::python
