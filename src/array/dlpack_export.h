// SPDX-License-Identifier: Apache-2.0
//
// Arrays as DLPack tensors. An export is one allocation that holds the struct, a reference to the array
// (whose shape and strides the tensor borrows) and an open view, until the deleter runs.
#pragma once

#include "array/array.h"
#include "tenon/dlpack.h"

namespace tenon::impl::dlpack {

// flags: TENON_EXPORT_*. The tensor counts as a writer, because DLPack cannot see what its consumer does,
// unless the caller promises TENON_EXPORT_FOR_READ. Fails as HostView::open.
DLManagedTensorVersioned* export_versioned(Array& array, uint32_t flags, const char* site = nullptr);

// Fails with kBuffer for a read-only array without TENON_EXPORT_FOR_READ: the struct cannot say it; and for
// padded sub-byte elements.
DLManagedTensor* export_legacy(Array& array, uint32_t flags, const char* site = nullptr);

}  // namespace tenon::impl::dlpack
