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

// Throws nb::python_error.
Search& search_at(const Position& position) {
  static constexpr long kOptimized = 1;  // CO_OPTIMIZED
  Search& search = searches[position.hash(kSearchBits)];
  if (search.position == position) return search;
  const nb::handle code = position.code;
  Search fresh;
  fresh.is_function = (nb::cast<long>(code.attr("co_flags")) & kOptimized) != 0;
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
