// SPDX-License-Identifier: Apache-2.0
#include "names.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "callbacks.h"
#include "counts.h"
#include "frames.h"
#include "ndarray.h"
#include "numpy_view.h"

namespace tenon::python {
namespace {

constexpr size_t kMaxNearby = 1000;   // objects that a search nearby looks into
constexpr Py_ssize_t kMaxParts = 64;  // of a container that it looks into
constexpr int kMaxDepth = 3;
constexpr size_t kMaxFrames = 1000;  // of a traceback

PyObject* plain_types = nullptr;  // a frozenset; for ever

destructor dealloc_of(PyTypeObject* type) noexcept {
  return reinterpret_cast<destructor>(PyType_GetSlot(type, Py_tp_dealloc));
}

bool has_flag(PyTypeObject* type, unsigned long flag) noexcept { return (PyType_GetFlags(type) & flag) != 0; }

// What frees the instances of classes that a class statement has made.
destructor class_dealloc() {
  static const destructor dealloc = [] {
    const nb::object type =
        nb::handle(reinterpret_cast<PyObject*>(&PyType_Type))("C", nb::tuple(), nb::dict());
    return dealloc_of(reinterpret_cast<PyTypeObject*>(type.ptr()));
  }();
  return dealloc;
}

bool is_of_class_statement(PyTypeObject* type) {
  return has_flag(type, Py_TPFLAGS_HEAPTYPE) && dealloc_of(type) == class_dealloc();
}

// asyncio's Future or Task, which are plain, too. Nothing has any of them before asyncio is imported.
bool is_task(PyTypeObject* type) {
  static Name name("_asyncio");
  static PyObject* classes[2] = {};
  if (classes[0] == nullptr) {
    PyObject* const module = PyDict_GetItemWithError(PyImport_GetModuleDict(), name.get());
    if (module == nullptr) return false;
    const nb::object future = nb::getattr(nb::handle(module), "Future", nb::none());
    const nb::object task = nb::getattr(nb::handle(module), "Task", nb::none());
    if (future.is_none() || task.is_none()) return false;  // another thread imports it
    classes[1] = Py_NewRef(task.ptr());
    classes[0] = Py_NewRef(future.ptr());
  }
  PyObject* const object = reinterpret_cast<PyObject*>(type);
  return object == classes[0] || object == classes[1];
}

// Whether instances have only references, and no addresses of the memory of other objects.
bool is_plain(PyTypeObject* type) {
  while (is_of_class_statement(type)) {
    type = static_cast<PyTypeObject*>(PyType_GetSlot(type, Py_tp_base));
  }
  return PySet_Contains(plain_types, reinterpret_cast<PyObject*>(type)) == 1 || is_task(type);
}

bool is_running(PyObject* generator) {
  for (const char* name : {"gi_running", "cr_running", "ag_running"}) {
    const nb::object answer = nb::getattr(generator, name, nb::none());
    if (!answer.is_none()) return answer.is(nb::handle(Py_True));
  }
  return false;
}

// Whether a plain object may show references that it does not have. The collector visits the variables of a
// running generator only at some moments; they are read from its frame. A suspended one also shows what its
// evaluation stack has, with a reference or without.
bool is_uncertain(PyObject* object) {
  const nb::object text = nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(object))).attr("__name__");
  const std::string_view name = text_of(text);
  if (name == "frame") return counting() == Counting::kStrict;
  return (name == "generator" || name == "coroutine" || name == "async_generator") &&
         (counting() != Counting::kOwned || is_running(object));
}

bool is_dict(PyObject* object) noexcept { return Py_IS_TYPE(object, &PyDict_Type); }

// A container that the collector does not track, because nothing in it can be a part of a cycle.
bool is_loose(PyObject* object) noexcept {
  return (is_dict(object) || Py_IS_TYPE(object, &PyTuple_Type)) && PyObject_GC_IsTracked(object) == 0;
}

// Calls visit(part) for each reference that an object has, as the garbage collector does.
template <class Visit>
void visit_parts(PyObject* object, Visit&& visit) {
  if (!has_flag(Py_TYPE(object), Py_TPFLAGS_HAVE_GC)) return;
  const auto traverse = reinterpret_cast<traverseproc>(PyType_GetSlot(Py_TYPE(object), Py_tp_traverse));
  if (traverse == nullptr) return;
  const auto call = [](PyObject* part, void* context) {
    (*static_cast<std::remove_reference_t<Visit>*>(context))(part);
    return 0;
  };
  traverse(object, call, &visit);
}

// Counts the plain names of an object. It visits each container once, so that no reference counts twice.
class NameCount {
 public:
  NameCount(PyObject* object, PyObject* holder) : object_(object), wanted_(references_to(object) - 1) {
    seen_.insert(holder);
  }

