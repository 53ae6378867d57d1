// SPDX-License-Identifier: Apache-2.0
//
// All that is read of frames comes from public functions of CPython, except the variables of a function under
// CPython 3.11. 3.12 has PyFrame_GetVar for one variable. 3.11 has only PyFrame_GetLocals, which copies all
// of them into a dictionary that the frame keeps. A block asks for one variable at its end. It cannot ask
// later, because it decides there whether it releases the memory. With the copy, `with a.write() as v` takes
// 1.4 times as long in a function of 3 variables, and 4.4 times in one of 60 (3.11.7, the least of 9
// processes each). The copy would also refer to every variable, or overwrite what the program has got from
// locals(). So under CPython 3.11 alone variables are read from the frame's memory, whose layout no release
// changes now.
#include "frames.h"

#include <dlfcn.h>

#include <array>
#include <utility>

namespace tenon::python {
namespace {

// Null where the interpreter has no such function.
template <class Function>
Function* looked_up(const char* name) noexcept {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

using OfFrame = PyObject*(PyFrameObject*);
using VariableOfFrame = PyObject*(PyFrameObject*, PyObject* name);

PyFrameObject* as_frame(nb::handle object) noexcept { return reinterpret_cast<PyFrameObject*>(object.ptr()); }
nb::object new_reference(PyFrameObject* frame) noexcept {
  return nb::steal(reinterpret_cast<PyObject*>(frame));
}

struct Frame311 {
  PyObject_HEAD PyFrameObject* back;
  struct Activation {
    void* function;
    PyObject* globals;
    PyObject* builtins;
    PyObject* locals;
    PyObject* code;
    PyObject* frame;
    void* previous;
    void* instruction;
    int stack_top;
    bool is_entry;
    char owner;
    PyObject* variables[1];  // those of co_varnames first
  }* activation;
};

// Null where the frame is laid out in another way.
const Frame311::Activation* activation_of(nb::handle frame, nb::handle code) noexcept {
  static const bool is_plain_311 = [] {
    static constexpr unsigned long k311 = 0x030B;
    if (Py_Version >> 16 != k311) return false;
    const nb::object flags = nb::module_::import_("sys").attr("abiflags");
    return text_of(flags).empty();
  }();
  if (!is_plain_311) return nullptr;
  const auto* const activation = reinterpret_cast<Frame311*>(frame.ptr())->activation;
  return activation->frame == frame.ptr() && activation->code == code.ptr() ? activation : nullptr;
}

VariableOfFrame* variable_getter() noexcept {
  static auto* const get = looked_up<VariableOfFrame>("PyFrame_GetVar");
  return get;
}

// Of a function's frame; null where the variable has no value. The frame holds what is returned.
PyObject* variable_at(nb::handle frame, nb::handle code, nb::handle names, Py_ssize_t i) noexcept {
  if (VariableOfFrame* const get = variable_getter()) {
    const nb::object value = nb::steal(get(as_frame(frame), PyTuple_GetItem(names.ptr(), i)));
    if (!value.is_valid()) PyErr_Clear();
    return value.ptr();
  }
  const auto* const activation = activation_of(frame, code);
  return activation != nullptr ? activation->variables[i] : nullptr;
}

// The dictionary of the variables of a module or class, which does not copy them. Throws nb::python_error.
nb::object namespace_of(nb::handle frame) {
  static auto* const get = looked_up<OfFrame>("PyFrame_GetLocals");
  return get != nullptr ? owned(get(as_frame(frame))) : nb::object();
}

// The variables of the code at one position.
struct Names {
  Position position{nullptr, 0};  // owns its code, so that the address is not reused
  bool is_function = false;       // else they are in a dictionary
  PyObject* tuple = nullptr;
  Py_ssize_t last = 0;  // which of them is_held_by_variable() found
};

constexpr int kNamesBits = 8;
std::array<Names, 1 << kNamesBits> all_names;  // under the GIL

// The names of variables that no closure shares.
nb::object own_names(nb::handle code) {
  const nb::object shared = code.attr("co_cellvars");
  nb::list own;
  for (nb::handle name : nb::object(code.attr("co_varnames"))) {
    if (!nb::cast<bool>(shared.attr("__contains__")(name))) own.append(name);
  }
  return nb::tuple(own);
}

// Throws nb::python_error.
Names& names_at(const Position& position) {
  static constexpr long kOptimized = 1;  // CO_OPTIMIZED
  Names& names = all_names[position.hash(kNamesBits)];
  if (names.position == position) return names;
  const nb::handle code = position.code;
  Names fresh;
  fresh.is_function = (nb::cast<long>(code.attr("co_flags")) & kOptimized) != 0;
  nb::object tuple = !fresh.is_function             ? code.attr("co_names")
                     : variable_getter() != nullptr ? own_names(code)
                                                    : code.attr("co_varnames");
  fresh.tuple = tuple.release().ptr();
  fresh.position = {Py_NewRef(position.code), position.instruction};
  const Names replaced = std::exchange(names, fresh);
  Py_XDECREF(replaced.position.code);
  Py_XDECREF(replaced.tuple);
  return names;
}

bool is_held(nb::handle frame, PyObject* value, const Position& position) {
  Names& known = names_at(position);
  const nb::object names = nb::borrow(known.tuple);  // a collection below may make known another place's
  nb::object space;
  if (!known.is_function) {
    space = namespace_of(frame);
    if (!space.is_valid() || !PyDict_CheckExact(space.ptr())) return false;
  }
  const auto is_at = [&](Py_ssize_t i) {
    return value == (space.is_valid() ? PyDict_GetItemWithError(space.ptr(), PyTuple_GetItem(names.ptr(), i))
                                      : variable_at(frame, position.code, names, i));
  };
  const Py_ssize_t n = PyTuple_Size(names.ptr());
  if (known.last < n && is_at(known.last)) return true;
  for (Py_ssize_t i = 0; i < n; ++i) {
    if (!is_at(i)) continue;
    known.last = i;
    return true;
  }
  return false;
}

}  // namespace

[[gnu::hot]] nb::object innermost_frame() noexcept {
  return new_reference(PyThreadState_GetFrame(PyThreadState_Get()));
}

nb::object back_of(nb::handle frame) noexcept {
  static auto* const get = looked_up<PyFrameObject*(PyFrameObject*)>("PyFrame_GetBack");
  return get != nullptr ? new_reference(get(as_frame(frame))) : nb::object();
}

[[gnu::hot]] Position Position::of(nb::handle frame) noexcept {
  static auto* const get_lasti = looked_up<int(PyFrameObject*)>("PyFrame_GetLasti");
  PyFrameObject* const object = as_frame(frame);
  return {reinterpret_cast<PyObject*>(PyFrame_GetCode(object)),
          get_lasti != nullptr ? get_lasti(object) : PyFrame_GetLineNumber(object)};
}

bool is_held_by_variable(nb::handle frame, PyObject* value) noexcept {
  const Position position = Position::of(frame);
  const nb::object code = nb::steal(position.code);
  try {
    return is_held(frame, value, position);
  } catch (...) {
    PyErr_Clear();
    return false;
  }
}

FrameVariables::FrameVariables(nb::object frame) : frame_(std::move(frame)) {
  static auto* const get_globals = looked_up<OfFrame>("PyFrame_GetGlobals");
  const Position position = Position::of(frame_);
  code_ = nb::steal(position.code);
  const Names& names = names_at(position);
  if (names.is_function) names_ = nb::borrow(names.tuple);
  if (get_globals != nullptr) spaces_[0] = owned(get_globals(as_frame(frame_)));
  if (!names_.is_valid()) {
    spaces_[1] = namespace_of(frame_);
  } else if (const auto* const activation = activation_of(frame_, code_)) {
    spaces_[1] = nb::borrow(activation->locals);  // what locals() has left there
  }
}

PyObject* FrameVariables::at(Py_ssize_t i) const noexcept { return variable_at(frame_, code_, names_, i); }

}  // namespace tenon::python
