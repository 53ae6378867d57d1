// SPDX-License-Identifier: Apache-2.0
//
// The section "plug-ins" of feed.h.
#include "data/plugin.h"

#include "capi/boundary.h"

using namespace tenon::impl;        // NOLINT(google-build-using-namespace)
using namespace tenon::impl::capi;  // NOLINT(google-build-using-namespace)

extern "C" {

tenon_status tenon_plugin_open(const char* path, const tenon_plugin_options* options, tenon_schema* schema,
                               tenon_schema** described, tenon_generator* out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(path, "path");
    not_null(out, "out");
    if (options != nullptr) {
      check_struct_size(options->struct_size, sizeof(tenon_plugin_options), "tenon_plugin_options");
    }
    Ref<Schema> wanted;
    if (schema != nullptr) wanted = Ref<Schema>::share(reinterpret_cast<Schema*>(schema));
    OpenedPlugin opened = open_plugin(PluginTable::load(path), options != nullptr ? options->config : nullptr,
                                      options != nullptr ? options->seed : 0, std::move(wanted));
    *out = opened.generator;
    if (described != nullptr) *described = reinterpret_cast<tenon_schema*>(opened.schema.detach());
  });
}

tenon_status tenon_plugin_look(const char* path, tenon_plugin_info* out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(path, "path");
    check_struct_size(not_null(out, "out")->struct_size, sizeof(tenon_plugin_info), "tenon_plugin_info");
    const PluginTable table = PluginTable::load(path);
    out->flags = table.flags();
    out->name = table->name;
    out->describes = table->describe != nullptr ? 1 : 0;
  });
}

}  // extern "C"
