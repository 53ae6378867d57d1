// SPDX-License-Identifier: Apache-2.0
//
// Exports arrays as DLPack tensors. An export is one allocation with the struct, a reference to the array
// (the tensor points to its shape and strides), and a view that is open until the deleter runs.
#pragma once

#include "array/array.h"
#include "tenon/dlpack.h"

namespace tenon::impl::dlpack {

// flags: TENON_EXPORT_*. The tensor counts as a writer, because the consumer may write, unless the caller
// promises TENON_EXPORT_FOR_READ. Fails as HostView::open.
DLManagedTensorVersioned* export_versioned(Array& array, uint32_t flags, const char* site = nullptr);

// Fails with kBuffer for a read-only array without TENON_EXPORT_FOR_READ, and for padded sub-byte elements,
// because the struct has no flags for them.
DLManagedTensor* export_legacy(Array& array, uint32_t flags, const char* site = nullptr);

}  // namespace tenon::impl::dlpack
