// SPDX-License-Identifier: Apache-2.0
//
// Operations that change the relation of an array to its memory: move the memory out, replace it, or use it
// outside of the contract.
#pragma once

#include <span>

#include "array/array.h"

namespace tenon::impl {

// Moves the memory out of the storage of the array: the caller owns it then, and every array on the storage
// is refused (kMoved). Waits for work that was pushed before. site: as for a view, but lives forever. Fails
// with kLeaseConflict (the memory is in use, was imported a second time, or is used unchecked), kDeadlock,
// kInterrupted, kOp, kMoved.
Memory move_out(Array& array, const char* site);
// The same for arrays of different storages, all of them or none.
void move_out(std::span<Array* const> arrays, const char* site, Memory* memories);

// An array of the same shape and dtype on new memory with zeros, for a full overwrite that leaves the old
// values to their readers. Fails with kBuffer (read-only), kValue (the array is a part of its memory, or not
// in C order), kLeaseConflict (a writable view is open: its writes would be lost), kMoved, kNoMemory.
Ref<Array> renew(const Array& array);

// The same window outside of the contract: it has a queue of its own, so that it does not wait for others and
// others do not wait for it. Keeps the memory alive, so that it cannot be moved out. Fails with kMoved.
Ref<Array> unchecked(const Array& array);

}  // namespace tenon::impl
