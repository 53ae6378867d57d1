// SPDX-License-Identifier: Apache-2.0
#include "values.h"

#include <algorithm>

namespace tenon::python {
namespace {

// NumPy's bool without NumPy: it is numpy.bool, numpy.bool_ before 2.0.
bool is_numpy_bool(nb::handle value) {
  const nb::object type = nb::borrow(reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())));
  const std::string name = nb::cast<std::string>(type.attr("__name__"));
  return (name == "bool" || name == "bool_") &&
         nb::cast<std::string>(nb::str(type.attr("__module__"))) == "numpy";
}

bool is_bool(nb::handle value) {
  if (PyLong_CheckExact(value.ptr()) != 0) return false;  // the name of a class takes 400 instructions
  return PyBool_Check(value.ptr()) != 0 || is_numpy_bool(value);
}

// Clears the error that is set if it is of this type. Returns whether it was.
bool took_error(PyObject* type) {
  if (PyErr_ExceptionMatches(type) == 0) return false;
  PyErr_Clear();
  return true;
}

nb::object index_of(nb::handle value, const char* name) {
  if (PyIndex_Check(value.ptr()) == 0)
    raise(PyExc_TypeError, "%s is %R: it must be an integer", name, value.ptr());
  return owned(PyNumber_Index(value.ptr()));
}

}  // namespace

int64_t integer_from(nb::handle value, const char* name, int64_t low, int64_t high) {
  if (is_bool(value)) raise(PyExc_TypeError, "%s is %R: it must be an integer", name, value.ptr());
  const nb::object number = index_of(value, name);
  const long long given = PyLong_AsLongLong(number.ptr());
  const bool is_huge = given == -1 && PyErr_Occurred() != nullptr;
  if (is_huge && !took_error(PyExc_OverflowError)) nb::raise_python_error();
  if (is_huge || given < low || given > high) {
    raise(PyExc_ValueError, "%s is %S: it must lie between %lld and %lld", name, number.ptr(),
          static_cast<long long>(low), static_cast<long long>(high));
  }
  return given;
}

int64_t entry_from(nb::handle value, const char* name) {
  if (PyIndex_Check(value.ptr()) == 0) {
    raise(PyExc_TypeError, "%s has the entry %R: it must be an integer", name, value.ptr());
  }
  const nb::object number = owned(PyNumber_Index(value.ptr()));
  const long long given = PyLong_AsLongLong(number.ptr());
  if (given != -1 || PyErr_Occurred() == nullptr) return given;
  if (!took_error(PyExc_OverflowError)) nb::raise_python_error();
  raise(PyExc_OverflowError, "%s has the entry %S, which does not fit into 64 bits", name, number.ptr());
}

void* pointer_from(nb::handle value, const char* name) {
  if (is_bool(value)) raise(PyExc_TypeError, "%s is %R: it must be an integer", name, value.ptr());
  const nb::object number = index_of(value, name);
  const unsigned long long given = PyLong_AsUnsignedLongLong(number.ptr());
  if (given == static_cast<unsigned long long>(-1) && PyErr_Occurred() != nullptr) {
    if (!took_error(PyExc_OverflowError)) nb::raise_python_error();
    raise(PyExc_ValueError, "%s is %S: addresses lie between 0 and 2**64 - 1", name, number.ptr());
  }
  return reinterpret_cast<void*>(static_cast<uintptr_t>(given));
}

int64_t nanoseconds_from(nb::handle seconds, const char* name, const char* or_none) {
  double given = 0;
  if (PyFloat_CheckExact(seconds.ptr()) != 0) {
    given = PyFloat_AsDouble(seconds.ptr());
  } else {
    // Texts, which float() accepts, and bools are no numbers here.
    const bool is_number = (PyFloat_Check(seconds.ptr()) != 0 || PyIndex_Check(seconds.ptr()) != 0 ||
                            PyObject_HasAttrString(seconds.ptr(), "__float__") != 0) &&
                           !is_bool(seconds);
    if (is_number) given = PyFloat_AsDouble(seconds.ptr());
    const bool has_failed = given == -1 && PyErr_Occurred() != nullptr;
    if (has_failed && took_error(PyExc_OverflowError)) {
      given = nb::cast<bool>(nb::bool_(seconds < nb::int_(0))) ? -1 : HUGE_VAL;
    } else if (!is_number || (has_failed && took_error(PyExc_TypeError))) {
      raise(PyExc_TypeError, "%s is %R: it must be seconds%s", name, seconds.ptr(), or_none);
    } else if (has_failed) {
      nb::raise_python_error();
    }
  }
  if (!(given >= 0)) {
    raise(PyExc_ValueError,
          given < 0 ? "%s is %R: it must not be negative" : "%s is %R: it must be seconds%s", name,
          seconds.ptr(), or_none);
  }
  return static_cast<int64_t>(std::min(given * 1e9, 9e18));
}

bool flag_from(nb::handle value, const char* name, const char* or_none, PyObject* error) {
  if (value.ptr() == Py_True || value.ptr() == Py_False) return value.ptr() == Py_True;
  if (!is_numpy_bool(value)) {
    raise(error, "%s is %R: it must be True or False%s", name, value.ptr(), or_none);
  }
  const int truth = PyObject_IsTrue(value.ptr());
  check_python(truth);
  return truth != 0;
}

std::optional<bool> flag_or_none_from(nb::handle value, const char* name, PyObject* error) {
  if (value.is_none()) return std::nullopt;
  return flag_from(value, name, ", or None", error);
}

std::string text_from(nb::handle value, const char* name) {
  if (PyUnicode_Check(value.ptr()) == 0)
    raise(PyExc_TypeError, "%s is %R: it must be a str", name, value.ptr());
  if (PyUnicode_AsUTF8AndSize(value.ptr(), nullptr) == nullptr && took_error(PyExc_UnicodeEncodeError))
    raise(PyExc_ValueError, "%s is %R: it cannot be written as UTF-8", name, value.ptr());
  const std::string_view text = text_of(value);
  if (text.find('\0') != std::string_view::npos) {
    raise(PyExc_ValueError, "%s is %R: it must not contain a zero byte ('\\0')", name, value.ptr());
  }
  return std::string(text);
}

}  // namespace tenon::python
