// SPDX-License-Identifier: Apache-2.0
//
// tenon.from_dlpack: memory of other libraries. The C exchange table of the type where there is one, else
// __dlpack__, else MXNet's verbs; each capsule is consumed once and renamed before anything else happens.
#include "dlpack_import.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <string_view>

#include "arguments.h"
#include "devices.h"
#include "dlpack_capsule.h"
#include "elements.h"
#include "exchange_table.h"
#include "from_numpy.h"
#include "ndarray.h"
#include "values.h"

namespace tenon::python {
namespace {

constexpr int64_t kLastDeviceType = kDLTrn;

constexpr const char* kDocumentation =
    "from_dlpack(x, device=None, copy=None, writable=None)\n--\n\n"
    "The memory of another library's array as an NDArray.\n\n"
    "Parameters\n----------\n"
    "x : object with __dlpack__ or __cuda_array_interface__, or a DLPack capsule\n"
    "    A capsule is consumed. NumPy arrays keep their flags: both sides may write. Of an array of MXNet,\n"
    "    ``to_dlpack_for_read()`` is called, or with ``writable=True`` ``to_dlpack_for_write()``: the call "
    "waits for\n"
    "    MXNet's engine, and the array is read-only or writable accordingly.\n"
    "device : str or None\n"
    "    'cpu': the producer copies memory that the host cannot read. Another device must be that of x.\n"
    "copy : bool or None\n"
    "    True: new memory. False: BufferError where the producer would copy. None: the producer decides.\n"
    "writable : bool or None\n"
    "    None: writable if the producer is known to allow writes. True: also a legacy tensor, which cannot "
    "say "
    "whether it\n"
    "    may be written. The caller promises that it may: that the producer neither marks it as read-only "
    "nor "
    "relies on\n"
    "    its values, and that no other thread uses it during a write. False: read-only.\n\n"
    "Returns\n-------\n"
    "NDArray\n"
    "    Shares x's memory and keeps it alive. Read-only when the producer says so, and also when it cannot "
    "say: the\n"
    "    legacy form of DLPack has no flag for it, so without ``writable=True`` only legacy tensors of "
    "libraries whose\n"
    "    arrays are always writable are writable; JAX's never are. A legacy capsule is writable only if "
    "Tenon's own\n"
    "    ``to_dlpack_for_write()`` made it: one of MXNet does not tell which of the two methods made it.\n\n"
    "Raises\n------\n"
    "BufferError\n"
    "    The memory cannot be exchanged as asked: a device, a tensor that requires grad, is sparse,\n"
    "    quantized or malformed, a NumPy array that is unaligned or whose strides are no multiple of its "
    "itemsize. With\n"
    "    ``writable=True``: the producer says that the memory is read-only.\n"
    "TypeError\n    ``x`` has neither __dlpack__ nor __cuda_array_interface__, an unknown dtype, or a "
    "malformed device.\n"
    "ValueError\n    The capsule was consumed before; the device is unknown.\n";

// Libraries whose arrays can all be written, by the first part of their module's name.
bool is_always_writable(nb::handle object) {
  const nb::object module = nb::getattr(object.type(), "__module__", nb::str(""));
  if (!nb::isinstance<nb::str>(module)) return false;
  const std::string_view name = text_of(module);
  const std::string_view first = name.substr(0, name.find('.'));
  constexpr std::string_view kWritable[] = {"torch",  "cupy", "mxnet",   "onnxruntime",
                                            "paddle", "tvm",  "tvm_ffi", "warp"};
  return std::ranges::find(kWritable, first) != std::end(kWritable);
}

[[noreturn]] void refuse_copy() {
  raise(PyExc_BufferError,
        "copy=False was asked for, but the producer copied: its memory cannot be shared as it is");
}

[[noreturn]] void refuse_write() {
  raise(PyExc_BufferError,
        "writable=True was asked for, but the memory was exported as read-only: pass copy=True for memory of "
        "your own, or leave out writable=");
}

// The destructor of a consumed capsule has nothing to do. It may be a function in Python, which would replace
// the error of an import that fails.
void consume(nb::handle capsule, const char* used_name) {
  check_python(PyCapsule_SetName(capsule.ptr(), used_name));
  check_python(PyCapsule_SetDestructor(capsule.ptr(), nullptr));
}

Array import_versioned(DLManagedTensorVersioned* tensor, bool may_copy) {
  const bool is_copied =
      tensor->version.major == DLPACK_MAJOR_VERSION && (tensor->flags & DLPACK_FLAG_BITMASK_IS_COPIED) != 0;
  Array array = Array::from_dlpack(tensor);
  if (is_copied && !may_copy) refuse_copy();
  return array;
}

// method: what returned the capsule, for messages.
Array import_capsule(nb::handle capsule, bool may_copy, bool is_writable, const char* method = "__dlpack__") {
  if (PyCapsule_IsValid(capsule.ptr(), kVersionedName) != 0) {
    auto* const tensor =
        static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(capsule.ptr(), kVersionedName));
    consume(capsule, kUsedVersionedName);
    return import_versioned(tensor, may_copy);
  }
  if (PyCapsule_IsValid(capsule.ptr(), kLegacyName) != 0) {
    const std::optional<Access> access = access_of_legacy(capsule);
    auto* const tensor = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), kLegacyName));
    consume(capsule, kUsedLegacyName);
    if (access) is_writable = *access == Access::kWrite;
    return Array::from_dlpack(tensor, is_writable ? 0 : TENON_READONLY);
  }
  if (PyCapsule_CheckExact(capsule.ptr())) {
    const char* const name = PyCapsule_GetName(capsule.ptr());
    PyErr_Clear();
    raise(PyExc_ValueError,
          "the capsule is named '%s': DLPack capsules are 'dltensor' or 'dltensor_versioned', and are "
          "consumed once",
          name == nullptr ? "" : name);
  }
  raise(PyExc_TypeError, "%s() gave %R, not a capsule", method, capsule.ptr());
}

