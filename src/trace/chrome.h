// SPDX-License-Identifier: Apache-2.0
//
// A recording as a JSON file in Chrome's trace event format, which Perfetto and chrome://tracing open:
// "Trace Event Format", the form with an object. Times are microseconds from the trace's begin.
//
// Its "processes" are this process' threads, its leases and each feed; its "threads" the lanes in them. What
// overlaps without one enclosing the other is put in lanes side by side, because readers take it for nested.
#pragma once

#include <functional>
#include <string_view>

#include "base/trace.h"

namespace tenon::impl::trace {

// put(text) writes a part of the file, and says whether to go on. Fails with std::bad_alloc.
void write_chrome(const Recording& recording, const std::function<bool(std::string_view)>& put);

}  // namespace tenon::impl::trace
