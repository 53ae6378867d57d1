// SPDX-License-Identifier: Apache-2.0
#include "numpy_view.h"

#include <algorithm>
#include <array>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "counts.h"
#include "frames.h"
#include "ndarray.h"
#include "numpy_api.h"
#include "owners.h"
#include "sites.h"

namespace tenon::python {
namespace {

struct ViewHolder {
  PyObject_HEAD tenon_view view;
};

PyTypeObject* view_holder_type = nullptr;

void free_view_holder(PyObject* self) {
  {
    const owners::Collector collector;
    tenon_view_close(&reinterpret_cast<ViewHolder*>(self)->view);
  }
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_Free(self);
  Py_DECREF(type);
}

PyType_Slot view_holder_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(free_view_holder)},
    {Py_tp_doc, const_cast<char*>("Holds the memory of an NDArray for the NumPy arrays over it.")},
    {0, nullptr},
};
PyType_Spec view_holder_spec = {"tenon._core.ViewHolder", sizeof(ViewHolder), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, view_holder_slots};

tenon_view& view_in(PyObject* holder) noexcept { return reinterpret_cast<ViewHolder*>(holder)->view; }

nb::object holder_for(const Array& array, int32_t access, const char* site) {
  const nb::object holder = owned(reinterpret_cast<PyObject*>(PyObject_New(ViewHolder, view_holder_type)));
  prepare(view_in(holder.ptr()));
  call(tenon_view_open, &view_in(holder.ptr()), array.get(), access, site);
  return holder;
}

int32_t usual_access(const Array& array) { return array.is_readonly() ? TENON_READ : TENON_WRITE_OR_READ; }

}  // namespace

void prepare_numpy_views() { need_numpy(); }

nb::object view_holder(const Array& array) { return holder_for(array, usual_access(array), current_site()); }

namespace {

PyArrayObject_fields& fields_of(nb::handle array) noexcept {
  return *reinterpret_cast<PyArrayObject_fields*>(array.ptr());
}

// It does not keep the memory alive.
nb::object bare_numpy_array(const Array& array, bool is_readonly) {
  const tenon_array_desc& desc = array.desc();
  PyArray_Descr* const dtype = numpy_dtype_of(desc.dtype, (desc.flags & TENON_SUBBYTE_PADDED) != 0);
  npy_intp strides[TENON_MAX_NDIM];
  for (int i = 0; i < desc.ndim; ++i) strides[i] = desc.strides[i] * static_cast<npy_intp>(desc.itemsize);
  // The next call takes the dtype over, also when it fails.
  return owned(PyArray_NewFromDescr(&PyArray_Type, dtype, desc.ndim,
                                    const_cast<npy_intp*>(reinterpret_cast<const npy_intp*>(desc.shape)),
                                    strides, desc.data, is_readonly ? 0 : NPY_ARRAY_WRITEABLE, nullptr));
}

void set_base(nb::handle array, nb::handle base) {
  check_python(PyArray_SetBaseObject(as_numpy(array.ptr()), base.inc_ref().ptr()));
}

}  // namespace

nb::object numpy_array_over(const Array& array, nb::handle base, bool is_readonly) {
  nb::object view = bare_numpy_array(array, is_readonly);
  set_base(view, base);
  return view;
}

nb::object numpy_view(const Array& array) { return numpy_view_taken_at(array, false, current_site()); }

nb::object numpy_view_taken_at(const Array& array, bool is_readonly, const char* site) {
  const nb::object holder = holder_for(array, is_readonly ? TENON_READ : usual_access(array), site);
  const int32_t access = tenon_view_access(&view_in(holder.ptr()));
  return numpy_array_over(array, holder, access == TENON_READ);
}

nb::object writable_numpy_view(const Array& array) {
  return numpy_array_over(array, holder_for(array, TENON_WRITE, current_site()), false);
}

namespace {

double nowhere[2];

// A free list of roots, each with a closed holder: making both takes a fifth of the time of a short block.
// Nothing else refers to them. Under the GIL.
class SpareRoots {
 public:
  // One that can become the root of view; invalid: there is none.
  nb::object take(nb::handle view) noexcept {
    for (PyObject*& root : roots_) {
      if (root == nullptr) continue;
      const PyArrayObject_fields &from = fields_of(view), &to = fields_of(root);
      if (to.nd == from.nd && to.descr == from.descr) return nb::steal(std::exchange(root, nullptr));
    }
    return {};
  }
  // Returns the one that it replaces.
  [[nodiscard]] nb::object give(nb::object root) noexcept {
    PyObject*& spare = roots_[next_++ % kMax];
    return nb::steal(std::exchange(spare, root.release().ptr()));
  }

