// SPDX-License-Identifier: Apache-2.0
//
// C++ wrapper of timelines. tenon/trace.h has the rules.
#ifndef TENON_TRACE_HPP_
#define TENON_TRACE_HPP_

#include <cstdint>
#include <string>

#include "tenon/tenon.hpp"

namespace tenon {
inline namespace api0 {

// A trace, from construction to stop() or destruction. The destructor does not report a failure to write the
// file.
class Trace {
 public:
  explicit Trace(const std::string& path, uint64_t capacity = TENON_TRACE_CAPACITY) {
    call(tenon_trace_begin, path.c_str(), capacity);
  }
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;
  ~Trace() {
    if (is_running_) (void)tenon_trace_end(nullptr, nullptr);
  }

  // May be called once. Fails as tenon_trace_end.
  tenon_trace_counts stop() {
    tenon_trace_counts counts{};
    is_running_ = false;
    call(tenon_trace_end, &counts);
    return counts;
  }

 private:
  bool is_running_ = true;
};

}  // namespace api0
}  // namespace tenon

#endif  // TENON_TRACE_HPP_
