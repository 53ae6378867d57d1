// SPDX-License-Identifier: Apache-2.0
//
// NumPy arrays whose memory is lent. Unless both sides may write, their WRITEABLE flag is cleared meanwhile,
// so that the user of the array cannot write at the same time as the borrower. The end of the last such lend
// sets it again.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "owners.h"

namespace tenon::python {

struct FinishNode {
  void operator()(owners::Node* node) const { node->finish(node); }
};
// A node that no storage has taken over yet.
using OwnedNode = std::unique_ptr<owners::Node, FinishNode>;

// Whether at least one lend has cleared the flag of x.
bool is_lent(PyObject* x) noexcept;
// The lent array of which x may be a view that was taken during the borrow, and is read-only only because of
// the borrow; null: there is none. May visit all lends.
PyObject* lent_base_of(PyObject* x) noexcept;

// The function that lent x. `with` may end a borrow of from_numpy().
enum class LentBy : uint8_t { kFromNumpy, kTenon };

struct Lending {
  const char* site;  // the line that lends; lives for ever, may be null
  LentBy by;
};

// The code that may write the memory of a NumPy array while it is lent.
enum class Writers : uint8_t {
  kBoth,
  kBorrower,  // the array's flag is cleared
  kNone,      // the array was read-only before
};

// Keeps x and its memory; clears its flag if only the borrower writes, and finish gives it back. Requires: x
// is a NumPy array; unless nothing writes, it is writable or is_lent(x). Fails if what x lies on was closed.
OwnedNode lend(PyObject* x, Writers writers, const Lending& how);

// The node that owns the memory of an array. Null: another owner has it, or it was moved out: the node of
// before may be gone then, and its address may be that of another one.
owners::Node* owner_of(const tenon_array* array) noexcept;

// The node was made by one of these, for from_numpy().
bool is_lent_by_user(const owners::Node* node) noexcept;

// Whether the program is in `with tn.from_numpy(x) as a:`, by which it states that it does not use x before
// the end of the block. Requires is_lent_by_user(node).
void set_in_block(owners::Node* node, bool is_in_block) noexcept;
bool is_in_block(const owners::Node* node) noexcept;

// A borrow that has not ended.
struct Borrow {
  nb::object array;  // the NumPy array
  Writers writers = Writers::kBoth;
  const char* site = nullptr;
};
// The lends of NumPy arrays whose memory shares addresses with x, a NumPy array. Visits all lends.
std::vector<Borrow> borrows_of(PyObject* x);

// The lend that made this node; its array is empty if lend() did not make it.
Borrow borrow_of(const owners::Node* node) noexcept;

// The array that was lent with this node, if it was made by lend() and something writes it.
PyObject* original_of(const owners::Node* node) noexcept;

// The program still refers to a lent array, or to a writable one of its bases, and so may read (or write) the
// memory while an op writes (or reads) it.
bool is_used_elsewhere(PyObject* x, bool op_writes) noexcept;

// Only Tenon refers to the lent array, and only that array to each of its bases. The caller has n_own
// references to it.
bool is_known_to_tenon_only(PyObject* x, Py_ssize_t n_own) noexcept;

// The array at the end of x's chain of bases, and what that one stands on (null: memory of its own).
struct Root {
  PyObject* array;
  PyObject* exporter;
};
Root root_of(PyObject* x) noexcept;

void add_numpy_lend(nb::module_& module);

}  // namespace tenon::python
