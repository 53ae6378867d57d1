// SPDX-License-Identifier: Apache-2.0
//
// The native part of tenon.Channel.
#include <nanobind/stl/string.h>

#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
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
#include "waiting.h"

namespace tenon::python {
namespace {

Channel create(nb::object fields, int32_t slots, int32_t mode, int32_t when_full, bool opens_existing,
               const std::string& name, bool huge_pages, bool populate, int numa_node) {
  const std::vector<Field> described = fields_in(fields);
  const SharedOptions options{name, huge_pages, populate, numa_node, {}, opens_existing};
  const nb::gil_scoped_release release;
  return Channel::create(described, slots, static_cast<ChannelMode>(mode), static_cast<WhenFull>(when_full),
                         options);
}

Channel create_bytes(uint64_t nbytes, uint64_t largest, int32_t slots, int32_t mode, int32_t when_full,
                     bool opens_existing, const std::string& name, bool huge_pages, bool populate,
                     int numa_node) {
  const SharedOptions options{name, huge_pages, populate, numa_node, {}, opens_existing};
  const nb::gil_scoped_release release;
  return Channel::create_bytes(nbytes, largest, slots, static_cast<ChannelMode>(mode),
                               static_cast<WhenFull>(when_full), options);
}

// What is called before this process uses a channel for the first time; null: it has.
constinit PyObject* before_use = nullptr;

void call_before_use(nb::object function) { nb::steal(std::exchange(before_use, function.release().ptr())); }

void note_use() {
  if (before_use == nullptr) [[likely]]
    return;
  const nb::object function = nb::steal(std::exchange(before_use, nullptr));
  function();
}

// A field that the user writes in part is not to have bytes of another process.
void fill_with_zeros(tenon_channel* channel, tenon_item* item) {
  for (int32_t i = 0; i < tenon_channel_field_count(channel); ++i) {
    const Array array = Array::steal(detail::call_for<tenon_array*>(tenon_item_array, item, i));
    std::memset(array.data(), 0, array.nbytes());
  }
}

// The base class of tenon.Channel, with the methods that take most of the time of an item. Written by hand: a
// program may poll, and the line of the user is that of the innermost frame.
struct ChannelCalls {
  PyObject_HEAD tenon_channel* channel;  // null: not open yet
  PyObject* loan_class;
  PyObject* received_class;
  bool is_checked;  // a loan begins with zeros
};

PyTypeObject* calls_type = nullptr;

ChannelCalls& calls_of(PyObject* object) noexcept { return *reinterpret_cast<ChannelCalls*>(object); }

int traverse_calls(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<PyObject*>(Py_TYPE(self)));
  Py_VISIT(calls_of(self).loan_class);
  Py_VISIT(calls_of(self).received_class);
  return 0;
}

int clear_calls(PyObject* self) {
  tenon_channel_release(std::exchange(calls_of(self).channel, nullptr));  // later calls fail
  Py_CLEAR(calls_of(self).loan_class);
  Py_CLEAR(calls_of(self).received_class);
  return 0;
}

void free_calls(PyObject* self) noexcept {
  PyObject_GC_UnTrack(self);
  PyTypeObject* const type = Py_TYPE(self);
  (void)clear_calls(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

// Of Channel.__init__.
void open_calls(nb::handle self, const Channel& channel, nb::type_object loan_class,
                nb::type_object received_class, bool is_checked) {
  if (PyObject_TypeCheck(self.ptr(), calls_type) == 0) raise(PyExc_TypeError, "%R is no Channel", self.ptr());
  check_item_class(loan_class);
  check_item_class(received_class);
  ChannelCalls& calls = calls_of(self.ptr());
  if (calls.channel != nullptr) raise(PyExc_RuntimeError, "the channel is open: make another one");
  tenon_channel_retain(channel.get());
  calls.channel = channel.get();
  calls.loan_class = loan_class.release().ptr();
  calls.received_class = received_class.release().ptr();
  calls.is_checked = is_checked;
}

// Programs poll, so nothing is thrown, and the text is kept.
void set_timeout_error(const char* message) {
  static std::string text;
  static PyObject* kept = nullptr;
  if (set_noted_interrupt()) return;
  if (kept == nullptr || text != message) {
    PyObject* const fresh = owned(PyUnicode_FromString(message)).release().ptr();
    text = message;
    const nb::object replaced = nb::steal(std::exchange(kept, fresh));
  }
  PyErr_SetObject(PyExc_TimeoutError, kept);
}

// A timeout of 0 of which the library does not count that it had no room.
constinit PyObject* will_retry = nullptr;

int64_t timeout_from(PyObject* timeout) {
  if (timeout == nullptr) return -1;
  return timeout == will_retry ? TENON_WILL_RETRY : Seconds{timeout}.nanoseconds();
}

// The object for the item that a call of the C library returns:
// get(channel, timeout_ns, site, &item, &error). timeout: null, or as Python passes it.
template <class Get>
PyObject* item_from(Get get, bool is_loan, PyObject* self, PyObject* timeout,
                    PyObject* ChannelCalls::* item_class, int caches) {
  const int64_t timeout_ns = timeout_from(timeout);
  const ChannelCalls& calls = calls_of(self);
  if (calls.channel == nullptr) raise(PyExc_ValueError, "the channel is not open");
  note_use();
  owners::drain();
  tenon_item* item = nullptr;
  tenon_error error;  // as in call(): only what is read below is set
  error.struct_size = sizeof error;
  error.op_code = 0;
  error.message[0] = '\0';
  Caller caller;
  const char* const site = site_and_caller(&caller);
  const tenon_status status = get(calls.channel, timeout_ns, site, &item, &error);
  if (status == TENON_OK) {
    nb::object object = item_object(calls.*item_class, item, site, is_loan ? Caller() : caller, caches);
    if (is_loan && calls.is_checked) fill_with_zeros(calls.channel, item);
    return object.release().ptr();
  }
  if (status == TENON_ERR_TIMEOUT) {
    set_timeout_error(error.message);
  } else if (status == TENON_ERR_CLOSED && !is_loan) {
    PyErr_SetString(PyExc_EOFError,
                    "the channel was closed, here or by its last producer, and no item is left");
  } else {
    detail::throw_reported(status, error);
  }
  return nullptr;
}

PyObject* loan(PyObject* self, PyObject* const* arguments, Py_ssize_t n, PyObject* keywords) {
  static constinit FastParameters<1> parameters(
      "loan", {"timeout"}, 1, 0,
      "; items of changing length go through a channel of objects, tn.Channel(nbytes=...)");
  const auto [timeout] = parameters.parse(arguments, n, keywords);
  return item_from(tenon_channel_loan, true, self, timeout, &ChannelCalls::loan_class, 0);
}

PyObject* recv(PyObject* self, PyObject* const* arguments, Py_ssize_t n, PyObject* keywords) {
  static constinit FastParameters<1> parameters("recv", {"timeout"}, 1, 0);
  const auto [timeout] = parameters.parse(arguments, n, keywords);
  static constexpr unsigned long k313 = 0x030D;  // its calls with keywords have no inline caches
  const int caches = keywords != nullptr && Py_Version >> 16 == k313 ? 0 : 6;
  return item_from(tenon_channel_receive, false, self, timeout, &ChannelCalls::received_class, caches);
}

// Of a channel of objects.
PyObject* loan_bytes(PyObject* self, PyObject* const* arguments, Py_ssize_t n, PyObject* keywords) {
  static constinit FastParameters<2> parameters("_loan_bytes", {"nbytes", "timeout"}, 2, 1);
  const auto [nbytes, timeout] = parameters.parse(arguments, n, keywords);
  const auto wanted = static_cast<uint64_t>(integer_from(nbytes, "nbytes", 0, INT64_MAX));
  const auto get = [wanted](tenon_channel* channel, int64_t timeout_ns, const char* site, tenon_item** out,
                            tenon_error* error) {
    std::optional<nb::gil_scoped_release> released;  // to take so many pages takes long
    if (wanted >= kLongNbytes) released.emplace();
    return tenon_channel_loan_bytes(channel, wanted, timeout_ns, site, out, error);
  };
  return item_from(get, true, self, timeout, &ChannelCalls::loan_class, 0);
}

constexpr char kLoanDoc[] = R"(loan($self, timeout=None)
--

Loans a free slot: ``with ch.loan() as item: item.x[...] = 1`` fills it in place, and sends it at
the end of the block. If an exception leaves the block, the slot is dropped.

The fields are NumPy arrays on the slot. They are empty after the block. Their initial elements are
undefined. A field that is not used is sent with zeros.

Raises
------
TimeoutError
    No slot has become free in ``timeout`` seconds.
LeaseConflict
    No slot is free, and the channel was made with ``when_full="raise"``.
ValueError
    The channel was closed in this process.
LeaseEscaped
    At the end of the block: a view of the item still exists, so it was dropped and not sent.
ValueError
    At the end of the block, with ``TENON_DEBUG=fields`` or ``TENON_DEBUG=1`` in the environment when
    the channel was opened: the array of a field was not used. The item was dropped and not sent.
)";

constexpr char kRecvDoc[] = R"(recv($self, timeout=None)
--

Receives the next item. Its slot becomes free when the last of its arrays and their views is gone.
If the handler of a signal raises an exception, as for Ctrl-C, no item is received.

Raises
------
TimeoutError
    No item arrived in ``timeout`` seconds.
OwnerDied
    A producer has died, and no item is left; or a process that had opened this channel and used only
    other ones, so it may have been about to send. It is raised once for each death in each consumer.
    The next `recv` receives from the other producers, or raises EOFError if the last one has died.
EOFError
    The last producer has closed the channel, and no item is left; or this process has closed it.
ValueError
    The timeout is negative.
)";

PyMethodDef calls_methods[] = {
    fast_method<loan>("loan", kLoanDoc),
    fast_method<recv>("recv", kRecvDoc),
    fast_method<loan_bytes>("_loan_bytes", "_loan_bytes($self, nbytes, timeout=None)\n--\n\n"),
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot calls_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(free_calls)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse_calls)},
    {Py_tp_clear, reinterpret_cast<void*>(clear_calls)},
    {Py_tp_methods, calls_methods},
    {Py_tp_doc, const_cast<char*>("The calls of a tenon.Channel that loan and receive items.")},
    {0, nullptr},
};
PyType_Spec calls_spec = {"tenon._core.ChannelCalls", sizeof(ChannelCalls), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, calls_slots};

