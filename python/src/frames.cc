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

#include <algorithm>
#include <array>
#include <utility>

#include "callbacks.h"
#include "counts.h"

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
  const bool is_its =
      activation->frame == frame.ptr() || activation->frame == nullptr;  // null when it has ended
  return is_its && activation->code == code.ptr() ? activation : nullptr;
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
  // Of each variable a letter of counts.py; empty: each of them counts.
  std::string certainty;
  Py_ssize_t last = 0;  // which of them is_held_by_variable() found
};

constexpr int kNamesBits = 8;
std::array<Names, 1 << kNamesBits> all_names;  // under the GIL

bool is_of_function(nb::handle code) {
  static constexpr long kOptimized = 1;  // CO_OPTIMIZED
  return (nb::cast<long>(code.attr("co_flags")) & kOptimized) != 0;
}

// The names of variables that no closure shares.
nb::object own_names(nb::handle code) {
  const nb::object shared = code.attr("co_cellvars");
  nb::list own;
  for (nb::handle name : nb::object(code.attr("co_varnames"))) {
    if (!nb::cast<bool>(shared.attr("__contains__")(name))) own.append(name);
  }
  return nb::tuple(own);
}

// What is known of the references of these variables while the frame executes this instruction. May run a
// collection.
std::string certainty_of(const Position& position, const nb::object& names) {
  if (counting() == Counting::kOwned) return {};
  const nb::object letters =
      callback(Callback::kCertaintyOf)(nb::handle(position.code), position.instruction, names);
  std::string result(text_of(letters));
  if (result.size() != nb::len(names)) raise(PyExc_ValueError, "certainty_of() has lost variables");
  return result;
}

// Throws nb::python_error.
Names& names_at(const Position& position) {
  Names& names = all_names[position.hash(kNamesBits)];
  if (names.position == position) return names;
  const nb::handle code = position.code;
  Names fresh;
  fresh.is_function = is_of_function(code);
  nb::object tuple = !fresh.is_function             ? code.attr("co_names")
                     : variable_getter() != nullptr ? own_names(code)
                                                    : code.attr("co_varnames");
  if (fresh.is_function) fresh.certainty = certainty_of(position, tuple);
  fresh.tuple = tuple.release().ptr();
  fresh.position = {Py_NewRef(position.code), position.instruction};
  const Names replaced = std::exchange(names, fresh);
  Py_XDECREF(replaced.position.code);
  Py_XDECREF(replaced.tuple);
  return names;
}

bool is_at(nb::handle frame, const Position& position) noexcept {
  const Position now = Position::of(frame);
  const nb::object code = nb::steal(now.code);
  return now == position;
}

bool is_held(nb::handle frame, PyObject* value, const Position& position) {
  Names& known = names_at(position);
  if (!is_at(frame, position)) return false;  // it runs in another thread, and may lend anything by now
  const nb::object names = nb::borrow(known.tuple);  // a collection below may make known another place's
  nb::object space;
  if (!known.is_function) {
    space = namespace_of(frame);
    if (!space.is_valid() || !PyDict_CheckExact(space.ptr())) return false;
  }
  const auto has_it = [&](Py_ssize_t i) {
    return value == (space.is_valid() ? PyDict_GetItemWithError(space.ptr(), PyTuple_GetItem(names.ptr(), i))
                                      : variable_at(frame, position.code, names, i));
  };
  const Py_ssize_t n = PyTuple_Size(names.ptr());
  const std::string certainty = known.certainty;
  const auto is_certain = [&](Py_ssize_t i) {
    return certainty.empty() || certainty[static_cast<size_t>(i)] == kCertain;
  };
  Py_ssize_t found = known.last < n && is_certain(known.last) && has_it(known.last) ? known.last : n;
  for (Py_ssize_t i = 0; i < n; ++i) {
    if (found < n && is_certain(i)) continue;  // one is enough
    if (!has_it(i)) continue;
    if (!is_certain(i)) return false;  // and may have lent it to the other
    found = known.last = i;
  }
  return found < n;
}

