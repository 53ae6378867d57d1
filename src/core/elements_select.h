// SPDX-License-Identifier: Apache-2.0
//
// Which table of kernels this processor runs.
#pragma once

#include <span>

#include "core/elements.h"
#include "core/elements_kernels.h"
#include "core/elements_run.h"

namespace tenon {

// Those that this processor can run, the best one last.
std::span<const Kernels* const> available_kernels();

inline const Kernels& best_kernels() { return *available_kernels().back(); }

// copy_elements with a table and limits of choice.
void copy_elements(const Kernels& kernels, StreamFrom stream_from, const Elements& dst, const Elements& src);

}  // namespace tenon
