// SPDX-License-Identifier: Apache-2.0
//
// Makes a generator out of a plug-in: a shared library with the table of tenon/plugin.h. Each worker opens a
// state of its own at its first fill.
#pragma once

#include <string>

#include "base/ref.h"
#include "ipc/schema.h"
#include "tenon/plugin.h"
#include "tenon/tenon.h"

namespace tenon::impl {

// The checked table of a library. The library is never unloaded.
class PluginTable {
 public:
  // Fails with kNotFound (library, symbol), kValue (another ABI, a table that is damaged).
  static PluginTable load(const char* path);

  const tenon_plugin& operator*() const noexcept { return table_; }
  const tenon_plugin* operator->() const noexcept { return &table_; }
  bool has_state() const noexcept { return table_.save != nullptr; }
  // Of its generator.
  uint32_t flags() const noexcept {
    return ((table_.flags & TENON_PLUGIN_THREADSAFE) != 0 ? uint32_t{TENON_THREADSAFE} : 0) |
           ((table_.flags & TENON_PLUGIN_IS_INDEXED) != 0 ? uint32_t{TENON_IS_INDEXED} : 0) |
           (has_state() ? uint32_t{TENON_HAS_STATE} : 0);
  }
  // The name of the plug-in, or of its file.
  const std::string& name() const noexcept { return name_; }

 private:
  PluginTable(const tenon_plugin& table, std::string name) : table_(table), name_(std::move(name)) {}

  tenon_plugin table_;  // with NULL for what the version of the library does not have
  std::string name_;
};

struct OpenedPlugin {
  Ref<Schema> schema;
  tenon_generator generator;
};

// schema: may be null if the plug-in describes its fields; else both must be equal. config: a JSON object, or
// null. Calls open, describe and close in this thread. Failures: as tenon_plugin_open in feed.h.
OpenedPlugin open_plugin(const PluginTable& table, const char* config, uint64_t seed, Ref<Schema> schema);

}  // namespace tenon::impl
