// SPDX-License-Identifier: Apache-2.0
//
// Timelines, as tenon/_tools/trace.py offers them.

#include "tenon/trace.hpp"
#include "ndarray_parts.h"
#include "python.h"

namespace tenon::python {

void add_trace(nb::module_& module) {
  module.def(
      "begin_trace",
      [](nb::bytes path, uint64_t capacity) {
        const nb::gil_scoped_release release;
        call(tenon_trace_begin, path.c_str(), capacity);
      },
      nb::arg("path"), nb::arg("capacity"));
  module.def(
      "end_trace",
      [] {
        tenon_trace_counts counts{};
        {
          const nb::gil_scoped_release release;
          call(tenon_trace_end, &counts);
        }
        return nb::make_tuple(counts.events, counts.lost);
      },
      nb::sig("def end_trace() -> tuple[int, int]"));
}

}  // namespace tenon::python
