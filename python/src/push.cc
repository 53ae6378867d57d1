// SPDX-License-Identifier: Apache-2.0
//
// What tn.push is given, read once: the wrappers of arguments, the lists of arrays, the keywords. Without a
// conflict, nothing of a push is done in Python. tenon/_sync/pushes.py has what follows a conflict, and most
// messages.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "callbacks.h"
#include "devices.h"
#include "dlpack_import.h"
#include "elements.h"
#include "function.h"
#include "ndarray.h"
#include "op.h"
#include "values.h"
#include "waiting.h"

namespace tenon::python {
namespace {

// What tn.read, tn.write and tn.overwrite return: an argument, and what the op does with it.
struct Use {
  Use(nb::handle given, bool writes, bool overwrites)
      : array(nb::borrow(given)), is_write(writes), is_overwrite(overwrites) {
    if (is_ndarray(given.ptr())) return;
    refuse_verbs(given);
    raise(PyExc_TypeError, "an op %s %s: make one with tn.array(), which copies",
          writes ? "writes to an NDArray, not to" : "reads an NDArray, not",
          text_of(nb::getattr(given.type(), "__name__")).data());
  }

  nb::object array;
  bool is_write;
  bool is_overwrite;
};

nb::object text_of_use(const Use& use) {
  const char* const name = use.is_overwrite ? "overwrite" : use.is_write ? "write" : "read";
  return owned(PyUnicode_FromFormat("tn.%s(%R)", name, use.array.ptr()));
}

// Null: object is none.
const Use* use_in(nb::handle object) {
  static auto* const type = reinterpret_cast<PyTypeObject*>(nb::type<Use>().ptr());
  if (Py_TYPE(object.ptr()) != type && PyType_IsSubtype(Py_TYPE(object.ptr()), type) == 0) return nullptr;
  if (!nb::inst_ready(object)) raise(PyExc_TypeError, "the wrapper of an argument was not initialised");
  return nb::inst_ptr<Use>(object);
}

bool is_iterable(nb::handle object) {
  const int is_instance = PyObject_IsInstance(object.ptr(), callback(Callback::kIterable).ptr());
  check_python(is_instance);
  return is_instance != 0;
}

// None if there is none.
nb::object attribute_of(nb::handle object, Name& name) {
  PyObject* const found = PyObject_GetAttr(object.ptr(), name.get());
  if (found != nullptr) return nb::steal(found);
  if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) nb::raise_python_error();
  PyErr_Clear();
  return nb::none();
}

bool is_true(nb::handle object) {
  const int truth = PyObject_IsTrue(object.ptr());
  check_python(truth);
  return truth != 0;
}

// Of a function in Python; else -1.
long flags_of(nb::handle function) {
  static PyObject* type = nullptr;
  static Name code("__code__"), flags("co_flags");
  if (type == nullptr) type = nb::object(nb::module_::import_("types").attr("FunctionType")).release().ptr();
  if (reinterpret_cast<PyObject*>(Py_TYPE(function.ptr())) != type) return -1;
  return PyLong_AsLong(attribute_of(attribute_of(function, code), flags).ptr());
}

// A call of a generator or a coroutine would not run the function's body.
void refuse_generators(nb::handle function, nb::handle name) {
  constexpr long kUnrun = 0x20 | 0x80 | 0x200;  // inspect.CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR
  const long flags = flags_of(function);
  if (flags < 0 || (flags & kUnrun) != 0) callback(Callback::kRefuseGenerators)(function, name);
}

int32_t policy_of(nb::handle on_conflict) {
  constexpr std::pair<const char*, int32_t> kPolicies[] = {{"raise", TENON_CONFLICT_RAISE},
                                                           {"wait", TENON_CONFLICT_WAIT},
                                                           {"copy", TENON_CONFLICT_RAISE},
                                                           {"ignore", TENON_CONFLICT_IGNORE}};
  for (const auto& [name, policy] : kPolicies) {
    if (PyUnicode_CheckExact(on_conflict.ptr()) == 0) break;
    if (PyUnicode_CompareWithASCIIString(on_conflict.ptr(), name) == 0) return policy;
  }
  return nb::cast<int32_t>(callback(Callback::kPolicyOf)(on_conflict));
}

// The name of the op.
nb::object name_of(nb::handle function, nb::handle given) {
  static Name of_functions("__name__"), of_others("name");
  if (!given.is_none() && !text_from(given, "name").empty()) return nb::borrow(given);
  for (Name* name : {&of_functions, &of_others}) {
    nb::object found = attribute_of(function, *name);
    if (PyUnicode_Check(found.ptr()) && PyUnicode_GetLength(found.ptr()) != 0) return found;
  }
  return attribute_of(function.type(), of_functions);
}

// What one push says. Under the GIL.
class Work {
 public:
  // Throws what tn.push throws for invalid arguments.
  Work(nb::handle function, const nb::tuple& arguments, const nb::dict& keywords,
       const std::array<nb::handle, 3>& lists, nb::handle name, nb::handle on_conflict);