  bool is_complete() const noexcept { return found_ >= wanted_ && !is_lent_; }

  // The variables of a function that runs.
  void look_at(const FrameVariables& frame, PyObject* block_frame) {
    const bool is_strict = counting() == Counting::kStrict;
    // A frame has a tuple of the values that code has replaced through f_locals. What runs may use them yet.
    if (counting() != Counting::kOwned) {
      visit_parts(frame.frame(), [this](PyObject* part) {
        if (Py_IS_TYPE(part, &PyTuple_Type)) seen_.insert(part);
      });
    }
    frame.visit([&](PyObject* value, char certainty) {
      if (value == object_) {
        is_lent_ |= certainty == kLent;
        found_ += !is_strict || (certainty == kCertain && frame.frame() == block_frame) ? 1 : 0;
      } else {
        variables_.push_back(value);
      }
    });
    frame.visit_namespaces([this](PyObject* dict) { look_into(dict, true); });
  }

  // Objects that the variables of the frames so far lead to, and those of finished functions.
  void look_nearby(const std::vector<nb::object>& finished) {
    std::vector<PyObject*> level = variables_, next;
    for (const nb::object& frame : finished) level.push_back(frame.ptr());
    size_t n = 0;
    for (int depth = 0; depth < kMaxDepth && !is_complete() && !level.empty(); ++depth) {
      for (PyObject* const object : level) {
        if (is_complete() || n == kMaxNearby) return;
        if (!has_flag(Py_TYPE(object), Py_TPFLAGS_HAVE_GC) || !is_small(object) || !is_plain(Py_TYPE(object)))
          continue;
        ++n;
        look_into(object, true, &next);
      }
      level.swap(next);
      next.clear();
    }
  }

  // All objects that the collector tracks. References in a dictionary whose owner is not plain do not count.
  void look_everywhere(const nb::list& objects) {
    for (PyObject* const variable : variables_) {
      if (is_loose(variable)) look_into(variable, true);
    }
    const Py_ssize_t n = PyList_Size(objects.ptr());
    for (Py_ssize_t i = 0; i < n; ++i) look_into(PyList_GetItem(objects.ptr(), i), false);
    if (dicts_.empty()) return;
    for (Py_ssize_t i = 0; i < n; ++i) {
      PyObject* const owner = PyList_GetItem(objects.ptr(), i);
      visit_parts(owner, [&](PyObject* part) {
        if (!is_dict(part) || is_plain(Py_TYPE(owner))) return;
        const auto found = dicts_.find(part);
        if (found == dicts_.end()) return;
        found_ -= found->second;
        dicts_.erase(found);
      });
    }
  }

 private:
  static bool is_small(PyObject* object) noexcept {
    if (is_dict(object)) return PyDict_Size(object) <= kMaxParts;
    if (Py_IS_TYPE(object, &PyList_Type)) return PyList_Size(object) <= kMaxParts;
    if (Py_IS_TYPE(object, &PyTuple_Type)) return PyTuple_Size(object) <= kMaxParts;
    return !PyModule_Check(object) && !PyType_Check(object);
  }

  // has_known_owner: a dictionary does not belong to another object. parts: receives what the container
  // refers to.
  void look_into(PyObject* container, bool has_known_owner, std::vector<PyObject*>* parts = nullptr) {
    struct OwnedObject {
      PyObject* object;
      PyObject* owner;
    };
    std::vector<OwnedObject> loose{{container, nullptr}};
    while (!loose.empty()) {
      const auto [object, owner] = loose.back();
      loose.pop_back();
      if (!seen_.insert(object).second) continue;
      Py_ssize_t hits = 0;
      visit_parts(object, [&, object = object](PyObject* part) {
        if (part == object_) {
          ++hits;
        } else if (is_loose(part)) {
          loose.push_back({part, object});
        } else if (parts != nullptr) {
          parts->push_back(part);
        }
      });
      if (hits == 0 || !is_plain(Py_TYPE(object)) || is_uncertain(object)) continue;
      if (is_dict(object) && owner != nullptr && !is_plain(Py_TYPE(owner))) continue;
      found_ += hits;
      if (is_dict(object) && !has_known_owner) dicts_[object] = hits;
    }
  }

  PyObject* const object_;
  const Py_ssize_t wanted_;
  Py_ssize_t found_ = 0;
  bool is_lent_ = false;  // a function may compute with it without a reference
  std::vector<PyObject*> variables_;
  std::unordered_set<PyObject*> seen_;
  // Dictionaries whose references were counted, and that may hold the attributes of an object.
  std::unordered_map<PyObject*, Py_ssize_t> dicts_;
};

