// SPDX-License-Identifier: Apache-2.0
//
// Arrays over memory that is described by hand: buffers of other objects, addresses; and new memory.
#include <memory>
#include <vector>

#include "assignment.h"
#include "dims.h"
#include "dtype.h"
#include "from_numpy.h"
#include "ndarray.h"
#include "ndarray_parts.h"
#include "numpy_lend.h"
#include "owners.h"
#include "ownership.h"
#include "values.h"

namespace tenon::python {
namespace {

// Whether the error that is set says that a buffer is read-only. NumPy raises ValueError, and so may the
// handler of a signal, which is in a traceback.
bool is_refused() noexcept {
  if (PyErr_ExceptionMatches(PyExc_BufferError) != 0) return true;
  if (PyErr_ExceptionMatches(PyExc_ValueError) == 0 && PyErr_ExceptionMatches(PyExc_TypeError) == 0)
    return false;
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_Restore(type, value, trace);
  return trace == nullptr;
}

// A buffer of another object, which cannot be resized or closed while it is held.
struct BufferOwner : owners::Node {
  explicit BufferOwner(nb::handle source)
      : Node([](Node* node) {
          auto* const self = static_cast<BufferOwner*>(node);
          PyBuffer_Release(&self->buffer);
          delete self;
        }) {
    if (PyObject_GetBuffer(source.ptr(), &buffer, PyBUF_WRITABLE) == 0) return;
    if (!is_refused()) nb::raise_python_error();  // of a wait for an array, as for Ctrl-C
    PyErr_Clear();
    check_python(PyObject_GetBuffer(source.ptr(), &buffer, PyBUF_SIMPLE));
  }
  Py_buffer buffer;
};

// What keeps the memory at an address, and what is called when it is not used any more.
struct CallOwner : owners::Node {
  CallOwner(nb::object keep_object, nb::object call_object)
      : Node([](Node* node) {
          auto* const self = static_cast<CallOwner*>(node);
          self->finish_call();
          delete self;
        }),
        keep(std::move(keep_object)),
        last_call(std::move(call_object)) {}

  void finish_call() {
    if (last_call.is_none()) return;
    const KeepError keep_error;
    PyObject* const result = PyObject_CallNoArgs(last_call.ptr());
    if (result == nullptr) write_unraisable(last_call.ptr());
    Py_XDECREF(result);
  }