bool is_true(const nb::object& value) {
  const int truth = PyObject_IsTrue(value.ptr());
  check_python(truth);
  return truth != 0;
}

bool requires_grad(nb::handle object) {
  static Name name("requires_grad");
  return is_true(owned(PyObject_GetAttr(object.ptr(), name.get())));
}

// The array may be a part of a complex tensor that lies between its real parts. These are two elements apart,
// so that all strides are even.
bool may_be_imaginary_part(const tenon_array_desc& desc) {
  if (desc.dtype.code != TENON_FLOAT) return false;
  for (int32_t i = 0; i < desc.ndim; ++i) {
    if (desc.strides[i] % 2 != 0 && desc.shape[i] > 1) return false;
  }
  return true;
}

// The first real part of a complex tensor is at an even offset of its memory, and the imaginary parts are at
// odd ones, whatever the address of the memory is.
bool has_odd_offset(nb::handle tensor) {
  static Name storage_offset("storage_offset");
  const nb::object offset = owned(PyObject_CallMethodObjArgs(tensor.ptr(), storage_offset.get(), nullptr));
  return nb::cast<int64_t>(offset) % 2 != 0;
}

// Tensors of PyTorch may stand for the conjugate or, as the imaginary part of one, for the negative of what
// lies in memory. Only a real tensor that can be such a part is asked, because is_neg() takes a quarter of an
// import. The offset of another class with these methods is not known. Not seen: the negative of other
// memory, which a program can only make with as_strided() or torch._neg_view().
void check_lazy_bits(nb::handle object, const Exchange& exchange, const Array& array) {
  const DType dtype = array.dtype();
  static Name is_conj("is_conj"), is_neg("is_neg");
  const auto refuse_if = [&](Name& method, const char* what, const char* way_out) {
    if (is_true(owned(PyObject_CallMethodObjArgs(object.ptr(), method.get(), nullptr)))) {
      raise(PyExc_BufferError, "the tensor's memory holds its elements %s: pass x.%s()", what, way_out);
    }
  };
  if (dtype.code() == TENON_COMPLEX) refuse_if(is_conj, "conjugated", "resolve_conj");
  const bool may_be_part =
      may_be_imaginary_part(array.desc()) && (!exchange.is_torch || has_odd_offset(object));
  if (dtype.code() == TENON_COMPLEX || may_be_part) refuse_if(is_neg, "negated", "resolve_neg");
}

bool is_set(nb::handle object, const char* name) {
  const nb::object value = nb::getattr(object, name, nb::none());
  return value.is(Py_True);
}

