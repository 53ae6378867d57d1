// SPDX-License-Identifier: Apache-2.0
#include "frames.h"

#include <dlfcn.h>

#include <array>
#include <utility>

namespace tenon::python {
namespace {

using GetLasti = int(PyFrameObject*);
using GetVar = PyObject*(PyFrameObject*, PyObject* name);
using GetLocals = PyObject*(PyFrameObject*);

template <class Function>
Function* looked_up(const char* name) noexcept {
  return reinterpret_cast<Function*>(find_interpreter_function(name));
}

// CPython 3.11 can show one variable of a function only by copying all of them into a dictionary. Its frames
// are laid out as follows, and no release of it will change that; later versions have PyFrame_GetVar.
struct Frame311 {
  PyObject_HEAD PyFrameObject* back;
  struct Activation {
    void* function;
    PyObject* globals;
    PyObject* builtins;
    PyObject* locals;
    PyObject* code;
    PyFrameObject* frame;
    void* previous;
    void* instruction;
    int stack_top;
    bool is_entry;
    char owner;
    PyObject* variables[1];  // those of co_varnames first
  }* activation;
};

bool is_plain_311() noexcept {
  static const bool is = [] {
    static constexpr unsigned long k311 = 0x030B;
    if (Py_Version >> 16 != k311) return false;
    const nb::object flags = nb::module_::import_("sys").attr("abiflags");
    return text_of(flags).empty();
  }();
  return is;
}

// Of a place at which a value was looked for.
struct Search {
  Position position{nullptr, 0};  // keeps its code, so that the address means one code only
  bool is_function = false;       // its variables have places; those of a module or class are in a dictionary
  PyObject* names = nullptr;      // a tuple
  Py_ssize_t last = 0;            // which of them was found
};

constexpr int kSearchBits = 8;
std::array<Search, 1 << kSearchBits> searches;  // under the GIL

bool is_function_code(nb::handle code) {
  static constexpr long kOptimized = 1;  // CO_OPTIMIZED
  return (nb::cast<long>(code.attr("co_flags")) & kOptimized) != 0;
}

// Throws nb::python_error.
Search& search_at(const Position& position) {
  Search& search = searches[position.hash(kSearchBits)];
  if (search.position == position) return search;
  const nb::handle code = position.code;
  Search fresh;
  fresh.is_function = is_function_code(code);
  nb::object names = code.attr(fresh.is_function ? "co_varnames" : "co_names");
  fresh.names = names.release().ptr();
  fresh.position = {Py_NewRef(position.code), position.instruction};
  const Search replaced = std::exchange(search, fresh);
  Py_XDECREF(replaced.position.code);
  Py_XDECREF(replaced.names);
  return search;
}

// Whether function(i) is true of the one found last, or of any.
template <class Function>
bool is_any(Search& search, Function&& function) {
  const Py_ssize_t n = PyTuple_Size(search.names);
  if (search.last < n && function(search.last)) return true;
  for (Py_ssize_t i = 0; i < n; ++i) {
    if (!function(i)) continue;
    search.last = i;
    return true;
  }
  return false;
}

bool is_held_in(PyFrameObject* frame, PyObject* value, Search& search) {
  static GetVar* const get_var = looked_up<GetVar>("PyFrame_GetVar");
  static GetLocals* const get_locals = looked_up<GetLocals>("PyFrame_GetLocals");
  if (!search.is_function) {
    if (get_locals == nullptr) return false;
    const nb::object locals = owned(get_locals(frame));
    return PyDict_CheckExact(locals.ptr()) && is_any(search, [&](Py_ssize_t i) {
             return PyDict_GetItemWithError(locals.ptr(), PyTuple_GetItem(search.names, i)) == value;
           });
  }
  if (get_var != nullptr) {
    return is_any(search, [&](Py_ssize_t i) {
      PyObject* const held = get_var(frame, PyTuple_GetItem(search.names, i));
      if (held == nullptr) PyErr_Clear();  // it has no value
      Py_XDECREF(held);
      return held == value;
    });
  }
  if (!is_plain_311()) return false;
  const auto* const activation = reinterpret_cast<Frame311*>(frame)->activation;
  if (activation->frame != frame || activation->code != search.position.code) return false;
  return is_any(search, [&](Py_ssize_t i) { return activation->variables[i] == value; });
}

}  // namespace

namespace {

constexpr int kLayoutBits = 8;
std::array<Layout, 1 << kLayoutBits> layouts;  // under the GIL

bool contains(nb::handle names, PyObject* name) {
  const int answer = PySequence_Contains(names.ptr(), name);
  check_python(answer);
  return answer == 1;
}

// The names of variables that no closure shares.
nb::object own_names(nb::handle code) {
  const nb::object all = code.attr("co_varnames"), shared = code.attr("co_cellvars");
  nb::list own;
  for (nb::handle name : all) {
    if (!contains(shared, name.ptr())) own.append(name);
  }
  return nb::tuple(own);
}

Py_ssize_t count_slots(nb::handle code) {
  const nb::object variables = code.attr("co_varnames");
  Py_ssize_t n = static_cast<Py_ssize_t>(nb::len(variables) + nb::len(nb::object(code.attr("co_freevars"))));
  for (nb::handle cell : nb::object(code.attr("co_cellvars"))) n += !contains(variables, cell.ptr());
  return n;
}

// Throws nb::python_error.
const Layout& layout_of(nb::handle code) {
  Layout& layout = layouts[Position{code.ptr(), 0}.hash(kLayoutBits)];
  if (layout.code == code.ptr()) return layout;
  Layout fresh;
  fresh.is_function = is_function_code(code);
  if (fresh.is_function && is_plain_311()) fresh.n_slots = count_slots(code);
  fresh.names = own_names(code).release().ptr();
  fresh.code = Py_NewRef(code.ptr());
  const Layout replaced = std::exchange(layout, fresh);
  Py_XDECREF(replaced.code);
  Py_XDECREF(replaced.names);
  return layout;
}

const Frame311::Activation* activation_of(PyObject* frame, nb::handle code) noexcept {
  if (!is_plain_311()) return nullptr;
  const auto* const activation = reinterpret_cast<Frame311*>(frame)->activation;
  const bool is_known = activation->frame == reinterpret_cast<PyFrameObject*>(frame);
  return is_known && activation->code == code.ptr() ? activation : nullptr;
}

}  // namespace

FrameVariables::FrameVariables(nb::object frame) : frame_(std::move(frame)) {
  static auto* const get_globals = looked_up<GetLocals>("PyFrame_GetGlobals");
  static auto* const get_locals = looked_up<GetLocals>("PyFrame_GetLocals");
  auto* const object = reinterpret_cast<PyFrameObject*>(frame_.ptr());
  code_ = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(object)));
  layout_ = layout_of(code_);
  names_ = nb::borrow(layout_.names);
  if (get_globals != nullptr) spaces_[0] = owned(get_globals(object));
  if (!layout_.is_function) {
    if (get_locals != nullptr) spaces_[1] = owned(get_locals(object));
  } else if (const auto* const activation = activation_of(frame_.ptr(), code_)) {
    spaces_[1] = nb::borrow(static_cast<PyObject*>(activation->locals));  // what locals() has left there
  }
}

