// SPDX-License-Identifier: Apache-2.0
//
// Makes a generator out of a native function: binds each parameter to a field of the batch, to a constant
// or to one of the numbers that describe the batch (n, index, epoch, seed, epoch_seed, worker).
#pragma once

#include <span>

#include "base/ref.h"
#include "data/native_function.h"
#include "ipc/schema.h"
#include "tenon/tenon.h"

namespace tenon::impl {

// The generator owns references to the function and to the constant arrays, and holds views on the arrays;
// its drop() releases them. Failures: as tenon_function_bind in tenon.h.
tenon_generator bind_function(Ref<NativeFunction> function, const Schema& schema,
                              std::span<const tenon_constant> constants);

// Fails with kValue if it is a generator of bind_function() that may write an array constant: each worker
// process would write a copy of its own.
void refuse_written_constants(const tenon_generator& generator);

}  // namespace tenon::impl