 private:
  static constexpr unsigned kMax = 4;
  PyObject* roots_[kMax] = {};
  unsigned next_ = 0;
};
constinit SpareRoots spare_roots;

// Whether the root is unchanged, and nothing else refers to it or its holder.
bool can_be_reused(nb::handle root) noexcept {
  const PyArrayObject_fields& fields = fields_of(root);
  return references_to(root.ptr()) == 1 && fields.weakreflist == nullptr && fields._buffer_info == nullptr &&
         (fields.flags & NPY_ARRAY_OWNDATA) == 0 && fields.base != nullptr &&
         Py_IS_TYPE(fields.base, view_holder_type) && references_to(fields.base) == 1;
}

// Makes root an array of the same elements as view.
void become(nb::handle root, nb::handle view) noexcept {
  const PyArrayObject_fields& from = fields_of(view);
  PyArrayObject_fields& to = fields_of(root);
  std::copy_n(from.dimensions, from.nd, to.dimensions);
  std::copy_n(from.strides, from.nd, to.strides);
  to.data = from.data;
  to.flags = from.flags;
}

}  // namespace

RootedView rooted_numpy_view(const Array& array, bool is_readonly, const char* site) {
  RootedView result;
  result.view = bare_numpy_array(array, is_readonly);
  result.root = spare_roots.take(result.view);
  const int32_t access = is_readonly ? TENON_READ : usual_access(array);
  nb::object holder;
  if (result.root.is_valid()) {
    holder = nb::borrow(fields_of(result.root).base);
    prepare(view_in(holder.ptr()));
    call(tenon_view_open, &view_in(holder.ptr()), array.get(), access, site);
  } else {
    holder = holder_for(array, access, site);
    result.root = bare_numpy_array(array, is_readonly);
    set_base(result.root, holder);
  }
  if (tenon_view_access(&view_in(holder.ptr())) == TENON_READ) {
    PyArray_CLEARFLAGS(as_numpy(result.view.ptr()), NPY_ARRAY_WRITEABLE);
  }
  become(result.root, result.view);
  set_base(result.view, result.root);
  return result;
}

nb::list rooted_pair(const Array& array, const char* site) {
  prepare_numpy_views();
  RootedView views = rooted_numpy_view(array, false, site);
  nb::list pair;
  pair.append(std::move(views.view));
  pair.append(std::move(views.root));
  return pair;
}

bool is_lone_view(PyObject* view, PyObject* root, nb::handle frame) noexcept {
  if (references_to(root) != 2) return false;
  const Py_ssize_t names = references_to(view) - 1;
  if (names != 1) return names == 0;
  const nb::object user = frame.is_valid() ? nb::borrow(frame) : innermost_frame();
  // Code that runs in the meantime may have taken a reference.
  return user.is_valid() && is_held_by_variable(user, view) && references_to(view) == 2 &&
         references_to(root) == 2;
}

namespace {

// Ends a root to which nothing else refers. Requires a Collector of the caller.
void drop_root(nb::object root) noexcept {
  if (!can_be_reused(root)) return;
  tenon_view_close(&view_in(fields_of(root).base));
  fields_of(root).data = reinterpret_cast<char*>(nowhere);
  const nb::object replaced = spare_roots.give(std::move(root));
}

// dtypes for ended arrays: NumPy cannot compute with them, and their text names the line of the block. They
// are found by the site, a text that is never freed, and are not freed either. Each line has several, used in
// turn, because NumPy would compare two arrays of the same dtype. Under the GIL.
class EndedDtypes {
 public:
  // A borrowed reference; null if it cannot be made.
  PyArray_Descr* at(const char* site) noexcept {
    Line*& line = latest_[reinterpret_cast<uintptr_t>(site) / 16 % kMax];
    if (line == nullptr || line->site != site) line = kept(site);
    return line != nullptr ? line->dtypes[line->turns++ % kTurns] : nullptr;
  }

 private:
  static constexpr unsigned kMax = 64;
  static constexpr unsigned kTurns = 4;
  struct Line {
    const char* site = nullptr;
    unsigned turns = 0;
    std::array<PyArray_Descr*, kTurns> dtypes{};
  };

  Line* kept(const char* site) noexcept {
    const KeepError keep_error;
    try {
      if (all_ == nullptr) all_ = new std::unordered_map<const char*, Line>;
      Line& line = (*all_)[site];
      for (unsigned i = 0; i < kTurns; ++i) {
        if (line.dtypes[i] == nullptr) line.dtypes[i] = made(site, i);
      }
      line.site = site;
      return &line;
    } catch (...) {
      forget_exception();
      return nullptr;
    }
  }

