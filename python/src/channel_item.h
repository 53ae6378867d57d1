// SPDX-License-Identifier: Apache-2.0
//
// The Python type NativeItem: the base class of Loan and Received of tenon/_ipc/channel.py. Written by hand,
// because making and freeing an object, and getting a field, take most of the time of an item.
#pragma once

#include <cstdint>

#include "python.h"
#include "sites.h"
#include "tenon/channel.hpp"

namespace tenon::python {

// Calls that take so much memory release the GIL.
constexpr uint64_t kLongNbytes = uint64_t{1} << 20;

// Throws TypeError if type is not derived from NativeItem.
void check_item_class(nb::handle type);

// A new object of such a class, which owns the item. It calls neither __new__ nor __init__. site: of the
// user's call. caller: of an item that is put back if an exception leaves the same instruction, and no code
// of the user has seen the object; as of a signal that comes with the item. Its frame is null: not so.
// caches: the bytes of inline caches behind this instruction.
nb::object item_object(nb::handle type, tenon_item* item, const char* site, const Caller& caller, int caches);

void add_items(nb::module_& module);

}  // namespace tenon::python
