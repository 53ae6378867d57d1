// SPDX-License-Identifier: Apache-2.0
#include "assignment.h"

#include <cmath>
#include <complex>
#include <limits>

#include "dlpack_import.h"
#include "elements.h"
#include "from_numpy.h"
#include "ndarray.h"

namespace tenon::python {
namespace {

bool is_integer(DType dtype) { return dtype.code() == TENON_INT || dtype.code() == TENON_UINT; }

[[noreturn]] void refuse_range(nb::handle value, DType dtype) {
  raise(PyExc_OverflowError, "%R is outside of the range of %s", value.ptr(), dtype.name().c_str());
}

bool fits(int64_t value, DType dtype) {
  if (dtype.code() == TENON_UINT)
    return value >= 0 && (dtype.bits() >= 63 || value < int64_t{1} << dtype.bits());
  if (dtype.bits() >= 64) return true;
  const int64_t limit = int64_t{1} << (dtype.bits() - 1);
  return value >= -limit && value < limit;
}

void fill_int(const Array& destination, nb::handle value) {
  const DType dtype = destination.dtype();
  int overflow = 0;
  const int64_t number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  if (overflow == 0) {
    if (is_integer(dtype) && !fits(number, dtype)) refuse_range(value, dtype);
    fill_elements(destination, &number, dtype_of<int64_t>());
    return;
  }
  if (is_integer(dtype)) {
    const uint64_t large = PyLong_AsUnsignedLongLong(value.ptr());
    if (PyErr_Occurred() != nullptr || dtype != dtype_of<uint64_t>()) {
      PyErr_Clear();
      refuse_range(value, dtype);
    }
    fill_elements(destination, &large, dtype_of<uint64_t>());
    return;
  }
  const double number_as_double = PyLong_AsDouble(value.ptr());
  if (PyErr_Occurred() != nullptr) nb::raise_python_error();
  fill_elements(destination, &number_as_double, dtype_of<double>());
}

void fill_float(const Array& destination, double number) {
  const DType dtype = destination.dtype();
  if (is_integer(dtype)) {
    if (!std::isfinite(number))
      raise(PyExc_ValueError, "NaN and infinity cannot be stored as %s", dtype.name().c_str());
    const double limit = std::ldexp(1.0, dtype.bits() - (dtype.code() == TENON_INT ? 1 : 0));
    const double whole = std::trunc(number);
    if (whole >= limit || whole < (dtype.code() == TENON_INT ? -limit : 0.0)) {
      refuse_range(nb::float_(number), dtype);
    }
  }
  fill_elements(destination, &number, dtype_of<double>());
}

void fill_complex(const Array& destination, nb::handle value) {
  if (destination.dtype().code() != TENON_COMPLEX) {
    raise(PyExc_TypeError, "%R cannot be stored as %s: take its .real", value.ptr(),
          destination.dtype().name().c_str());
  }
  const std::complex<double> number(PyComplex_RealAsDouble(value.ptr()), PyComplex_ImagAsDouble(value.ptr()));
  fill_elements(destination, &number, dtype_of<std::complex<double>>());
}

// Whether value is of a type or of a subclass, as numpy.float64 is of float.
bool is_type(nb::handle value, PyTypeObject* type) {
  return value.type().ptr() == reinterpret_cast<PyObject*>(type) ||
         PyType_IsSubtype(Py_TYPE(value.ptr()), type) != 0;
}

// Assigns a number of Python, or of a subclass. False: value is no such number.
bool assign_number(const Array& destination, nb::handle value) {
  if (PyBool_Check(value.ptr())) {
    const bool truth = value.ptr() == Py_True;
    fill_elements(destination, &truth, dtype_of<bool>());
  } else if (PyLong_Check(value.ptr())) {
    fill_int(destination, value);
  } else if (is_type(value, &PyFloat_Type)) {
    fill_float(destination, PyFloat_AsDouble(value.ptr()));
  } else if (is_type(value, &PyComplex_Type)) {
    fill_complex(destination, value);
  } else {
    return false;
  }
  return true;
}

}  // namespace

Array array_from(nb::handle value) {
  if (is_ndarray(value.ptr())) return share(value.ptr());
  if (Array numbers = read_if_numpy(value)) return numbers;
  if (has_dlpack(value)) return import_dlpack(value);
  const nb::object made = nb::module_::import_("numpy").attr("asarray")(value);
  if (made.attr("ndim").equal(nb::int_(0)) && made.attr("dtype").attr("kind").equal(nb::str("O"))) {
    raise(PyExc_TypeError, "%s is no array, number or list of numbers%s",
          text_of(nb::getattr(value.type(), "__name__")).data(),
          nb::hasattr(value, "todense") ? ", but a sparse array: pass x.toarray()" : "");
  }
  return read_if_numpy(made);
}

void assign(const Array& destination, nb::handle value) {
  check_writable(destination);
  if (!assign_number(destination, value)) copy_elements(array_from(value), destination);
}

}  // namespace tenon::python
