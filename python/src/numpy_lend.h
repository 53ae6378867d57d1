// SPDX-License-Identifier: Apache-2.0
//
// NumPy arrays whose memory is lent. Unless both sides may write, their WRITEABLE flag is cleared meanwhile,
// so that the array's user cannot write behind the borrower's back; with the last such lend it is set again.
#pragma once

#include <cstdint>
#include <memory>

#include "owners.h"

namespace tenon::python {

struct FinishNode {
  void operator()(owners::Node* node) const { node->finish(node); }
};
// A node that no storage has taken over yet.
using OwnedNode = std::unique_ptr<owners::Node, FinishNode>;

// x's flag is cleared by one lend at least.
bool is_lent(PyObject* x) noexcept;

// Whether the user has lent x, and may end that by `with`.
enum class LentBy : uint8_t { kFromNumpy, kTenon };

// Keeps x alive; with is_readonly clears its flag, and finish gives it back. Requires: x is a NumPy array
// that is writable, or is_lent(x).
OwnedNode lend(PyObject* x, bool is_readonly, LentBy by);

// Keeps x, which nobody writes, alive: there is no flag to give back.
OwnedNode lend_readonly(PyObject* x, LentBy by);

// The node was made by one of these, for from_numpy().
bool is_lent_by_user(const owners::Node* node) noexcept;

// The array that was lent with this node, if it was made by lend().
PyObject* original_of(const owners::Node* node) noexcept;

// Somebody but Tenon refers to a lent array, or to a writable one of its bases, and so may read (or write)
// the memory beside an op that writes (or reads) it.
bool is_used_elsewhere(PyObject* x, bool op_writes) noexcept;

}  // namespace tenon::python