  // A tenon.Op. renewed: null, or what Renewals takes. If it throws, as tn.push, nothing is queued.
  nb::object submit(nb::handle renewed) const;
  // A copy in which a device takes part is submitted to a stream, and no thread waits for it.
  bool is_copy_on_device() const;
  // (array, is write, is overwrite) of what was given; of_prototype: and of what follows from the prototype
  // of a native function.
  nb::list uses(bool of_prototype) const;
  nb::list arguments() const;
  const nb::object& function() const { return function_; }

  int traverse(visitproc visit, void* arg) const;

 private:
  struct Argument {
    nb::object value;  // an NDArray in place of a wrapper
    bool is_wrapped = false;
    bool is_written = false;  // the body may write to it
  };
  struct Row {
    nb::object array;
    bool is_write;
    bool is_overwrite;
  };

  void add(nb::handle array, bool is_write, bool is_overwrite);
  void add_list(const char* name, nb::handle arrays, bool is_write, bool is_overwrite);
  void take_arguments(const nb::tuple& arguments, const nb::dict& keywords);
  void check_declared() const;
  std::vector<Row> rows_with_prototype() const;
  // Whether one of the first n rows is of the array, and is_wanted.
  template <class Wanted>
  bool has_row(nb::handle array, size_t n, Wanted is_wanted) const;
  bool knows(nb::handle array) const {
    return has_row(array, rows_.size(), [](const Row&) { return true; });
  }
  bool is_ndarray_at(size_t i) const { return is_ndarray(arguments_[i].value.ptr()); }

  NativeOp start(nb::handle renewed) const;
  std::optional<NativeOp> start_without_python(const Push& push) const;
  PythonCall python_call(const Push& push) const;

