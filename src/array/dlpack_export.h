// SPDX-License-Identifier: Apache-2.0
//
// Exports arrays as DLPack tensors. An export is one allocation with the struct, a reference to the array
// (the tensor points to its shape and strides), and a view that is open until the deleter runs.
#pragma once

#include "array/array.h"
#include "tenon/dlpack.h"

namespace tenon::impl::dlpack {

// flags: TENON_EXPORT_*. The tensor counts as a writer, because the consumer may write, unless the array is
// read-only or the caller promises TENON_EXPORT_FOR_READ. stream: the number that the consumer of memory on a
// device passes in the protocol of DLPack; 0: the host. Fails as HostView::open, and with kBuffer if the
// stream captures a graph and earlier work on the array is not done.
DLManagedTensorVersioned* export_versioned(Array& array, uint32_t flags, const char* site = nullptr,
                                           int64_t stream = 0);

// Fails with kBuffer for a read-only array without TENON_EXPORT_FOR_READ, and for padded sub-byte elements,
// because the struct has no flags for them.
DLManagedTensor* export_legacy(Array& array, uint32_t flags, const char* site = nullptr, int64_t stream = 0);

}  // namespace tenon::impl::dlpack
