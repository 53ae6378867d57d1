// SPDX-License-Identifier: Apache-2.0
#include "devices.h"

#include <nanobind/stl/string.h>

#include <array>
#include <string>
#include <utility>

#include "dims.h"
#include "dtype.h"
#include "elements.h"
#include "ndarray.h"
#include "numpy_dtype.h"
#include "numpy_lend.h"
#include "op.h"
#include "owners.h"
#include "sites.h"
#include "values.h"

namespace tenon::python {
namespace {

Array create_on(nb::object shape, const DTypeLike& dtype, Flag zeroed, nb::handle device) {
  const Dims dims(shape, "shape");
  const tenon_device where = device_from(device);
  const uint32_t flags = zeroed.get("zeroed") ? TENON_ZEROED : 0;
  tenon_array* array = nullptr;
  {
    const nb::gil_scoped_release released;
    call(tenon_array_create, static_cast<tenon_dtype>(dtype.get()), dims.size(), dims.span().data(), where,
         flags, &array);
  }
  return Array::steal(array);
}

constexpr const char* kInterface = "__cuda_array_interface__";

// The parts of a dict that describes memory on a device.
class CudaInterface {
 public:
  explicit CudaInterface(nb::object dict) : dict_(std::move(dict)) {
    if (!nb::isinstance<nb::dict>(dict_))
      raise(PyExc_TypeError, "%s is %R, and not a dict", kInterface, dict_.ptr());
    if (!optional("mask").is_none())
      raise(PyExc_BufferError, "%s has a mask, which an NDArray cannot have", kInterface);
  }

  nb::object optional(const char* name) const {
    const nb::str key(name);
    PyObject* const found = PyDict_GetItemWithError(dict_.ptr(), key.ptr());
    if (found == nullptr && PyErr_Occurred() != nullptr) nb::raise_python_error();
    return found != nullptr ? nb::borrow(found) : nb::none();
  }
  nb::object required(const char* name) const {
    nb::object found = optional(name);
    if (found.is_none()) raise(PyExc_TypeError, "%s has no '%s'", kInterface, name);
    return found;
  }
  // The address of element 0, and whether the memory may only be read.
  std::pair<void*, bool> data() const {
    const nb::object data = required("data");
    if (PyTuple_Check(data.ptr()) == 0 || PyTuple_Size(data.ptr()) != 2)
      raise(PyExc_TypeError, "'data' of %s is %R, and not (address, read-only)", kInterface, data.ptr());
    const int is_readonly = PyObject_IsTrue(PyTuple_GetItem(data.ptr(), 1));
    check_python(is_readonly);
    return {pointer_from(PyTuple_GetItem(data.ptr(), 0), "the address in 'data'"), is_readonly != 0};
  }

 private:
  nb::object dict_;
};

int32_t device_count() { return detail::call_for<int32_t>(tenon_device_count, TENON_CUDA); }

// Memory of the host that is pinned where it lies, until release() or the end of the object.
class Registration {
 public:
  explicit Registration(const Array& array) {
    const nb::gil_scoped_release released;
    call(tenon_array_register, array.get(), &registration_);
  }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration() { release(); }

  void release() noexcept {
    const nb::gil_scoped_release released;
    tenon_registration_release(std::exchange(registration_, nullptr));
  }