  nb::object function_;
  nb::object native_;                     // the Function of a CFunction; else null
  const Function* c_function_ = nullptr;  // in native_
  nb::object name_;
  nb::object keywords_;  // a tuple: the names of the last arguments of a function in Python
  int32_t on_conflict_;
  std::vector<Argument> arguments_;
  std::vector<Row> rows_;
};

Work::Work(nb::handle function, const nb::tuple& arguments, const nb::dict& keywords,
           const std::array<nb::handle, 3>& lists, nb::handle name, nb::handle on_conflict)
    : function_(nb::borrow(function)), on_conflict_(policy_of(on_conflict)) {
  add_list("reads", lists[0], false, false);
  add_list("writes", lists[1], true, false);
  add_list("overwrites", lists[2], true, true);
  const size_t n_listed = rows_.size();
  if (PyCallable_Check(function.ptr()) == 0)
    raise(PyExc_TypeError, "fn is %R: an op runs a function", function.ptr());
  name_ = name_of(function, name);
  take_arguments(arguments, keywords);
  for (Argument& argument : arguments_) {
    const Use* const use = use_in(argument.value);
    if (use == nullptr) continue;
    add(use->array, use->is_write, use->is_overwrite);
    argument = {use->array, true, use->is_write};
  }
  if (c_function_ != nullptr) check_declared();
  for (Argument& argument : arguments_) {
    if (!is_ndarray(argument.value.ptr())) {
      refuse_verbs(argument.value);
      continue;
    }
    const bool is_bare = !argument.is_wrapped && (c_function_ == nullptr || knows(argument.value));
    if (is_bare) add(argument.value, false, false);
    argument.is_written |= has_row(argument.value, n_listed, [](const Row& row) { return row.is_write; });
  }
}

void Work::add(nb::handle array, bool is_write, bool is_overwrite) {
  if (is_write && (desc_of(array.ptr()).flags & TENON_READONLY) != 0) {
    raise(PyExc_BufferError, "an op cannot write to a read-only array of shape %R: %s",
          nb::object(array.attr("shape")).ptr(), kHowToWrite);
  }
  rows_.push_back({nb::borrow(array), is_write, is_overwrite});
}

void Work::add_list(const char* name, nb::handle arrays, bool is_write, bool is_overwrite) {
  if (PyTuple_CheckExact(arrays.ptr()) && PyTuple_Size(arrays.ptr()) == 0) return;
  const bool is_plain = PyTuple_CheckExact(arrays.ptr()) || PyList_CheckExact(arrays.ptr());
  if (is_ndarray(arrays.ptr()) || (!is_plain && !is_iterable(arrays)))
    raise(PyExc_TypeError, "%s is %R: it must be a list of NDArrays", name, arrays.ptr());
  const nb::object iterator = owned(PyObject_GetIter(arrays.ptr()));
  while (const nb::object array = nb::steal(PyIter_Next(iterator.ptr()))) {
    if (use_in(array) != nullptr)
      raise(PyExc_TypeError, "%s has %R: pass the array itself", name, array.ptr());
    if (!is_ndarray(array.ptr())) {
      refuse_verbs(array);
      raise(PyExc_TypeError, "%s has %R: make an NDArray of it with tn.array(), which copies", name,
            array.ptr());
    }
    add(array, is_write, is_overwrite);
  }
  if (PyErr_Occurred() != nullptr) nb::raise_python_error();
}

void Work::take_arguments(const nb::tuple& arguments, const nb::dict& keywords) {
  static Name native("_native"), constants("constants"), filled("_filled");
  auto* const type = reinterpret_cast<PyTypeObject*>(callback(Callback::kCFunction).ptr());
  const bool is_native = PyType_IsSubtype(Py_TYPE(function_.ptr()), type) != 0;
  if (!function_.type().is(callback(Callback::kCFunction))) refuse_generators(function_, name_);
  nb::object given = nb::borrow(arguments);
  if (is_native) {
    native_ = attribute_of(function_, native);
    if (!nb::isinstance<Function>(native_)) raise(PyExc_TypeError, "the CFunction was not initialised");
    c_function_ = nb::inst_ptr<Function>(native_);
    if (nb::len(keywords) != 0 || is_true(attribute_of(function_, constants)))
      given = function_.attr(filled.get())(arguments, keywords);
  }
  const Py_ssize_t n = PyTuple_Size(given.ptr());
  if (n < 0) nb::raise_python_error();
  arguments_.reserve(static_cast<size_t>(n) + nb::len(keywords));
  for (Py_ssize_t i = 0; i < n; ++i) arguments_.push_back({nb::borrow(PyTuple_GetItem(given.ptr(), i))});
  keywords_ = owned(PySequence_Tuple(keywords.ptr()));
  if (is_native) return;
  Py_ssize_t at = 0;
  for (PyObject* value = nullptr; PyDict_Next(keywords.ptr(), &at, nullptr, &value) != 0;)
    arguments_.push_back({nb::borrow(value)});
}

// Refuses an array that the push only reads, and to which the function may write by its prototype.
void Work::check_declared() const {
  const auto n = std::min(arguments_.size(), static_cast<size_t>(c_function_->parameter_count()));
  for (size_t i = 0; i < n; ++i) {
    const Argument& argument = arguments_[i];
    const tenon_parameter parameter = c_function_->parameter(static_cast<int32_t>(i));
    if (parameter.is_pointer == 0 || parameter.is_const != 0 || !is_ndarray(argument.value.ptr())) continue;
    const bool writes = argument.is_wrapped
                            ? argument.is_written
                            : !knows(argument.value) || has_row(argument.value, rows_.size(),
                                                                [](const Row& row) { return row.is_write; });
    if (writes) continue;
    const nb::object name = *parameter.name != '\0' ? nb::object(nb::str(parameter.name)) : nb::int_(i + 1);
    raise(PyExc_TypeError,
          "the function may write to parameter %R of %R, and the push only reads the array: declare the "
          "parameter const if the function only reads, else pass `tn.write(a)`",
          name.ptr(), nb::str(c_function_->prototype()).ptr());
  }
}

template <class Wanted>
bool Work::has_row(nb::handle array, size_t n, Wanted is_wanted) const {
  for (size_t i = 0; i < n; ++i) {
    if (rows_[i].array.is(array) && is_wanted(rows_[i])) return true;
  }
  return false;
}

bool Work::is_copy_on_device() const {
  if (!function_.is(callback(Callback::kCopy)) || rows_.size() != 2 || arguments_.size() != 2) return false;
  if (!is_ndarray_at(0) || !is_ndarray_at(1) || arguments_[0].is_written || !arguments_[1].is_written)
    return false;
  return is_on_device(desc_of(arguments_[0].value.ptr()).device) ||
         is_on_device(desc_of(arguments_[1].value.ptr()).device);
}

std::vector<Work::Row> Work::rows_with_prototype() const {
  std::vector<Row> rows = rows_;
  const size_t n = c_function_ == nullptr ? 0 : static_cast<size_t>(c_function_->parameter_count());
  for (size_t i = 0; i < std::min(n, arguments_.size()); ++i) {
    const bool is_const = c_function_->parameter(static_cast<int32_t>(i)).is_const != 0;
    if (is_ndarray_at(i) && (is_const || !knows(arguments_[i].value)))
      rows.push_back({arguments_[i].value, !is_const, false});
  }
  return rows;
}

nb::list Work::uses(bool of_prototype) const {
  nb::list list;
  for (const Row& row : of_prototype ? rows_with_prototype() : rows_)
    list.append(nb::make_tuple(row.array, row.is_write, row.is_overwrite));
  return list;
}

nb::list Work::arguments() const {
  nb::list list;
  for (const Argument& argument : arguments_) list.append(argument.value);
  return list;
}

nb::object Work::submit(nb::handle renewed) const {
  // The object first: an op that was queued has one.
  nb::object op = nb::inst_alloc(callback(Callback::kOp));
  auto* const native = new (nb::inst_ptr<NativeOp>(op)) NativeOp(start(renewed));
  nb::inst_mark_ready(op);
  native->set_name(name_);
  return op;
}

NativeOp Work::start(nb::handle renewed) const {
  std::unique_ptr<Renewals> renewals;
  if (renewed.is_valid()) renewals = std::make_unique<Renewals>(nb::borrow<nb::list>(renewed));
  nb::object check = nb::none();
  if (on_conflict_ == TENON_CONFLICT_IGNORE) check = callback(Callback::kPromiseOf)(uses(true));
  const bool is_checked = !check.is_none();
  // Arrays are taken at one moment: from here to the push no code of Python runs, which could give them other
  // memory. The exception are the numbers for native functions (push_function).
  Push push{{}, text_of(name_).data(), on_conflict_, renewals.get()};
  for (const Row& row : is_checked ? rows_with_prototype() : rows_) {
    push.uses.add(push.memory_of(row.array), row.is_write ? Access::kWrite : Access::kRead,
                  row.is_overwrite ? uint32_t{TENON_OVERWRITE} : 0u);
  }
  if (is_copy_on_device())
    return push_copy(push.memory_of(arguments_[0].value), push.memory_of(arguments_[1].value), push);
  if (!is_checked) {
    if (std::optional<NativeOp> op = start_without_python(push)) return std::move(*op);
  }
  PythonCall call = python_call(push);
  call.renewals = std::move(renewals);
  if (is_checked) call.check = std::move(check);
  return push_python(std::move(call), std::move(push));
}

std::optional<NativeOp> Work::start_without_python(const Push& push) const {
  if (c_function_ != nullptr) {
    std::vector<nb::object> values;
    for (const Argument& argument : arguments_) values.push_back(argument.value);
    return push_function(*c_function_, values, push);
  }
  const bool is_fill = function_.is(callback(Callback::kFill));
  if (!is_fill && !function_.is(callback(Callback::kCopy)) && !function_.is(callback(Callback::kCast)))
    return std::nullopt;
  if (arguments_.size() != 2 || PyTuple_Size(keywords_.ptr()) != 0) return std::nullopt;
  const Argument& destination = arguments_[is_fill ? 0 : 1];
  if (!is_ndarray(destination.value.ptr()) || !destination.is_written) return std::nullopt;
  const Array memory = push.memory_of(destination.value);
  if (is_fill) return push_fill(memory, arguments_[1].value, push);
  return is_ndarray_at(0) ? push_plain_copy(push.memory_of(arguments_[0].value), memory, push) : std::nullopt;
}

PythonCall Work::python_call(const Push& push) const {
  PythonCall call{function_, keywords_, {}, {}, {}};
  if (c_function_ != nullptr) {  // which is called with NDArrays
    nb::list bound;
    bound.append(native_);
    for (const Argument& argument : arguments_) {
      const nb::object& value = argument.value;
      bound.append(is_ndarray(value.ptr()) ? nb::cast(push.memory_of(value)) : value);
    }
    call.function = nb::module_::import_("functools").attr("partial")(*bound);
    call.keywords = nb::tuple();
    return call;
  }
  call.arguments.resize(arguments_.size());
  for (size_t i = 0; i < arguments_.size(); ++i) {
    BodyArgument& argument = call.arguments[i];
    const nb::object& value = arguments_[i].value;
    if (!is_ndarray_at(i)) {
      argument.value = value;
      continue;
    }
    argument.memory = push.memory_of(value);
    if (!arguments_[i].is_written) continue;
    argument.output = value;
    argument.is_overwritten = has_row(value, rows_.size(), [](const Row& row) { return row.is_overwrite; });
  }
  return call;
}

int Work::traverse(visitproc visit, void* arg) const {
  Py_VISIT(function_.ptr());
  Py_VISIT(native_.ptr());
  Py_VISIT(name_.ptr());
  Py_VISIT(keywords_.ptr());
  for (const Argument& argument : arguments_) Py_VISIT(argument.value.ptr());
  for (const Row& row : rows_) Py_VISIT(row.array.ptr());
  return 0;
}

int traverse_work(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<PyObject*>(Py_TYPE(self)));
  return nb::inst_ready(self) ? nb::inst_ptr<Work>(self)->traverse(visit, arg) : 0;
}

