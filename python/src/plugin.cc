// SPDX-License-Identifier: Apache-2.0
//
// Plug-ins; the class that people use is in tenon/_data/plugin.py.
#include "plugin.h"

#include <nanobind/stl/string.h>

#include <cstring>
#include <utility>

#include "fields.h"

namespace tenon::python {
namespace {

NativePlugin load(std::string path, std::string config) {
  const nb::gil_scoped_release released;
  NativePlugin plugin{std::move(path), std::move(config), {}, {}};
  plugin.info.struct_size = sizeof plugin.info;
  call(tenon_plugin_look, plugin.path.c_str(), &plugin.info);
  if (plugin.info.describes != 0) {
    plugin.schema = Plugin::open(plugin.path.c_str(), plugin.config.c_str()).schema;
  }
  return plugin;
}

// What the table says, whatever its bytes; None where it says nothing.
nb::object name_of(const NativePlugin& self) {
  const char* const name = self.info.name;
  if (name == nullptr) return nb::none();
  return owned(PyUnicode_DecodeUTF8(name, static_cast<Py_ssize_t>(std::strlen(name)), "replace"));
}

// As tenon.schema takes them, or None.
nb::object fields_of(const NativePlugin& self) {
  if (!self.schema) return nb::none();
  return fields_dict(*self.schema);
}

}  // namespace

Generator open_plugin(const NativePlugin& plugin, const Schema& schema, uint64_t seed) {
  const nb::gil_scoped_release released;
  return Plugin::open(plugin.path.c_str(), plugin.config.c_str(), seed, &schema).generator;
}

void add_plugin(nb::module_& module) {
  nb::class_<NativePlugin>(module, "NativePlugin", "The native part of tenon.Plugin.")
      .def(
          "__init__",
          [](NativePlugin* self, std::string path, std::string config) {
            new (self) NativePlugin(load(std::move(path), std::move(config)));
          },
          nb::arg("path"), nb::arg("config"))
      .def_prop_ro("name", name_of, nb::sig("def name(self) -> str | None"))
      .def_prop_ro("threadsafe", [](const NativePlugin& p) { return (p.info.flags & TENON_THREADSAFE) != 0; })
      .def_prop_ro("fields", fields_of,
                   nb::sig("def fields(self) -> dict[str, tuple[dtype, tuple[int, ...]]] | None"));
}

}  // namespace tenon::python
