// SPDX-License-Identifier: Apache-2.0
//
// The native part of tenon.Channel.
#include <nanobind/stl/string.h>

#include <string>
#include <utility>
#include <vector>

#include "errors.h"
#include "fields.h"
#include "ndarray.h"
#include "ndarray_parts.h"
#include "numpy_view.h"
#include "op.h"
#include "owners.h"
#include "sites.h"
#include "tenon/channel.hpp"
#include "values.h"

namespace tenon::python {
namespace {

// An item, until it is sent or released.
class NativeItem {
 public:
  // site: of the user's call
  NativeItem(tenon_item* item, const char* site) noexcept
      : item_(item), site_(site), sequence_(tenon_item_sequence(item)) {}
  NativeItem(const NativeItem&) = delete;
  NativeItem& operator=(const NativeItem&) = delete;
  ~NativeItem() { release(); }

  Array array(int32_t field) const {
    if (item_ == nullptr) throw Error(TENON_ERR_VALUE, "the item was sent or released before");
    tenon_array* array = nullptr;
    call(tenon_item_array, item_, field, &array);
    return Array::steal(array);
  }
  // The array of a field of a received item, the same each time.
  nb::object kept_array(int32_t field) {
    for (const auto& [number, object] : arrays_) {
      if (number == field) return object;
    }
    return arrays_.emplace_back(field, owned(wrap(array(field)))).second;
  }
  // The NumPy array of a field of a loan, the same each time. Throws KeyError after the end.
  nb::object view(int32_t field) {
    for (const auto& [number, views] : views_) {
      if (number == field) return views.view;
    }
    if (has_ended_) throw nb::key_error("the item was sent or dropped");
    prepare_numpy_views();
    return views_.emplace_back(field, rooted_numpy_view(array(field), false, site_)).second.view;
  }
  // The numbers of the fields whose view() was taken.
  nb::list viewed() const {
    nb::list numbers;
    for (const auto& viewed : views_) numbers.append(viewed.first);
    return numbers;
  }
  bool has_ended() const noexcept { return has_ended_; }
  // The end of a loan. Gives the views away: a list for each, as end_views() of _sync/endings.py takes it.
  nb::list end() {
    has_ended_ = true;
    nb::list result;
    for (auto& [number, views] : std::exchange(views_, {})) {
      nb::list pair;
      pair.append(std::move(views.view));
      pair.append(std::move(views.root));
      result.append(std::move(pair));
    }
    return result;
  }
  // Ends the views and sends the item, if nothing refers to any view but a variable of the frame. Else
  // returns false and has done nothing.
  bool send_if_lone(nb::handle frame) {
    if (has_ended_) return false;
    for (const auto& [number, views] : views_) {
      if (!is_lone_view(views.view.ptr(), views.root.ptr(), frame)) return false;
    }
    has_ended_ = true;
    if (!views_.empty()) {
      const owners::Collector collector;
      const char* const site = site_at(frame);
      for (auto& [number, views] : views_) end_lone_view(std::move(views), site);
      views_.clear();
    }
    send();
    return true;
  }
  uint64_t sequence() const noexcept { return sequence_; }
  void send() {
    if (item_ == nullptr) throw Error(TENON_ERR_VALUE, "the item was sent or released before");
    try {
      call(tenon_item_send, item_);
    } catch (const Error& error) {
      if (error.code() == TENON_ERR_LEASE_ESCAPED) release();  // it was dropped
      throw;
    }
    release();
  }
  void release() noexcept {
    const owners::Collector collector;
    // Empty before they go: a callback of a weak reference to one of them may ask for a field.
    std::exchange(arrays_, {}).clear();
    tenon_item_release(std::exchange(item_, nullptr));
  }

 private:
  tenon_item* item_;
  const char* site_;
  uint64_t sequence_;
  bool has_ended_ = false;
  std::vector<std::pair<int32_t, RootedView>> views_;   // of a loan
  std::vector<std::pair<int32_t, nb::object>> arrays_;  // of a received item
};

Channel create(nb::object fields, int32_t slots, int32_t mode, int32_t when_full, const std::string& name,
               bool huge_pages, bool populate, int numa_node) {
  const std::vector<Field> described = fields_in(fields);
  const SharedOptions options{name, huge_pages, populate, numa_node};
  const nb::gil_scoped_release release;
  return Channel::create(described, slots, static_cast<ChannelMode>(mode), static_cast<WhenFull>(when_full),
                         options);
}

// An object of a class of tenon._ipc.channel, with an item. It calls no __init__, which would take a tenth of
// the time of an item from one process to another.
nb::object object_of(nb::handle type, tenon_item* item, const char* site) {
  static Name native("_native");
  const nb::object held = nb::cast(new NativeItem(item, site), nb::rv_policy::take_ownership);
  auto* const python_type = reinterpret_cast<PyTypeObject*>(type.ptr());
  nb::object object = owned(PyType_GenericAlloc(python_type, 0));
  check_python(PyObject_GenericSetAttr(object.ptr(), native.get(), held.ptr()));
  return object;
}

// The object for the item that tenon_channel_loan or tenon_channel_receive returns. After a timeout the
// result is null, and the Python error is set: nothing is thrown, because programs poll.
nb::object item_from(decltype(&tenon_channel_receive) get, const Channel& channel, Seconds timeout,
                     nb::handle type) {
  const int64_t timeout_ns = timeout.nanoseconds();
  owners::drain();
  tenon_item* item = nullptr;
  tenon_error error;  // as in call(): only what is read below is set
  error.struct_size = sizeof error;
  error.op_code = 0;
  error.message[0] = '\0';
  const char* const site = current_site();
  const tenon_status status = get(channel.get(), timeout_ns, site, &item, &error);
  if (status == TENON_OK) return object_of(type, item, site);
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
  nb::class_<NativeItem>(module, "NativeItem", "The native part of an item of a tenon.Channel.")
      .def("array", &NativeItem::array, nb::arg("field"))
      .def("kept_array", &NativeItem::kept_array, nb::arg("field"),
           nb::sig("def kept_array(self, field: int) -> NDArray"))
      .def("view", &NativeItem::view, nb::arg("field"), nb::sig("def view(self, field: int) -> Any"))
      .def("viewed", &NativeItem::viewed, nb::sig("def viewed(self) -> list[int]"))
      .def("has_ended", &NativeItem::has_ended)
      .def("end", &NativeItem::end, nb::sig("def end(self) -> list[list[Any]]"))
      .def("send_if_lone", &NativeItem::send_if_lone, nb::arg("frame"),
           nb::sig("def send_if_lone(self, frame: object) -> _bool"))
      .def("sequence", &NativeItem::sequence)
      .def("send", &NativeItem::send)
      .def("release", &NativeItem::release);
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
           "None: the channel has ended. The object has the item as its attribute _native.")
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