PyType_Slot work_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse_work)}, {0, nullptr}};

nb::object push_from_python(nb::handle function, const nb::tuple& arguments, const nb::dict& keywords,
                            nb::handle reads, nb::handle writes, nb::handle overwrites, nb::handle name,
                            nb::handle on_conflict) {
  Work work(function, arguments, keywords, {reads, writes, overwrites}, name, on_conflict);
  try {
    return work.submit({});
  } catch (const Error& error) {
    if (error.code() != TENON_ERR_LEASE_CONFLICT) throw;
    raise_noted_interrupt();
  } catch (const nb::python_error& error) {
    if (!error.matches(callback(Callback::kLeaseConflict))) throw;
  }
  return callback(Callback::kPushAgain)(nb::cast(std::move(work)), on_conflict);
}

template <bool is_write, bool is_overwrite>
PyObject* wrap_argument(PyObject*, PyObject* const* arguments, Py_ssize_t n, PyObject* keywords) {
  static constinit FastParameters<1> parameters(is_overwrite ? "overwrite"
                                                : is_write   ? "write"
                                                             : "read",
                                                {"array"}, 1, 1);
  PyObject* const array =
      n == 1 && keywords == nullptr ? arguments[0] : parameters.parse(arguments, n, keywords)[0];
  return nb::cast(Use(array, is_write, is_overwrite)).release().ptr();
}

