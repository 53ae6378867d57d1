// SPDX-License-Identifier: Apache-2.0
#include "numpy_view.h"

#include <utility>

#include "ndarray.h"
#include "numpy_api.h"
#include "owners.h"
#include "sites.h"

namespace tenon::python {
namespace {

struct ViewHolder {
  PyObject_HEAD tenon_view view;
};

PyTypeObject* view_holder_type = nullptr;

void free_view_holder(PyObject* self) {
  {
    const owners::Collector collector;
    tenon_view_close(&reinterpret_cast<ViewHolder*>(self)->view);
  }
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_Free(self);
  Py_DECREF(type);
}

PyType_Slot view_holder_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(free_view_holder)},
    {Py_tp_doc, const_cast<char*>("Holds the memory of an NDArray for the NumPy arrays over it.")},
    {0, nullptr},
};
PyType_Spec view_holder_spec = {"tenon._core.ViewHolder", sizeof(ViewHolder), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, view_holder_slots};

}  // namespace

namespace {

nb::object holder_for(const Array& array, int32_t access, const char* site) {
  auto* const holder = PyObject_New(ViewHolder, view_holder_type);
  const nb::object object = owned(reinterpret_cast<PyObject*>(holder));
  holder->view = TENON_VIEW_INIT;
  call(tenon_view_open, &holder->view, array.get(), access, site);
  return object;
}

int32_t usual_access(const Array& array) { return array.is_readonly() ? TENON_READ : TENON_WRITE_OR_READ; }

}  // namespace

nb::object view_holder(const Array& array) { return holder_for(array, usual_access(array), current_site()); }

nb::object numpy_array_over(const Array& array, nb::handle base, bool is_readonly) {
  const tenon_array_desc& desc = array.desc();
  PyArray_Descr* const dtype = numpy_dtype_of(desc.dtype, (desc.flags & TENON_SUBBYTE_PADDED) != 0);
  npy_intp strides[TENON_MAX_NDIM];
  for (int i = 0; i < desc.ndim; ++i) strides[i] = desc.strides[i] * static_cast<npy_intp>(desc.itemsize);
  // The next call takes the dtype over, also when it fails.
  nb::object view = owned(PyArray_NewFromDescr(
      &PyArray_Type, dtype, desc.ndim, const_cast<npy_intp*>(reinterpret_cast<const npy_intp*>(desc.shape)),
      strides, desc.data, is_readonly ? 0 : NPY_ARRAY_WRITEABLE, nullptr));
  check_python(PyArray_SetBaseObject(as_numpy(view.ptr()), base.inc_ref().ptr()));
  return view;
}

nb::object numpy_view(const Array& array) { return numpy_view_taken_at(array, current_site()); }

nb::object numpy_view_taken_at(const Array& array, const char* site) {
  const nb::object holder = holder_for(array, usual_access(array), site);
  const int32_t access = tenon_view_access(&reinterpret_cast<ViewHolder*>(holder.ptr())->view);
  return numpy_array_over(array, holder, access == TENON_READ);
}

nb::object writable_numpy_view(const Array& array) {
  return numpy_array_over(array, holder_for(array, TENON_WRITE, current_site()), false);
}

RootedView rooted_numpy_view(const Array& array, bool is_readonly, const char* site) {
  const nb::object holder = holder_for(array, is_readonly ? TENON_READ : usual_access(array), site);
  const int32_t access = tenon_view_access(&reinterpret_cast<ViewHolder*>(holder.ptr())->view);
  nb::object root = numpy_array_over(array, holder, access == TENON_READ);
  nb::object view = numpy_array_over(array, root, access == TENON_READ);
  return {std::move(root), std::move(view)};
}

void empty_numpy_view(nb::handle view, bool is_alone) {
  static double nowhere[2];
  auto* const fields = reinterpret_cast<PyArrayObject_fields*>(view.ptr());
  if (fields->nd > 0) fields->dimensions[0] = 0;
  PyArray_CLEARFLAGS(as_numpy(view.ptr()), NPY_ARRAY_WRITEABLE);  // one of no axes keeps its element
  fields->data = reinterpret_cast<char*>(nowhere);
  if (is_alone) const nb::object released = nb::steal(std::exchange(fields->base, nullptr));
}

bool may_view_ndarray(PyObject* exporter) {
  if (Py_TYPE(exporter) == view_holder_type) return true;
  if (!PyMemoryView_Check(exporter)) return true;  // a capsule, a tensor: the memory map knows
  static Name obj("obj");
  const nb::object source = owned(PyObject_GetAttr(exporter, obj.get()));
  return is_ndarray(source.ptr());
}

namespace {

void empty_view(nb::handle view, bool is_alone) {
  if (!is_numpy_array(view.ptr())) raise(PyExc_TypeError, "empty_view() takes a NumPy array");
  empty_numpy_view(view, is_alone);
}

nb::list body_arguments(const nb::list& arguments, nb::handle function) {
  const char* const site = site_of_function(function);
  nb::list result;
  for (nb::handle argument : arguments) {
    if (is_ndarray(argument.ptr())) {
      result.append(numpy_view_taken_at(share(argument.ptr()), site));
    } else {
      result.append(argument);
    }
  }
  return result;
}

}  // namespace

void add_numpy_view(nb::module_& module) {
  module.def("body_arguments", body_arguments, nb::arg("arguments"), nb::arg("function"),
             nb::sig("def body_arguments(arguments: list[Any], function: object) -> list[Any]"),
             "Arguments of the function, with NumPy arrays for NDArrays: views taken at its first line.");
  module.def("empty_view", empty_view, nb::arg("view"), nb::arg("is_alone"),
             nb::sig("def empty_view(view: Any, is_alone: bool) -> None"),
             "Makes a NumPy array one of no elements, for the end of the block in which it was valid.");
  view_holder_type = reinterpret_cast<PyTypeObject*>(
      owned(PyType_FromModuleAndSpec(module.ptr(), &view_holder_spec, nullptr)).release().ptr());
  module.def("hold_view", view_holder, nb::arg("array"), nb::sig("def hold_view(array: NDArray) -> object"),
             "An object that holds an open view of the array until it is freed.");
}

}  // namespace tenon::python
