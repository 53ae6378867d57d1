// SPDX-License-Identifier: Apache-2.0
//
// Calls in which NumPy or a native function works on views of arrays: operators, ufuncs, array functions.
// Such a call gets access to all of its arrays at once, also to those that other processes use.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "buffer_calls.h"
#include "elements.h"
#include "ndarray.h"
#include "numpy_view.h"
#include "sites.h"

namespace tenon::python {

// It outlives its views, or they become views of ordinary code. Requires the GIL. One thread only.
class ArrayCall {
 public:
  ArrayCall() = default;
  // A call that has begun.
  ArrayCall(const std::string& name, nb::iterable reads_of_call, nb::iterable writes_of_call) : ArrayCall() {
    for (nb::handle array : writes_of_call) writes(array.ptr());
    for (nb::handle array : reads_of_call) reads(array.ptr());
    begin(name.c_str());
  }
  ArrayCall(const ArrayCall&) = delete;
  ArrayCall& operator=(const ArrayCall&) = delete;
  ~ArrayCall() { end(); }

  // These come before begin(). They ignore objects that are no NDArrays. flags: TENON_OVERWRITE.
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
  // Throws ValueError for a read-only array.
  void writes(PyObject* object) {
    if (!is_ndarray(object)) return;
    check_writable(share(object));
    uses(share(object), Access::kWrite);
  }
  // Waits until the call has access to all of them.
  void begin(const char* name) {
    if (uses_.empty()) return;
    call(tenon_call_begin, name, current_site(), static_cast<int32_t>(uses_.size()), uses_.data(), &call_);
    if (!may_have_buffer_calls()) return;
    for (const tenon_use& use : uses_) wait_for_buffer_calls(use.array, Access{use.access}, std::nullopt);
  }
  // After begin(): a NumPy view of an NDArray, read-only if the call only reads it. Other objects are
  // returned.
  nb::object view_of(PyObject* object) {
    if (!is_ndarray(object)) return nb::borrow(object);
    for (auto& [array, view] : views_) {
      if (array == object) return view;
    }
    const Array array = share(object);
    views_.emplace_back(object, is_written(object) ? writable_numpy_view(array) : numpy_view(array));
    return views_.back().second;
  }
  // Something else refers to a view, or to the memory through one.
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