  nb::object keep;
  nb::object last_call;
};

tenon_adoption adoption_of(void* data, DType dtype, const Dims& shape, bool is_readonly) {
  auto adoption = detail::sized<tenon_adoption>();
  adoption.flags = is_readonly ? TENON_READONLY : 0;
  adoption.data = data;
  adoption.device = {TENON_CPU, 0};
  adoption.dtype = dtype;
  adoption.ndim = shape.size();
  adoption.shape = shape.span().data();
  return adoption;
}

Array adopt(tenon_adoption adoption, OwnedNode owner) {
  adoption.owner = owner.get();
  adoption.deleter = owners::release;
  Array array = Array::adopt_described(adoption);
  (void)owner.release();
  return array;
}

// Elements that nbytes hold, all of them.
int64_t whole_elements(int64_t nbytes, DType dtype) {
  const int64_t bits = int64_t{dtype.bits()} * dtype.lanes();
  if (nbytes * 8 % bits != 0) {
    raise(PyExc_ValueError,
          "%lld bytes are no whole number of %s elements of %lld bits: give a shape or another offset",
          static_cast<long long>(nbytes), dtype.name().c_str(), static_cast<long long>(bits));
  }
  return nbytes * 8 / bits;
}

Array from_buffer(nb::object source, const DTypeLike& dtype_like, nb::object shape, Integer given_offset) {
  const DType dtype = dtype_like.get();
  check_values(source);
  auto owner = std::make_unique<BufferOwner>(source);
  const Py_buffer& buffer = owner->buffer;
  OwnedNode node(owner.release());
  const int64_t offset = given_offset.get("offset");
  if (offset < 0 || offset > buffer.len) {
    raise(PyExc_ValueError, "offset is %lld: the buffer has %zd bytes", static_cast<long long>(offset),
          buffer.len);
  }
  const Dims dims = shape.is_none() ? Dims(nb::int_(whole_elements(buffer.len - offset, dtype)), "shape")
                                    : Dims(shape, "shape");
  tenon_adoption adoption =
      adoption_of(static_cast<char*>(buffer.buf) + offset, dtype, dims, buffer.readonly != 0);
  adoption.extent = buffer.buf;
  adoption.extent_nbytes = static_cast<uint64_t>(buffer.len);
  return adopt(adoption, std::move(node));
}

Array from_pointer(nb::object address, nb::object shape, const DTypeLike& dtype_like, nb::object strides,
                   nb::object owner, nb::object deleter, Flag readonly) {
  const DType dtype = dtype_like.get();
  void* const data = pointer_from(address, "address");
  const Dims dims(shape, "shape");
  tenon_adoption adoption = adoption_of(data, dtype, dims, readonly.get("readonly"));
  std::vector<int64_t> in_elements;
  if (!strides.is_none()) {
    const Dims in_bytes(strides, "strides");
    const int64_t itemsize = int64_t{dtype.bits()} * dtype.lanes() / 8;
    if (in_bytes.size() != dims.size()) {
      raise(PyExc_ValueError, "strides has %d entries for %d axes", in_bytes.size(), dims.size());
    }
    for (int64_t stride : in_bytes.span()) {
      if (itemsize == 0 || stride % itemsize != 0) {
        raise(PyExc_ValueError, "strides has the entry %lld: that is no multiple of the itemsize %lld",
              static_cast<long long>(stride), static_cast<long long>(itemsize));
      }
      in_elements.push_back(stride / itemsize);
    }
    adoption.strides = in_elements.data();
  }
  if (!deleter.is_none() && PyCallable_Check(deleter.ptr()) == 0)
    raise(PyExc_TypeError, "deleter is %R: it must be callable", deleter.ptr());
  const bool has_owner = !owner.is_none() || !deleter.is_none();
  auto node = std::make_unique<CallOwner>(std::move(owner), nb::none());
  CallOwner* const held = node.get();
  Array array = adopt(adoption, OwnedNode(node.release()));
  if (!has_owner) note_second_queue();
  held->last_call = std::move(deleter);  // only now: a deleter does not run when the call fails
  return array;
}

Array create(nb::object shape, const DTypeLike& dtype, bool is_zeroed) {
  const Dims dims(shape, "shape");
  return is_zeroed ? Array::zeros(dims.shape(), dtype.get()) : Array::empty(dims.shape(), dtype.get());
}

// dtype: what the caller casts the array to, or None.
nb::object shared(nb::object data, nb::handle dtype) {
  if (is_ndarray(data.ptr())) return data;
  if (dtype.is_none()) return nb::cast(array_from(data));
  const DType wanted = dtype_from(dtype);
  return nb::cast(array_from(data, &wanted));
}

nb::dict statistics() {
  auto now = detail::sized<tenon_statistics>();
  tenon_statistics_get(&now);
  nb::dict result;
  result["storages"] = now.storages;
  result["regions"] = now.regions;
  result["heap_nbytes"] = now.heap_nbytes;
  result["views"] = now.views;
  result["failed_deleters"] = now.failed_deleters;
  return result;
}

}  // namespace

void add_memory(nb::module_& module) {
  module.def("create", create, nb::arg("shape"), nb::arg("dtype"), nb::arg("zeroed"),
             nb::sig("def create(shape: int | Sequence[int], dtype: DTypeLike, zeroed: bool) -> NDArray"));
  module.def("from_buffer", from_buffer, nb::arg("obj"), nb::arg("dtype"),
             nb::arg("shape").none() = nb::none(), nb::arg("offset") = 0,
             nb::sig("def from_buffer(obj: Any, dtype: DTypeLike, shape: int | Sequence[int] | None = None, "
                     "offset: int = 0) -> NDArray"),
             "What tenon.from_buffer does.");
  module.def("from_pointer", from_pointer, nb::arg("address"), nb::arg("shape"), nb::arg("dtype"),
             nb::arg("strides").none(), nb::arg("owner").none(), nb::arg("deleter").none(),
             nb::arg("readonly"),
             nb::sig("def from_pointer(address: int, shape: int | Sequence[int], dtype: DTypeLike, "
                     "strides: Sequence[int] | None, owner: Any, deleter: Callable[[], object] | None, "
                     "readonly: bool) -> NDArray"));
  module.def("statistics", statistics, nb::sig("def statistics() -> dict[str, int]"),
             "What lives in this process, for tests and leak checks: storages, regions, heap_nbytes, views.");
  module.def("share", shared, nb::arg("data").none(), nb::arg("dtype").none() = nb::none(),
             nb::sig("def share(data: Any, dtype: DTypeLike | None = None) -> NDArray"));
}

}  // namespace tenon::python
