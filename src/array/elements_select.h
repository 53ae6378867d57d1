// SPDX-License-Identifier: Apache-2.0
//
// Selects the table of kernels for this processor.
#pragma once

#include <span>

#include "array/elements.h"
#include "array/elements_kernels.h"
#include "array/elements_run.h"

namespace tenon::impl {

// Those that this processor can run, the best one last.
std::span<const Kernels* const> available_kernels();

inline const Kernels& best_kernels() { return *available_kernels().back(); }

// copy_elements with a given table and given limits.
void copy_elements(const Kernels& kernels, StreamFrom stream_from, const Elements& dst, const Elements& src);

}  // namespace tenon::impl