 private:
  tenon_registration* registration_ = nullptr;
};

nb::dict device_statistics() {
  auto now = detail::sized<tenon_device_statistics>();
  tenon_device_statistics_get(&now);
  nb::dict result;
  result["device_nbytes"] = now.device_nbytes;
  result["pinned_nbytes"] = now.pinned_nbytes;
  result["registered_nbytes"] = now.registered_nbytes;
  result["events"] = now.events;
  result["submitted"] = now.submitted;
  return result;
}

}  // namespace

NativeOp push_copy(const Array& source, const Array& destination, const Push& push) {
  check_cast(source.dtype(), destination.dtype());
  auto options = detail::sized<tenon_copy_options>();
  options.on_conflict = push.on_conflict;
  options.name = push.name;
  options.site = current_site();
  owners::drain();
  if (push.on_conflict != TENON_CONFLICT_IGNORE) {
    for (const tenon_use& use : push.uses.uses) check_original(use, push.name);
  }
  return {detail::call_for<tenon_op*>(tenon_push_copy, source.get(), destination.get(), &options), nullptr};
}

tenon_device device_from(nb::handle name) {
  const std::string text = text_from(name, "device");
  try {
    return detail::call_for<tenon_device>(tenon_device_from_name, text.c_str());
  } catch (const Error&) {
    tenon_error error = TENON_ERROR_INIT;
    tenon_dtype dtype;
    if (tenon_dtype_from_name(text.c_str(), &dtype, &error) != TENON_OK) throw;
    raise(PyExc_ValueError, "device is '%s', which is a dtype: use a.astype('%s'), or dtype=", text.c_str(),
          text.c_str());
  }
}

nb::object device_name(tenon_device device) {
  static Name cpu("cpu");
  if (device.type == TENON_CPU) return nb::borrow(cpu.get());
  char text[64];
  tenon_device_name(device, text, sizeof text);
  return nb::str(text);
}

int64_t stream_from(PyObject* stream) {
  constexpr int64_t kLegacyDefault = 1;
  if (stream == nullptr || stream == Py_None) return kLegacyDefault;
  const int64_t number = integer_from(stream, "stream");
  if (number < TENON_STREAM_NONE || number == 0) {
    raise(PyExc_ValueError,
          "stream is %lld: it must be None or 1 (the legacy default stream), 2 (the default stream of the "
          "thread), -1 (no order), or the handle of a stream",
          static_cast<long long>(number));
  }
  return number;
}

int64_t own_stream(tenon_device device) { return detail::call_for<int64_t>(tenon_device_stream, device); }

Array copied_on(const Array& source, DType dtype, tenon_device device) {
  const nb::gil_scoped_release released;
  return Array::steal(detail::call_for<tenon_array*>(tenon_array_copy_on, source.get(),
                                                     static_cast<tenon_dtype>(dtype), device));
}

// The consumer orders its work behind the stream in the dict. It keeps the array itself, and no view is
// counted.
nb::object cuda_array_interface(const Array& array) {
  const tenon_array_desc& desc = array.desc();
  const int64_t stream = own_stream(desc.device);
  DLManagedTensorVersioned* ordered = nullptr;  // makes the stream wait for what was submitted before
  {
    const nb::gil_scoped_release released;
    call(tenon_array_to_dlpack_on, array.get(), array.is_readonly() ? uint32_t{TENON_EXPORT_FOR_READ} : 0u,
         stream, nullptr, &ordered);
    ordered->deleter(ordered);
  }
  const nb::object dtype = nb::object(dtype_object(desc.dtype).attr("numpy"));
  nb::dict result;
  nb::list shape, strides;
  for (int32_t i = 0; i < desc.ndim; ++i) {
    shape.append(desc.shape[i]);
    strides.append(desc.strides[i] * static_cast<int64_t>(desc.itemsize));
  }
  result["shape"] = nb::tuple(shape);
  result["typestr"] = nb::object(dtype.attr("str"));
  result["data"] = nb::make_tuple(reinterpret_cast<uintptr_t>(desc.data), array.is_readonly());
  result["strides"] = array.is_contiguous() ? nb::none() : nb::object(nb::tuple(strides));
  result["stream"] = stream;
  result["version"] = 3;
  return result;
}

nb::object cuda_array_interface_of(nb::handle object) {
  nb::object found = nb::steal(PyObject_GetAttrString(object.ptr(), kInterface));
  if (found.is_valid()) return found;
  if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) nb::raise_python_error();
  PyErr_Clear();
  return nb::none();
}

