// SPDX-License-Identifier: Apache-2.0
//
// A recording as a JSON file in Chrome's trace event format, which Perfetto and chrome://tracing open:
// "Trace Event Format", the form with an object. Times are microseconds from the trace's begin.
//
// The format's "processes" are here the threads of this process, its leases and each feed; its "threads" are
// lanes in them. Spans that overlap but do not nest get different lanes, because viewers would nest them.
#pragma once

#include <functional>
#include <string_view>

#include "base/trace.h"

namespace tenon::impl::trace {

// put(text) writes a part of the file. If it returns false, the export stops. Fails with std::bad_alloc.
void write_chrome(const Recording& recording, const std::function<bool(std::string_view)>& put);

}  // namespace tenon::impl::trace