// Of a function: those that it shares with inner or outer functions, which are in cells.
nb::object shared_variable(nb::handle frame, nb::handle code, nb::handle name, Py_ssize_t i) {
  if (VariableOfFrame* const get = variable_getter()) {
    nb::object value = nb::steal(get(as_frame(frame), name.ptr()));
    if (!value.is_valid()) PyErr_Clear();
    return value;
  }
  const auto* const activation = activation_of(frame, code);
  PyObject* const cell = activation != nullptr ? activation->variables[i] : nullptr;
  static PyObject* const cell_type = nb::module_::import_("types").attr("CellType").ptr();  // lives for ever
  if (cell == nullptr || reinterpret_cast<PyObject*>(Py_TYPE(cell)) != cell_type) return {};
  return nb::getattr(cell, "cell_contents", nb::object());
}

// The name and the place of each variable that closures share.
std::vector<std::pair<nb::object, Py_ssize_t>> shared_of(nb::handle code) {
  std::vector<std::pair<nb::object, Py_ssize_t>> found;
  const nb::object own = code.attr("co_varnames");
  Py_ssize_t next = PyTuple_Size(own.ptr());
  for (const char* kind : {"co_cellvars", "co_freevars"}) {
    for (nb::handle name : nb::object(code.attr(kind))) {
      const Py_ssize_t among_own = PySequence_Index(own.ptr(), name.ptr());  // a parameter
      PyErr_Clear();
      found.emplace_back(nb::borrow(name), among_own >= 0 ? among_own : next++);
    }
  }
  return found;
}

nb::list variables_of(nb::handle frame) {
  nb::list found;
  const nb::object code = frame.attr("f_code");
  if (!is_of_function(code)) return found;
  const nb::object names = variable_getter() != nullptr ? own_names(code) : code.attr("co_varnames");
  const nb::object shared = code.attr("co_cellvars");
  for (Py_ssize_t i = 0; i < PyTuple_Size(names.ptr()); ++i) {
    const nb::object name = nb::borrow(PyTuple_GetItem(names.ptr(), i));
    if (PySequence_Contains(shared.ptr(), name.ptr()) != 0) continue;
    const nb::object value = nb::borrow(variable_at(frame, code, names, i));
    if (value.is_valid()) found.append(nb::make_tuple(name, value));
  }
  for (const auto& [name, i] : shared_of(code)) {
    const nb::object value = shared_variable(frame, code, name, i);
    if (value.is_valid()) found.append(nb::make_tuple(name, value));
  }
  return found;
}

// A frame, and those around it, up to a limit.
struct Stack {
  std::vector<nb::object> frames;
  bool has_more = false;
};

Stack stack_from(nb::object frame) {
  static constexpr size_t kMaxFrames = 1000;  // of one thread
  Stack stack;
  for (; frame.is_valid() && stack.frames.size() < kMaxFrames; frame = back_of(stack.frames.back()))
    stack.frames.push_back(std::move(frame));
  stack.has_more = frame.is_valid();
  return stack;
}

// What the variables of the stacks are. It may run other threads, which may have a generator of theirs
// suspended then: it does not show what called it any more. So the stacks are taken before.
std::vector<FrameVariables> variables_in(const std::vector<Stack>& stacks) {
  std::vector<FrameVariables> found;
  for (const Stack& stack : stacks) {
    for (const nb::object& frame : stack.frames) found.emplace_back(frame);
    if (stack.has_more) found.back().suppose_lent();  // the function around may have lent it anything
  }
  return found;
}

// The copy of a function's variables that its frame keeps once code has asked for it; null where there is
// none. A debugger writes it back into the variables.
nb::object copy_of_variables(nb::handle frame, nb::handle code) {
  static constexpr unsigned long k313 = 0x030D;
  if (Py_Version >> 16 >= k313) return {};
  if (const auto* const activation = activation_of(frame, code)) return nb::borrow(activation->locals);
  nb::object copy = namespace_of(frame);  // makes it
  if (!copy.is_valid() || !PyDict_CheckExact(copy.ptr())) return {};
  const nb::module_ sys = nb::module_::import_("sys");
  const bool is_traced = !frame.attr("f_trace").is_none() || !nb::object(sys.attr("gettrace")()).is_none() ||
                         !nb::object(sys.attr("getprofile")()).is_none();
  if (is_traced || references_to(copy.ptr()) > 2) return copy;  // of the frame, and here
  PyDict_Clear(copy.ptr());
  return {};
}