// Within the handler of error. PyTorch fails with a RuntimeError of many lines for tensors that are no
// strided memory: throws BufferError with one line that says what the tensor is and what to do.
[[noreturn]] void refuse_tensor(nb::handle object, const Exchange& exchange, nb::python_error& error) {
  if (!exchange.has_lazy_bits || !error.matches(PyExc_RuntimeError)) throw;
  const nb::object layout = nb::getattr(object, "layout", nb::none());
  if (is_set(object, "is_nested"))
    raise(PyExc_BufferError, "the tensor is nested: pass x.to_padded_tensor(0)");
  if (is_set(object, "is_quantized")) {
    raise(PyExc_BufferError, "the tensor is quantized: pass x.int_repr(), its integers, or x.dequantize()");
  }
  if (is_set(object, "is_meta")) {
    raise(PyExc_BufferError, "the tensor is on device 'meta' and has no memory: make it on 'cpu'");
  }
  if (!layout.is_none() && nb::cast<std::string>(nb::str(layout)) != "torch.strided") {
    raise(PyExc_BufferError, "the tensor's layout is %S, which has no strided memory: pass x.to_dense()",
          layout.ptr());
  }
  if (exchange.table == nullptr) throw;  // of a __dlpack__ that is not PyTorch's own
  const std::string text = nb::cast<std::string>(nb::str(error.value()));
  raise(PyExc_BufferError, "the tensor cannot be exported: %s", text.substr(0, text.find('\n')).c_str());
}

// Empty if the table fails without an error, and for memory on a device, for which __dlpack__ takes a
// stream.
Array import_by_table(nb::handle object, const Exchange& exchange, bool may_copy) {
  DLManagedTensorVersioned* tensor = nullptr;
  const int result = exchange.table->managed_tensor_from_py_object_no_sync(object.ptr(), &tensor);
  if (PyErr_Occurred() != nullptr) nb::raise_python_error();
  if (result != 0 || tensor == nullptr) return {};
  if (tensor->dl_tensor.device.device_type == kDLCUDA) {
    if (tensor->deleter != nullptr) tensor->deleter(tensor);
    return {};
  }
  return import_versioned(tensor, may_copy);
}

// The stream for memory of this object on a device, or managed memory. None for other memory of the host, for
// a device that cannot be used here, and if the object does not tell its device; the import checks the
// tensor.
nb::object stream_for(nb::handle object) {
  static Name name("__dlpack_device__");
  const nb::object device = nb::steal(PyObject_CallMethodObjArgs(object.ptr(), name.get(), nullptr));
  if (!device.is_valid()) forget_error();
  if (!device.is_valid() || PyTuple_Check(device.ptr()) == 0 || PyTuple_Size(device.ptr()) != 2)
    return nb::none();
  PyObject* const type = PyTuple_GetItem(device.ptr(), 0);
  PyObject* const id = PyTuple_GetItem(device.ptr(), 1);
  if (PyIndex_Check(type) == 0 || PyIndex_Check(id) == 0) return nb::none();
  const Pair pair = pair_from(device.ptr(), "what __dlpack_device__() returns");
  const bool has_streams = pair.first == TENON_CUDA || pair.first == TENON_CUDA_MANAGED;
  if (!has_streams || pair.second < 0 || pair.second > INT32_MAX) return nb::none();
  try {
    return nb::int_(own_stream({TENON_CUDA, static_cast<int32_t>(pair.second)}));
  } catch (const Error&) {
    return nb::none();
  }
}

nb::object call_dlpack(nb::handle object, bool may_copy, bool to_host) {
  static PyObject* const version =
      owned(Py_BuildValue("(ii)", DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION)).release().ptr();
  const nb::object method = nb::getattr(object, "__dlpack__");
  nb::dict keywords;
  keywords["max_version"] = nb::handle(version);
  if (!may_copy) keywords["copy"] = false;
  if (to_host) {
    keywords["dl_device"] = nb::make_tuple(static_cast<int>(TENON_CPU), 0);
  } else if (const nb::object stream = stream_for(object); !stream.is_none()) {
    keywords["stream"] = stream;
  }
  try {
    return method(**keywords);
  } catch (nb::python_error& error) {
    // A producer of a version before DLPack 1.0 takes no keywords but the stream, and does not copy.
    if (!error.matches(PyExc_TypeError) || !may_copy || to_host) throw;
  }
  if (!keywords.contains("stream")) return method();
  return method(nb::arg("stream") = keywords["stream"]);
}

bool has_dlpack(nb::handle object) { return nb::hasattr(object.type(), "__dlpack__"); }

