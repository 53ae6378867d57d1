// SPDX-License-Identifier: Apache-2.0
//
// Arrays that change what they have to do with their memory: they give it away, leave it to its readers, or
// step out of the contract.
#pragma once

#include "array/array.h"

namespace tenon::impl {

// Takes the memory out of the array's storage: the caller owns it now, and every array on the storage is
// refused from then on (kMoved). Waits for work that was pushed before. site: as of a view, but lives for
// ever. Fails with kLeaseConflict when another user holds the memory, was given it by another import or uses
// it unchecked, kDeadlock, kInterrupted, kOp, kMoved.
Memory move_out(Array& array, const char* site);

// An array as this one on new memory, for a whole overwrite that leaves the old values to their readers. The
// elements are zero. Fails with kBuffer (read-only), kValue (the array is a part of its memory, or not in
// C order), kLeaseConflict (a writable view is open: its writes would be lost), kNoMemory.
Ref<Array> renew(const Array& array);

// The same window outside of the contract: on a queue of its own, so that it waits for nothing and nothing
// for it. Keeps the memory alive, and from being moved out. Fails with kMoved.
Ref<Array> unchecked(const Array& array);

}  // namespace tenon::impl
