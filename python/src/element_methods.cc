// SPDX-License-Identifier: Apache-2.0
//
// Methods of NDArray that read or write elements, and copies of all kinds.
#include "array_call.h"
#include "assignment.h"
#include "callbacks.h"
#include "devices.h"
#include "dlpack_import.h"
#include "dtype.h"
#include "elements.h"
#include "from_numpy.h"
#include "methods.h"
#include "ndarray_parts.h"
#include "values.h"

namespace tenon::python {
namespace {

nb::object astype(const Self& self, const DTypeLike& dtype, Flag copy) {
  const Array array = self.array();
  const DType wanted = dtype.get();
  if (!copy.get("copy") && wanted == array.dtype()) return self.object;
  return nb::cast(copied(array, wanted));
}

// What other's memory is, never a copy of it.
Array memory_of(nb::handle other) {
  if (is_ndarray(other.ptr())) return share(other.ptr());
  if (Array numpy = share_if_numpy(other)) return numpy;
  if (Array shared = share_if_dlpack(other, Access::kWrite)) return shared;
  raise(
      PyExc_TypeError,
      "copyto() writes to an NDArray, a NumPy array or another array with __dlpack__: %R has no memory that "
      "it could write to",
      reinterpret_cast<PyObject*>(Py_TYPE(other.ptr())));
}

nb::object copyto(const Array& self, nb::object other) {
  copy_elements(self, memory_of(other));
  return other;
}

// In C order.
nb::object to_bytes(const Array& self) {
  const Array source = on_host(self);
  ArrayCall call;
  call.uses(source, Access::kRead);
  call.begin("tobytes");
  const Array array = source.is_contiguous() ? source : copied(source);
  return owned(PyBytes_FromStringAndSize(static_cast<const char*>(array.data()),
                                         static_cast<Py_ssize_t>(array.nbytes())));
}

nb::object to_device(const Self& self, nb::handle device) {
  const Array array = self.array();
  const tenon_device wanted = device_from(device);
  if (are_equal(wanted, array.desc().device)) return self.object;
  return nb::cast(copied_on(array, array.dtype(), wanted));
}

}  // namespace

void add_element_methods(nb::module_&) {
  def_method("astype", astype, nb::arg("dtype"), nb::arg("copy") = true,
             nb::sig("def astype(self, dtype: DTypeLike, copy: bool = True) -> NDArray"),
             "The elements cast to a dtype, in new memory; with ``copy=False`` the array itself if it has "
             "the dtype.\n\n"
             "Casts as C does: fractions are cut, integers out of range wrap. From complex to real is a "
             "ComplexWarning of NumPy.\n");
  def_method(
      "copy", [](const Array& self) { return copied(self); }, "The elements in new memory, in C order.\n");
  def_method("lazy_copy", lazily_copied, nb::sig("def lazy_copy(self) -> NDArray"),
             "A writable array with the elements of this one. Nobody else sees what is written to it.\n\n"
             "That of a received item that others read, too, keeps the item if it has at least 4 MiB: it "
             "lies in private\n"
             "pages, each of which is copied when it is written to. Of other arrays it is `copy`.\n");
  def_method(
      "copyto", copyto, nb::arg("other").none(), nb::sig("def copyto(self, other: _T) -> _T"),
      "Writes the elements to ``other``, broadcast to its shape and cast to its dtype, and returns it.\n\n"
      "Parameters\n----------\n"
      "other : NDArray, numpy.ndarray, torch.Tensor or another writable array with __dlpack__\n"
      "    Of an array of MXNet, ``to_dlpack_for_write()`` is called, which waits for its engine.\n\n"
      "Raises\n------\nValueError\n    The shapes do not fit, or ``other`` is read-only.\n"
      "TypeError\n    ``other`` has no memory of its own (a list), or not one that arrays can have "
      "(byte-swapped).\n");
  def_method("tobytes", to_bytes, nb::sig("def tobytes(self) -> bytes"),
             "A copy of the elements in C order as bytes.\n");
  def_method("__bytes__", to_bytes, nb::sig("def __bytes__(self) -> bytes"));
  def_method(
      "fill", [](const Array& self, nb::handle value) { assign(self, value); }, nb::arg("value"),
      nb::sig("def fill(self, value: Any) -> None"), "``a[...] = value``.\n");
  def_method("to", to_device, nb::arg("device"), nb::sig("def to(self, device: str) -> NDArray"),
             "The elements in new memory on a device: 'cpu', 'cuda', 'cuda:1' or 'cuda_host' (pinned). On "
             "the same device "
             "the array itself.\n\n"
             "Returns when the copy is done; ``tn.push(tn.copy, a, tn.overwrite(b))`` does not wait.\n\n"
             "Raises\n------\nValueError\n    There is no such device.\n"
             "FileNotFoundError\n    There is no CUDA driver.\nMemoryError\n    The device is full.\n");
  def_method("__copy__", [](const Array& self) { return copied(self); });
  def_method("__deepcopy__", [](const Array& self, nb::handle) { return copied(self); }, nb::arg("memo"));
  def_method(
      "__format__",
      [](const Self& self, nb::str spec) { return callback(Callback::kArrayFormat)(self.object, spec); },
      nb::arg("spec"), nb::sig("def __format__(self, spec: str, /) -> str"));
  def_method(
      "_repr_html_", [](const Self& self) { return callback(Callback::kArrayHtml)(self.object); },
      nb::sig("def _repr_html_(self) -> str"));
  def_method(
      "__reduce_ex__",
      [](const Self& self, int protocol) { return callback(Callback::kReduceArray)(self.object, protocol); },
      nb::arg("protocol"), nb::sig("def __reduce_ex__(self, protocol: int, /) -> tuple[Any, ...]"));
  add_conversion_methods();
}

}  // namespace tenon::python
