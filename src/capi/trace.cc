// SPDX-License-Identifier: Apache-2.0
//
// trace.h of the C ABI.
#include "capi/boundary.h"
#include "trace/session.h"

using tenon::impl::capi::guarded;
using tenon::impl::capi::not_null;

extern "C" {

tenon_status tenon_trace_begin(const char* path, uint64_t capacity, tenon_error* error) {
  return guarded(error, [&] { tenon::impl::trace::begin(not_null(path, "path"), capacity); });
}

tenon_status tenon_trace_end(tenon_trace_counts* counts, tenon_error* error) {
  return guarded(error, [&] {
    const tenon::impl::trace::Counts ended = tenon::impl::trace::end();
    if (counts != nullptr) *counts = {ended.events, ended.lost};
  });
}

}  // extern "C"
