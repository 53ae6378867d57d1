// SPDX-License-Identifier: Apache-2.0
#include "function.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "array_call.h"
#include "dlpack_import.h"
#include "dtype.h"
#include "from_numpy.h"
#include "ndarray.h"
#include "tenon/share.hpp"

namespace tenon::python {
namespace {

constexpr int32_t kOpaque = 2;  // tenon_parameter::is_void of a pointer to a type that is unknown here

bool is_unsigned(tenon_dtype dtype) { return dtype.code == TENON_UINT; }

int64_t signed_number(const Function& function, int32_t i, nb::handle value, int bits) {
  int overflow = 0;
  const nb::object integer = owned(PyNumber_Index(value.ptr()));
  const int64_t number = PyLong_AsLongLongAndOverflow(integer.ptr(), &overflow);
  const int64_t high = INT64_MAX >> (64 - bits);
  if (overflow != 0 || number > high || number < -high - 1) {
    raise(PyExc_OverflowError, "%R is outside of the range of %s", value.ptr(),
          parameter_text(function, i).c_str());
  }
  return number;
}

uint64_t unsigned_number(const Function& function, int32_t i, nb::handle value, int bits) {
  const nb::object integer = owned(PyNumber_Index(value.ptr()));
  const uint64_t number = PyLong_AsUnsignedLongLong(integer.ptr());
  const bool has_failed = PyErr_Occurred() != nullptr;
  PyErr_Clear();
  if (has_failed || number > UINT64_MAX >> (64 - bits)) {
    raise(PyExc_OverflowError, "%R is outside of the range of %s", value.ptr(),
          parameter_text(function, i).c_str());
  }
  return number;
}

// NumPy's bool is none of Python's, and no integer.
int64_t truth_for(const Function& function, int32_t i, nb::handle value) {
  if (value.is(Py_True) || value.is(Py_False)) return value.is(Py_True) ? 1 : 0;
  if (PyIndex_Check(value.ptr()) != 0) return static_cast<int64_t>(unsigned_number(function, i, value, 1));
  if (nb::cast<std::string>(nb::handle(value.type()).attr("__name__")).starts_with("bool")) {
    return PyObject_IsTrue(value.ptr());
  }
  raise(PyExc_TypeError, "not a truth value");
}

Access access_of(const Function& function, int32_t i) {
  return function.parameter(i).is_const != 0 ? Access::kRead : Access::kWrite;
}

// 8-bit integers of either sign are bytes: char * takes both.
bool is_compatible(const tenon_parameter& parameter, DType dtype) {
  const auto is_byte = [](DType d) {
    return (d.code() == TENON_INT || d.code() == TENON_UINT) && d.bits() == 8 && d.lanes() == 1;
  };
  return parameter.is_void != 0 || DType(parameter.dtype) == dtype ||
         (is_byte(parameter.dtype) && is_byte(dtype));
}

// The arrays behind pointers. Like NumPy's functions on views, functions in several threads may write to one
// array at the same time: each holds a writable view, and reads as a call, which excludes leases and ops that
// write. In memory of several processes, a function has exclusive access to what it writes.
struct Pointers {
  std::deque<HostView> views;
  ArrayCall call;

