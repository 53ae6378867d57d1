// SPDX-License-Identifier: Apache-2.0
//
// The Python type NativeItem: the base class of Loan and Received of tenon/_ipc/channel.py. Written by hand,
// because making and freeing an object, and getting a field, take most of the time of an item.
#pragma once

#include "python.h"
#include "tenon/channel.hpp"

namespace tenon::python {

// Throws TypeError if type is not derived from NativeItem.
void check_item_class(nb::handle type);

// A new object of such a class, which owns the item. It calls neither __new__ nor __init__. site: of the
// user's call
nb::object item_object(nb::handle type, tenon_item* item, const char* site);

void add_items(nb::module_& module);

}  // namespace tenon::python
