// SPDX-License-Identifier: Apache-2.0
//
// Imports DLPack tensors as arrays. If Tenon knows the memory of a tensor, the array shares its storage;
// other memory is adopted, with the tensor as its owner. All fields are checked before use. For an unknown
// major version, only the deleter is called.
#pragma once

#include "array/array.h"
#include "tenon/dlpack.h"

namespace tenon::impl::dlpack {

// Both consume the tensor in every case: on failure its deleter has been called.
// flags: TENON_READONLY. Fail with kBuffer, kType, kValue.
Ref<Array> import_versioned(DLManagedTensorVersioned* tensor, uint32_t flags);
Ref<Array> import_legacy(DLManagedTensor* tensor, uint32_t flags);

}  // namespace tenon::impl::dlpack
