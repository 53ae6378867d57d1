// SPDX-License-Identifier: Apache-2.0
//
// Arrays as DLPack tensors. An export is one allocation that holds the struct, a reference to the array
// (whose shape and strides the tensor borrows) and an open view, until the deleter runs.
#pragma once

#include "array/array.h"
#include "tenon/dlpack.h"

namespace tenon::impl::dlpack {

// flags: TENON_EXPORT_*. The tensor counts as a writer, because DLPack cannot see what its consumer does,
// unless the caller promises TENON_EXPORT_FOR_READ. stream: the number that a consumer of memory on a device
// gives in the protocol of DLPack; 0: the host. Fails as HostView::open, and with kBuffer where a graph is
// captured from work that is not done.
DLManagedTensorVersioned* export_versioned(Array& array, uint32_t flags, const char* site = nullptr,
                                           int64_t stream = 0);

// Fails with kBuffer for a read-only array without TENON_EXPORT_FOR_READ: the struct cannot say it; and for
// padded sub-byte elements.
DLManagedTensor* export_legacy(Array& array, uint32_t flags, const char* site = nullptr, int64_t stream = 0);

}  // namespace tenon::impl::dlpack