PyMethodDef verbs[] = {
    fast_method<wrap_argument<false, false>>(
        "read",
        "read(array)\n--\n\n"
        "Wraps an argument of `push`: the op only reads ``array``, as a Python function does without this.\n"
        "`push` refuses it for a parameter that the prototype of a `CFunction` does not declare const."),
    fast_method<wrap_argument<true, false>>(
        "write", "write(array)\n--\n\nWraps an argument of `push`: the op reads and writes ``array``."),
    fast_method<wrap_argument<true, true>>(
        "overwrite",
        "overwrite(array)\n--\n\n"
        "Wraps an argument of `push`: the op writes every element of ``array`` before it reads any."),
};

}  // namespace

void add_pushes(nb::module_& module) {
  nb::class_<Use>(module, "Use", "An array among the arguments of an op, and what the op does with it.",
                  nb::pooled())
      .def(nb::init<nb::handle, bool, bool>(), nb::arg("array").none(), nb::arg("is_write"),
           nb::arg("is_overwrite"))
      .def_ro("array", &Use::array)
      .def_ro("is_write", &Use::is_write)
      .def_ro("is_overwrite", &Use::is_overwrite)
      .def("__repr__", text_of_use, nb::sig("def __repr__(self) -> str"))
      .def(
          "__array__",
          [](nb::handle self, const nb::args&, const nb::kwargs&) -> nb::object {
            raise(PyExc_TypeError, "%R wraps an argument of tn.push: pass the array itself here", self.ptr());
          },
          nb::sig("def __array__(self, *args: Any, **kwargs: Any) -> Any"));
  for (PyMethodDef& verb : verbs) add_function(module, &verb);
  nb::class_<Work>(module, "Work", nb::type_slots(work_slots), "The work of one push that conflicts.")
      .def("submit", &Work::submit, nb::arg("renewed"),
           nb::sig("def submit(self, renewed: list[tuple[NDArray, NDArray]]) -> Op[Any]"),
           "Pushes it again, and returns an Op. renewed: pairs of arrays. The first gets the memory of the "
           "second when the\npush is accepted.")
      .def("is_copy_on_device", &Work::is_copy_on_device)
      .def("uses", &Work::uses, nb::arg("of_prototype"),
           nb::sig("def uses(self, of_prototype: bool) -> list[tuple[NDArray, bool, bool]]"),
           "(array, is write, is overwrite) of what was given; of_prototype: and of what follows from the "
           "prototype of\na native function.")
      .def_prop_ro("function", &Work::function, nb::sig("def function(self) -> Any"))
      .def("arguments", &Work::arguments, nb::sig("def arguments(self) -> list[Any]"));
  module.def("push", push_from_python, nb::arg("function").none(), nb::arg("arguments"), nb::arg("keywords"),
             nb::arg("reads").none(), nb::arg("writes").none(), nb::arg("overwrites").none(),
             nb::arg("name").none(), nb::arg("on_conflict").none(),
             nb::sig("def push(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], reads: "
                     "Any, writes: Any, overwrites: Any, name: Any, on_conflict: Any) -> Op[Any]"),
             "What tenon.push does with what it is given.");
}

}  // namespace tenon::python
