// SPDX-License-Identifier: Apache-2.0
//
// The trace of the process: opens the file, starts and stops the recording, and writes the file.
#pragma once

#include <cstdint>

namespace tenon::impl::trace {

struct Counts {
  uint64_t events = 0;
  uint64_t lost = 0;
};

// Threads: any. A fork waits until neither of the two runs.
// Fails as tenon_trace_begin.
void begin(const char* path, uint64_t capacity);
// Fails as tenon_trace_end. No trace runs afterwards.
Counts end();

}  // namespace tenon::impl::trace
