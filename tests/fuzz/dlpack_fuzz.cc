// SPDX-License-Identifier: Apache-2.0
//
// DLPack tensors of other libraries, through the C functions that import them. Whatever their fields are,
// they are an array or an error, and are deleted once. An array has the tensor's shape and goes out again as
// it came in. Elements are not read: no library can know whether an address is one.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "tenon/dlpack.h"
#include "tenon/tenon.h"

namespace {

// What the input is laid over (exclusive or): zeros are a good tensor of two axes.
struct Fields {
  uint8_t is_legacy = 0;
  uint8_t is_readonly = 0;
  uint8_t has_no_shape = 0;
  uint8_t has_no_strides = 0;
  uint32_t major = 1;
  uint32_t minor = 1;
  uint64_t flags = 0;
  uint64_t data = 0x10000;
  int32_t device_type = kDLCPU;
  int32_t device_id = 0;
  int32_t ndim = 2;
  DLDataType dtype = {kDLFloat, 32, 1};
  uint64_t byte_offset = 0;
  std::array<int64_t, 4> shape = {3, 4, 1, 1};
  std::array<int64_t, 4> strides = {4, 1, 1, 1};
};

int deaths = 0;

[[noreturn]] void fail() { std::abort(); }

void check(const tenon_array_desc& desc, const DLTensor& tensor) {
  if (desc.ndim != tensor.ndim) fail();
  if (!std::equal(desc.shape, desc.shape + desc.ndim, tensor.shape)) fail();
  const auto begin = reinterpret_cast<uintptr_t>(desc.data);
  if (desc.size < 0 || (desc.size > 0 && (begin == 0 || desc.nbytes == 0))) fail();
  if (desc.size > 0 && desc.nbytes > UINT64_MAX / 2) fail();
}

template <class Tensor, class Import, class Export>
void try_import(Tensor& tensor, uint32_t flags, Import import, Export export_again) {
  tensor.deleter = [](Tensor*) { ++deaths; };
  deaths = 0;
  tenon_error error = TENON_ERROR_INIT;
  tenon_array* array = nullptr;
  const tenon_status status = import(&tensor, flags, &array, &error);
  if (status == TENON_OK) {
    const tenon_array_desc* const desc = tenon_array_describe(array);
    check(*desc, tensor.dl_tensor);
    Tensor* again = nullptr;
    if (export_again(array, TENON_EXPORT_FOR_READ, nullptr, &again, &error) == TENON_OK) {
      if (again->dl_tensor.ndim != tensor.dl_tensor.ndim) fail();
      if (desc->size > 0 && again->dl_tensor.data != desc->data) fail();
      again->deleter(again);
    }
    if (deaths != 0) fail();
    tenon_array_release(array);
  } else if (error.message[0] == '\0') {
    fail();
  }
  if (deaths != 1) fail();
}

void fuzz_one(const uint8_t* data, size_t size) {
  Fields fields;
  auto* const bytes = reinterpret_cast<uint8_t*>(&fields);
  for (size_t i = 0; i < std::min(size, sizeof fields); ++i) bytes[i] ^= data[i];
  // As many axes as there may be; those beyond the input's have one element.
  std::array<int64_t, TENON_MAX_NDIM> shape, strides;
  shape.fill(1);
  strides.fill(1);
  std::copy(fields.shape.begin(), fields.shape.end(), shape.begin());
  std::copy(fields.strides.begin(), fields.strides.end(), strides.begin());
  DLTensor tensor;
  std::memcpy(static_cast<void*>(&tensor.data), &fields.data, sizeof fields.data);
  tensor.device = {static_cast<DLDeviceType>(fields.device_type), fields.device_id};
  tensor.ndim = fields.ndim;
  tensor.dtype = fields.dtype;
  tensor.shape = fields.has_no_shape % 2 != 0 ? nullptr : shape.data();
  tensor.strides = fields.has_no_strides % 2 != 0 ? nullptr : strides.data();
  tensor.byte_offset = fields.byte_offset;
  const uint32_t flags = fields.is_readonly % 2 != 0 ? TENON_READONLY : 0;
  if (fields.is_legacy % 2 != 0) {
    DLManagedTensor managed{};
    managed.dl_tensor = tensor;
    try_import(managed, flags, tenon_array_from_dlpack_legacy, tenon_array_to_dlpack_legacy);
  } else {
    DLManagedTensorVersioned managed{};
    managed.version = {fields.major, fields.minor};
    managed.flags = fields.flags;
    managed.dl_tensor = tensor;
    try_import(managed, flags, tenon_array_from_dlpack, tenon_array_to_dlpack);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz_one(data, size);
  return 0;
}
