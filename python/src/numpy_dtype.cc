// SPDX-License-Identifier: Apache-2.0
//
// Element types of NumPy and, for bfloat16, fp8, fp6 and fp4, of the package ml_dtypes.
#define TENON_DEFINES_NUMPY_API
#include "numpy_api.h"

#include <array>
#include <vector>

#include "dtype.h"
#include "numpy_dtype.h"

namespace tenon::python {
namespace {

constexpr tenon_dtype kNone{0, 0, 0};

template <class T>
constexpr tenon_dtype integer() {
  return DTypeOf<T>::value;
}

// By NumPy's type number.
constexpr std::array<tenon_dtype, NPY_HALF + 1> kByNumber = [] {
  std::array<tenon_dtype, NPY_HALF + 1> table{};
  table[NPY_BOOL] = DTypeOf<bool>::value;
  table[NPY_BYTE] = integer<signed char>();
  table[NPY_UBYTE] = integer<unsigned char>();
  table[NPY_SHORT] = integer<short>();
  table[NPY_USHORT] = integer<unsigned short>();
  table[NPY_INT] = integer<int>();
  table[NPY_UINT] = integer<unsigned>();
  table[NPY_LONG] = integer<long>();
  table[NPY_ULONG] = integer<unsigned long>();
  table[NPY_LONGLONG] = integer<long long>();
  table[NPY_ULONGLONG] = integer<unsigned long long>();
  table[NPY_HALF] = {TENON_FLOAT, 16, 1};
  table[NPY_FLOAT] = DTypeOf<float>::value;
  table[NPY_DOUBLE] = DTypeOf<double>::value;
  table[NPY_CFLOAT] = DTypeOf<std::complex<float>>::value;
  table[NPY_CDOUBLE] = DTypeOf<std::complex<double>>::value;
  return table;
}();

// Types that ml_dtypes registered with NumPy and that were met, by type number.
struct RegisteredDtype {
  int number;
  tenon_dtype dtype;
};
std::vector<RegisteredDtype> registered;

bool is_from_ml_dtypes(PyArray_Descr* descr) {
  const nb::object module =
      nb::getattr(nb::handle(reinterpret_cast<PyObject*>(descr->typeobj)), "__module__");
  return nb::isinstance<nb::str>(module) && text_of(module) == "ml_dtypes";
}

// -1 when NumPy itself does not have the type.
int number_of(DType dtype) {
  if (dtype.lanes() != 1) return -1;
  for (int number = 0; number <= NPY_HALF; ++number) {
    if (number == NPY_LONGLONG || number == NPY_ULONGLONG) continue;  // equal to NPY_LONG, NumPy's int64
    if (dtype == DType(kByNumber[static_cast<size_t>(number)])) return number;
  }
  return -1;
}

// Why an array x of NumPy is refused.
const char* why_refused(int number) {
  switch (number) {
    case NPY_OBJECT:
      return "holds Python objects, which cannot be lent: x.astype(float) makes numbers of them";
    case NPY_STRING:
    case NPY_UNICODE:
      return "holds text: an array has numbers; x.view(np.uint8) shows the bytes of an 'S' array";
    case NPY_VOID: return "is structured: pass its fields one by one, as x['name'].copy()";
    case NPY_DATETIME:
    case NPY_TIMEDELTA: return "is a time: pass x.view(np.int64)";
    case NPY_LONGDOUBLE:
    case NPY_CLONGDOUBLE: return "differs between machines: pass x.astype(float) or x.astype(complex)";
    default: break;
  }
  if (number <= NPY_HALF)
    return "is byte-swapped: pass x.astype(x.dtype.newbyteorder('=')), or zero_copy=False to from_numpy: a "
           "copy, so what is written to it does not come back";
  return "has no counterpart in Tenon: pass x.astype() of a numeric dtype";
}

// Why a new array cannot have the dtype.
const char* why_no_dtype(int number) {
  switch (number) {
    case NPY_OBJECT: return "holds Python objects: an array has numbers";
    case NPY_STRING:
    case NPY_UNICODE: return "holds text: an array has numbers";
    case NPY_VOID: return "is structured: an array has one number in each element; tn.schema has fields";
    case NPY_DATETIME:
    case NPY_TIMEDELTA: return "is a time: an array has numbers, such as 'int64'";
    case NPY_LONGDOUBLE:
    case NPY_CLONGDOUBLE: return "differs between machines: use 'float64' or 'complex128'";
    default: break;
  }
  if (number <= NPY_HALF) return "is byte-swapped: arrays have the byte order of the machine";
  return "has no counterpart in Tenon: use a numeric dtype, such as 'float32'";
}

}  // namespace

void import_numpy_api() {
  // By itself first: NumPy prints what goes wrong in the next call, and raises ImportError, for Ctrl-C, too.
  (void)nb::module_::import_("numpy");
  if (PyArray_ImportNumPyAPI() < 0) nb::raise_python_error();
}

[[gnu::hot]] bool dtype_of_numpy(PyArray_Descr* descr, tenon_dtype* out) noexcept {
  const int number = descr->type_num;
  if (number >= 0 && number <= NPY_HALF) {
    *out = kByNumber[static_cast<size_t>(number)];
    return out->bits != 0 && PyArray_ISNBO(descr->byteorder);
  }
  if (number < NPY_USERDEF) return false;
  for (const RegisteredDtype& r : registered) {
    if (r.number == number) {
      *out = r.dtype;
      return true;
    }
  }
  try {
    if (!is_from_ml_dtypes(descr)) return false;
    const nb::object name = nb::handle(reinterpret_cast<PyObject*>(descr->typeobj)).attr("__name__");
    tenon_dtype dtype = kNone;
    if (tenon_dtype_from_name(text_of(name).data(), &dtype, nullptr) != TENON_OK) return false;
    if (static_cast<npy_intp>((dtype.bits + 7) / 8) != PyDataType_ELSIZE(descr)) return false;
    registered.push_back({number, dtype});
    *out = dtype;
    return true;
  } catch (...) {
    forget_exception();
    return false;
  }
}

void refuse_numpy_dtype(PyArray_Descr* descr) {
  raise(PyExc_TypeError, "NumPy dtype %S %s", reinterpret_cast<PyObject*>(descr),
        why_refused(descr->type_num));
}

PyArray_Descr* numpy_dtype_of(DType dtype, bool is_padded) {
  need_numpy();
  const int number = number_of(dtype);
  if (number >= 0) return PyArray_DescrFromType(number);
  const std::string name = dtype.name();
  const bool is_packed = dtype.bits() * dtype.lanes() % 8 != 0 && !is_padded;
  if (dtype.lanes() != 1 || is_packed) {
    raise(PyExc_TypeError, "NumPy has no dtype for %s%s: a.view('uint8') gives the bytes", name.c_str(),
          is_packed ? " packed below a byte" : "");
  }
  nb::object ml_dtypes;
  try {
    ml_dtypes = nb::module_::import_("ml_dtypes");
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_ImportError)) throw;
  }
  if (!ml_dtypes.is_valid()) {
    raise(PyExc_TypeError,
          "NumPy has no dtype for %s: install ml_dtypes, cast with a.astype('float32') or take the "
          "bits with a.view('uint%d')",
          name.c_str(), dtype.bits() <= 8 ? 8 : 16);
  }
  const nb::object scalar_type = nb::getattr(ml_dtypes, name.c_str(), nb::none());
  PyArray_Descr* descr = nullptr;
  if (scalar_type.is_none() || PyArray_DescrConverter(scalar_type.ptr(), &descr) != NPY_SUCCEED) {
    PyErr_Clear();
    raise(PyExc_TypeError, "neither NumPy nor ml_dtypes has a dtype for %s: cast with a.astype('float32')",
          name.c_str());
  }
  return descr;
}

nb::object numpy_dtype_object(DType dtype) {
  return owned(reinterpret_cast<PyObject*>(numpy_dtype_of(dtype, true)));
}

DType dtype_from_numpy_object(nb::handle source) {
  need_numpy();
  PyArray_Descr* descr = nullptr;
  if (PyArray_DescrConverter(source.ptr(), &descr) != NPY_SUCCEED) nb::raise_python_error();
  const nb::object keep = nb::steal(reinterpret_cast<PyObject*>(descr));
  tenon_dtype dtype = kNone;
  if (!dtype_of_numpy(descr, &dtype)) {
    raise(PyExc_TypeError, "NumPy dtype %R %s", reinterpret_cast<PyObject*>(descr),
          why_no_dtype(descr->type_num));
  }
  return dtype;
}

}  // namespace tenon::python
