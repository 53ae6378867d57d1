// SPDX-License-Identifier: Apache-2.0
//
// NumPy arrays over the memory of an NDArray. Their base is a small object that holds an open view, so that
// the memory lives, and is counted as in use, until the last NumPy array over it has gone.
#pragma once

#include "python.h"

namespace tenon::python {

// Imports NumPy, which takes long the first time. Call it before a lease is taken for a view.
void prepare_numpy_views();

// A NumPy array on the same memory, writable if array is, but not inside of the caller's own lease for
// reading: a new reference. Throws TypeError (NumPy has no such dtype).
nb::object numpy_view(const Array& array);

// The same, read-only if that is said, of a view that counts as taken at site, a text that lives for ever.
nb::object numpy_view_taken_at(const Array& array, bool is_readonly, const char* site);

// The same, to be written to: inside of a lease for reading it is a LeaseConflict.
nb::object writable_numpy_view(const Array& array);

// A NumPy array on the same memory that keeps base alive, and is no view of the array. Throws TypeError.
nb::object numpy_array_over(const Array& array, nb::handle base, bool is_readonly);

// As numpy_view_taken_at(); root is the base of the view. Arrays that are made from the view have the base
// root, too, so that the view itself can release the memory.
struct RootedView {
  nb::object root;
  nb::object view;
};
RootedView rooted_numpy_view(const Array& array, bool is_readonly, const char* site);
// The same as a list of the view and its root, for end_if_lone() in Python.
nb::list rooted_pair(const Array& array, const char* site);

// Whether nothing refers to a view and its root but the caller, once each, and at most one variable of the
// frame to the view; without a frame: of the innermost frame.
bool is_lone_view(PyObject* view, PyObject* root, nb::handle frame = {}) noexcept;

// Empties such a view, as empty_numpy_view(), and releases the memory. Requires a Collector of the caller.
void end_lone_view(RootedView views, const char* site) noexcept;

// Makes view an array without elements, with which NumPy cannot compute and whose dtype names site, a text
// that lives for ever, or null. releases: it releases the memory, too. Requires: a NumPy array.
void empty_numpy_view(nb::handle view, bool releases, const char* site);

// Such an array releases the memory.
void release_ended_view(nb::handle view) noexcept;

// An object that holds an open view of array until it is freed.
nb::object view_holder(const Array& array);

// Whether anything besides the caller, which has one reference, refers to a view of numpy_view() or to its
// base.
bool is_used_elsewhere_than_here(nb::handle view) noexcept;

// Whether an NDArray may have exported the base of a NumPy array.
bool may_view_ndarray(PyObject* exporter);

void add_numpy_view(nb::module_& module);

}  // namespace tenon::python
