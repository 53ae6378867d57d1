// SPDX-License-Identifier: Apache-2.0
//
// Which table of kernels this processor runs.
#pragma once

#include <span>

#include "array/elements.h"
#include "array/elements_kernels.h"
#include "array/elements_run.h"

namespace tenon::impl {

// Those that this processor can run, the best one last.
std::span<const Kernels* const> available_kernels();

inline const Kernels& best_kernels() { return *available_kernels().back(); }

// copy_elements with a table and limits of choice.
void copy_elements(const Kernels& kernels, StreamFrom stream_from, const Elements& dst, const Elements& src);

}  // namespace tenon::impl
