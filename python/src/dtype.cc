// SPDX-License-Identifier: Apache-2.0
#include "dtype.h"

#include <nanobind/stl/string.h>

#include <array>
#include <cstring>
#include <optional>
#include <unordered_map>

#include "numpy_dtype.h"

namespace tenon::python {
namespace {

constexpr const char* kConstants[] = {"bool",           "int8",
                                      "int16",          "int32",
                                      "int64",          "uint8",
                                      "uint16",         "uint32",
                                      "uint64",         "float16",
                                      "float32",        "float64",
                                      "bfloat16",       "complex64",
                                      "complex128",     "float8_e3m4",
                                      "float8_e4m3",    "float8_e4m3b11fnuz",
                                      "float8_e4m3fn",  "float8_e4m3fnuz",
                                      "float8_e5m2",    "float8_e5m2fnuz",
                                      "float8_e8m0fnu", "float6_e2m3fn",
                                      "float6_e3m2fn",  "float4_e2m1fn"};

// One object for each type; they live for ever, as types do.
std::unordered_map<uint32_t, PyObject*>& objects() {
  static auto* const table = new std::unordered_map<uint32_t, PyObject*>;
  return *table;
}

uint32_t key_of(tenon_dtype dtype) {
  return static_cast<uint32_t>(dtype.code) | static_cast<uint32_t>(dtype.bits) << 8 |
         static_cast<uint32_t>(dtype.lanes) << 16;
}

DType dtype_from_text(nb::handle text) {
  const std::string name(text_of(text));
  if (name.find('\0') != std::string::npos) raise(PyExc_TypeError, "dtype %R has a zero byte", text.ptr());
  tenon_dtype dtype{};
  tenon_error error = TENON_ERROR_INIT;
  if (tenon_dtype_from_name(name.c_str(), &dtype, &error) == TENON_OK) return dtype;
  try {
    return dtype_from_numpy_object(text);  // "<f4", "d", "intp"
  } catch (nb::python_error& other) {
    const bool is_numpys_own = !other.matches(PyExc_TypeError) || std::strchr("<>=|", name[0]) != nullptr;
    if (is_numpys_own && !name.empty()) throw;
  }
  throw Error(error.code, error.message);
}

// torch.float32 prints as "torch.float32"; torch need not be imported to understand it.
std::optional<DType> dtype_from_torch(nb::handle source) {
  const nb::object module = nb::getattr(source.type(), "__module__", nb::none());
  if (!nb::isinstance<nb::str>(module) || text_of(module) != "torch") return {};
  constexpr std::string_view kPrefix = "torch.";
  const nb::str name(source);
  const std::string_view text = text_of(name);
  if (!text.starts_with(kPrefix)) return {};
  return DType(text.data() + kPrefix.size());
}

// The types of Python itself have NumPy's meaning: int is int64.
std::optional<DType> dtype_from_builtin(nb::handle source) {
  if (source.ptr() == reinterpret_cast<PyObject*>(&PyBool_Type)) return dtype_of<bool>();
  if (source.ptr() == reinterpret_cast<PyObject*>(&PyLong_Type)) return dtype_of<int64_t>();
  if (source.ptr() == reinterpret_cast<PyObject*>(&PyFloat_Type)) return dtype_of<double>();
  if (source.ptr() == reinterpret_cast<PyObject*>(&PyComplex_Type)) return dtype_of<std::complex<double>>();
  return {};
}

// What `==` compares with: nothing when other names no dtype.
std::optional<DType> dtype_if_any(nb::handle other) {
  try {
    return dtype_from(other);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  } catch (const Error&) {
  }
  return {};
}

// The other attributes of NumPy's dtypes: libraries read them from an array's dtype, whatever it is.
constexpr const char* kOfNumpy[] = {"alignment", "base",     "byteorder", "char",  "descr", "fields",
                                    "hasobject", "isnative", "kind",      "names", "ndim",  "num",
                                    "subdtype",  "shape",    "str",       "type"};

// AttributeError, so that hasattr() is False, where NumPy has no such dtype.
nb::object numpy_attribute(DType dtype, const char* name) {
  try {
    return nb::object(numpy_dtype_object(dtype).attr(name));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    error.restore();
    PyErr_Clear();
  }
  raise(PyExc_AttributeError, "NumPy has no dtype %s, and so no attribute '%s' of it", dtype.name().c_str(),
        name);
}

Py_hash_t hash_of(DType dtype) {
  try {
    return nb::hash(numpy_dtype_object(dtype));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return nb::hash(nb::make_tuple(dtype.code(), dtype.bits(), dtype.lanes()));
}

}  // namespace

nb::object dtype_object(DType dtype) {
  PyObject*& object = objects()[key_of(dtype)];
  if (object == nullptr) object = nb::cast(new DType(dtype), nb::rv_policy::take_ownership).release().ptr();
  return nb::borrow(object);
}

DType dtype_from(nb::handle source) {
  DType* own = nullptr;
  if (nb::try_cast<DType*>(source, own) && own != nullptr) return *own;
  if (nb::isinstance<nb::str>(source)) return dtype_from_text(source);
  if (const auto builtin = dtype_from_builtin(source)) return *builtin;
  if (const auto torch = dtype_from_torch(source)) return *torch;
  if (source.is_none()) raise(PyExc_TypeError, "None is no dtype: pass a name such as 'float32'");
  return dtype_from_numpy_object(source);
}

void add_dtype(nb::module_& module) {
  nb::class_<DType> type(
      module, "dtype", nb::is_final(),
      "dtype(dtype, /)\n--\n\n"
      "The type of an array's elements.\n\n"
      "There is one object for each type: ``tn.dtype('f4') is tn.float32``. It equals and hashes like the\n"
      "NumPy dtype where NumPy, with ml_dtypes, has the type.\n\n"
      "Parameters\n----------\n"
      "dtype : dtype, str, numpy.dtype, torch.dtype or type\n"
      "    A name ('float32', 'f4', 'bfloat16', 'float8_e4m3fn', 'float4_e2m1fn_x2'), a dtype of another\n"
      "    library, or bool, int, float, complex.\n\n"
      "Raises\n------\n"
      "TypeError\n    For names and types that arrays cannot have.\n");
  type.def(nb::new_([](DTypeLike source) { return dtype_object(source.get()); }), nb::arg("dtype"))
      .def_prop_ro("name", &DType::name, "The canonical name, as ``'float32'``.")
      .def_prop_ro("code", &DType::code, "The type code of DLPack.")
      .def_prop_ro("bits", &DType::bits, "Bits of one value.")
      .def_prop_ro("lanes", &DType::lanes, "Values in an element.")
      .def_prop_ro(
          "itemsize", [](DType d) { return (d.bits() * d.lanes() + 7) / 8; },
          "Bytes of an element; packed elements below a byte count as one.")
      .def_prop_ro(
          "numpy", [](DType d) { return numpy_dtype_object(d); },
          nb::sig("def numpy(self) -> numpy.dtype[Any]"),
          "The NumPy dtype. Raises TypeError where NumPy (with ml_dtypes) has none.")
      // What numpy.dtype(self) reads: the first from NumPy 2.4 on, the second before.
      .def_prop_ro(
          "__numpy_dtype__", [](DType d) { return numpy_dtype_object(d); },
          nb::sig("def __numpy_dtype__(self) -> numpy.dtype[Any]"))
      .def_prop_ro(
          "dtype", [](DType d) { return numpy_dtype_object(d); },
          nb::sig("def dtype(self) -> numpy.dtype[Any]"))
      .def(
          "__eq__",
          [](DType self, nb::handle other) {
            const auto value = dtype_if_any(other);
            return value.has_value() && *value == self;
          },
          nb::arg("other").none(), nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__", &hash_of)
      .def("__repr__", [](DType d) { return "tenon." + d.name(); })
      .def("__str__", &DType::name)
      .def(
          "__reduce__",
          [](nb::handle_t<DType> self) {
            return nb::make_tuple(self.type(), nb::make_tuple(self.attr("name")));
          },
          nb::sig("def __reduce__(self) -> tuple[type[dtype], tuple[str]]"));
  for (const char* name : kOfNumpy) {
    type.def_prop_ro(name, [name](DType d) { return numpy_attribute(d, name); });
  }
  for (const char* name : kConstants) module.attr(name) = dtype_object(name);
}

}  // namespace tenon::python
