// SPDX-License-Identifier: Apache-2.0
//
// From elements to Python's own objects: item, tolist, bool(), int(), float(), the text of repr().
#include <complex>

#include "callbacks.h"
#include "devices.h"
#include "dtype.h"
#include "elements.h"
#include "methods.h"
#include "ndarray_parts.h"

namespace tenon::python {
namespace {

// Contiguous elements of a wide type.
struct WideElements {
  explicit WideElements(const Array& source) : array(copied(on_host(source), wide_type_of(source.dtype()))) {}

  nb::object at(int64_t i) const {
    const void* const data = array.data();
    switch (array.dtype().code()) {
      case TENON_BOOL: return nb::bool_(static_cast<const bool*>(data)[i]);
      case TENON_INT: return nb::int_(static_cast<const int64_t*>(data)[i]);
      case TENON_UINT: return nb::int_(static_cast<const uint64_t*>(data)[i]);
      case TENON_COMPLEX: {
        const auto number = static_cast<const std::complex<double>*>(data)[i];
        return owned(PyComplex_FromDoubles(number.real(), number.imag()));
      }
      default: return nb::float_(static_cast<const double*>(data)[i]);
    }
  }

  Array array;
};

nb::object nested_list(const WideElements& elements, int32_t axis, int64_t* next) {
  if (axis == elements.array.ndim()) return elements.at((*next)++);
  const auto n = static_cast<Py_ssize_t>(elements.array.shape()[static_cast<size_t>(axis)]);
  nb::object list = owned(PyList_New(n));
  for (Py_ssize_t i = 0; i < n; ++i) {
    check_python(PyList_SetItem(list.ptr(), i, nested_list(elements, axis + 1, next).release().ptr()));
  }
  return list;
}

nb::object to_list(const Array& array) {
  int64_t next = 0;
  return nested_list(WideElements(array), 0, &next);
}

// The one element. what names the function in messages.
nb::object only_element(const Array& array, const char* what) {
  if (array.size() != 1) {
    raise(PyExc_TypeError, "%s needs an array of one element, not of %lld", what,
          static_cast<long long>(array.size()));
  }
  return WideElements(array).at(0);
}

nb::object item(const Array& array, const nb::args& at) {
  if (at.size() == 0) {
    if (array.size() != 1) {
      raise(PyExc_ValueError, "item() without an index needs an array of one element, not of %lld",
            static_cast<long long>(array.size()));
    }
    return WideElements(array).at(0);
  }
  const nb::object key = at.size() == 1 ? nb::borrow(at[0]) : nb::borrow(at);
  const nb::object element = nb::cast(array)[key];
  const auto selected = nb::cast<Array>(element);
  if (selected.ndim() != 0) {
    raise(PyExc_ValueError, "item() needs an index for each of the array's %d axes", array.ndim());
  }
  return WideElements(selected).at(0);
}

int is_true(PyObject* self) noexcept {
  return guarded([&] {
    const Array array = share(self);
    if (array.size() != 1) {
      raise(PyExc_ValueError,
            "the truth of an array of %lld elements is not defined: use numpy.any(a) or numpy.all(a)",
            static_cast<long long>(array.size()));
    }
    const int truth = PyObject_IsTrue(WideElements(array).at(0).ptr());
    check_python(truth);
    return truth;
  });
}

PyObject* to_int(PyObject* self) noexcept {
  return guarded([&] { return PyNumber_Long(only_element(share(self), "int()").ptr()); });
}

PyObject* to_float(PyObject* self) noexcept {
  return guarded([&] { return PyNumber_Float(only_element(share(self), "float()").ptr()); });
}

PyObject* to_index(PyObject* self) noexcept {
  return guarded([&] {
    const Array array = share(self);
    const uint8_t code = array.dtype().code();
    if (array.ndim() != 0 || (code != TENON_INT && code != TENON_UINT)) {
      raise(PyExc_TypeError, "only an array of integers with no axes can be an index");
    }
    return WideElements(array).at(0).release().ptr();
  });
}

PyObject* to_text(PyObject* self) noexcept {
  return guarded([&] { return callback(Callback::kArrayRepr)(nb::handle(self)).release().ptr(); });
}

}  // namespace

void add_conversions(Parts& parts) {
  parts.add_slot(Py_nb_bool, is_true);
  parts.add_slot(Py_nb_int, to_int);
  parts.add_slot(Py_nb_float, to_float);
  parts.add_slot(Py_nb_index, to_index);
  parts.add_slot(Py_tp_repr, to_text);
}

void add_conversion_methods() {
  def_method(
      "__complex__",
      [](const Array& self) {
        const nb::object number = only_element(self, "complex()");
        return nb::handle(reinterpret_cast<PyObject*>(&PyComplex_Type))(number);
      },
      nb::sig("def __complex__(self) -> complex"));
  def_method("item", item, nb::arg("at"), nb::sig("def item(self, *at: int) -> bool | int | float | complex"),
             "One element as a Python number: the only one, or the one at an index.\n\n"
             "Raises\n------\nValueError\n    The array has several elements and no index is given.\n"
             "IndexError\n    The index lies outside.\n");
  def_method(
      "asscalar", [](const Array& self) { return item(self, nb::borrow<nb::args>(nb::make_tuple())); },
      nb::sig("def asscalar(self) -> bool | int | float | complex"),
      "`item` of an array with one element.\n");
  def_method("tolist", to_list, nb::sig("def tolist(self) -> Any"),
             "The elements as Python numbers in nested lists; of an array with no axes the number itself.\n");
}

}  // namespace tenon::python
