// SPDX-License-Identifier: Apache-2.0
//
// Where in the user's program something happens: "train.py:12", for messages that name a view or an op.
#pragma once

#include <string>

#include "python.h"

namespace tenon::python {

// The innermost line outside of site-packages and of Python's own library. A text that lives for ever;
// nullptr where no Python code runs. Requires the GIL; keeps an exception in flight.
const char* current_site() noexcept;

}  // namespace tenon::python