// The method of MXNet's arrays for an access.
const char* verb_for(Access access) {
  return access == Access::kRead ? "to_dlpack_for_read" : "to_dlpack_for_write";
}

// Requires: has_verbs(object). MXNet has done its work on the memory, also that of a GPU, when the method
// returns.
Array import_by_verb(nb::handle object, Access access) {
  const nb::object storage = nb::getattr(object, "stype", nb::none());
  if (storage.equal(nb::str("csr")) || storage.equal(nb::str("row_sparse"))) {
    raise(PyExc_BufferError,
          "x is a sparse array of MXNet (stype %R), whose memory has a part of its elements only: "
          "x.tostype('default') is a dense copy",
          storage.ptr());
  }
  const nb::object capsule = nb::getattr(object, verb_for(access))();
  if (PyCapsule_IsValid(capsule.ptr(), kLegacyName) != 0) {
    auto* const tensor = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), kLegacyName));
    DLDataType& dtype = tensor->dl_tensor.dtype;
    // MXNet's bools, of one byte each.
    if (dtype.code == kDLUInt && dtype.bits == 1 && dtype.lanes == 1) dtype = {kDLBool, 8, 1};
  }
  const bool is_write = access == Access::kWrite;
  const Array array = import_capsule(capsule, true, is_write, verb_for(access));
  return is_write ? array : array.readonly();
}

bool needs_host_copy(nb::handle object) {
  if (!nb::hasattr(object, "__dlpack_device__")) {
    if (!has_dlpack(object)) return false;
    raise(PyExc_TypeError, "%R has no __dlpack_device__: leave out device=, or pass a host array",
          object.ptr());
  }
  const nb::object device = object.attr("__dlpack_device__")();
  const Pair pair = pair_from(device.ptr(), "what __dlpack_device__() returns");
  if (pair.first < kDLCPU || pair.first > kLastDeviceType) {
    raise(
        PyExc_BufferError,
        "__dlpack_device__() returned %R: DLPack's device types are 1 to %d; copy the array to the CPU with "
        "its own library first",
        device.ptr(), static_cast<int>(kLastDeviceType));
  }
  return pair.first != TENON_CPU && pair.first != TENON_CUDA_HOST && pair.first != TENON_ROCM_HOST &&
         pair.first != TENON_CUDA_MANAGED;
}

// The memory of a NumPy array; empty if x is no NumPy array or overrides its export.
Array share_numpy(nb::handle x) {
  try {
    return overrides_dlpack(x) ? Array() : share_if_numpy(x);
  } catch (nb::python_error& e) {
    if (!e.matches(PyExc_ValueError)) throw;
    raise(PyExc_BufferError, "%S", e.value().ptr());
  }
}

PyObject* import_from(PyObject* const* arguments, Py_ssize_t n, PyObject* keywords) {
  static FastParameters<4> parameters("from_dlpack", {"x", "device", "copy", "writable"}, 1, 1);
  const auto [x, device, copy, writable] = parameters.parse(arguments, n, keywords);
  const bool has_device = device != nullptr && device != Py_None;
  const tenon_device wanted_device = has_device ? device_from(device) : tenon_device{TENON_CPU, 0};
  const std::optional<bool> wanted =
      copy != nullptr ? flag_or_none_from(copy, "copy", PyExc_ValueError) : std::nullopt;  // as NumPy
  const bool may_copy = wanted.value_or(true);
  const std::optional<bool> is_writable =
      writable != nullptr ? flag_or_none_from(writable, "writable") : std::nullopt;
  Array array = is_ndarray(x) ? share(x) : share_numpy(x);
  if (!array) {
    const bool to_host =
        has_device && !is_on_device(wanted_device) && !PyCapsule_CheckExact(x) && needs_host_copy(x);
    const bool is_written = is_writable.value_or(false) && !wanted.value_or(false);
    array = import_dlpack(x, may_copy, to_host, is_written);
  }
  const bool is_elsewhere = has_device && !are_equal(array.desc().device, wanted_device);
  if (is_elsewhere && (is_on_device(array) || wanted_device.type != TENON_CPU)) {
    if (!may_copy || wanted_device.type != TENON_CPU) {
      raise(PyExc_ValueError, "the array is on '%S': copy it with tn.from_dlpack(x).to(%R)",
            device_name(array.desc().device).ptr(), device);
    }
    array = copied_on(array, array.dtype(), wanted_device);
  }
  if (wanted.value_or(false)) array = copied(array);
  if (is_writable == true && array.is_readonly()) refuse_write();
  if (is_writable == false) array = array.readonly();
  return wrap(std::move(array));
}

