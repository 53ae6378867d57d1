// SPDX-License-Identifier: Apache-2.0
#include "array/dlpack_import.h"

#include <memory>
#include <utility>

#include "array/device_copy.h"
#include "base/error.h"

namespace tenon::impl::dlpack {
namespace {

template <class Tensor>
void delete_tensor(void* tensor) {
  auto* const self = static_cast<Tensor*>(tensor);
  if (self->deleter != nullptr) self->deleter(self);
}

template <class Tensor>
struct Owned {
  void operator()(Tensor* tensor) const { delete_tensor<Tensor>(tensor); }
};

// The address of element 0, with byte_offset, which some producers set.
void* first_element(const DLTensor& tensor) {
  if (tensor.data == nullptr) return nullptr;
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  if (tensor.byte_offset > UINTPTR_MAX - address) {
    throw_error(Code::kBuffer, "byte_offset ", tensor.byte_offset,
                " of a DLPack tensor overflows its address ", address_text(tensor.data));
  }
  return reinterpret_cast<void*>(address + tensor.byte_offset);
}

// Calls body. Values out of range are errors of the producer of the tensor, not of the caller, so they fail
// with kBuffer instead of kValue.
template <class Body>
Ref<Array> blame_producer(Body body) {
  try {
    return body();
  } catch (const Error& e) {
    if (e.code() != Code::kValue) throw;
    throw_error(Code::kBuffer, "the DLPack tensor is malformed: ", e.what());
  }
}

// Fails with kBuffer if the device cannot be used here.
device::Device& device_of(tenon_device device) {
  try {
    return device::Device::of(device);
  } catch (const Error& e) {
    throw_error(Code::kBuffer, "the DLPack tensor is on ", device::text_of(device), " (device type ",
                device.type, "), which cannot be used: ", e.what());
  }
}

// The host may use managed memory at once, so it waits here. Without a device no work can use the memory.
void wait_for_producer_of_managed(tenon_device managed) {
  device::Device* device = nullptr;
  try {
    device = &device::Device::of({TENON_CUDA, managed.id});
  } catch (const Error&) {
    return;
  }
  wait_for_producer(*device->record(device->stream(device::StreamKind::kMemory)));
}

template <class Tensor>
Ref<Array> import(std::unique_ptr<Tensor, Owned<Tensor>> tensor, uint32_t flags) {
  const DLTensor& dl = tensor->dl_tensor;
  tenon_adoption adoption{};
  adoption.struct_size = sizeof adoption;
  adoption.flags = flags;
  adoption.data = first_element(dl);
  adoption.device = {dl.device.device_type, dl.device.device_id};
  adoption.ndim = dl.ndim;
  adoption.dtype = {dl.dtype.code, dl.dtype.bits, dl.dtype.lanes};
  adoption.shape = dl.shape;
  adoption.strides = dl.strides;
  Ref<device::Event> ordered;  // the producer has made this stream of Tenon wait for its own
  if (device::is_device_memory(adoption.device)) {
    device::Device& device = device_of(adoption.device);
    ordered = device.record(device.stream(device::StreamKind::kMemory));
  } else if (device::has_streams(adoption.device)) {
    wait_for_producer_of_managed(adoption.device);
  }
  adoption.owner = tensor.get();
  adoption.deleter = delete_tensor<Tensor>;
  bool is_adopted = true;
  Ref<Array> array = blame_producer([&] {
    if (!ordered) return Array::alias_or_adopt(adoption, &is_adopted);
    Ref<Array> known = Array::alias(adoption);
    is_adopted = !known;
    if (is_adopted) return adopt_ordered(adoption, std::move(ordered));
    wait_for_producer(*ordered);
    return known;
  });
  if (is_adopted) (void)tensor.release();
  return array;
}

}  // namespace

Ref<Array> import_versioned(DLManagedTensorVersioned* tensor, uint32_t flags) {
  std::unique_ptr<DLManagedTensorVersioned, Owned<DLManagedTensorVersioned>> owned(tensor);
  if (tensor->version.major != DLPACK_MAJOR_VERSION) {
    throw_error(Code::kBuffer, "DLPack tensor has version ", tensor->version.major, ".",
                tensor->version.minor, ", but only major version ", DLPACK_MAJOR_VERSION, " is understood");
  }
  if ((tensor->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0) flags |= TENON_READONLY;
  if ((tensor->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED) != 0) flags |= TENON_SUBBYTE_PADDED;
  return import(std::move(owned), flags);
}

Ref<Array> import_legacy(DLManagedTensor* tensor, uint32_t flags) {
  return import(std::unique_ptr<DLManagedTensor, Owned<DLManagedTensor>>(tensor), flags);
}

}  // namespace tenon::impl::dlpack