nb::list counted_variables(nb::handle frame) {
  const CountedVariables variables(frame);
  nb::list found;
  variables.visit([&](PyObject* value) { found.append(nb::handle(value)); });
  return found;
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
    forget_exception();
    return false;
  }
}

FrameVariables::FrameVariables(nb::object frame) : frame_(std::move(frame)) {
  static auto* const get_globals = looked_up<OfFrame>("PyFrame_GetGlobals");
  const Position position = Position::of(frame_);
  code_ = nb::steal(position.code);
  const Names& names = names_at(position);
  if (names.is_function) {
    names_ = nb::borrow(names.tuple);
    certainty_ = names.certainty;
    instruction_ = position.instruction;
  }
  if (get_globals != nullptr) spaces_[0] = owned(get_globals(as_frame(frame_)));
  if (!names_.is_valid()) {
    spaces_[1] = namespace_of(frame_);
  } else if (const auto* const activation = activation_of(frame_, code_)) {
    spaces_[1] = nb::borrow(activation->locals);  // what locals() has left there
  }
}

std::vector<FrameVariables> frames_of_this_thread() { return variables_in({stack_from(innermost_frame())}); }

std::vector<FrameVariables> frames_of_all_threads() {
  std::vector<Stack> stacks;
  const nb::object tops = nb::module_::import_("sys").attr("_current_frames")();
  for (nb::handle top : nb::object(tops.attr("values")())) stacks.push_back(stack_from(nb::borrow(top)));
  return variables_in(stacks);
}

CountedVariables::CountedVariables(nb::handle frame)
    : frame_(nb::borrow(frame)), code_(frame.attr("f_code")) {
  if (!is_of_function(code_)) {
    nb::object space = namespace_of(frame);
    if (space.is_valid() && PyDict_Check(space.ptr())) dicts_.push_back(std::move(space));
    return;
  }
  if (nb::object copy = copy_of_variables(frame, code_); copy.is_valid()) dicts_.push_back(std::move(copy));
  for (auto& [name, i] : shared_of(code_)) {
    if (shared_variable(frame, code_, name, i).is_valid()) shared_.emplace_back(std::move(name), i);
  }
  variables_.emplace(frame_);
  if (counting() != Counting::kOwned) running_ = frames_of_all_threads();
}

void CountedVariables::visit_variables(const std::function<void(PyObject*)>& visit) const {
  std::vector<PyObject*> lent;
  for (const FrameVariables& running : running_)
    running.visit([&](PyObject* value, char certainty) {
      if (certainty == kLent) lent.push_back(value);
    });
  variables_->visit([&](PyObject* value, char certainty) {
    if (certainty == kLent || std::ranges::find(lent, value) != lent.end()) return;
    if (counting() != Counting::kStrict || certainty == kCertain) visit(value);
  });
  for (const auto& [name, i] : shared_) {
    PyObject* const value = shared_variable(frame_, code_, name, i).ptr();  // the cell holds it
    if (value != nullptr) visit(value);
  }
}

bool FrameVariables::is_where_it_was() const noexcept { return is_at(frame_, {code_.ptr(), instruction_}); }

PyObject* FrameVariables::at(Py_ssize_t i) const noexcept { return variable_at(frame_, code_, names_, i); }

void forget_names() noexcept {
  for (Names& names : all_names) {
    const Names forgotten = std::exchange(names, Names{});
    Py_XDECREF(forgotten.position.code);
    Py_XDECREF(forgotten.tuple);
  }
}

void add_frames(nb::module_& module) {
  module.def(
      "variables_of", variables_of, nb::arg("frame"),
      nb::sig("def variables_of(frame: Any) -> list[tuple[str, Any]]"),
      "The variables of a function that runs or has run, with what closures share; none of other code.\n"
      "Makes no copy of them that the frame keeps, as f_locals does before Python 3.13.");
  module.def(
      "counted_variables", counted_variables, nb::arg("frame"),
      nb::sig("def counted_variables(frame: Any) -> list[Any]"),
      "What the variables of a frame refer to, once for each reference that counts (python/src/counts.h).");
}

}  // namespace tenon::python
