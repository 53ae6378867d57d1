// SPDX-License-Identifier: Apache-2.0
//
// A plug-in from a C++ class with a state, for the tests of resuming.
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "tenon/plugin.hpp"

using tenon::plugin::field;
using tenon::plugin::Request;
using tenon::plugin::Schema;
using tenon::plugin::View;

namespace {

struct Walk {
  static constexpr bool is_threadsafe = true;
#ifdef INDEXED
  static constexpr bool is_indexed = true;
#endif

  static Schema schema() { return {field<int64_t>("x", {2}), field<uint64_t>("seen", {2})}; }

  void operator()(const Request& request, View<int64_t, 1> x, View<uint64_t, 1> seen) {
    ++at_;
    for (int64_t i = 0; i < request.rows; ++i) {
#ifdef INDEXED
      x(i) = static_cast<int64_t>(request.index);
#else
      x(i) = at_;
#endif
      seen(i) = request.epoch;
    }
  }

#ifndef INDEXED
  std::string save() const { return std::to_string(at_); }
  void restore(std::string_view bytes) { at_ = std::stoll(std::string(bytes)); }
#endif

 private:
  int64_t at_ = 0;
};

}  // namespace

TENON_PLUGIN(Walk)