  // One byte wide, so that an iterator that was made from the array before stays inside of `nowhere`. With
  // two fields, because some functions of NumPy treat a dtype with one field as that field.
  static PyArray_Descr* made(const char* site, unsigned turn) {
    const std::string where = site != nullptr ? std::string("ended with its block at ") + site : "ended";
    const std::string advice = "copy what is to be kept" + std::string(turn, ' ');
    nb::list fields;
    fields.append(nb::make_tuple(nb::str(where.c_str(), where.size()), "V1"));
    fields.append(nb::make_tuple(nb::str(advice.c_str(), advice.size()), "V0"));
    PyArray_Descr* dtype = nullptr;
    if (PyArray_DescrConverter(fields.ptr(), &dtype) != NPY_SUCCEED) nb::raise_python_error();
    return dtype;
  }

  Line* latest_[kMax] = {};
  std::unordered_map<const char*, Line>* all_ = nullptr;  // whose elements stay where they are
};
constinit EndedDtypes ended_dtypes;

}  // namespace

void empty_numpy_view(nb::handle view, bool releases, const char* site) {
  PyArrayObject_fields& fields = fields_of(view);
  if (fields.nd > 0) fields.dimensions[0] = 0;  // one of no axes keeps its element
  fields.flags &= ~NPY_ARRAY_WRITEABLE;
  fields.data = reinterpret_cast<char*>(nowhere);
  if (PyArray_Descr* const dtype = ended_dtypes.at(site); dtype != nullptr && dtype != fields.descr) {
    Py_INCREF(reinterpret_cast<PyObject*>(dtype));
    PyArray_Descr* const before = std::exchange(fields.descr, dtype);
    Py_DECREF(reinterpret_cast<PyObject*>(before));  // others have it too: NumPy, or the root
  }
  if (releases) release_ended_view(view);
}

void release_ended_view(nb::handle view) noexcept {
  const nb::object released = nb::steal(std::exchange(fields_of(view).base, nullptr));
}

void end_lone_view(RootedView views, const char* site) noexcept {
  empty_numpy_view(views.view, true, site);
  drop_root(std::move(views.root));
}

bool is_used_elsewhere_than_here(nb::handle view) noexcept {
  return references_to(view.ptr()) != 1 || references_to(fields_of(view).base) != 1;
}

bool may_view_ndarray(PyObject* exporter) {
  if (Py_TYPE(exporter) == view_holder_type) return true;
  if (!PyMemoryView_Check(exporter)) return true;  // a capsule, a tensor: the memory map knows
  static Name obj("obj");
  const nb::object source = owned(PyObject_GetAttr(exporter, obj.get()));
  return is_ndarray(source.ptr());
}

namespace {

void empty_view(nb::handle view, bool releases, nb::handle function) {
  if (!is_numpy_array(view.ptr())) raise(PyExc_TypeError, "empty_view() takes a NumPy array");
  empty_numpy_view(view, releases, function.is_none() ? current_site() : site_of_function(function));
}

// In both functions the count and the release are one step: no other thread can make a view of an array, and
// take its name away, between them.

void end_named(const nb::list& views, nb::handle root, nb::handle frame) {
  const CountedVariables variables(frame);
  const char* const site = current_site();
  (void)ended_dtypes.at(site);  // makes it, which may run other code
  std::vector<nb::object> named;
  variables.visit([&](PyObject* value) {
    if (is_numpy_array(value) && fields_of(value).base == root.ptr()) named.push_back(nb::borrow(value));
  });
  PyObject* const view = PyList_Size(views.ptr()) != 0 ? PyList_GetItem(views.ptr(), 0) : nullptr;
  const auto is_lower = [](const nb::object& a, const nb::object& b) { return a.ptr() < b.ptr(); };
  std::ranges::sort(named, is_lower);
  bool is_view_alone = view != nullptr && references_to(view) == 1;
  for (auto first = named.begin(); first != named.end();) {
    const auto last = std::upper_bound(first, named.end(), *first, is_lower);
    const Py_ssize_t known = 2 * (last - first) + (first->ptr() == view ? 1 : 0);  // also those of `named`
    if (references_to(first->ptr()) <= known) {
      is_view_alone |= first->ptr() == view;
      if (first->ptr() != view) empty_numpy_view(*first, true, site);
    }
    first = last;
  }
  if (!is_view_alone) return;
  empty_numpy_view(view, true, site);
  if (PyList_SetSlice(views.ptr(), 0, 1, nullptr) != 0) nb::raise_python_error();
}

// How often a tuple or a dictionary refers to the object.
Py_ssize_t references_in(PyObject* container, PyObject* object) noexcept {
  Py_ssize_t n = 0;
  if (PyTuple_Check(container)) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(container); ++i) n += PyTuple_GetItem(container, i) == object;
  } else if (PyDict_Check(container)) {
    Py_ssize_t at = 0;
    for (PyObject* value = nullptr; PyDict_Next(container, &at, nullptr, &value) != 0;) n += value == object;
  }
  return n;
}

