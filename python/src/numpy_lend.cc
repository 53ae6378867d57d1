// SPDX-License-Identifier: Apache-2.0
#include "numpy_lend.h"

#include "numpy_api.h"

namespace tenon::python {
namespace {

// The first lend of an array: it stands in the table until the last lend ends, and keeps the array alive.
struct Lender : owners::Node {
  explicit Lender(PyObject* x);
  PyObject* array;
  Lender* next_in_bucket = nullptr;
  size_t n_lends = 1;
};

// Another lend of the same array.
struct FurtherLend : owners::Node {
  explicit FurtherLend(Lender* first);
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

void end_lend(Lender* lender) {
  if (--lender->n_lends != 0) return;
  table.erase(lender);
  PyObject* const array = lender->array;
  delete lender;
  PyArray_ENABLEFLAGS(as_numpy(array), NPY_ARRAY_WRITEABLE);
  Py_DECREF(array);
}

Lender::Lender(PyObject* x)
    : Node([](Node* node) { end_lend(static_cast<Lender*>(node)); }), array(Py_NewRef(x)) {}

FurtherLend::FurtherLend(Lender* first)
    : Node([](Node* node) {
        auto* const self = static_cast<FurtherLend*>(node);
        Lender* const of = self->lender;
        delete self;
        end_lend(of);
      }),
      lender(first) {}

}  // namespace

bool is_lent(PyObject* x) noexcept { return table.find(x) != nullptr; }

OwnedNode lend(PyObject* x) {
  OwnedNode node;
  if (Lender* const first = table.find(x)) {
    node.reset(new FurtherLend(first));
    ++first->n_lends;
  } else {
    table.make_room();
    auto* const lender = new Lender(x);
    table.insert(lender);
    node.reset(lender);
  }
  PyArray_CLEARFLAGS(as_numpy(x), NPY_ARRAY_WRITEABLE);
  return node;
}

}  // namespace tenon::python
