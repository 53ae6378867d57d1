// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "python.h"

namespace tenon::python {

void add_feed(nb::module_& module);

}  // namespace tenon::python
