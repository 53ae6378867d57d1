// SPDX-License-Identifier: Apache-2.0
//
// What a running frame says of itself: which instruction it executes, what its variables hold. Of the frame
// API, what is not part of the stable ABI is looked up, and done without where it is missing.
#pragma once

#include <cstddef>

#include "python.h"

namespace tenon::python {

// The address of a function of the interpreter that it may lack; then null.
void* find_interpreter_function(const char* name) noexcept;

// What a frame executes: the innermost one's place in a program. A key for what is remembered of places.
struct Position {
  PyObject* code;  // a reference that whoever called of() owns
  int instruction;

  // Requires the GIL.
  static Position of(PyFrameObject* frame) noexcept;

  bool operator==(const Position&) const = default;
  // Below 2**n_bits.
  size_t hash(int n_bits) const noexcept {
    const uintptr_t key = reinterpret_cast<uintptr_t>(code) / 16 + static_cast<uintptr_t>(instruction);
    return key * 0x9E3779B97F4A7C15u >> (64 - n_bits);
  }
};

// One of the variables of the frame holds value. False also where that cannot be told at little cost.
// Requires the GIL; runs no code of the user's; leaves no exception.
bool is_held_by_variable(PyFrameObject* frame, PyObject* value) noexcept;

}  // namespace tenon::python
