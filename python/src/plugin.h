// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "python.h"
#include "tenon/feed.hpp"

namespace tenon::python {

// The library of a plug-in with its configuration. What it described when it was loaded is known; states that
// fill are opened by feeds.
struct NativePlugin {
  std::string path;
  std::string config;
  tenon_plugin_info info;
  std::optional<Schema> schema;  // nothing: the plug-in does not describe its fields
};

// Runs the plug-in's own code without the interpreter's lock.
Generator open_plugin(const NativePlugin& plugin, const Schema& schema, uint64_t seed);

void add_plugin(nb::module_& module);

}  // namespace tenon::python
