// SPDX-License-Identifier: Apache-2.0
#include "exchange_table.h"

#include <array>

#include "devices.h"
#include "errors.h"
#include "ndarray.h"
#include "sites.h"

namespace tenon::python {
namespace {

constexpr const char* kAttribute = "__dlpack_c_exchange_api__";
constexpr const char* kCapsuleName = "dlpack_exchange_api";

// Our side of the table. No function throws or waits for a stream. Consumers use memory on a device on the
// stream that current_work_stream() returns; the export has made that stream wait for earlier work.

int export_object(void* object, DLManagedTensorVersioned** out) noexcept {
  return guarded([&] {
    auto* const array = static_cast<PyObject*>(object);
    if (!is_ndarray(array)) raise(PyExc_TypeError, "the exchange table of NDArray was given %R", array);
    const tenon_device device = desc_of(array).device;
    const int64_t stream = is_on_device(device) ? own_stream(device) : TENON_STREAM_NONE;
    const char* const site = current_site();  // first: it may run Python code, which may exchange the array
    call(tenon_array_to_dlpack_on, array_of(array), 0u, stream, site, out);
    return 0;
  });
}

int import_tensor(DLManagedTensorVersioned* tensor, void** out) noexcept {
  return guarded([&] {
    *out = wrap(Array::from_dlpack(tensor));
    return 0;
  });
}

// Without the GIL: errors go to the caller's function, which may be missing.
int allocate(DLTensor* prototype, DLManagedTensorVersioned** out, void* context,
             void (*set_error_text)(void*, const char*, const char*)) noexcept {
  tenon_error error = TENON_ERROR_INIT;
  tenon_array* array = nullptr;
  const tenon_dtype dtype{prototype->dtype.code, prototype->dtype.bits, prototype->dtype.lanes};
  const tenon_device device{prototype->device.device_type, prototype->device.device_id};
  tenon_status status =
      tenon_array_create(dtype, prototype->ndim, prototype->shape, device, 0, &array, &error);
  if (status == TENON_OK) status = tenon_array_to_dlpack(array, 0, nullptr, out, &error);
  tenon_array_release(array);
  if (status == TENON_OK) return 0;
  if (set_error_text != nullptr) {
    const bool is_memory = status == TENON_ERR_NO_MEMORY;
    set_error_text(context, is_memory ? "MemoryError" : "BufferError", error.message);
  }
  return -1;
}

int current_work_stream(DLDeviceType type, int32_t id, void** out) noexcept {
  return guarded([&] {
    *out = nullptr;
    const tenon_device device{type, id};
    if (is_on_device(device)) {
      try {
        *out = reinterpret_cast<void*>(own_stream(device));
      } catch (const Error& e) {
        raise(PyExc_BufferError, "%s", e.what());
      }
    } else if (type != kDLCPU) {
      raise(PyExc_BufferError, "Tenon has no stream on device (%d, %d)", static_cast<int>(type), id);
    }
    return 0;
  });
}

DLPackExchangeAPI own_table = {
    {{DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION}, nullptr},
    allocate,
    export_object,
    import_tensor,
    nullptr,  // a borrowed tensor would have no release, so it is not known how long it is in use
    current_work_stream,
};

// The table of another type.

bool has_own(nb::handle type, const char* name) {
  return nb::cast<bool>(nb::getattr(type, "__dict__").attr("__contains__")(name));
}

// The class that brings the table comes, in the order of resolution, before any other that decides how
// instances are exported.
bool may_use_table(PyTypeObject* type) {
  for (nb::handle base : nb::getattr(nb::handle(reinterpret_cast<PyObject*>(type)), "__mro__")) {
    if (has_own(base, kAttribute)) return true;
    for (const char* name : {"__dlpack__", "__dlpack_device__", "__torch_function__", "__torch_dispatch__"}) {
      if (has_own(base, name)) return false;
    }
  }
  return false;
}

// nullptr unless the capsule is one by name and has a table of our major version with all slots that must be.
const DLPackExchangeAPI* table_in(nb::handle capsule) {
  if (PyCapsule_IsValid(capsule.ptr(), kCapsuleName) == 0) return nullptr;
  const auto* header =
      static_cast<const DLPackExchangeAPIHeader*>(PyCapsule_GetPointer(capsule.ptr(), kCapsuleName));
  // A chain of older tables is short; one that does not end is broken.
  for (int i = 0; i < 16 && header != nullptr && header->version.major != DLPACK_MAJOR_VERSION; ++i) {
    header = header->prev_api;
  }
  if (header == nullptr || header->version.major != DLPACK_MAJOR_VERSION) return nullptr;
  const auto* const table = reinterpret_cast<const DLPackExchangeAPI*>(header);
  if (table->managed_tensor_from_py_object_no_sync == nullptr ||
      table->managed_tensor_to_py_object_no_sync == nullptr) {
    return nullptr;
  }
  return table;
}

bool is_class_of_torch(nb::handle type) {
  const nb::object modules = nb::module_::import_("sys").attr("modules");
  const nb::object torch = modules.attr("get")("torch");
  const nb::object tensor = nb::getattr(torch, "Tensor", nb::none());
  if (!PyType_Check(tensor.ptr())) return false;
  const int is_tensor = PyObject_IsSubclass(type.ptr(), tensor.ptr());
  if (is_tensor < 0) nb::raise_python_error();
  return is_tensor != 0;
}

Exchange looked_up(PyTypeObject* type) {
  const nb::handle object(reinterpret_cast<PyObject*>(type));
  Exchange exchange;
  exchange.type = type;
  const nb::object capsule = nb::getattr(object, kAttribute, nb::none());
  if (!capsule.is_none() && may_use_table(type)) exchange.table = table_in(capsule);
  exchange.has_grad = nb::hasattr(object, "requires_grad");
  exchange.is_torch = exchange.has_grad && is_class_of_torch(object);
  exchange.has_lazy_bits = nb::hasattr(object, "is_conj") && nb::hasattr(object, "is_neg");
  return exchange;
}

}  // namespace

Exchange exchange_of(PyTypeObject* type) {
  // Each entry keeps its type alive, so that an address means one type only.
  static std::array<Exchange, 8> cache;
  static size_t oldest = 0;
  for (const Exchange& entry : cache) {
    if (entry.type == type) return entry;
  }
  const Exchange found = looked_up(type);
  Py_INCREF(reinterpret_cast<PyObject*>(type));
  Exchange& entry = cache[oldest++ % cache.size()];
  const nb::object replaced = nb::steal(reinterpret_cast<PyObject*>(entry.type));
  entry = found;
  return found;
}

void add_exchange_table(nb::module_&) {
  const nb::object capsule = owned(PyCapsule_New(&own_table, kCapsuleName, nullptr));
  nb::setattr(nb::handle(reinterpret_cast<PyObject*>(ndarray_type)), kAttribute, capsule);
}

}  // namespace tenon::python
