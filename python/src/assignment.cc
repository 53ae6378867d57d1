// SPDX-License-Identifier: Apache-2.0
#include "assignment.h"

#include <cmath>
#include <complex>

#include "dlpack_import.h"
#include "elements.h"
#include "from_numpy.h"
#include "ndarray.h"
#include "numpy_api.h"
#include "numpy_dtype.h"

namespace tenon::python {
namespace {

// Which of Python's numbers a value is. Objects of derived classes count, as numpy.float64 does for float.
enum class Number { kNone, kBool, kInt, kFloat, kComplex };

bool is_type(nb::handle value, PyTypeObject* type) {
  return Py_TYPE(value.ptr()) == type || PyType_IsSubtype(Py_TYPE(value.ptr()), type) != 0;
}

Number number_of(nb::handle value) {
  if (PyFloat_CheckExact(value.ptr())) return Number::kFloat;
  if (PyBool_Check(value.ptr())) return Number::kBool;
  if (PyLong_CheckExact(value.ptr()) || PyLong_Check(value.ptr())) return Number::kInt;
  if (is_type(value, &PyFloat_Type)) return Number::kFloat;
  return is_type(value, &PyComplex_Type) ? Number::kComplex : Number::kNone;
}

[[noreturn]] void refuse_range(nb::handle value, DType dtype) {
  const std::string name = dtype.name();
  raise(PyExc_OverflowError,
        "%R is outside of the range of %s: use a wider dtype, or tn.asarray(x).astype('%s'), which wraps",
        value.ptr(), name.c_str(), name.c_str());
}

// An int of Python. overflow: its sign if it does not fit into 64 bits, else 0.
struct Int {
  explicit Int(nb::handle value) : number(PyLong_AsLongLongAndOverflow(value.ptr(), &overflow)) {}
  int overflow = 0;
  int64_t number;
};

void check_int(nb::handle value, const Int& given, DType dtype) {
  if (!is_integer(dtype)) return;
  if (given.overflow == 0) {
    if (!fits(given.number, dtype)) refuse_range(value, dtype);
    return;
  }
  if (dtype == dtype_of<uint64_t>()) {
    (void)PyLong_AsUnsignedLongLong(value.ptr());
    if (PyErr_Occurred() == nullptr) return;
    PyErr_Clear();
  }
  const nb::object text = nb::steal(PyObject_Repr(value.ptr()));
  if (!text.is_valid()) PyErr_Clear();  // Python writes no int of more than some thousand digits
  raise(PyExc_OverflowError, "%S is outside of the range of %s: use float64, which rounds it",
        text.is_valid() ? text.ptr() : nb::str("an int").ptr(), dtype.name().c_str());
}

void check_float(nb::handle value, DType dtype) {
  if (!is_integer(dtype)) return;
  const double number = PyFloat_AsDouble(value.ptr());
  if (!std::isfinite(number)) {
    raise(std::isnan(number) ? PyExc_ValueError : PyExc_OverflowError,
          "%R cannot be stored as %s, which has no NaN and no infinity: replace it, as np.nan_to_num(x) does",
          value.ptr(), dtype.name().c_str());
  }
  const double limit = std::ldexp(1.0, dtype.bits() - (dtype.code() == TENON_INT ? 1 : 0));
  const double whole = std::trunc(number);
  if (whole >= limit || whole < (dtype.code() == TENON_INT ? -limit : 0.0)) refuse_range(value, dtype);
}

void check_complex(nb::handle value, DType dtype) {
  if (dtype.code() == TENON_COMPLEX || dtype.code() == TENON_BOOL) return;
  raise(PyExc_TypeError, "%R cannot be stored as %s: take its .real", value.ptr(), dtype.name().c_str());
}

void fill_int(const Array& destination, nb::handle value) {
  const Int given(value);
  check_int(value, given, destination.dtype());
  if (given.overflow == 0) return fill_elements(destination, &given.number, dtype_of<int64_t>());
  if (destination.dtype().code() == TENON_BOOL) {
    const bool truth = true;
    return fill_elements(destination, &truth, dtype_of<bool>());
  }
  if (is_integer(destination.dtype())) {
    const uint64_t large = PyLong_AsUnsignedLongLong(value.ptr());
    return fill_elements(destination, &large, dtype_of<uint64_t>());
  }
  const double number_as_double = PyLong_AsDouble(value.ptr());
  if (PyErr_Occurred() != nullptr) nb::raise_python_error();
  fill_elements(destination, &number_as_double, dtype_of<double>());
}

void fill_float(const Array& destination, nb::handle value) {
  check_float(value, destination.dtype());
  const double number = PyFloat_AsDouble(value.ptr());
  fill_elements(destination, &number, dtype_of<double>());
}

void fill_complex(const Array& destination, nb::handle value) {
  check_complex(value, destination.dtype());
  const std::complex<double> number(PyComplex_RealAsDouble(value.ptr()), PyComplex_ImagAsDouble(value.ptr()));
  fill_elements(destination, &number, dtype_of<std::complex<double>>());
}

void fill_bool(const Array& destination, nb::handle value) {
  const bool truth = value.ptr() == Py_True;
  fill_elements(destination, &truth, dtype_of<bool>());
}

// Assigns a number of Python. False: value is none.
bool assign_number(const Array& destination, nb::handle value) {
  switch (number_of(value)) {
    case Number::kBool: fill_bool(destination, value); return true;
    case Number::kInt: fill_int(destination, value); return true;
    case Number::kFloat: fill_float(destination, value); return true;
    case Number::kComplex: fill_complex(destination, value); return true;
    default: return false;
  }
}

// Throws unless dtype holds this number of Python. False: value is none.
bool check_number(nb::handle value, DType dtype) {
  switch (number_of(value)) {
    case Number::kBool: return true;
    case Number::kInt: check_int(value, Int(value), dtype); return true;
    case Number::kFloat: check_float(value, dtype); return true;
    case Number::kComplex: check_complex(value, dtype); return true;
    default: return false;
  }
}

// The items that NumPy reads from value one by one, as a list or a tuple. Empty: value is no sequence, or it
// has a dtype of its own.
nb::object items_of(nb::handle value) {
  if (PyList_CheckExact(value.ptr()) || PyTuple_CheckExact(value.ptr())) return nb::borrow(value);
  if (PySequence_Check(value.ptr()) == 0 || PyUnicode_Check(value.ptr()) ||
      PyObject_CheckBuffer(value.ptr()) != 0)
    return {};
  for (const char* const name : {"dtype", "__array__", "__array_interface__", "__array_struct__"}) {
    if (nb::hasattr(value, name)) return {};
  }
  nb::object items = nb::steal(PySequence_Size(value.ptr()) < 0 ? nullptr : PySequence_List(value.ptr()));
  if (!items.is_valid()) {  // a mapping, for example
    if (PyErr_ExceptionMatches(PyExc_Exception) == 0) nb::raise_python_error();
    PyErr_Clear();
  }
  return items;
}

// An integer, a bool or a float of NumPy, or an array of integers: a 64-bit dtype holds almost all of them.
bool is_numpy_number(nb::handle value) {
  PyObject* const x = value.ptr();
  if (PyArray_Check(x)) {
    auto* const array = reinterpret_cast<PyArrayObject*>(x);
    return PyArray_ISINTEGER(array) || PyArray_ISBOOL(array);
  }
  if (PyArray_IsScalar(x, Timedelta)) return false;
  return PyArray_IsScalar(x, Integer) || PyArray_IsScalar(x, Bool) || PyArray_IsScalar(x, Half) ||
         PyArray_IsScalar(x, Float);
}

// Throws unless dtype holds each number of Python in the nested lists. Returns whether only numbers are
// there. has_own_dtypes: set to true if NumPy's are among them.
bool check_numbers(nb::handle value, DType dtype, bool* has_own_dtypes, int depth = 0) {
  if (check_number(value, dtype)) return true;
  if (depth == TENON_MAX_NDIM) return false;
  if (depth != 0 && is_numpy_number(value)) return *has_own_dtypes = true;
  const nb::object items = items_of(value);
  if (!items.is_valid()) return false;
  bool are_numbers = true;
  const auto item_at = PyTuple_Check(items.ptr()) ? PyTuple_GetItem : PyList_GetItem;
  const Py_ssize_t n = PySequence_Size(items.ptr());
  for (Py_ssize_t i = 0; i < n; ++i) {
    const nb::object item = nb::borrow(item_at(items.ptr(), i));
    if (!item.is_valid()) nb::raise_python_error();  // the code of another sequence has changed the list
    are_numbers &= check_numbers(item, dtype, has_own_dtypes, depth + 1);
  }
  return are_numbers;
}

bool is_list(nb::handle value) { return PyList_CheckExact(value.ptr()) || PyTuple_CheckExact(value.ptr()); }

nb::object items_without_verbs(nb::handle value) {
  if (!is_list(value)) return without_verbs(value, Access::kRead);
  nb::list items;
  for (nb::handle item : value) items.append(items_without_verbs(item));
  return items;
}

// A list of MXNet's arrays, which may be nested, as one of arrays on their memory, because NumPy knows no
// MXNet. Other values are returned unchanged.
nb::object without_verbs_in_list(nb::handle value) {
  nb::object first = nb::borrow(value);
  for (int depth = 0; is_list(first) && nb::len(first) != 0; ++depth) {
    if (depth == TENON_MAX_NDIM) return nb::borrow(value);
    first = nb::object(first[0]);
  }
  return has_verbs(first) ? items_without_verbs(value) : nb::borrow(value);
}

// The NumPy array of value, which is not an array. NumPy itself would select float64 for [2**63, 1] and
// for [1, numpy.uint64(2)], and objects for [2**64].
nb::object numpy_array_of(nb::handle value, const DType* dtype) {
  const nb::object make = nb::module_::import_("numpy").attr("asarray");
  check_values(value);
  bool has_own_dtypes = false;
  if (dtype == nullptr || dtype->lanes() != 1 || !check_numbers(value, *dtype, &has_own_dtypes))
    return make(value);
  try {
    return make(value, numpy_dtype_object(wide_type_of(*dtype)));
  } catch (const nb::python_error& error) {
    const bool is_range = error.matches(PyExc_OverflowError) || error.matches(PyExc_ValueError);
    if (!has_own_dtypes || !is_range) throw;
  }
  return make(value);  // a number of NumPy that the wide dtype does not hold is cast as C does
}

}  // namespace

bool is_integer(DType dtype) { return dtype.code() == TENON_INT || dtype.code() == TENON_UINT; }

bool fits(int64_t value, DType dtype) {
  if (dtype.code() == TENON_UINT)
    return value >= 0 && (dtype.bits() >= 63 || value < int64_t{1} << dtype.bits());
  if (dtype.bits() >= 64) return true;
  const int64_t limit = int64_t{1} << (dtype.bits() - 1);
  return value >= -limit && value < limit;
}

Array array_from(nb::handle value, const DType* dtype) {
  if (is_ndarray(value.ptr())) return share(value.ptr());
  if (overrides_dlpack(value)) return import_dlpack(value);
  if (Array numbers = read_if_numpy(value)) return numbers;
  if (Array shared = share_if_dlpack(value, Access::kRead)) return shared;
  const nb::object made = numpy_array_of(without_verbs_in_list(value), dtype);
  if (PyLong_Check(value.ptr()) == 0 && made.attr("ndim").equal(nb::int_(0)) &&
      made.attr("dtype").attr("kind").equal(nb::str("O"))) {
    raise(PyExc_TypeError, "%s is no array, number or list of numbers%s",
          text_of(nb::getattr(value.type(), "__name__")).data(),
          nb::hasattr(value, "todense") ? ", but a sparse array: pass x.toarray()" : "");
  }
  const nb::object kind = made.attr("dtype").attr("kind");
  if (kind.equal(nb::str("O"))) {
    raise(PyExc_TypeError,
          "NumPy makes Python objects of %s: the elements are no numbers, or integers without a dtype that "
          "holds all of them; give numbers, for example np.asarray(data, float)",
          text_of(nb::getattr(value.type(), "__name__")).data());
  }
  if (kind.equal(nb::str("U")) || kind.equal(nb::str("S"))) {
    raise(PyExc_TypeError, "%s holds text: an array has numbers; np.asarray(data, float) reads them",
          text_of(nb::getattr(value.type(), "__name__")).data());
  }
  return read_if_numpy(made);
}

void check_assignable(nb::handle value, DType dtype) {
  check_values(value);
  bool has_own_dtypes = false;
  if (dtype.lanes() == 1) (void)check_numbers(value, dtype, &has_own_dtypes);
}

void assign(const Array& destination, nb::handle value) {
  check_writable(destination);
  if (assign_number(destination, value)) return;
  const DType dtype = destination.dtype();
  copy_elements(array_from(value, &dtype), destination);
}

}  // namespace tenon::python