  void add(const Array& array, Access access) {
    const bool is_for_all = !is_shared(array);
    if (is_for_all) views.emplace_back(array, access);
    call.uses(array, is_for_all ? Access::kRead : access);
  }
};

tenon_value argument_for(const Function& function, int32_t i, nb::handle value, Pointers& pointers) {
  if (function.parameter(i).is_pointer == 0) return number_for(function, i, value);
  tenon_value argument{};
  argument.p = nullptr;
  if (value.is_none()) return argument;
  if (const std::optional<void*> address = address_for(function, i, value)) {
    argument.p = *address;
    return argument;
  }
  const Array array = pointer_array(function, i, value, LendMode::kWritable);
  pointers.add(array, access_of(function, i));
  argument.p = array.data();
  return argument;
}

// The arguments with arrays on the memory of those of MXNet, whose methods wait.
nb::tuple without_verbs_among(const nb::args& arguments, const Function& function) {
  bool is_any = false;
  for (nb::handle argument : arguments) is_any |= has_verbs(argument);
  if (!is_any) return arguments;
  nb::list result;
  for (int32_t i = 0; i < function.parameter_count(); ++i) {
    const nb::object argument = arguments[static_cast<size_t>(i)];
    const bool is_pointer = function.parameter(i).is_pointer != 0;
    result.append(is_pointer ? without_verbs(argument, access_of(function, i)) : argument);
  }
  return nb::tuple(result);
}

nb::object call_function(const Function& function, const nb::args& given) {
  check_argument_count(function, given.size());
  const nb::tuple arguments = without_verbs_among(given, function);  // before there is a view
  std::vector<tenon_value> values(arguments.size());
  Pointers pointers;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = argument_for(function, static_cast<int32_t>(i), arguments[i], pointers);
  }
  pointers.call.begin("a native function");
  tenon_value result;
  {
    const nb::gil_scoped_release released;
    result = function.call_with(values);
  }
  return result_object(function.result(), result);
}

// Throws if value cannot be argument i.
void check_argument(const Function& function, int32_t i, nb::handle value) {
  Pointers pointers;
  (void)argument_for(function, i, value, pointers);
  pointers.call.begin("a native function");
}

nb::object dtype_or_none(const tenon_parameter& parameter) {
  return parameter.is_void != 0 ? nb::none() : dtype_object(parameter.dtype);
}

nb::tuple parameter_tuple(const tenon_parameter& p) {
  return nb::make_tuple(p.name, p.is_pointer != 0, p.is_const != 0, dtype_or_none(p));
}

nb::tuple parameters_of(const Function& function) {
  nb::list list;
  for (int32_t i = 0; i < function.parameter_count(); ++i)
    list.append(parameter_tuple(function.parameter(i)));
  return nb::tuple(list);
}

// An expression for an argument `a` that has methods of arrays.
std::string readable_name(nb::handle value) {
  if (nb::hasattr(value, "astype")) return "a";
  return PyObject_CheckBuffer(value.ptr()) != 0 ? "np.asarray(a)" : "tn.from_dlpack(a)";
}

// What makes an argument `a` of another dtype one that the function takes.
std::string way_to_dtype(nb::handle value, const std::string& wanted, bool is_output) {
  // NumPy takes bytes for text, and their values are no elements to convert.
  if (PyByteArray_Check(value.ptr()) != 0 || (PyBytes_Check(value.ptr()) != 0 && !is_output)) {
    return "pass `tn.from_buffer(a, '" + wanted + "')`";
  }
  if (!is_output) return "pass `" + readable_name(value) + ".astype('" + wanted + "')`";
  return "the function would write to a copy: make the array with `dtype='" + wanted +
         "'`, or declare the parameter const if the function only reads";
}

// The same for one with another order or with gaps.
std::string way_to_order(nb::handle value, bool is_output) {
  if (!is_output) return "pass `" + readable_name(value) + ".copy()`";
  const char* const whole = is_ndarray(value.ptr())
                                ? "pass a whole array, no slice or transposed one (b = a.copy() before the "
                                  "call, a[...] = b after it)"
                                : "pass an array that was made in C order (`order='C'`) and is whole";
  return std::string("the function would write to a copy: ") + whole +
         ", or declare the parameter const if the function only reads";
}

// A pointer of ctypes: c_void_p, or an instance of a class that ctypes.POINTER makes.
bool is_ctypes_pointer(nb::handle value) {
  const nb::object name = nb::str("ctypes");
  const nb::object ctypes = nb::steal(PyImport_GetModule(name.ptr()));
  if (!ctypes.is_valid()) {
    if (PyErr_Occurred() != nullptr) nb::raise_python_error();
    return false;
  }
  const nb::object kinds = nb::make_tuple(ctypes.attr("c_void_p"), ctypes.attr("_Pointer"));
  const int is_instance = PyObject_IsInstance(value.ptr(), kinds.ptr());
  check_python(is_instance);
  return is_instance != 0;
}

const char* kind_of_number(tenon_dtype dtype) {
  if (dtype.code == TENON_FLOAT) return "a number";
  return dtype.code == TENON_BOOL ? "True or False" : "an integer";
}

}  // namespace

std::string parameter_text(const Function& function, int32_t i) {
  const tenon_parameter p = function.parameter(i);
  std::string type = p.is_void == kOpaque ? "unknown type" : p.is_void != 0 ? "void" : DType(p.dtype).name();
  if (p.is_pointer != 0) type = (p.is_const != 0 ? "const " : "") + type + " *";
  const std::string name = *p.name != '\0' ? "'" + std::string(p.name) + "'" : std::to_string(i + 1);
  return "parameter " + name + " (" + type + ") of '" + function.name() + "'";
}

std::optional<void*> address_for(const Function& function, int32_t i, nb::handle value) {
  const tenon_parameter parameter = function.parameter(i);
  if (parameter.is_void == 0) return std::nullopt;
  nb::object number = nb::borrow(value);
  if (is_ctypes_pointer(value)) {
    const nb::object ctypes = nb::module_::import_("ctypes");
    number = ctypes.attr("cast")(value, ctypes.attr("c_void_p")).attr("value");
    if (number.is_none()) return nullptr;
  }
  if (PyLong_Check(number.ptr()) != 0 && PyBool_Check(number.ptr()) == 0) {
    void* const address = PyLong_AsVoidPtr(number.ptr());
    if (PyErr_Occurred() == nullptr) return address;
    PyErr_Clear();
    raise(PyExc_OverflowError, "%R is no address for %s", value.ptr(), parameter_text(function, i).c_str());
  }
  if (parameter.is_void != kOpaque) return std::nullopt;
  raise(PyExc_TypeError, "%s takes an address, as an int or a pointer of ctypes, or None for NULL, not %R",
        parameter_text(function, i).c_str(), reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())));
}

void check_argument_count(const Function& function, size_t n) {
  if (n == static_cast<size_t>(function.parameter_count())) return;
  raise(PyExc_TypeError, "'%s' takes %d arguments, not %zu: %s", function.name(), function.parameter_count(),
        n, function.prototype());
}

