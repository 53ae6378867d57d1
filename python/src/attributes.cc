// SPDX-License-Identifier: Apache-2.0
//
// The attributes of an NDArray.
#include "callbacks.h"
#include "devices.h"
#include "dtype.h"
#include "ndarray.h"
#include "ndarray_parts.h"
#include "tenon/share.h"

namespace tenon::python {
namespace {

PyObject* tuple_of(const int64_t* entries, int32_t n, int64_t factor) {
  nb::object tuple = owned(PyTuple_New(n));
  for (int32_t i = 0; i < n; ++i) {
    check_python(
        PyTuple_SetItem(tuple.ptr(), i, owned(PyLong_FromLongLong(entries[i] * factor)).release().ptr()));
  }
  return tuple.release().ptr();
}

// Packed elements have no byte strides; they are in C order, counted as if each took a byte.
int64_t byte_factor(const tenon_array_desc& desc) {
  return desc.itemsize == 0 ? 1 : static_cast<int64_t>(desc.itemsize);
}

using Getter = PyObject* (*)(PyObject* self, const tenon_array_desc& desc);

template <Getter getter>
PyObject* get(PyObject* self, void*) noexcept {
  return guarded([&] {
    const Array keep = share(self);
    return getter(self, keep.desc());
  });
}

template <Getter getter>
PyGetSetDef attribute(const char* name, const char* documentation) {
  return {name, get<getter>, nullptr, documentation, nullptr};
}

// The assignments that arrays of NumPy have.
int set_fixed(PyObject*, PyObject*, void* use) noexcept {
  return guarded([&]() -> int {
    raise(PyExc_AttributeError, "this attribute of a 'tenon.NDArray' cannot be set: use %s",
          static_cast<const char*>(use));
  });
}

PyGetSetDef fixed(PyGetSetDef attribute, const char* use) {
  attribute.set = set_fixed;
  attribute.closure = const_cast<char*>(use);
  return attribute;
}

PyObject* get_shape(PyObject*, const tenon_array_desc& d) { return tuple_of(d.shape, d.ndim, 1); }
PyObject* get_strides(PyObject*, const tenon_array_desc& d) {
  return tuple_of(d.strides, d.ndim, byte_factor(d));
}
PyObject* get_dtype(PyObject*, const tenon_array_desc& d) { return dtype_object(d.dtype).release().ptr(); }
PyObject* get_device(PyObject*, const tenon_array_desc& d) { return device_name(d.device).release().ptr(); }
PyObject* get_cuda_interface(PyObject* self, const tenon_array_desc& d) {
  if (is_on_device(d.device)) return cuda_array_interface(share(self)).release().ptr();
  raise(PyExc_AttributeError, "'tenon.NDArray' object on '%S' has no attribute '__cuda_array_interface__'",
        device_name(d.device).ptr());
}
PyObject* get_ndim(PyObject*, const tenon_array_desc& d) { return PyLong_FromLong(d.ndim); }
PyObject* get_size(PyObject*, const tenon_array_desc& d) { return PyLong_FromLongLong(d.size); }
PyObject* get_nbytes(PyObject*, const tenon_array_desc& d) { return PyLong_FromUnsignedLongLong(d.nbytes); }
PyObject* get_itemsize(PyObject*, const tenon_array_desc& d) {
  return PyLong_FromUnsignedLongLong(d.itemsize);
}
PyObject* get_data_ptr(PyObject* self, const tenon_array_desc& d) {
  const char* const at = tenon_array_moved_at(array_of(self));
  if (at == nullptr) return PyLong_FromVoidPtr(d.data);
  if (*at == '\0') (void)share(self).unchecked();  // without memory: fails with the reason
  throw Error(TENON_ERR_MOVED, std::string("the array has no address: its memory was moved out at ") + at);
}
PyObject* get_writable(PyObject*, const tenon_array_desc& d) {
  return PyBool_FromLong((d.flags & TENON_READONLY) == 0);
}
PyObject* get_shared(PyObject* self, const tenon_array_desc&) {
  return PyBool_FromLong(tenon_array_is_shared(array_of(self)));
}
PyObject* get_version(PyObject* self, const tenon_array_desc&) {
  return PyLong_FromUnsignedLongLong(tenon_array_version(array_of(self)));
}
PyObject* get_transposed(PyObject* self, const tenon_array_desc&) { return wrap(share(self).transpose()); }
PyObject* get_ctypes(PyObject* self, const tenon_array_desc&) {
  return callback(Callback::kArrayCTypes)(nb::handle(self)).release().ptr();
}
PyObject* get_context(PyObject* self, const tenon_array_desc&) {
  return callback(Callback::kMxNetContext)(nb::handle(self)).release().ptr();
}

}  // namespace

void add_attributes(Parts& parts) {
  parts.attributes.insert(
      parts.attributes.end(),
      {
          fixed(attribute<get_shape>("shape", "Elements along each axis."), "a.reshape(shape)"),
          attribute<get_strides>("strides",
                                 "Bytes from one element to the next along each axis, as NumPy counts."),
          fixed(attribute<get_dtype>("dtype", "The type of the elements, a tenon.dtype."),
                "a.view(dtype) for the same bytes, or a.astype(dtype) for a copy"),
          attribute<get_device>("device", "Where the memory is: 'cpu', 'cuda:0' or 'cuda_host' (pinned)."),
          attribute<get_cuda_interface>("__cuda_array_interface__",
                                        "The address of memory on a device, version 3. Its consumer orders "
                                        "its work behind ``stream``; it is\n"
                                        "not counted as a view. AttributeError elsewhere."),
          attribute<get_ndim>("ndim", "The number of axes."),
          attribute<get_size>("size", "The number of elements."),
          attribute<get_nbytes>("nbytes", "Bytes of all elements, without the gaps of strides."),
          attribute<get_itemsize>("itemsize",
                                  "Bytes of one element; 0 when elements are packed below a byte."),
          attribute<get_data_ptr>("data_ptr", "The address of element 0, an int. It keeps nothing alive."),
          attribute<get_ctypes>(
              "ctypes", "The memory for ctypes: data, data_as(type), shape, strides; keeps it alive."),
          attribute<get_context>("context",
                                 "MXNet's context of the memory. AttributeError before ``import mxnet``."),
          attribute<get_writable>("writable", "Whether elements may be written through this array."),
          attribute<get_shared>(
              "shared",
              "Whether other processes can use the memory: it was made with shared=, attached, "
              "or came from one."),
          attribute<get_version>(
              "version",
              "A number that changes when elements may have changed. While a writable view is\n"
              "open, it changes at every read."),
          attribute<get_transposed>("T", "The array with its axes in reverse order, on the same memory."),
      });
}

}  // namespace tenon::python
