// SPDX-License-Identifier: Apache-2.0
//
// a[...] and a[...] = x. Basic indices never copy. Lists and arrays as indices select copies, and
// assignments write through them: NumPy does both on a view, in one call.
#include <algorithm>
#include <array>
#include <cstdint>

#include "array_call.h"
#include "assignment.h"
#include "dlpack_import.h"
#include "from_numpy.h"
#include "ndarray.h"
#include "ndarray_parts.h"
#include "values.h"

namespace tenon::python {
namespace {

[[noreturn]] void refuse_item(PyObject* item) {
  raise(PyExc_TypeError,
        "%R is no index of an NDArray: ints, slices, ..., None, and lists and arrays of ints or bools are",
        item);
}

// Whether it selects elements one by one.
bool is_advanced(PyObject* item) {
  return PyBool_Check(item) || (PySequence_Check(item) && !PyUnicode_Check(item) && !PyBytes_Check(item)) ||
         PyObject_HasAttrString(item, "dtype") != 0;
}

class Indices {
 public:
  explicit Indices(PyObject* key) {
    if (PyTuple_Check(key)) {
      const Py_ssize_t n = PyTuple_Size(key);
      for (Py_ssize_t i = 0; i < n; ++i) add(PyTuple_GetItem(key, i));
    } else {
      add(key);
    }
  }

  // NumPy has to select the elements.
  bool is_advanced() const noexcept { return is_advanced_; }

  // Requires: !is_advanced().
  Array of(const Array& array) const { return array.index(std::span<const tenon_index>(items_.data(), n_)); }

 private:
  void add(PyObject* item) {
    if (n_ == items_.size()) raise(PyExc_IndexError, "more than %zu indices", items_.size());
    items_[n_++] = converted(item);
  }

  Index advanced(PyObject* item) {
    if (!python::is_advanced(item)) refuse_item(item);
    is_advanced_ = true;
    return new_axis;
  }

  Index converted(PyObject* item) {
    if (PyLong_CheckExact(item)) return Index(position_from(item));
    if (PySlice_Check(item)) return slice_from(item);
    if (item == Py_None) return new_axis;
    if (item == Py_Ellipsis) return ellipsis;
    if (PyBool_Check(item) || PyIndex_Check(item) == 0) return advanced(item);
    try {
      return Index(position_from(item));
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_TypeError)) throw;
    }
    return advanced(item);  // an array of several elements has an __index__ that raises
  }

  // A number too large for 64 bits lies outside of every axis.
  static int64_t position_from(PyObject* item) {
    try {
      return entry_from(item, "index");
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_OverflowError)) throw;
    }
    raise(PyExc_IndexError, "index %R lies outside of every axis", item);
  }

  static Index slice_from(PyObject* item) {
    Py_ssize_t start = 0;
    Py_ssize_t stop = 0;
    Py_ssize_t step = 0;
    check_python(PySlice_Unpack(item, &start, &stop, &step));
    // After unpacking, only the stop of a negative step can still mean "omitted", with the value of
    // TENON_OMITTED.
    start = std::max<Py_ssize_t>(start, TENON_OMITTED + 1);
    if (step > 0) stop = std::max<Py_ssize_t>(stop, TENON_OMITTED + 1);
    return slice(start, stop, step);
  }

  size_t n_ = 0;
  bool is_advanced_ = false;
  std::array<tenon_index, 2 * TENON_MAX_NDIM + 1> items_;  // n_ of them are set
};

// key with arrays on the memory of MXNet's arrays, which NumPy does not know.
nb::object key_without_verbs(PyObject* key) {
  if (!PyTuple_Check(key)) return without_verbs(key, Access::kRead);
  nb::list items;
  for (nb::handle item : nb::borrow<nb::tuple>(key)) items.append(without_verbs(item, Access::kRead));
  return nb::tuple(items);
}

// key with views of the NDArrays in it.
nb::object key_on_views(PyObject* key, ArrayCall& call) {
  if (!PyTuple_Check(key)) return call.view_of(key);
  nb::list items;
  for (nb::handle item : nb::borrow<nb::tuple>(key)) items.append(call.view_of(item.ptr()));
  return nb::tuple(items);
}

void reads_key(PyObject* key, ArrayCall& call) {
  if (!PyTuple_Check(key)) return call.reads(key);
  for (nb::handle item : nb::borrow<nb::tuple>(key)) call.reads(item.ptr());
}

PyObject* get_selected(PyObject* self, PyObject* given_key) {
  const nb::object key = key_without_verbs(given_key);
  ArrayCall call;
  call.reads(self);
  reads_key(key.ptr(), call);
  call.begin("getitem");
  const nb::object view = call.view_of(self);
  return wrap(array_from(owned(PyObject_GetItem(view.ptr(), key_on_views(key.ptr(), call).ptr()))));
}

void set_selected(PyObject* self, PyObject* given_key, PyObject* given_value) {
  const nb::object key = key_without_verbs(given_key);
  const nb::object value = without_verbs(given_value, Access::kRead);
  check_assignable(value, share(self).dtype());
  ArrayCall call;
  call.writes(self);
  reads_key(key.ptr(), call);
  call.reads(value.ptr());
  call.begin("setitem");
  const nb::object view = call.view_of(self);
  check_python(
      PyObject_SetItem(view.ptr(), key_on_views(key.ptr(), call).ptr(), call.view_of(value.ptr()).ptr()));
}

PyObject* get_item(PyObject* self, PyObject* key) noexcept {
  return guarded([&] {
    const Indices indices(key);
    return indices.is_advanced() ? get_selected(self, key) : wrap(indices.of(share(self)));
  });
}

int set_item(PyObject* self, PyObject* key, PyObject* value) noexcept {
  return guarded([&] {
    if (value == nullptr) raise(PyExc_TypeError, "elements of an array cannot be deleted");
    if (key == Py_Ellipsis) {
      assign(share(self), value);
      return 0;
    }
    const Indices indices(key);
    if (indices.is_advanced()) {
      set_selected(self, key, value);
    } else {
      assign(indices.of(share(self)), value);
    }
    return 0;
  });
}

Py_ssize_t length(PyObject* self) noexcept {
  return guarded([&]() -> Py_ssize_t {
    const tenon_array_desc& desc = desc_of(self);
    if (desc.ndim == 0) raise(PyExc_TypeError, "len() of an array with no axes");
    return static_cast<Py_ssize_t>(desc.shape[0]);
  });
}

PyObject* get_row(PyObject* self, Py_ssize_t i) noexcept {
  return guarded([&] { return wrap(share(self).index({Index(i)})); });
}

PyObject* iterate(PyObject* self) noexcept {
  return guarded([&] {
    if (desc_of(self).ndim == 0)
      raise(PyExc_TypeError, "an array with no axes cannot be iterated: a.item() is its element");
    return PySeqIter_New(self);
  });
}

}  // namespace

void add_indexing(Parts& parts) {
  parts.add_slot(Py_mp_subscript, get_item);
  parts.add_slot(Py_mp_ass_subscript, set_item);
  parts.add_slot(Py_mp_length, length);
  parts.add_slot(Py_sq_length, length);
  parts.add_slot(Py_sq_item, get_row);
  parts.add_slot(Py_tp_iter, iterate);
}

}  // namespace tenon::python
