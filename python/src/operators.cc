// SPDX-License-Identifier: Apache-2.0
//
// Operators and comparisons: NumPy computes them on views of the arrays. In place they write to the array and
// give it back; the others give NumPy's results.
#include "elements.h"
#include "ndarray.h"
#include "ndarray_parts.h"
#include "numpy_view.h"
#include "turn.h"

namespace tenon::python {
namespace {

// What NumPy computes on: of an array a view.
class Operand {
 public:
  explicit Operand(PyObject* object) {
    if (!is_ndarray(object)) {
      value_ = nb::borrow(object);
      return;
    }
    const Array array = share(object);
    value_ = turn_.view(array, Access::kRead, [&] { return numpy_view(array); });
  }
  PyObject* ptr() const noexcept { return value_.ptr(); }

 protected:
  Operand() = default;
  Turn turn_;
  nb::object value_;
};

// Of an operator that works in place: a view to be written to.
class Target : public Operand {
 public:
  explicit Target(PyObject* object) {
    const Array array = share(object);
    check_writable(array);
    value_ = turn_.view(array, Access::kWrite, [&] { return writable_numpy_view(array); });
  }
  const nb::object& view() const noexcept { return value_; }
};

using Unary = PyObject* (*)(PyObject*);
using Binary = PyObject* (*)(PyObject*, PyObject*);
using Ternary = PyObject* (*)(PyObject*, PyObject*, PyObject*);

template <Unary apply>
PyObject* unary(PyObject* self) noexcept {
  return guarded([&] { return apply(Operand(self).ptr()); });
}

template <Binary apply>
PyObject* binary(PyObject* left, PyObject* right) noexcept {
  return guarded([&] { return apply(Operand(left).ptr(), Operand(right).ptr()); });
}

template <Ternary apply>
PyObject* ternary(PyObject* left, PyObject* right, PyObject* third) noexcept {
  return guarded([&] { return apply(Operand(left).ptr(), Operand(right).ptr(), Operand(third).ptr()); });
}

// NumPy writes through the view; a result in other memory would be lost, so that is an error.
PyObject* written_in_place(PyObject* self, const nb::object& view, PyObject* result) {
  const nb::object keep = owned(result);
  if (!keep.is(view)) raise(PyExc_TypeError, "the operator cannot work in place on an array of this dtype");
  return Py_NewRef(self);
}

template <Binary apply>
PyObject* in_place(PyObject* self, PyObject* right) noexcept {
  return guarded([&] {
    const Target target(self);
    return written_in_place(self, target.view(), apply(target.ptr(), Operand(right).ptr()));
  });
}

template <Ternary apply>
PyObject* in_place_ternary(PyObject* self, PyObject* right, PyObject* third) noexcept {
  return guarded([&] {
    const Target target(self);
    return written_in_place(self, target.view(),
                            apply(target.ptr(), Operand(right).ptr(), Operand(third).ptr()));
  });
}

PyObject* compare(PyObject* left, PyObject* right, int operation) noexcept {
  return guarded([&] { return PyObject_RichCompare(Operand(left).ptr(), Operand(right).ptr(), operation); });
}

int contains(PyObject* self, PyObject* value) noexcept {
  return guarded([&] {
    const int found = PySequence_Contains(Operand(self).ptr(), Operand(value).ptr());
    check_python(found);
    return found;
  });
}

}  // namespace

void add_operators(Parts& parts) {
  parts.add_slot(Py_nb_add, binary<PyNumber_Add>);
  parts.add_slot(Py_nb_subtract, binary<PyNumber_Subtract>);
  parts.add_slot(Py_nb_multiply, binary<PyNumber_Multiply>);
  parts.add_slot(Py_nb_true_divide, binary<PyNumber_TrueDivide>);
  parts.add_slot(Py_nb_floor_divide, binary<PyNumber_FloorDivide>);
  parts.add_slot(Py_nb_remainder, binary<PyNumber_Remainder>);
  parts.add_slot(Py_nb_divmod, binary<PyNumber_Divmod>);
  parts.add_slot(Py_nb_power, ternary<PyNumber_Power>);
  parts.add_slot(Py_nb_matrix_multiply, binary<PyNumber_MatrixMultiply>);
  parts.add_slot(Py_nb_lshift, binary<PyNumber_Lshift>);
  parts.add_slot(Py_nb_rshift, binary<PyNumber_Rshift>);
  parts.add_slot(Py_nb_and, binary<PyNumber_And>);
  parts.add_slot(Py_nb_or, binary<PyNumber_Or>);
  parts.add_slot(Py_nb_xor, binary<PyNumber_Xor>);
  parts.add_slot(Py_nb_negative, unary<PyNumber_Negative>);
  parts.add_slot(Py_nb_positive, unary<PyNumber_Positive>);
  parts.add_slot(Py_nb_absolute, unary<PyNumber_Absolute>);
  parts.add_slot(Py_nb_invert, unary<PyNumber_Invert>);
  parts.add_slot(Py_nb_inplace_add, in_place<PyNumber_InPlaceAdd>);
  parts.add_slot(Py_nb_inplace_subtract, in_place<PyNumber_InPlaceSubtract>);
  parts.add_slot(Py_nb_inplace_multiply, in_place<PyNumber_InPlaceMultiply>);
  parts.add_slot(Py_nb_inplace_true_divide, in_place<PyNumber_InPlaceTrueDivide>);
  parts.add_slot(Py_nb_inplace_floor_divide, in_place<PyNumber_InPlaceFloorDivide>);
  parts.add_slot(Py_nb_inplace_remainder, in_place<PyNumber_InPlaceRemainder>);
  parts.add_slot(Py_nb_inplace_power, in_place_ternary<PyNumber_InPlacePower>);
  parts.add_slot(Py_nb_inplace_matrix_multiply, in_place<PyNumber_InPlaceMatrixMultiply>);
  parts.add_slot(Py_nb_inplace_lshift, in_place<PyNumber_InPlaceLshift>);
  parts.add_slot(Py_nb_inplace_rshift, in_place<PyNumber_InPlaceRshift>);
  parts.add_slot(Py_nb_inplace_and, in_place<PyNumber_InPlaceAnd>);
  parts.add_slot(Py_nb_inplace_or, in_place<PyNumber_InPlaceOr>);
  parts.add_slot(Py_nb_inplace_xor, in_place<PyNumber_InPlaceXor>);
  parts.add_slot(Py_tp_richcompare, compare);
  parts.add_slot(Py_sq_contains, contains);
}

}  // namespace tenon::python