void add_calls(nb::module_& module) {
  const nb::object type = owned(PyType_FromModuleAndSpec(module.ptr(), &calls_spec, nullptr));
  calls_type = reinterpret_cast<PyTypeObject*>(nb::object(type).release().ptr());
  module.attr("ChannelCalls") = type;
  nb::cpp_function_def(open_calls, nb::scope(type), nb::name("_open_calls"), nb::is_method(),
                       nb::arg("channel"), nb::arg("loan_class"), nb::arg("received_class"),
                       nb::arg("is_checked"),
                       nb::sig("def _open_calls(self, channel: NativeChannel, loan_class: type[Any], "
                               "received_class: type[Any], is_checked: _bool) -> None"));
  const nb::object zero = owned(PyFloat_FromDouble(0));
  module.attr("WILL_RETRY") = zero;
  will_retry = nb::object(zero).release().ptr();
  module.def("call_before_use_of_channels", call_before_use, nb::arg("function"),
             nb::sig("def call_before_use_of_channels(function: Callable[[], None]) -> None"),
             "Calls the function before this process uses a channel for the next time.");
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
  result["refused"] = now.refused;
  result["nbytes"] = now.nbytes;
  result["used"] = now.used_nbytes;
  result["committed"] = now.committed_nbytes;
  result["largest_sent"] = now.largest_sent_nbytes;
  return result;
}

}  // namespace

