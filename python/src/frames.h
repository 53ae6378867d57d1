// SPDX-License-Identifier: Apache-2.0
//
// Facts about a running frame: the frame that called it, the instruction that it executes, the values of its
// variables. Functions that are not part of the stable ABI are looked up at run time, and may be missing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "python.h"

namespace tenon::python {

// The innermost frame of the calling thread; null where no Python code runs. Requires the GIL.
nb::object innermost_frame() noexcept;
// The frame that has called it; null where there is none. Requires the GIL.
nb::object back_of(nb::handle frame) noexcept;

// The code and the instruction that a frame executes. The key of caches.
struct Position {
  PyObject* code;  // a reference, owned by the caller of of()
  int instruction;

  // Requires the GIL.
  static Position of(nb::handle frame) noexcept;

  bool operator==(const Position&) const = default;
  // Below 2**n_bits.
  size_t hash(int n_bits) const noexcept {
    const uintptr_t key = reinterpret_cast<uintptr_t>(code) / 16 + static_cast<uintptr_t>(instruction);
    return key * 0x9E3779B97F4A7C15u >> (64 - n_bits);
  }
};

// Whether a variable of the frame has a reference to value that counts (counts.h). False also if it would
// take long to find out. Requires the GIL; may run a collection at the first call for a position; leaves no
// exception.
bool is_held_by_variable(nb::handle frame, PyObject* value) noexcept;

// What is known of the reference of a variable to its value (tenon/_sync/counts.py).
constexpr char kCertain = 'c';    // the variable has one
constexpr char kUncertain = 'u';  // it has one, unless a function around has lent it the value
constexpr char kLent = 'l';       // it may have lent the value to what the running instruction calls

// The variables of a running function. The constructor may allocate, and run a collection; reading does not.
class FrameVariables {
 public:
  // Throws nb::python_error.
  explicit FrameVariables(nb::object frame);

  PyObject* frame() const noexcept { return frame_.ptr(); }
  void suppose_lent() noexcept { std::ranges::fill(certainty_, kLent); }

  // Calls visit(object, certainty) for what a function's variables refer to; of variables that closures
  // share, not at all or for their cells. Allocates nothing that the garbage collector knows.
  template <class Visit>
  void visit(Visit&& visit) const {
    const Py_ssize_t n = names_.is_valid() ? PyTuple_Size(names_.ptr()) : 0;
    const bool has_moved =
        !certainty_.empty() && !is_where_it_was();  // since the constructor, in another thread
    for (Py_ssize_t i = 0; i < n; ++i) {
      if (PyObject* const value = at(i))
        visit(value, has_moved ? kLent : certainty_.empty() ? kCertain : certainty_[static_cast<size_t>(i)]);
    }
  }
  // Calls visit(dict) for the dictionaries in which the code looks for names.
  template <class Visit>
  void visit_namespaces(Visit&& visit) const {
    for (const nb::object& space : spaces_) {
      if (space.is_valid() && PyDict_CheckExact(space.ptr())) visit(space.ptr());
    }
  }

 private:
  PyObject* at(Py_ssize_t i) const noexcept;
  bool is_where_it_was() const noexcept;

  nb::object frame_;
  nb::object code_;
  nb::object names_;  // of a function's variables, a tuple; else null
  std::string certainty_;
  int instruction_ = 0;
  nb::object spaces_[2];  // of the module, and of the code itself where it has one
};

// Of all frames, the innermost first, up to a limit. Throw nb::python_error.
std::vector<FrameVariables> frames_of_this_thread();
std::vector<FrameVariables> frames_of_all_threads();

// The references of a frame's variables that count (counts.h). The constructor may run a collection and other
// threads.
class CountedVariables {
 public:
  // Throws nb::python_error.
  explicit CountedVariables(nb::handle frame);

  // Calls visit(object) for each of them, as they are now. No other code runs meanwhile.
  template <class Visit>
  void visit(Visit&& visit) const {
    for (const nb::object& dict : dicts_) {
      Py_ssize_t at = 0;
      for (PyObject* value = nullptr; PyDict_Next(dict.ptr(), &at, nullptr, &value) != 0;) visit(value);
    }
    if (variables_) visit_variables([&](PyObject* value) { visit(value); });
  }

 private:
  void visit_variables(const std::function<void(PyObject*)>& visit) const;

  nb::object frame_;
  nb::object code_;
  std::vector<nb::object> dicts_;
  std::optional<FrameVariables> variables_;
  std::vector<FrameVariables> running_;
  std::vector<std::pair<nb::object, Py_ssize_t>> shared_;  // the names and places of those with a value
};

// Forgets what is known of variables.
void forget_names() noexcept;

void add_frames(nb::module_& module);

}  // namespace tenon::python
