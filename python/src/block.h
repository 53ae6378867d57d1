// SPDX-License-Identifier: Apache-2.0
//
// What `with a.read() as v:` and `with a.write() as v:` enter: a hand-written type, because a block around
// one element is to be as short as what multiprocessing's locks take. It does what nearly every block does.
// What takes more than that (asyncio's tasks, a function that repairs, views that survive) is left to
// tenon/_sync/lease.py.
#pragma once

#include "python.h"

namespace tenon::python {

void add_block(nb::module_& module);

}  // namespace tenon::python
