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

// How the variables of a function, module or class are found in its frames.
struct Layout {
  PyObject* code = nullptr;   // a reference
  bool is_function = false;   // else its variables are in a dictionary
  Py_ssize_t n_slots = 0;     // CPython 3.11: the places of variables and cells in a frame
  PyObject* names = nullptr;  // later versions: of the variables that no closure shares, a tuple
};

// The frame of a running function with its layout. Made first, because that may allocate; read then.
class FrameVariables {
 public:
  // Throws nb::python_error.
  explicit FrameVariables(nb::object frame);

  // Calls visit(object) for what a function's variables refer to; of a variable that closures share, on
  // CPython 3.11 for its cell, later not at all. Allocates nothing that the garbage collector knows.
  template <class Visit>
  void visit(Visit&& visit) const {
    read([](PyObject* object,
            void* context) { (*static_cast<std::remove_reference_t<Visit>*>(context))(object); },
         &visit);
  }
  // Calls visit(dict) for the dictionaries in which the code looks for names.
  template <class Visit>
  void visit_namespaces(Visit&& visit) const {
    for (const nb::object& space : spaces_) {
      if (space.is_valid() && PyDict_CheckExact(space.ptr())) visit(space.ptr());
    }
  }

 private:
  void read(void (*visit)(PyObject*, void*), void* context) const;

  nb::object frame_;
  nb::object spaces_[2];  // of the module, and of the code itself where it has one
  Layout layout_;
  nb::object code_, names_;  // of the layout
};

}  // namespace tenon::python
