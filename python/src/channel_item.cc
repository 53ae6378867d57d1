// SPDX-License-Identifier: Apache-2.0
#include "channel_item.h"

#include <nanobind/stl/string.h>

#include <exception>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "ndarray.h"
#include "numpy_view.h"
#include "owners.h"
#include "sites.h"

namespace tenon::python {
namespace {

// Gives a received item back. Leaves the error that is set; its own is not raised.
void put_back(tenon_item* item) noexcept {
  const KeepError keep_error;
  try {
    call(tenon_item_put_back, item);
  } catch (const std::exception&) {  // a process was stopped while it changed the channel
  }
}

// As traceback.clear_frames().
void clear_frames(nb::handle error) {
  nb::object trace = error.attr("__traceback__");
  while (!trace.is_none()) {
    const nb::object frame = trace.attr("tb_frame");
    const nb::object cleared = nb::steal(PyObject_CallMethod(frame.ptr(), "clear", nullptr));
    if (!cleared.is_valid()) PyErr_Clear();  // it is executed
    trace = trace.attr("tb_next");
  }
}

// An item, until it is sent or released.
class HeldItem {
 public:
  // site: of the user's call. caller: of a received item, until the user has done something with it
  // caches: CPython 3.12 and later handle signals after them
  HeldItem(tenon_item* item, const char* site, const Caller& caller, int caches) noexcept
      : item_(item), site_(site), caller_(caller), caches_(caches), sequence_(tenon_item_sequence(item)) {}
  HeldItem(const HeldItem&) = delete;
  HeldItem& operator=(const HeldItem&) = delete;
  ~HeldItem() { release(); }

  Array array(int32_t field) {
    caller_ = {};
    if (item_ == nullptr) throw Error(TENON_ERR_VALUE, "the item was sent or released before");
    return Array::steal(detail::call_for<tenon_array*>(tenon_item_array, item_, field));
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
    if (has_ended_) throw nb::key_error("the item was sent or dropped");
    for (const auto& [number, views] : views_) {
      if (number == field) return views.view;
    }
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
      // Not of this object any more: a callback of a weak reference to one of them may drop the item.
      for (auto& [number, views] : std::exchange(views_, {})) end_lone_view(std::move(views), site);
    }
    send();
    return true;
  }
  // The array over all bytes of an item of a channel of bytes, which the caller does not keep.
  Array bytes() {
    if (item_ == nullptr) throw Error(TENON_ERR_VALUE, "the item was sent or released before");
    return Array::steal(detail::call_for<tenon_array*>(tenon_item_array, item_, int32_t{0}));
  }
  void set_nbytes(uint64_t nbytes) {
    if (item_ == nullptr) throw Error(TENON_ERR_VALUE, "the item was sent or released before");
    if (nbytes < kLongNbytes) {
      call(tenon_item_set_nbytes, item_, nbytes);
      return;
    }
    tenon_item_retain(item_);  // another thread may drop it meanwhile
    const std::unique_ptr<tenon_item, decltype(&tenon_item_release)> kept(item_, tenon_item_release);
    const nb::gil_scoped_release released;
    call(tenon_item_set_nbytes, kept.get(), nbytes);
  }
  uint64_t sequence() noexcept {
    caller_ = {};
    return sequence_;
  }
  void send() {
    if (item_ == nullptr) throw Error(TENON_ERR_VALUE, "the item was sent or released before");
    try {
      call(tenon_item_send, item_);  // waits for no process: it keeps the GIL
    } catch (const Error& error) {
      if (error.code() == TENON_ERR_LEASE_ESCAPED || error.code() == TENON_ERR_OP)
        release();  // it was dropped
      throw;
    }
    release();
  }
  void drop() {
    caller_ = {};
    release();
  }
  // Has the item of another one from now on, and the other one has none. Of loans without views.
  void take_over(HeldItem* other) {
    release();
    item_ = std::exchange(other->item_, nullptr);
  }
  // Of a loan: also its arrays end.
  void drop_loan() {
    if (item_ == nullptr) return;
    tenon_error error{};
    error.struct_size = sizeof error;
    (void)tenon_item_drop(item_, &error);  // else another thread has sent it
    drop();
  }
  void put_back() noexcept { python::put_back(item_); }
  // Of a received item that could not be read because of the error: it is received again. If something else
  // than the frames of its traceback still refers to it, it is released. One call, so that no signal comes
  // between its steps.
  void give_back(nb::handle error) {
    clear_frames(error);
    if (item_ != nullptr) put_back();
    release();
  }
  // An exception leaves the instruction that has received the item, as of a signal that came with it: no code
  // of the user has seen the item.
  bool is_unseen() const noexcept {
    if (caller_.frame == nullptr) return false;
    Caller now;
    (void)site_and_caller(&now);
    const int passed = now.instruction - caller_.instruction;
    return now.frame == caller_.frame && (passed == 0 || passed == caches_);
  }

