// SPDX-License-Identifier: Apache-2.0
//
// The native part of tenon.Arena: layouts as tuples (name, [(field, dtype, shape)]).
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>
#include <vector>

#include "fields.h"
#include "ndarray.h"
#include "ndarray_parts.h"
#include "tenon/arena.hpp"

namespace tenon::python {
namespace {

std::vector<ArenaLayout> layouts_in(nb::handle described) {
  std::vector<ArenaLayout> layouts;
  for (nb::handle item : described) {
    const nb::tuple parts = nb::cast<nb::tuple>(nb::borrow(item));
    layouts.push_back({nb::cast<std::string>(parts[0]), fields_in(parts[1])});
  }
  return layouts;
}

Arena create(nb::object layouts, std::optional<std::string> shared, bool huge_pages, bool populate,
             int numa_node) {
  const std::vector<ArenaLayout> described = layouts_in(layouts);
  const nb::gil_scoped_release release;
  if (!shared) return Arena::create(described);
  return Arena::create_shared(described, {*shared, huge_pages, populate, numa_node});
}

nb::list layouts_of(const Arena& arena) {
  nb::list layouts;
  for (int32_t i = 0; i < tenon_arena_layout_count(arena.get()); ++i) {
    const tenon_layout layout = tenon_arena_layout(arena.get(), i);
    nb::list fields;
    for (int32_t k = 0; k < layout.n; ++k) {
      fields.append(describe_field(tenon_arena_field(arena.get(), i, k)));
    }
    layouts.append(nb::make_tuple(layout.name, fields));
  }
  return layouts;
}

}  // namespace

void add_arena(nb::module_& module) {
  nb::class_<Arena>(module, "NativeArena", "The native part of tenon.Arena.")
      .def_static(
          "create", create, nb::arg("layouts"), nb::arg("shared").none(), nb::arg("huge_pages"),
          nb::arg("populate"), nb::arg("numa_node"),
          nb::sig("def create(layouts: Sequence[Any], shared: str | None, huge_pages: _bool, populate: "
                  "_bool, numa_node: int) -> NativeArena"))
      .def_static(
          "over",
          [](nb::object layouts, const Array& buffer) { return Arena::over(layouts_in(layouts), buffer); },
          nb::arg("layouts"), nb::arg("buffer"),
          nb::sig("def over(layouts: Sequence[Any], buffer: NDArray) -> NativeArena"))
      .def_static("open", &Arena::open, nb::arg("memory"))
      .def("layouts", layouts_of, nb::sig("def layouts(self) -> list[tuple[str, list[Any]]]"))
      .def("data", [](const Arena& self) { return Array::steal(tenon_arena_data(self.get())); })
      .def(
          "memory",
          [](const Arena& self) {
            Array memory = self.memory();
            return memory ? nb::cast(std::move(memory)) : nb::none();
          },
          nb::sig("def memory(self) -> NDArray | None"))
      .def("nbytes", &Arena::nbytes)
      .def("total_nbytes", &Arena::total_nbytes)
      .def("active", &Arena::active)
      .def("generation",
           [](const Arena& self) {
             uint64_t generation = 0;
             (void)tenon_arena_active(self.get(), &generation);
             return generation;
           })
      .def(
          "array",
          [](const Arena& self, int32_t layout, int32_t field) {
            return Array::steal(detail::call_for<tenon_array*>(tenon_arena_array, self.get(), layout, field));
          },
          nb::arg("layout"), nb::arg("field"));
}

}  // namespace tenon::python