Array import_cuda_array_interface(nb::handle object, const nb::object& dict) {
  const CudaInterface interface(dict);
  const DType dtype = dtype_from_numpy_object(interface.required("typestr"));
  const auto itemsize = (int64_t{dtype.bits()} * dtype.lanes() + 7) / 8;
  const Dims shape(interface.required("shape"), "'shape'");
  const auto [data, is_readonly] = interface.data();
  auto adoption = detail::sized<tenon_adoption>();
  adoption.flags = is_readonly ? TENON_READONLY : 0;
  if (dtype.bits() % 8 != 0) adoption.flags |= TENON_SUBBYTE_PADDED;
  adoption.data = data;
  adoption.device = {TENON_CUDA, TENON_DEVICE_OF_MEMORY};
  adoption.ndim = shape.size();
  adoption.dtype = static_cast<tenon_dtype>(dtype);
  adoption.shape = shape.span().data();
  std::array<int64_t, TENON_MAX_NDIM> strides;
  if (const nb::object given = interface.optional("strides"); !given.is_none()) {
    const Dims nbytes(given, "'strides'");
    if (nbytes.size() != shape.size())
      raise(PyExc_TypeError, "%s has %d strides for %d axes", kInterface, nbytes.size(), shape.size());
    for (size_t k = 0; k < nbytes.span().size(); ++k) {
      if (shape[k] > 1 && nbytes[k] % itemsize != 0) {
        raise(PyExc_BufferError, "a stride of %lld bytes is no multiple of the itemsize %lld: copy the array",
              static_cast<long long>(nbytes[k]), static_cast<long long>(itemsize));
      }
      strides[k] = nbytes[k] / itemsize;
    }
    adoption.strides = strides.data();
  }
  // None is the legacy default stream: Numba and version 2 name no stream for work on it.
  const int64_t stream = stream_from(interface.optional("stream").ptr());
  if (stream < 0)
    raise(PyExc_ValueError, "'stream' of %s is %lld", kInterface, static_cast<long long>(stream));
  OwnedNode owner(new owners::Object(object));
  adoption.owner = owner.get();
  adoption.deleter = owners::release;
  tenon_array* array = nullptr;
  {
    const nb::gil_scoped_release released;
    call(tenon_array_adopt_on, &adoption, stream, &array);
  }
  (void)owner.release();
  return Array::steal(array);
}

void add_devices(nb::module_& module) {
  module.def("create_on", create_on, nb::arg("shape"), nb::arg("dtype"), nb::arg("zeroed"), nb::arg("device"),
             nb::sig("def create_on(shape: int | Sequence[int], dtype: DTypeLike, zeroed: bool, device: str) "
                     "-> NDArray"));
  module.def(
      "copy_on",
      [](const Array& source, const DTypeLike& dtype, nb::handle device) {
        const DType wanted = dtype.get();
        check_cast(source.dtype(), wanted);
        return copied_on(source, wanted, device_from(device));
      },
      nb::arg("source"), nb::arg("dtype"), nb::arg("device"),
      nb::sig("def copy_on(source: NDArray, dtype: DTypeLike, device: str) -> NDArray"));
  nb::class_<Registration>(module, "NativeRegistration", "Memory of the host that is pinned where it lies.")
      .def(nb::init<const Array&>(), nb::arg("array"))
      .def("release", &Registration::release);
  module.def("begin_graph_capture", [] {
    const nb::gil_scoped_release released;
    tenon_graph_capture_begin();
  });
  module.def("end_graph_capture", tenon_graph_capture_end);
  module.def("device_count", device_count,
             "The number of CUDA devices that this process sees.\n\n"
             "Raises\n------\nFileNotFoundError\n    There is no CUDA driver.\n");
  module.def("device_statistics", device_statistics, nb::sig("def device_statistics() -> dict[str, int]"),
             "What this process has on devices, for tests and leak checks: device_nbytes, pinned_nbytes, "
             "registered_nbytes,\nevents, and submitted: the ops and exports whose work on a stream is not "
             "known to be done (the number falls after the waits for them return).");
}

}  // namespace tenon::python
