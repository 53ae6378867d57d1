// SPDX-License-Identifier: Apache-2.0
#include "numpy_lend.h"

#include "numpy_api.h"

namespace tenon::python {
namespace {

struct Lend : owners::Node {
  Lend(void (*finish_function)(Node*), bool is_readonly_lend, LentBy lent_by) noexcept
      : Node(finish_function), is_readonly(is_readonly_lend), by(lent_by) {}
  bool is_readonly;
  LentBy by;
};

// The first lend of an array: it stands in the table until the last lend ends, and keeps the array alive by
// the one reference that Tenon has to it.
struct Lender : Lend {
  Lender(PyObject* x, bool is_readonly_lend, LentBy lent_by);
  PyObject* array;
  Lender* next_in_bucket = nullptr;
  uint32_t n_lends = 1;
  uint32_t n_readonly;  // lends for which the flag is cleared
};

// Another lend of the same array.
struct FurtherLend : Lend {
  FurtherLend(Lender* first, bool is_readonly_lend, LentBy lent_by);
  Lender* lender;
};

// The lenders by their array. All under the GIL. Buckets are chained through the lenders, so that taking one
// out cannot fail.
class Table {
 public:
  constexpr Table() = default;

  Lender* find(PyObject* array) const noexcept {
    Lender* lender = buckets_[bucket_of(array)];
    while (lender != nullptr && lender->array != array) lender = lender->next_in_bucket;
    return lender;
  }

  // May throw: call it before the lender to insert exists.
  void make_room() {
    if (n_ >= n_buckets_) grow();
  }

  void insert(Lender* lender) noexcept {
    link(lender);
    ++n_;
  }

  void erase(Lender* lender) noexcept {
    Lender** place = &buckets_[bucket_of(lender->array)];
    while (*place != lender) place = &(*place)->next_in_bucket;
    *place = lender->next_in_bucket;
    --n_;
  }

 private:
  size_t bucket_of(PyObject* array) const noexcept {
    return (reinterpret_cast<uintptr_t>(array) >> 4) * 0x9E3779B97F4A7C15u >> shift_;
  }
  void link(Lender* lender) noexcept {
    Lender*& head = buckets_[bucket_of(lender->array)];
    lender->next_in_bucket = head;
    head = lender;
  }
  void grow() {
    const size_t n_old = n_buckets_;
    Lender** const old = buckets_;
    buckets_ = new Lender*[2 * n_old]();
    n_buckets_ = 2 * n_old;
    --shift_;
    for (size_t i = 0; i < n_old; ++i) {
      for (Lender* lender = old[i]; lender != nullptr;) {
        Lender* const next = lender->next_in_bucket;
        link(lender);
        lender = next;
      }
    }
    if (old != first_buckets_) delete[] old;
  }

  Lender* first_buckets_[64] = {};
  Lender** buckets_ = first_buckets_;
  size_t n_buckets_ = 64;
  int shift_ = 64 - 6;  // 2^6 buckets
  size_t n_ = 0;
};

constinit Table table;

struct ReadonlyLend : Lend {
  ReadonlyLend(PyObject* x, LentBy lent_by);
  PyObject* array;
};

void finish_readonly(owners::Node* node) {
  auto* const self = static_cast<ReadonlyLend*>(node);
  PyObject* const array = self->array;
  delete self;
  Py_DECREF(array);
}

ReadonlyLend::ReadonlyLend(PyObject* x, LentBy lent_by)
    : Lend(finish_readonly, true, lent_by), array(Py_NewRef(x)) {}

void end_lend(Lender* lender, bool is_readonly) {
  if (is_readonly && --lender->n_readonly == 0)
    PyArray_ENABLEFLAGS(as_numpy(lender->array), NPY_ARRAY_WRITEABLE);
  if (--lender->n_lends != 0) return;
  table.erase(lender);
  PyObject* const array = lender->array;
  delete lender;
  Py_DECREF(array);
}

void finish_first(owners::Node* node) {
  auto* const lender = static_cast<Lender*>(node);
  end_lend(lender, lender->is_readonly);
}

void finish_further(owners::Node* node) {
  auto* const self = static_cast<FurtherLend*>(node);
  Lender* const lender = self->lender;
  const bool is_readonly = self->is_readonly;
  delete self;
  end_lend(lender, is_readonly);
}

Lender::Lender(PyObject* x, bool is_readonly_lend, LentBy lent_by)
    : Lend(finish_first, is_readonly_lend, lent_by),
      array(Py_NewRef(x)),
      n_readonly(is_readonly_lend ? 1 : 0) {}

FurtherLend::FurtherLend(Lender* first, bool is_readonly_lend, LentBy lent_by)
    : Lend(finish_further, is_readonly_lend, lent_by), lender(first) {}

}  // namespace

bool is_lent(PyObject* x) noexcept {
  const Lender* const lender = table.find(x);
  return lender != nullptr && lender->n_readonly != 0;
}

OwnedNode lend(PyObject* x, bool is_readonly, LentBy by) {
  OwnedNode node;
  if (Lender* const first = table.find(x)) {
    node.reset(new FurtherLend(first, is_readonly, by));
    ++first->n_lends;
    first->n_readonly += is_readonly ? 1 : 0;
  } else {
    table.make_room();
    auto* const lender = new Lender(x, is_readonly, by);
    table.insert(lender);
    node.reset(lender);
  }
  if (is_readonly) PyArray_CLEARFLAGS(as_numpy(x), NPY_ARRAY_WRITEABLE);
  return node;
}

OwnedNode lend_readonly(PyObject* x, LentBy by) { return OwnedNode(new ReadonlyLend(x, by)); }

bool is_lent_by_user(const owners::Node* node) noexcept {
  const bool is_lend = original_of(node) != nullptr || (node != nullptr && node->finish == finish_readonly);
  return is_lend && static_cast<const Lend*>(node)->by == LentBy::kFromNumpy;
}

PyObject* original_of(const owners::Node* node) noexcept {
  if (node == nullptr) return nullptr;
  if (node->finish == finish_first) return static_cast<const Lender*>(node)->array;
  if (node->finish == finish_further) return static_cast<const FurtherLend*>(node)->lender->array;
  return nullptr;
}

bool is_used_elsewhere(PyObject* x, bool op_writes) noexcept {
  if (Py_REFCNT(x) > 1 && (op_writes || (PyArray_FLAGS(as_numpy(x)) & NPY_ARRAY_WRITEABLE) != 0)) return true;
  // Of each base the array over it has one reference.
  for (PyObject* base = PyArray_BASE(as_numpy(x)); base != nullptr && is_numpy_array(base);
       base = PyArray_BASE(as_numpy(base))) {
    if (Py_REFCNT(base) > 1 && (PyArray_FLAGS(as_numpy(base)) & NPY_ARRAY_WRITEABLE) != 0) return true;
  }
  return false;
}

}  // namespace tenon::python