void FrameVariables::read(void (*visit)(PyObject*, void*), void* context) const {
  static GetVar* const get_var = looked_up<GetVar>("PyFrame_GetVar");
  if (!layout_.is_function) return;
  if (get_var != nullptr) {
    const Py_ssize_t n = PyTuple_Size(names_.ptr());
    for (Py_ssize_t i = 0; i < n; ++i) {
      PyObject* const value =
          get_var(reinterpret_cast<PyFrameObject*>(frame_.ptr()), PyTuple_GetItem(names_.ptr(), i));
      if (value == nullptr) {
        PyErr_Clear();  // it has none
        continue;
      }
      Py_DECREF(value);  // the frame has it
      visit(value, context);
    }
  } else if (const auto* const activation = activation_of(frame_.ptr(), code_)) {
    for (Py_ssize_t i = 0; i < layout_.n_slots; ++i) {
      if (PyObject* const value = activation->variables[i]) visit(value, context);
    }
  }
}

void* find_interpreter_function(const char* name) noexcept { return dlsym(RTLD_DEFAULT, name); }

Position Position::of(PyFrameObject* frame) noexcept {
  static GetLasti* const get_lasti = looked_up<GetLasti>("PyFrame_GetLasti");
  return {reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)),
          get_lasti != nullptr ? get_lasti(frame) : PyFrame_GetLineNumber(frame)};
}

bool is_held_by_variable(PyFrameObject* frame, PyObject* value) noexcept {
  const Position position = Position::of(frame);
  const nb::object code = nb::steal(position.code);
  try {
    return is_held_in(frame, value, search_at(position));
  } catch (...) {
    PyErr_Clear();
    return false;
  }
}

}  // namespace tenon::python
