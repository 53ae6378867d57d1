// SPDX-License-Identifier: Apache-2.0
//
// Makes a generator out of a plug-in: a shared library with the table of tenon/plugin.h. Each worker opens a
// state of its own at its first fill.
#pragma once

#include <string>

#include "base/ref.h"
#include "data/schema.h"
#include "tenon/plugin.h"
#include "tenon/tenon.h"

namespace tenon::impl {

// The table of a library, checked. The library stays loaded for ever.
class PluginTable {
 public:
  // Fails with kNotFound (library, symbol), kValue (another ABI, a table that is damaged).
  static PluginTable load(const char* path);

  const tenon_plugin& operator*() const noexcept { return *table_; }
  const tenon_plugin* operator->() const noexcept { return table_; }
  bool is_threadsafe() const noexcept { return (table_->flags & TENON_PLUGIN_THREADSAFE) != 0; }
  // The plug-in's, or the file's.
  const std::string& name() const noexcept { return name_; }

 private:
  PluginTable(const tenon_plugin* table, std::string name) : table_(table), name_(std::move(name)) {}

  const tenon_plugin* table_;
  std::string name_;
};

struct OpenedPlugin {
  Ref<Schema> schema;
  tenon_generator generator;
};

// schema: may be null where the plug-in describes itself; where it does, the two must agree. config: JSON, or
// null. Calls open, describe and close in this thread. Failures: as tenon_plugin_open in feed.h.
OpenedPlugin open_plugin(const PluginTable& table, const char* config, uint64_t seed, Ref<Schema> schema);

}  // namespace tenon::impl
