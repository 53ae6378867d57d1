// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tenon::python {

// The interpreter is being finalized: modules may be gone. Any thread.
bool is_python_ending() noexcept;

}  // namespace tenon::python