 private:
  void release() noexcept {
    const owners::Collector collector;
    // Empty before they go: a callback of a weak reference to one of them may ask for a field.
    std::exchange(arrays_, {}).clear();
    tenon_item_release(std::exchange(item_, nullptr));
  }

  tenon_item* item_;
  const char* site_;
  Caller caller_;
  int caches_;
  uint64_t sequence_;
  bool has_ended_ = false;
  std::vector<std::pair<int32_t, RootedView>> views_;   // of a loan
  std::vector<std::pair<int32_t, nb::object>> arrays_;  // of a received item
};

struct ItemObject {
  PyObject_HEAD HeldItem held;
};

PyTypeObject* item_type = nullptr;

// Requires an object of the type.
HeldItem& held_by(PyObject* object) noexcept { return reinterpret_cast<ItemObject*>(object)->held; }

void free_item(PyObject* self) noexcept {
  PyTypeObject* const type = Py_TYPE(self);
  HeldItem& held = held_by(self);
  if (PyErr_Occurred() != nullptr && held.is_unseen()) [[unlikely]]
    held.put_back();
  held.~HeldItem();
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

PyObject* refuse_new(PyTypeObject*, PyObject*, PyObject*) noexcept {
  PyErr_SetString(PyExc_TypeError, "only Channel.loan() and Channel.recv() make items");
  return nullptr;
}

PyObject* send_if_lone(PyObject* self, PyObject* frame) noexcept {
  return guarded([=] { return PyBool_FromLong(held_by(self).send_if_lone(frame) ? 1 : 0); });
}

int32_t number_in(void* closure) noexcept {
  return static_cast<int32_t>(reinterpret_cast<intptr_t>(closure));
}

PyObject* get_view(PyObject* self, void* number) noexcept {
  return guarded([=]() -> PyObject* {
    HeldItem& held = held_by(self);
    if (!held.has_ended()) return held.view(number_in(number)).release().ptr();
    PyErr_SetString(PyExc_AttributeError, "the item was sent or dropped");
    return nullptr;
  });
}

PyObject* get_array(PyObject* self, void* number) noexcept {
  return guarded([=] { return held_by(self).kept_array(number_in(number)).release().ptr(); });
}

// A descriptor of a field. What defines it lives for ever, once for each name and number.
template <getter kGet>
nb::object field_with(const std::string& name, int32_t number) {
  static auto* const definitions = new std::map<std::pair<std::string, int32_t>, PyGetSetDef>;
  const auto found = definitions->try_emplace({name, number}).first;
  void* const closure = reinterpret_cast<void*>(intptr_t{number});
  found->second = {found->first.first.c_str(), kGet, nullptr, nullptr, closure};
  return owned(PyDescr_NewGetSet(item_type, &found->second));
}

PyMethodDef methods[] = {
    {"_send_if_lone", send_if_lone, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(refuse_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(free_item)},
    {Py_tp_methods, methods},
    {Py_tp_doc, const_cast<char*>("The native part of an item of a tenon.Channel.")},
    {0, nullptr},
};
PyType_Spec spec = {"tenon._core.NativeItem", sizeof(ItemObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                    slots};

}  // namespace
}  // namespace tenon::python

// For functions bound by nanobind.
template <>
struct nanobind::detail::type_caster<tenon::python::HeldItem> {
  static constexpr auto Name = const_name("NativeItem");
  template <class T>
  using Cast = tenon::python::HeldItem*;

  bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
    if (PyObject_TypeCheck(source.ptr(), tenon::python::item_type) == 0) return false;
    held = &tenon::python::held_by(source.ptr());
    return true;
  }
  template <class T>
  bool can_cast() const noexcept {
    return true;
  }
  explicit operator tenon::python::HeldItem*() const noexcept { return held; }

  tenon::python::HeldItem* held = nullptr;
};

namespace tenon::python {
namespace {

template <class Function, class... Extra>
void def_item_method(const char* name, Function function, const Extra&... extra) {
  nb::cpp_function_def(function, nb::scope(nb::handle(reinterpret_cast<PyObject*>(item_type))),
                       nb::name(name), nb::is_method(), extra...);
}

}  // namespace

void check_item_class(nb::handle type) {
  if (PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(type.ptr()), item_type) == 0)
    raise(PyExc_TypeError, "%R is not derived from NativeItem", type.ptr());
}

nb::object item_object(nb::handle type, tenon_item* item, const char* site, const Caller& caller,
                       int caches) {
  PyObject* const object = PyType_GenericAlloc(reinterpret_cast<PyTypeObject*>(type.ptr()), 0);
  if (object == nullptr) {
    if (tenon_item_sequence(item) != 0) put_back(item);
    tenon_item_release(item);
    nb::raise_python_error();
  }
  new (&held_by(object)) HeldItem(item, site, caller, caches);
  return nb::steal(object);
}

void add_items(nb::module_& module) {
  const nb::object type = owned(PyType_FromModuleAndSpec(module.ptr(), &spec, nullptr));
  item_type = reinterpret_cast<PyTypeObject*>(nb::object(type).release().ptr());
  module.attr("NativeItem") = type;
  def_item_method("_field_array", &HeldItem::array, nb::arg("field"));
  def_item_method("_kept_array", &HeldItem::kept_array, nb::arg("field"),
                  nb::sig("def _kept_array(self, field: int) -> NDArray"));
  def_item_method("_view", &HeldItem::view, nb::arg("field"), nb::sig("def _view(self, field: int) -> Any"));
  def_item_method("_viewed", &HeldItem::viewed, nb::sig("def _viewed(self) -> list[int]"));
  def_item_method("_has_ended", &HeldItem::has_ended);
  def_item_method("_take_views", &HeldItem::end, nb::sig("def _take_views(self) -> list[list[Any]]"));
  def_item_method("_sequence", &HeldItem::sequence);
  def_item_method("_send_item", &HeldItem::send);
  def_item_method("_release", &HeldItem::drop);
  def_item_method("_drop_loan", &HeldItem::drop_loan);
  def_item_method("_bytes", &HeldItem::bytes, nb::sig("def _bytes(self) -> NDArray"));
  def_item_method("_set_nbytes", &HeldItem::set_nbytes, nb::arg("nbytes"));
  def_item_method("_put_back", &HeldItem::give_back, nb::arg("error"));
  def_item_method("_take_over", &HeldItem::take_over, nb::arg("other"));
  module.def("loan_field", field_with<get_view>, nb::arg("name"), nb::arg("number"),
             nb::sig("def loan_field(name: str, number: int) -> Any"),
             "A descriptor of a field of a loan: its NumPy array. AttributeError after the end.");
  module.def("received_field", field_with<get_array>, nb::arg("name"), nb::arg("number"),
             nb::sig("def received_field(name: str, number: int) -> Any"),
             "A descriptor of a field of a received item: its array.");
}

}  // namespace tenon::python