bool has_only_names_nearby(PyObject* object, PyObject* holder, PyObject* traceback, PyObject* block_frame) {
  // All allocations are made here, before references are counted: one may run the garbage collector, and with
  // it finalizers of the user. Functions of another thread have a reference to what they lend.
  const std::vector<FrameVariables> frames = frames_of_this_thread();
  std::vector<nb::object> finished;
  nb::object link = traceback != nullptr ? nb::borrow(traceback) : nb::none();
  for (size_t n = 0; !link.is_none() && n < kMaxFrames; ++n, link = link.attr("tb_next")) {
    finished.push_back(link.attr("tb_frame"));
  }
  NameCount count(object, holder);
  for (const FrameVariables& frame : frames) {
    if (counting() == Counting::kOwned && count.is_complete()) return true;
    count.look_at(frame, block_frame);
  }
  count.look_nearby(finished);
  return count.is_complete();
}

bool has_only_names_anywhere(PyObject* object, PyObject* holder, PyObject* block_frame) {
  const std::vector<FrameVariables> frames = frames_of_all_threads();
  const nb::list objects(nb::module_::import_("gc").attr("get_objects")());
  NameCount count(object, holder);
  for (const FrameVariables& frame : frames) count.look_at(frame, block_frame);
  count.look_everywhere(objects);
  return count.is_complete();
}

// The dictionaries of endings.py, which add and remove their entries themselves. Under the GIL; for ever.
PyObject* outlived = nullptr;
PyObject* retained = nullptr;

bool has_entries(PyObject* dict) noexcept { return dict != nullptr && PyDict_Size(dict) != 0; }

bool has_only_names(PyObject* object, PyObject* holder, PyObject* traceback, NameSearch search,
                    PyObject* frame) {
  if (references_to(object) == 1) return true;
  if (plain_types == nullptr) return false;
  return search == NameSearch::kNearby ? has_only_names_nearby(object, holder, traceback, frame)
                                       : has_only_names_anywhere(object, holder, frame);
}

}  // namespace

bool has_outlived_views(PyObject* array) noexcept {
  return has_entries(outlived) && tenon_array_has_own_views(array_of(array)) != 0;
}

void release_retained() {
  if (has_entries(retained)) callback(Callback::kReleaseRetained)();
}

bool release_if_named(PyObject* holder, PyObject* traceback, NameSearch search, PyObject* frame) {
  PyObject* const object = PyList_GetItem(holder, 0);
  if (object == nullptr) nb::raise_python_error();
  if (!has_only_names(object, holder, traceback, search, frame)) return false;
  release_ended_view(object);
  if (PyList_SetSlice(holder, 0, 1, nullptr) != 0) nb::raise_python_error();
  return true;
}

void add_names(nb::module_& module) {
  module.def(
      "set_registries",
      [](const nb::dict& of_outlived, const nb::dict& of_retained) {
        outlived = nb::object(of_outlived).release().ptr();
        retained = nb::object(of_retained).release().ptr();
      },
      nb::arg("outlived"), nb::arg("retained"),
      nb::sig("def set_registries(outlived: dict[Any, Any], retained: dict[Any, Any]) -> None"),
      "Two dictionaries of endings.py. Where one is empty, blocks and waits need not call it.");
  module.def(
      "has_outlived_views", [](const Self& array) { return has_outlived_views(array.object.ptr()); },
      nb::arg("array"), nb::sig("def has_outlived_views(array: NDArray) -> bool"),
      "Something may show bytes of the array that a block or lease of this thread has left.");
  module.def(
      "release_retained",
      [] {
        release_retained();
        return has_entries(retained);
      },
      "Makes ended arrays release their memory if only names refer to them by now. Returns whether some are\n"
      "left.");
  module.def(
      "set_plain_types", [](const nb::object& types) { plain_types = nb::object(types).release().ptr(); },
      nb::arg("types"), nb::sig("def set_plain_types(types: frozenset[type]) -> None"),
      "Types whose instances refer to objects by plain names, besides those of class statements.");
  module.def(
      "release_if_named",
      [](const nb::list& holder, nb::handle traceback, bool is_thorough, nb::handle frame) {
        const auto given = [](nb::handle object) { return object.is_none() ? nullptr : object.ptr(); };
        return release_if_named(holder.ptr(), given(traceback),
                                is_thorough ? NameSearch::kThorough : NameSearch::kNearby, given(frame));
      },
      nb::arg("holder"), nb::arg("traceback").none(), nb::arg("is_thorough"), nb::arg("frame").none(),
      nb::sig("def release_if_named(holder: list[Any], traceback: object, is_thorough: bool, frame: object) "
              "-> bool"),
      "Makes the ended array in the list release the memory, and empties the list, if all other references\n"
      "to it are variables and items, whose holders know nothing of its memory. Else it does nothing and\n"
      "returns False. ``frame``: of the block that ends, or None.");
}

}  // namespace tenon::python
