// SPDX-License-Identifier: Apache-2.0
//
// Methods that export an NDArray to NumPy, PyTorch and JAX, and the protocols of NumPy.
#include <nanobind/stl/string.h>

#include <string>

#include "array_call.h"
#include "callbacks.h"
#include "devices.h"
#include "dlpack_capsule.h"
#include "elements.h"
#include "exchange_table.h"
#include "frames.h"
#include "methods.h"
#include "ndarray_parts.h"
#include "numpy_view.h"
#include "sites.h"
#include "tenon/share.hpp"
#include "values.h"

namespace tenon::python {
namespace {

// NumPy's comparison of arrays in lists asks for a view, and takes every error as "not equal".
bool is_asked_by_comparison() {
  const nb::object frame = innermost_frame();
  if (!frame.is_valid()) return false;
  const auto name = nb::cast<std::string>(nb::object(frame.attr("f_code").attr("co_name")));
  if (name != "array_equal" && name != "array_equiv") return false;
  const nb::object module = frame.attr("f_globals").attr("get")("__name__");
  return nb::cast<std::string>(nb::str(module)).starts_with("numpy.");
}

// A copy is a call of its own. Otherwise NumPy has asked the buffer protocol first and has dropped its error,
// which is raised again here.
nb::object numpy_array(const Self& object, nb::object dtype, nb::object copy) {
  const bool is_copy = flag_or_none_from(copy, "copy")
                           .value_or(has_refused_buffer(object.object.ptr()) && is_asked_by_comparison());
  const auto has_dtype = [&dtype](const nb::object& view) {
    return dtype.is_none() || dtype.equal(view.attr("dtype"));
  };
  if (is_copy || (copy.is_none() && !dtype.is_none())) {
    ArrayCall call;
    call.reads(object.object.ptr());
    call.begin("array");
    const nb::object view = call.view_of(object.object.ptr());
    if (!has_dtype(view)) return view.attr("astype")(dtype);
    if (is_copy) return view.attr("copy")();
  }
  raise_refused_buffer(object.object.ptr());
  nb::object view = numpy_view(object.array());
  if (!has_dtype(view)) {
    raise(PyExc_ValueError, "copy=False was asked for, but %S elements become %S only by a copy",
          view.attr("dtype").ptr(), dtype.ptr());
  }
  return view;
}

nb::tuple with_views(nb::handle values, ArrayCall& call) {
  nb::list result;
  for (nb::handle value : values) result.append(call.view_of(value.ptr()));
  return nb::tuple(result);
}

nb::object array_ufunc(nb::handle, nb::object ufunc, nb::str method, nb::args inputs, nb::kwargs keywords) {
  ArrayCall call;
  const nb::object out = keywords.contains("out") ? nb::object(keywords["out"]) : nb::object();
  const nb::object where = keywords.contains("where") ? nb::object(keywords["where"]) : nb::object();
  if (out.is_valid()) {
    for (nb::handle target : out) call.writes(target.ptr());
  }
  if (where.is_valid()) call.reads(where.ptr());
  // ufunc.at() writes to its first argument.
  if (text_of(method) == "at" && nb::len(inputs) != 0) call.writes(nb::object(inputs[0]).ptr());
  for (nb::handle input : inputs) call.reads(input.ptr());
  call.begin(nb::cast<std::string>(nb::object(ufunc.attr("__name__"))).c_str());
  nb::dict options;  // destroyed before the call
  for (const auto& [name, value] : keywords) options[name] = value;
  if (out.is_valid()) options["out"] = with_views(out, call);
  if (where.is_valid()) options["where"] = call.view_of(where.ptr());
  const nb::object result = nb::getattr(ufunc, method)(*with_views(inputs, call), **options);
  if (!out.is_valid()) return result;
  // NDArrays that the caller passed as out are returned.
  if (nb::len(out) == 1) return is_ndarray(nb::object(out[0]).ptr()) ? nb::object(out[0]) : result;
  nb::list results;
  for (size_t i = 0; i < nb::len(out); ++i) {
    results.append(is_ndarray(nb::object(out[i]).ptr()) ? nb::object(out[i]) : nb::object(result[i]));
  }
  return nb::tuple(results);
}

// NumPy's function of that name, which comes back as one call (__array_function__).
template <size_t N>
auto numpy_function(const char (&name)[N]) {
  return [&name](const nb::args& arguments, const nb::kwargs& keywords) {
    return nb::module_::import_("numpy").attr(name)(*arguments, **keywords);
  };
}

nb::object as_numpy_copy(const Array& self, Flag zero_copy) {
  if (zero_copy.get("zero_copy")) {
    raise(PyExc_TypeError,
          "asnumpy() copies: a.numpy() and np.asarray(a) give a NumPy array on the same memory");
  }
  return numpy_view(copied(self));
}

nb::object array_function(nb::handle, nb::object function, nb::object types, nb::object arguments,
                          nb::object keywords) {
  return callback(Callback::kArrayFunction)(function, types, arguments, keywords);
}

// PyTorch's table does not release a tensor with another dtype; a capsule is released.
bool is_dtype_of_torch(DType dtype) {
  switch (dtype.code()) {
    case TENON_INT:
    case TENON_UINT:
    case TENON_FLOAT:
    case TENON_BFLOAT:
    case TENON_COMPLEX:
    case TENON_BOOL: return dtype.lanes() == 1;
    default: return false;
  }
}

// Imported at the first call. To import it again costs as much as the tensor does.
nb::object torch_module() {
  static Name name("torch");
  PyObject* const module = PyImport_GetModule(name.get());
  if (module == nullptr && PyErr_Occurred() != nullptr) nb::raise_python_error();
  return module != nullptr ? nb::steal(module) : nb::module_::import_("torch");
}

// PyTorch's current stream on a device, as DLPack numbers streams.
int64_t stream_of_torch(tenon_device device) {
  constexpr int64_t kLegacyDefault = 1;
  const nb::object stream = torch_module().attr("cuda").attr("current_stream")(device.id);
  const auto handle = nb::cast<int64_t>(stream.attr("cuda_stream"));
  return handle != 0 ? handle : kLegacyDefault;
}

// exchange: of torch.Tensor. find_site: gives the line that the view is noted with.
template <class FindSite>
nb::object tensor_of(const Array& self, bool trust, const Exchange& exchange, FindSite find_site) {
  if (has_negative_stride(*tenon_array_describe(self.get()))) {
    raise(PyExc_ValueError, "PyTorch has no negative strides: pass a.copy().torch()");
  }
  const Array array = self.is_readonly() && !trust ? lazily_copied(self) : self;
  const uint32_t flags = array.is_readonly() ? TENON_EXPORT_FOR_READ : 0;
  if (is_on_device(array)) {
    // PyTorch calls __dlpack__ with its current stream. That would copy a read-only array.
    if (!array.is_readonly()) return torch_module().attr("from_dlpack")(nb::cast(array));
    const nb::object capsule =
        versioned_capsule(array.get(), flags, current_site(), stream_of_torch(array.desc().device));
    return torch_module().attr("from_dlpack")(capsule);
  }
  if (exchange.table == nullptr || !is_dtype_of_torch(array.dtype())) {
    return torch_module().attr("from_dlpack")(versioned_capsule(array.get(), flags, current_site()));
  }
  void* tensor = nullptr;
  DLManagedTensorVersioned* const exported = array.to_dlpack(flags, find_site());
  if (exchange.table->managed_tensor_to_py_object_no_sync(exported, &tensor) != 0) {
    if (PyErr_Occurred() == nullptr)
      raise(PyExc_RuntimeError, "PyTorch's exchange table failed without a reason");
    nb::raise_python_error();
  }
  return owned(static_cast<PyObject*>(tensor));
}

// Of torch.Tensor. Looked up once: a process has one PyTorch.
const Exchange& tensor_exchange() {
  static Exchange exchange;
  if (exchange.type == nullptr) {
    nb::object type = owned(PyObject_GetAttrString(torch_module().ptr(), "Tensor"));
    exchange = exchange_of(reinterpret_cast<PyTypeObject*>(type.ptr()));
    (void)type.release();
  }
  return exchange;
}

nb::object to_torch(const Array& self, Flag trust) {
  return tensor_of(self, trust.get("trust"), tensor_exchange(), current_site);
}

// Tensors of n arrays at one line of the program, which is looked for once. array_at: the array of a place.
template <class ArrayAt>
nb::object tensors_of(int32_t n, bool trust, ArrayAt array_at) {
  const Exchange& exchange = tensor_exchange();
  const char* const site = current_site();
  nb::object tensors = owned(PyTuple_New(n));
  for (int32_t i = 0; i < n; ++i) {
    nb::object tensor = tensor_of(array_at(i), trust, exchange, [site] { return site; });
    PyTuple_SetItem(tensors.ptr(), i, tensor.release().ptr());
  }
  return tensors;
}

nb::object torch_tensors(const nb::tuple& arrays, bool trust) {
  return tensors_of(static_cast<int32_t>(nb::len(arrays)), trust, [&arrays](int32_t i) {
    PyObject* const array = PyTuple_GetItem(arrays.ptr(), i);
    if (!is_ndarray(array)) raise(PyExc_TypeError, "item %d is %R: it must be a tenon.NDArray", i, array);
    return share(array);
  });
}

// JAX takes compact elements only, and reads only.
template <Callback make>
nb::object to_jax(const Array& self) {
  const Array array = self.is_contiguous() ? self : copied(self);
  return callback(make)(array);
}

}  // namespace

nb::object tensor_for_read(const Array& array) {
  // A view of a shared array needs a lease.
  const bool is_copied = has_negative_stride(*tenon_array_describe(array.get())) || is_shared(array);
  return tensor_of(is_copied ? copied(array) : array, true, tensor_exchange(), current_site);
}

nb::object tensors_of_batch(const Batch& batch, bool trust) {
  return tensors_of(batch.schema().size(), trust, [&batch](int32_t i) { return batch[i]; });
}

void add_exchange_methods(nb::module_& module) {
  nb::class_<ArrayCall>(module, "ArrayCall",
                        "A call of NumPy's on views of arrays, with access to all of them at once.")
      .def(nb::init<const std::string&, nb::iterable, nb::iterable>(), nb::arg("name"), nb::arg("reads"),
           nb::arg("writes"), nb::sig("def __init__(self, name: str, reads: Any, writes: Any) -> None"))
      .def(
          "view", [](ArrayCall& self, nb::handle array) { return self.view_of(array.ptr()); },
          nb::arg("array"))
      .def("has_lent_views", &ArrayCall::has_lent_views,
           "Something else refers to a view of the call, or to the memory through one.")
      .def("end", &ArrayCall::end);
  module.def(
      "torch_tensors", torch_tensors, nb::arg("arrays"), nb::arg("trust") = false,
      nb::sig("def torch_tensors(arrays: tuple[NDArray, ...], trust: bool = False) -> tuple[Any, ...]"),
      "NDArray.torch() of each.");
  def_method("numpy", numpy_view, nb::sig("def numpy(self) -> numpy.ndarray[Any, Any]"),
             "A NumPy array on the same memory, writable if this array is; it keeps the memory alive.\n\n"
             "Raises\n------\nTypeError\n    NumPy, with ml_dtypes, has no such dtype.\n");
  def_method("asnumpy", as_numpy_copy, nb::arg("zero_copy") = false,
             nb::sig("def asnumpy(self, zero_copy: bool = False) -> numpy.ndarray[Any, Any]"),
             "A NumPy array with a copy of the elements. `numpy` gives one on the same memory; so "
             "``zero_copy=True`` is a\nTypeError.\n");
  def_method("sum", numpy_function("sum"), nb::sig("def sum(self, *args: Any, **kwargs: Any) -> Any"),
             "numpy.sum of the array.\n");
  def_method("mean", numpy_function("mean"), nb::sig("def mean(self, *args: Any, **kwargs: Any) -> Any"),
             "numpy.mean of the array.\n");
  def_method("min", numpy_function("min"), nb::sig("def min(self, *args: Any, **kwargs: Any) -> Any"),
             "numpy.min of the array.\n");
  def_method("max", numpy_function("max"), nb::sig("def max(self, *args: Any, **kwargs: Any) -> Any"),
             "numpy.max of the array.\n");
  def_method("torch", to_torch, nb::arg("trust") = false,
             nb::sig("def torch(self, trust: bool = False) -> Any"),
             "A PyTorch tensor on the same memory.\n\n"
             "PyTorch does not know read-only memory: of a read-only array it gets a `lazy_copy`, unless "
             "``trust`` promises\n"
             "that the tensor is not written to.\n");
  def_method("jax", to_jax<Callback::kToJax>, nb::sig("def jax(self) -> Any"),
             "A JAX array on the same memory, which JAX only reads. Writes to this array show in it: make "
             "them before, or\n"
             "pass a copy. An array with gaps or another order of axes is copied.\n\n"
             "Raises\n------\nValueError\n    The elements have 64 bits, and JAX is not set to take them "
             "(``jax_enable_x64``).\n");
  def_method(
      "__jax_array__", to_jax<Callback::kAsJax>, nb::sig("def __jax_array__(self) -> Any"),
      "For functions of JAX: `jax`. But elements of 64 bits that JAX is not set to take are copied and "
      "cut to 32 bits,\nas JAX does with NumPy's arrays.\n");
  def_method(
      "as_in_context",
      [](const Self& self, nb::handle context) {
        return callback(Callback::kAsInMxNetContext)(self.object, context);
      },
      nb::arg("context"), nb::sig("def as_in_context(self, context: Any) -> Any"),
      "MXNet's array in one of its contexts, on the same memory if that is the one of this array. An array "
      "with gaps is\n"
      "copied. MXNet does not know read-only memory: do not let it write to an array that is read-only.\n");
  add_arrow_export();
  def_method(
      "__array__", numpy_array, nb::arg("dtype").none() = nb::none(), nb::arg("copy").none() = nb::none(),
      nb::sig("def __array__(self, dtype: Any = None, copy: bool | None = None) -> numpy.ndarray[Any, Any]"));
  def_method(
      "__array_ufunc__", array_ufunc,
      nb::sig("def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any"));
  def_method("__array_function__", array_function, nb::arg("func"), nb::arg("types"), nb::arg("args"),
             nb::arg("kwargs"),
             nb::sig("def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any"));
}

}  // namespace tenon::python
