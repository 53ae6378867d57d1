// SPDX-License-Identifier: Apache-2.0
//
// Methods of NDArray that give another window on the same memory.
#include <vector>

#include "dims.h"
#include "dtype.h"
#include "methods.h"
#include "ndarray_parts.h"
#include "values.h"

namespace tenon::python {
namespace {

Copy copy_from(nb::handle copy) {
  const std::optional<bool> wanted = flag_or_none_from(copy, "copy");
  if (!wanted) return Copy::kIfNeeded;
  return *wanted ? Copy::kAlways : Copy::kNever;
}

Array transposed(const Array& array, const nb::args& axes) {
  if (axes.size() == 0 || (axes.size() == 1 && axes[0].is_none())) return array.transpose();
  const Dims given = Dims::of_arguments(axes, "axes");
  std::vector<int32_t> order;
  for (int64_t axis : given.span()) {
    if (axis < -array.ndim() || axis >= array.ndim()) {
      raise(PyExc_ValueError, "axis %lld is not one of the array's %d axes", static_cast<long long>(axis),
            array.ndim());
    }
    order.push_back(static_cast<int32_t>(axis < 0 ? axis + array.ndim() : axis));
  }
  return array.transpose(order);
}

}  // namespace

void add_window_methods(nb::module_&) {
  def_method(
      "ravel", [](const Array& self) { return self.reshape({-1}, Copy::kIfNeeded); },
      "The elements in C order on one axis: a view where possible, else new memory.\n");
  def_method(
      "reshape",
      [](const Array& self, const nb::args& shape, nb::object copy) {
        return self.reshape(Dims::of_arguments(shape, "shape").shape(), copy_from(copy));
      },
      nb::arg("shape"), nb::kw_only(), nb::arg("copy").none() = false,
      nb::sig("def reshape(self, *shape: int | Sequence[int], copy: bool | None = False) -> NDArray"),
      "The same elements in C order in another shape.\n\n"
      "Parameters\n----------\n"
      "*shape : int or sequence of int\n    One entry may be -1: what remains.\n"
      "copy : bool or None\n"
      "    False: a view, or ValueError when no strides describe it. True: new memory. None: a view where "
      "possible.\n\n"
      "Raises\n------\nValueError\n    The sizes differ, or the shape needs a copy.\n");
  def_method(
      "view", [](const Array& self, const DTypeLike& dtype) { return self.reinterpret(dtype.get()); },
      nb::arg("dtype"),
      "The same bytes as elements of another dtype; the last axis is scaled.\n\n"
      "Raises\n------\n"
      "ValueError\n    The array is not contiguous, or length or alignment do not fit: the message has the "
      "numbers.\n");
  def_method("transpose", transposed, nb::arg("axes"),
             nb::sig("def transpose(self, *axes: int | Sequence[int] | None) -> NDArray"),
             "The axes in the order given, on the same memory; without arguments in reverse order.\n");
  def_method(
      "is_contiguous", [](const Array& self) { return self.is_contiguous(); },
      "Whether the elements lie in C order without gaps.\n");
  def_method(
      "readonly", [](const Array& self) { return self.readonly(); },
      "The same window, read-only: its views are read-only too.\n");
}

}  // namespace tenon::python
