// SPDX-License-Identifier: Apache-2.0
//
// NumPy arrays whose memory is lent for writing: while it is, their WRITEABLE flag is cleared, so that the
// array's user cannot write behind the borrower's back; with the end of the last lend it is set again.
#pragma once

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

// Clears x's flag; finish gives it back. Requires: x is a NumPy array that is writable, or is_lent(x).
OwnedNode lend(PyObject* x);

}  // namespace tenon::python