void add_channel(nb::module_& module) {
  add_items(module);
  nb::class_<Channel>(module, "NativeChannel", "The native part of tenon.Channel.")
      .def_static(
          "create", create, nb::arg("fields"), nb::arg("slots"), nb::arg("mode"), nb::arg("when_full"),
          nb::arg("opens_existing"), nb::arg("name"), nb::arg("huge_pages"), nb::arg("populate"),
          nb::arg("numa_node"),
          nb::sig("def create(fields: Sequence[Any], slots: int, mode: int, when_full: int, opens_existing: "
                  "_bool, name: str, huge_pages: _bool, populate: _bool, numa_node: int) -> NativeChannel"))
      .def_static(
          "create_bytes", create_bytes, nb::arg("nbytes"), nb::arg("largest"), nb::arg("slots"),
          nb::arg("mode"), nb::arg("when_full"), nb::arg("opens_existing"), nb::arg("name"),
          nb::arg("huge_pages"), nb::arg("populate"), nb::arg("numa_node"),
          nb::sig("def create_bytes(nbytes: int, largest: int, slots: int, mode: int, when_full: int, "
                  "opens_existing: _bool, name: str, huge_pages: _bool, populate: _bool, numa_node: int) -> "
                  "NativeChannel"))
      .def_static(
          "open",
          [](const Array& memory, bool awaits_producers, bool receives_latest) {
            return Channel::open_as(memory, (awaits_producers ? uint32_t{TENON_AWAIT_PRODUCERS} : 0U) |
                                                (receives_latest ? uint32_t{TENON_RECEIVE_LATEST} : 0U));
          },
          nb::arg("memory"), nb::arg("awaits_producers") = false, nb::arg("receives_latest") = false,
          nb::sig(
              "def open(memory: NDArray, awaits_producers: _bool = False, receives_latest: _bool = False) "
              "-> NativeChannel"))
      .def(
          "nbytes",
          [](const Channel& self) {
            uint64_t largest = 0;
            const uint64_t nbytes = tenon_channel_nbytes(self.get(), &largest);
            return nb::make_tuple(nbytes, largest);
          },
          nb::sig("def nbytes(self) -> tuple[int, int]"),
          "Of all items, and of the largest; (0, 0): they have fields.")
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
      .def(
          "wait",
          [](const Channel& self, Seconds timeout) {
            note_use();
            call(tenon_channel_wait, self.get(), timeout.nanoseconds());
          },
          nb::arg("timeout").none())
      .def(
          "fileno",
          [](const Channel& self, bool write) {
            return self.descriptor(write ? Access::kWrite : Access::kRead);
          },
          nb::arg("write"))
      .def("join", &Channel::join)
      .def("keep", [](const Channel& self) { tenon_channel_retain(self.get()); })
      .def("close", &Channel::close)
      .def("statistics", statistics, nb::sig("def statistics(self) -> dict[str, int]"));
  add_calls(module);
}

}  // namespace tenon::python
