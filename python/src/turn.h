// SPDX-License-Identifier: Apache-2.0
//
// Calls that let NumPy or a native function work on views of arrays: operators, ufuncs, array functions. They
// take their turn as every call does, for all of their arrays at once, also with those that other processes
// use.
#pragma once

#include <utility>
#include <vector>

#include "buffer_calls.h"
#include "elements.h"
#include "ndarray.h"
#include "numpy_view.h"
#include "sites.h"

namespace tenon::python {

// Outlives the views that are opened in it, or leaves them to ordinary code. Requires the GIL. One thread.
class Turn {
 public:
  Turn() = default;
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() { end(); }

  // Before begin(). Of objects that are no NDArrays nothing is noted. flags: TENON_OVERWRITE.
  void uses(const Array& array, Access access, uint32_t flags = 0) {
    for (tenon_use& use : uses_) {
      if (use.array != array.get()) continue;
      if (access == Access::kWrite) use.access = TENON_WRITE;
      use.flags &= flags;
      return;
    }
    arrays_.push_back(array);
    uses_.push_back({array.get(), static_cast<int32_t>(access), flags});
  }
  void reads(PyObject* object) {
    if (is_ndarray(object)) uses(share(object), Access::kRead);
  }
  // Throws ValueError for one that is read-only.
  void writes(PyObject* object) {
    if (!is_ndarray(object)) return;
    check_writable(share(object));
    uses(share(object), Access::kWrite);
  }
  // Waits until all of them are this call's.
  void begin(const char* name) {
    if (uses_.empty()) return;
    call(tenon_call_begin, name, current_site(), static_cast<int32_t>(uses_.size()), uses_.data(), &call_);
    if (!may_have_buffer_calls()) return;
    for (const tenon_use& use : uses_) wait_for_buffer_calls(use.array, Access{use.access}, std::nullopt);
  }
  // Then: a NumPy view of an NDArray, read-only if it is only read; another object as it is.
  nb::object view_of(PyObject* object) {
    if (!is_ndarray(object)) return nb::borrow(object);
    for (auto& [array, view] : views_) {
      if (array == object) return view;
    }
    const Array array = share(object);
    views_.emplace_back(object, is_written(object) ? writable_numpy_view(array) : numpy_view(array));
    return views_.back().second;
  }
  // Something else refers to a view, or stands on one.
  bool has_lent_views() const noexcept {
    for (const auto& [array, view] : views_) {
      if (is_used_elsewhere_than_here(view)) return true;
    }
    return false;
  }
  void end() noexcept {
    views_.clear();
    tenon_call_end(std::exchange(call_, nullptr));
  }

 private:
  bool is_written(PyObject* object) const noexcept {
    for (const tenon_use& use : uses_) {
      if (use.array == array_of(object)) return use.access == TENON_WRITE;
    }
    return false;
  }

  std::vector<Array> arrays_;  // of uses_
  std::vector<tenon_use> uses_;
  tenon_call* call_ = nullptr;
  std::vector<std::pair<PyObject*, nb::object>> views_;
};

}  // namespace tenon::python
