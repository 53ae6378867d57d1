// SPDX-License-Identifier: Apache-2.0
//
// DLPack tensors as arrays. The memory of a tensor that Tenon knows already becomes another handle on it;
// other memory is adopted, with the tensor as its owner. Everything is checked before it is used, and
// nothing but the deleter is used of a tensor with another major version.
#pragma once

#include "array/array.h"
#include "tenon/dlpack.h"

namespace tenon::impl::dlpack {

// Both consume the tensor in every case: on failure its deleter has been called.
// flags: TENON_READONLY. Fail with kBuffer, kType, kValue.
Ref<Array> import_versioned(DLManagedTensorVersioned* tensor, uint32_t flags);
Ref<Array> import_legacy(DLManagedTensor* tensor, uint32_t flags);

}  // namespace tenon::impl::dlpack