nb::object result_object(const tenon_parameter& result, const tenon_value& value) {
  if (result.is_void != 0 || result.is_status != 0) return nb::none();
  switch (result.dtype.code) {
    case TENON_FLOAT: return nb::float_(value.f);
    case TENON_BOOL: return nb::bool_(value.i != 0);
    case TENON_UINT: return nb::int_(value.u);
    default: return nb::int_(value.i);
  }
}

Array pointer_array(const Function& function, int32_t i, nb::handle value, LendMode mode) {
  Array array = array_for(function, i, value, mode);
  const tenon_parameter parameter = function.parameter(i);
  const bool is_output = parameter.is_const == 0;
  if (!is_compatible(parameter, array.dtype())) {
    const std::string wanted = DType(parameter.dtype).name();
    const std::string way = way_to_dtype(value, wanted, is_output);
    raise(PyExc_TypeError, "%s cannot take an array of %s: %s", parameter_text(function, i).c_str(),
          array.dtype().name().c_str(), way.c_str());
  }
  if (!array.is_contiguous()) {
    const std::string way = way_to_order(value, is_output);
    raise(PyExc_BufferError, "%s takes arrays in C order without gaps: %s",
          parameter_text(function, i).c_str(), way.c_str());
  }
  if (is_output && array.is_readonly()) {
    raise(PyExc_BufferError,
          "%s is written to, but the array is read-only: pass a writable one, or declare it const",
          parameter_text(function, i).c_str());
  }
  return array;
}

tenon_value number_for(const Function& function, int32_t i, nb::handle value) {
  const tenon_dtype dtype = function.parameter(i).dtype;
  tenon_value number{};
  try {
    if (dtype.code == TENON_FLOAT) {
      number.f = PyFloat_AsDouble(value.ptr());
      if (PyErr_Occurred() != nullptr) nb::raise_python_error();
    } else if (dtype.code == TENON_BOOL) {
      number.i = truth_for(function, i, value);
    } else if (is_unsigned(dtype)) {
      number.u = unsigned_number(function, i, value, dtype.bits);
    } else {
      number.i = signed_number(function, i, value, dtype.bits);
    }
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    raise(PyExc_TypeError, "%s takes %s, not %R", parameter_text(function, i).c_str(), kind_of_number(dtype),
          reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())));
  }
  return number;
}

Array array_for(const Function& function, int32_t i, nb::handle value, LendMode mode) {
  if (is_ndarray(value.ptr())) return share(value.ptr());
  if (Array numpy = share_if_numpy(value, mode)) return numpy;
  if (PyObject_CheckBuffer(value.ptr()) != 0) {
    // NumPy reads every format, keeps the buffer open, and says whether it is writable. By way of a
    // memoryview it takes bytes as numbers and shares the memory of its own scalars.
    const nb::object buffer = owned(PyMemoryView_FromObject(value.ptr()));
    return share_if_numpy(nb::module_::import_("numpy").attr("asarray")(buffer), mode);
  }
  if (Array shared = share_if_dlpack(value, access_of(function, i))) return shared;
  raise(PyExc_TypeError, "%s takes an array, or None for NULL, not %R", parameter_text(function, i).c_str(),
        reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())));
}

void add_function_type(nb::module_& module) {
  nb::class_<Function>(module, "Function", "A function of a shared library; tenon.c_function makes them.")
      .def(
          "__init__",
          [](Function* self, std::optional<std::string> path, const std::string& prototype, bool threadsafe) {
            new (self)
                Function(Function::load(path ? path->c_str() : nullptr, prototype.c_str(), threadsafe));
          },
          nb::arg("path").none(), nb::arg("prototype"), nb::arg("threadsafe") = false)
      .def_static(
          "at",
          [](uintptr_t address, const std::string& prototype, bool threadsafe) {
            return Function::from_address(reinterpret_cast<void*>(address), prototype.c_str(), threadsafe);
          },
          nb::arg("address"), nb::arg("prototype"), nb::arg("threadsafe") = false,
          "The function at an address, as an int.")
      .def_prop_ro("name", &Function::name)
      .def_prop_ro("prototype", &Function::prototype)
      .def_prop_ro("parameters", parameters_of,
                   nb::sig("def parameters(self) -> tuple[tuple[str, bool, bool, dtype | None], ...]"),
                   "(name, is a pointer, is const, dtype or None for void) of each parameter.")
      .def_prop_ro(
          "result", [](const Function& f) { return parameter_tuple(f.result()); },
          nb::sig("def result(self) -> tuple[str, bool, bool, dtype | None]"))
      .def("check", check_argument, nb::arg("i"), nb::arg("value").none(),
           nb::sig("def check(self, i: int, value: Any) -> None"),
           "Raises what a call with value as argument number i would raise.")
      .def("__call__", call_function, nb::arg("arguments"),
           nb::sig("def __call__(self, *arguments: Any) -> Any"),
           "Calls it in this thread, without the GIL. Arrays are shared, and viewed for the time of the "
           "call.");
}

}  // namespace tenon::python
