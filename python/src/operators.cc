// SPDX-License-Identifier: Apache-2.0
//
// Operators and comparisons: NumPy computes them on views of the arrays, in one call, and PyTorch those with
// a tensor. Operators in place write to the array and return it; the others return NumPy's or PyTorch's
// results.
#include <algorithm>
#include <cstddef>

#include "array_call.h"
#include "dlpack_import.h"
#include "exchange_table.h"
#include "from_numpy.h"
#include "ndarray.h"
#include "ndarray_parts.h"

namespace tenon::python {
namespace {

using Unary = PyObject* (*)(PyObject*);
using Binary = PyObject* (*)(PyObject*, PyObject*);
using Ternary = PyObject* (*)(PyObject*, PyObject*, PyObject*);

// The name of a call, as an argument of a template.
template <size_t N>
struct OperatorText {
  consteval OperatorText(const char (&given)[N]) {
    std::copy_n(given, N, text);
  }  // NOLINT(google-explicit-constructor)
  char text[N];
};

template <OperatorText name, class Apply, class... Operands>
auto on_views(Apply apply, Operands... operands) {
  ArrayCall call;
  (call.reads(operands), ...);
  call.begin(name.text);
  return apply(call.view_of(operands).ptr()...);
}

bool is_tensor(PyObject* object) {
  return !is_ndarray(object) && !PyFloat_Check(object) && !PyLong_Check(object) &&
         exchange_of(Py_TYPE(object)).is_torch;
}

// PyTorch computes an operator with a tensor, from the array as a tensor.
bool is_for_torch(PyObject* left, PyObject* right) { return is_tensor(is_ndarray(left) ? right : left); }

nb::object torch_operand(PyObject* object) {
  return is_ndarray(object) ? tensor_for_read(share(object)) : nb::borrow(object);
}

// The operand of an operator in place, which NumPy computes: a tensor, or an array of MXNet, as an array on
// its memory.
nb::object right_operand(PyObject* object) {
  check_values(object);
  return is_tensor(object) ? nb::cast(import_dlpack(object)) : without_verbs(object, Access::kRead);
}

template <Unary apply, OperatorText name>
PyObject* unary(PyObject* self) noexcept {
  return guarded([&] { return on_views<name>(apply, self); });
}

template <Binary apply, OperatorText name>
PyObject* binary(PyObject* left, PyObject* right) noexcept {
  return guarded([&] {
    if (is_for_torch(left, right)) return apply(torch_operand(left).ptr(), torch_operand(right).ptr());
    return on_views<name>(apply, left, right);
  });
}

template <Ternary apply, OperatorText name>
PyObject* ternary(PyObject* left, PyObject* right, PyObject* third) noexcept {
  return guarded([&] {
    if (is_for_torch(left, right)) return apply(torch_operand(left).ptr(), torch_operand(right).ptr(), third);
    return on_views<name>(apply, left, right, third);
  });
}

// NumPy writes through the view; a result in other memory would be lost, so that is an error.
template <OperatorText name, class Apply, class... Operands>
PyObject* on_views_in_place(Apply apply, PyObject* self, Operands... operands) {
  ArrayCall call;
  call.writes(self);
  (call.reads(operands), ...);
  call.begin(name.text);
  const nb::object view = call.view_of(self);
  const nb::object result = owned(apply(view.ptr(), call.view_of(operands).ptr()...));
  if (!result.is(view)) raise(PyExc_TypeError, "the operator cannot work in place on an array of this dtype");
  return Py_NewRef(self);
}

template <Binary apply, OperatorText name>
PyObject* in_place(PyObject* self, PyObject* right) noexcept {
  return guarded([&] { return on_views_in_place<name>(apply, self, right_operand(right).ptr()); });
}

template <Ternary apply, OperatorText name>
PyObject* in_place_ternary(PyObject* self, PyObject* right, PyObject* third) noexcept {
  return guarded([&] { return on_views_in_place<name>(apply, self, right_operand(right).ptr(), third); });
}

PyObject* compare(PyObject* left, PyObject* right, int operation) noexcept {
  return guarded([&] {
    const auto apply = [operation](PyObject* a, PyObject* b) {
      return PyObject_RichCompare(a, b, operation);
    };
    if (is_for_torch(left, right)) return apply(torch_operand(left).ptr(), torch_operand(right).ptr());
    return on_views<"compare">(apply, left, right);
  });
}

int contains(PyObject* self, PyObject* value) noexcept {
  return guarded([&] {
    const int found = on_views<"contains">(PySequence_Contains, self, value);
    check_python(found);
    return found;
  });
}

}  // namespace

void add_operators(Parts& parts) {
  parts.add_slot(Py_nb_add, binary<PyNumber_Add, "add">);
  parts.add_slot(Py_nb_subtract, binary<PyNumber_Subtract, "subtract">);
  parts.add_slot(Py_nb_multiply, binary<PyNumber_Multiply, "multiply">);
  parts.add_slot(Py_nb_true_divide, binary<PyNumber_TrueDivide, "true_divide">);
  parts.add_slot(Py_nb_floor_divide, binary<PyNumber_FloorDivide, "floor_divide">);
  parts.add_slot(Py_nb_remainder, binary<PyNumber_Remainder, "remainder">);
  parts.add_slot(Py_nb_divmod, binary<PyNumber_Divmod, "divmod">);
  parts.add_slot(Py_nb_power, ternary<PyNumber_Power, "power">);
  parts.add_slot(Py_nb_matrix_multiply, binary<PyNumber_MatrixMultiply, "matrix_multiply">);
  parts.add_slot(Py_nb_lshift, binary<PyNumber_Lshift, "lshift">);
  parts.add_slot(Py_nb_rshift, binary<PyNumber_Rshift, "rshift">);
  parts.add_slot(Py_nb_and, binary<PyNumber_And, "and">);
  parts.add_slot(Py_nb_or, binary<PyNumber_Or, "or">);
  parts.add_slot(Py_nb_xor, binary<PyNumber_Xor, "xor">);
  parts.add_slot(Py_nb_negative, unary<PyNumber_Negative, "negative">);
  parts.add_slot(Py_nb_positive, unary<PyNumber_Positive, "positive">);
  parts.add_slot(Py_nb_absolute, unary<PyNumber_Absolute, "absolute">);
  parts.add_slot(Py_nb_invert, unary<PyNumber_Invert, "invert">);
  parts.add_slot(Py_nb_inplace_add, in_place<PyNumber_InPlaceAdd, "in_place_add">);
  parts.add_slot(Py_nb_inplace_subtract, in_place<PyNumber_InPlaceSubtract, "in_place_subtract">);
  parts.add_slot(Py_nb_inplace_multiply, in_place<PyNumber_InPlaceMultiply, "in_place_multiply">);
  parts.add_slot(Py_nb_inplace_true_divide, in_place<PyNumber_InPlaceTrueDivide, "in_place_true_divide">);
  parts.add_slot(Py_nb_inplace_floor_divide, in_place<PyNumber_InPlaceFloorDivide, "in_place_floor_divide">);
  parts.add_slot(Py_nb_inplace_remainder, in_place<PyNumber_InPlaceRemainder, "in_place_remainder">);
  parts.add_slot(Py_nb_inplace_power, in_place_ternary<PyNumber_InPlacePower, "in_place_power">);
  parts.add_slot(Py_nb_inplace_matrix_multiply,
                 in_place<PyNumber_InPlaceMatrixMultiply, "in_place_matrix_multiply">);
  parts.add_slot(Py_nb_inplace_lshift, in_place<PyNumber_InPlaceLshift, "in_place_lshift">);
  parts.add_slot(Py_nb_inplace_rshift, in_place<PyNumber_InPlaceRshift, "in_place_rshift">);
  parts.add_slot(Py_nb_inplace_and, in_place<PyNumber_InPlaceAnd, "in_place_and">);
  parts.add_slot(Py_nb_inplace_or, in_place<PyNumber_InPlaceOr, "in_place_or">);
  parts.add_slot(Py_nb_inplace_xor, in_place<PyNumber_InPlaceXor, "in_place_xor">);
  parts.add_slot(Py_tp_richcompare, compare);
  parts.add_slot(Py_sq_contains, contains);
}

}  // namespace tenon::python
