// SPDX-License-Identifier: Apache-2.0
//
// The native part of tenon.Channel.
#include <nanobind/stl/string.h>

#include <string>
#include <vector>

#include "channel_item.h"
#include "errors.h"
#include "fields.h"
#include "ndarray.h"
#include "ndarray_parts.h"
#include "op.h"
#include "owners.h"
#include "sites.h"
#include "tenon/channel.hpp"
#include "values.h"

namespace tenon::python {
namespace {

Channel create(nb::object fields, int32_t slots, int32_t mode, int32_t when_full, const std::string& name,
               bool huge_pages, bool populate, int numa_node) {
  const std::vector<Field> described = fields_in(fields);
  const SharedOptions options{name, huge_pages, populate, numa_node};
  const nb::gil_scoped_release release;
  return Channel::create(described, slots, static_cast<ChannelMode>(mode), static_cast<WhenFull>(when_full),
                         options);
}

// The object for the item that tenon_channel_loan or tenon_channel_receive returns. After a timeout the
// result is null, and the Python error is set: nothing is thrown, because programs poll.
nb::object item_from(decltype(&tenon_channel_receive) get, const Channel& channel, Seconds timeout,
                     nb::handle type) {
  const int64_t timeout_ns = timeout.nanoseconds();
  check_item_class(type);
  owners::drain();
  tenon_item* item = nullptr;
  tenon_error error;  // as in call(): only what is read below is set
  error.struct_size = sizeof error;
  error.op_code = 0;
  error.message[0] = '\0';
  const char* const site = current_site();
  const tenon_status status = get(channel.get(), timeout_ns, site, &item, &error);
  if (status == TENON_OK) return item_object(type, item, site);
  if (status != TENON_ERR_TIMEOUT) detail::throw_reported(status, error);
  set_error(Error(status, error.message));
  return {};
}

nb::object loan(const Channel& channel, Seconds timeout, nb::type_object type) {
  return item_from(tenon_channel_loan, channel, timeout, type);
}

// None: the channel has ended.
nb::object receive(const Channel& channel, Seconds timeout, nb::type_object type) {
  try {
    return item_from(tenon_channel_receive, channel, timeout, type);
  } catch (const Error& error) {
    if (error.code() == TENON_ERR_CLOSED) return nb::none();
    throw;
  }
}

nb::dict statistics(const Channel& channel) {
  const tenon_channel_statistics now = channel.statistics();
  nb::dict result;
  result["sent"] = now.sent;
  result["received"] = now.received;
  result["dropped"] = now.dropped;
  result["deaths"] = now.deaths;
  result["ready"] = now.ready;
  result["in_use"] = now.in_use;
  result["producers"] = now.producers;
  result["consumers"] = now.consumers;
  return result;
}

}  // namespace

void add_channel(nb::module_& module) {
  add_items(module);
  nb::class_<Channel>(module, "NativeChannel", "The native part of tenon.Channel.")
      .def_static(
          "create", create, nb::arg("fields"), nb::arg("slots"), nb::arg("mode"), nb::arg("when_full"),
          nb::arg("name"), nb::arg("huge_pages"), nb::arg("populate"), nb::arg("numa_node"),
          nb::sig("def create(fields: Sequence[Any], slots: int, mode: int, when_full: int, name: str, "
                  "huge_pages: _bool, populate: _bool, numa_node: int) -> NativeChannel"))
      .def_static("open", &Channel::open, nb::arg("memory"))
      .def("memory", &Channel::memory)
      .def(
          "fields",
          [](const Channel& self) {
            nb::list fields;
            for (int32_t i = 0; i < tenon_channel_field_count(self.get()); ++i) {
              fields.append(describe_field(tenon_channel_field(self.get(), i)));
            }
            return fields;
          },
          nb::sig("def fields(self) -> list[tuple[str, _dtype, tuple[int, ...]]]"))
      .def(
          "options",
          [](const Channel& self) {
            const tenon_channel_options options = tenon_channel_describe(self.get());
            return nb::make_tuple(options.slots, options.mode, options.when_full);
          },
          nb::sig("def options(self) -> tuple[int, int, int]"))
      .def("loan", loan, nb::arg("timeout").none(), nb::arg("type"),
           nb::sig("def loan(self, timeout: float | None, type: type[Any]) -> Any"))
      .def("receive", receive, nb::arg("timeout").none(), nb::arg("type"),
           nb::sig("def receive(self, timeout: float | None, type: type[Any]) -> Any"),
           "None: the channel has ended.")
      .def(
          "wait",
          [](const Channel& self, Seconds timeout) {
            call(tenon_channel_wait, self.get(), timeout.nanoseconds());
          },
          nb::arg("timeout").none())
      .def(
          "fileno",
          [](const Channel& self, bool write) {
            return self.descriptor(write ? Access::kWrite : Access::kRead);
          },
          nb::arg("write"))
      .def("close", &Channel::close)
      .def("statistics", statistics, nb::sig("def statistics(self) -> dict[str, int]"));
}

}  // namespace tenon::python
