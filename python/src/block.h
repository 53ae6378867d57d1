// SPDX-License-Identifier: Apache-2.0
//
// What `with a.read() as v:` and `with a.write() as v:` enter: a hand-written type, because a block around
// one element is to be as short as what multiprocessing's locks take. For asyncio's tasks, and to call a
// function that repairs, tenon/_sync/lease.py takes the lease.
#pragma once

#include "python.h"

namespace tenon::python {

// The view of a block that is being entered, under a lease that was taken for it; keeper keeps the lease.
nb::object open_block(nb::handle block, tenon_lease& lease, nb::object keeper);

void add_block(nb::module_& module);

}  // namespace tenon::python
