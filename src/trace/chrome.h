// SPDX-License-Identifier: Apache-2.0
//
// Writes a recording as a JSON object in Chrome's "Trace Event Format", which Perfetto and chrome://tracing
// open. Times are microseconds since the begin of the trace.
//
// The "processes" of the format are the threads of this process, its leases, and each feed; its "threads" are
// lanes in them. Spans that overlap but do not nest get different lanes, because viewers would nest them.
#pragma once

#include <functional>
#include <string_view>

#include "base/trace.h"

namespace tenon::impl::trace {

// put(text) writes a part of the file. If it returns false, the export stops. Fails with std::bad_alloc.
void write_chrome(const Recording& recording, const std::function<bool(std::string_view)>& put);

}  // namespace tenon::impl::trace