PyObject* from_dlpack(PyObject*, PyObject* const* arguments, Py_ssize_t n, PyObject* keywords) {
  try {
    return import_from(arguments, n, keywords);
  } catch (...) {
    const Py_ssize_t n_all = n + (keywords != nullptr ? PyTuple_Size(keywords) : 0);
    for (Py_ssize_t i = 0; i < n_all; ++i) keep_error_from_destructor(arguments[i]);
    throw;
  }
}

}  // namespace

bool has_verbs(nb::handle object) {
  // Classes in Python: most values have another type, and cost nothing here.
  if ((PyType_GetFlags(Py_TYPE(object.ptr())) & Py_TPFLAGS_HEAPTYPE) == 0) return false;
  return !is_ndarray(object.ptr()) && nb::hasattr(object.type(), verb_for(Access::kRead)) &&
         nb::hasattr(object.type(), verb_for(Access::kWrite)) && !has_dlpack(object);
}

nb::object without_verbs(nb::handle object, Access access) {
  return has_verbs(object) ? owned(wrap(import_by_verb(object, access))) : nb::borrow(object);
}

void refuse_verbs(nb::handle object) {
  if (!has_verbs(object)) return;
  raise(PyExc_TypeError,
        "an op cannot have an argument of %R, because the engine of MXNet and that of Tenon do not wait for "
        "each "
        "other: pass tn.array(x), a copy, or tn.from_dlpack(x, writable=True), and do not use x in MXNet "
        "before "
        "the op is done",
        reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));
}

Array share_if_dlpack(nb::handle object, Access access) {
  if (PyCapsule_CheckExact(object.ptr())) {
    keep_error_from_destructor(object);
    raise(PyExc_TypeError, "%R is no array, but tn.from_dlpack() makes one of it", object.ptr());
  }
  if (has_dlpack(object)) return import_dlpack(object);
  return has_verbs(object) ? import_by_verb(object, access) : Array();
}

Array import_dlpack(nb::handle object, bool may_copy, bool to_host, bool is_writable) {
  if (PyCapsule_CheckExact(object.ptr())) return import_capsule(object, may_copy, is_writable);
  const Exchange exchange = exchange_of(Py_TYPE(object.ptr()));
  const bool has_grad = exchange.has_grad && requires_grad(object);
  Array array;
  try {
    if (exchange.table != nullptr && !has_grad && !to_host)
      array = import_by_table(object, exchange, may_copy);
    if (!array) {
      if (!has_dlpack(object)) {
        const nb::object interface = cuda_array_interface_of(object);
        if (!interface.is_none()) return import_cuda_array_interface(object, interface);
        if (has_verbs(object)) return import_by_verb(object, is_writable ? Access::kWrite : Access::kRead);
        raise(PyExc_TypeError, "x is %R, which has neither __dlpack__ nor __cuda_array_interface__",
              object.ptr());
      }
      array = import_capsule(call_dlpack(object, may_copy, to_host), may_copy,
                             is_writable || is_always_writable(object));
    }
  } catch (nb::python_error& error) {
    refuse_tensor(object, exchange, error);
  }
  if (exchange.has_lazy_bits) check_lazy_bits(object, exchange, array);
  return array;
}

void add_from_dlpack(nb::module_& module) {
  static PyMethodDef method = fast_method<from_dlpack>("from_dlpack", kDocumentation);
  add_function(module, &method);
  module.def(
      "refuse_verbs", [](nb::handle x) { refuse_verbs(x); }, nb::arg("x").none(),
      nb::sig("def refuse_verbs(x: object) -> None"),
      "Raises TypeError for an array of MXNet, as an argument of an op.");
  module.def(
      "without_verbs",
      [](nb::handle x, bool write) { return without_verbs(x, write ? Access::kWrite : Access::kRead); },
      nb::arg("x").none(), nb::arg("write") = false,
      nb::sig("def without_verbs(x: Any, write: bool = False) -> Any"),
      "An NDArray on the memory that x lends by MXNet's methods, read-only unless it is to be written to.\n"
      "Other objects are returned unchanged.");
}

}  // namespace tenon::python
