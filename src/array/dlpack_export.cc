// SPDX-License-Identifier: Apache-2.0
#include "array/dlpack_export.h"

#include "array/access.h"
#include "base/error.h"

namespace tenon::impl::dlpack {
namespace {

DLTensor describe(const Array& array) {
  const tenon_array_desc& desc = array.desc();
  DLTensor tensor;
  tensor.data = desc.size == 0 ? nullptr : desc.data;
  tensor.device = {static_cast<DLDeviceType>(desc.device.type), desc.device.id};
  tensor.ndim = desc.ndim;
  tensor.dtype = {desc.dtype.code, desc.dtype.bits, desc.dtype.lanes};
  tensor.shape = const_cast<int64_t*>(desc.shape);
  tensor.strides = const_cast<int64_t*>(desc.strides);
  tensor.byte_offset = 0;
  return tensor;
}

// Tensor is one of the two structs of DLPack.
template <class Tensor>
struct Export {
  Tensor tensor;
  Ref<Array> array;
  HostView view;

  Export(Array& source, uint32_t flags, const char* site) : tensor{}, array(Ref<Array>::share(&source)) {
    view.open(source, (flags & TENON_EXPORT_FOR_READ) != 0 ? Access::kRead : Access::kWrite, site);
    tensor.dl_tensor = describe(source);
    tensor.manager_ctx = this;
    tensor.deleter = [](Tensor* self) {
      if (self != nullptr) delete static_cast<Export*>(self->manager_ctx);
    };
  }
  Export(const Export&) = delete;
  Export& operator=(const Export&) = delete;
};

}  // namespace

DLManagedTensorVersioned* export_versioned(Array& array, uint32_t flags, const char* site) {
  auto* const exported = new Export<DLManagedTensorVersioned>(array, flags, site);
  exported->tensor.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  if (array.is_readonly()) exported->tensor.flags |= DLPACK_FLAG_BITMASK_READ_ONLY;
  if ((flags & TENON_EXPORT_COPIED) != 0) exported->tensor.flags |= DLPACK_FLAG_BITMASK_IS_COPIED;
  if ((array.desc().flags & TENON_SUBBYTE_PADDED) != 0) {
    exported->tensor.flags |= DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
  }
  return &exported->tensor;
}

DLManagedTensor* export_legacy(Array& array, uint32_t flags, const char* site) {
  if (array.is_readonly() && (flags & TENON_EXPORT_FOR_READ) == 0) {
    throw_error(Code::kBuffer,
                "a read-only array cannot be exported in the legacy DLPack struct, which cannot say so: "
                "ask for version 1.0 or later, or export a copy");
  }
  if ((array.desc().flags & TENON_SUBBYTE_PADDED) != 0) {
    throw_error(Code::kBuffer, "padded ", array.dtype().name(),
                " elements cannot be exported in the legacy DLPack struct: ask for version 1.1 or later");
  }
  return &(new Export<DLManagedTensor>(array, flags, site))->tensor;
}

}  // namespace tenon::impl::dlpack