bool empty_if_alone(const nb::list& holder, const nb::list& containers, nb::handle function) {
  PyObject* const array = PyList_GetItem(holder.ptr(), PyList_Size(holder.ptr()) - 1);
  if (array == nullptr) nb::raise_python_error();
  if (!is_numpy_array(array)) raise(PyExc_TypeError, "empty_if_alone() takes a list of a NumPy array");
  const char* const site = function.is_none() ? current_site() : site_of_function(function);
  Py_ssize_t n = 1;  // of the list
  for (nb::handle container : containers) n += references_in(container.ptr(), array);
  if (references_to(array) > n) return false;
  empty_numpy_view(array, true, site);
  return true;
}

// views: a view and its root. Returns whether it has ended the view; then the list is empty.
bool end_if_lone(const nb::list& views, nb::handle frame) {
  PyObject* const view = PyList_GetItem(views.ptr(), 0);
  PyObject* const root = PyList_GetItem(views.ptr(), 1);
  if (view == nullptr || root == nullptr) nb::raise_python_error();
  if (!is_numpy_array(view) || !is_numpy_array(root)) raise(PyExc_TypeError, "views are NumPy arrays");
  if (!is_lone_view(view, root, frame)) return false;
  const owners::Collector collector;
  RootedView rooted{nb::borrow(root), nb::borrow(view)};
  if (PyList_SetSlice(views.ptr(), 0, 2, nullptr) != 0) nb::raise_python_error();
  end_lone_view(std::move(rooted), site_at(frame));
  return true;
}

}  // namespace

void add_numpy_view(nb::module_& module) {
  module.def("empty_view", empty_view, nb::arg("view"), nb::arg("releases"), nb::arg("function") = nb::none(),
             nb::sig("def empty_view(view: Any, releases: bool, function: object = None) -> None"),
             "Makes a NumPy array one of no elements, with which nothing computes, for the end of the block\n"
             "in which it was valid, or of the function.");
  module.def(
      "end_named", end_named, nb::arg("views"), nb::arg("root"), nb::arg("frame"),
      nb::sig("def end_named(views: list[Any], root: Any, frame: object) -> None"),
      "Makes arrays over a root, to which only variables of the frame refer, arrays without elements that\n"
      "have released the memory. So is the view in the list; then the list is empty.");
  module.def(
      "empty_if_alone", empty_if_alone, nb::arg("holder"), nb::arg("containers"),
      nb::arg("function") = nb::none(),
      nb::sig(
          "def empty_if_alone(holder: list[Any], containers: list[Any], function: object = None) -> bool"),
      "As empty_view() of the last array of a list, and releases the memory, if only that list and the\n"
      "tuples and dictionaries among the containers refer to it. Else it does nothing and returns False.");
  module.def(
      "rooted_pair", [](const Array& array) { return rooted_pair(array, current_site()); }, nb::arg("array"),
      nb::sig("def rooted_pair(array: NDArray) -> list[Any]"),
      "A new NumPy array over the memory, and its root: arrays that are made from it have this base, too.");
  module.def(
      "site_at", [](nb::handle frame) { return site_at(frame); }, nb::arg("frame"),
      nb::sig("def site_at(frame: object) -> str | None"),
      "The line at which a frame, or the first one around it that is not a library's, is.");
  module.def("end_if_lone", end_if_lone, nb::arg("views"), nb::arg("frame"),
             nb::sig("def end_if_lone(views: list[Any], frame: object) -> bool"),
             "Ends a view if nothing refers to it and its root but the list and at most one variable of the\n"
             "frame: empties the list and returns True.");
  view_holder_type = reinterpret_cast<PyTypeObject*>(
      owned(PyType_FromModuleAndSpec(module.ptr(), &view_holder_spec, nullptr)).release().ptr());
  module.def("hold_view", view_holder, nb::arg("array"), nb::sig("def hold_view(array: NDArray) -> object"),
             "An object that holds an open view of the array until it is freed.");
}

}  // namespace tenon::python
