// SPDX-License-Identifier: Apache-2.0
//
// Where in the user's program something happens: "train.py:12", for messages that name a view or an op.
#pragma once

#include <string>

#include "python.h"

namespace tenon::python {

// Which instruction of which frame a thread executes. The frame is only compared.
struct Caller {
  const void* frame = nullptr;  // null: no Python code runs
  int instruction = 0;

  bool operator==(const Caller&) const = default;
};

// The innermost line outside of site-packages and of Python's own library. A text that lives for ever;
// nullptr where no Python code runs. Requires the GIL; keeps an exception in flight.
const char* current_site() noexcept;
// The same, from this frame outwards.
const char* site_at(nb::handle frame) noexcept;
// current_site(), and the position of the innermost frame, in any file.
const char* site_and_caller(Caller* caller) noexcept;

// The innermost function is one of PyTorch's. Requires the GIL; keeps an exception in flight.
bool is_called_by_torch() noexcept;

// The line where a function of the user's begins; current_site() for other objects. As above.
const char* site_of_function(nb::handle function) noexcept;

// Files below it are a library's: that of the package itself. Requires the GIL.
void set_package_folder(const std::string& folder);

}  // namespace tenon::python
