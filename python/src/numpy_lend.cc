// SPDX-License-Identifier: Apache-2.0
#include "numpy_lend.h"

#include <utility>

#include "addresses.h"
#include "counts.h"
#include "ndarray.h"
#include "numpy_api.h"

namespace tenon::python {
namespace {

// Keeps an exporter of memory from taking it back, as a memory map or SharedMemory does when it is closed: it
// raises BufferError then. An array that NumPy makes with np.ndarray(buffer=) has no buffer of its own.
class HeldBuffer {
 public:
  explicit HeldBuffer(PyObject* exporter) {
    check_python(PyObject_GetBuffer(exporter, &buffer_, PyBUF_FULL_RO));
  }
  HeldBuffer(const HeldBuffer&) = delete;
  HeldBuffer& operator=(const HeldBuffer&) = delete;
  ~HeldBuffer() { PyBuffer_Release(&buffer_); }

 private:
  Py_buffer buffer_;
};

// Null: the memory below x belongs to an array, or to an object that never takes it back. Fails as the
// exporter does, for example if it has taken the memory back already.
std::unique_ptr<HeldBuffer> hold_exporter_of(PyObject* x) {
  PyObject* const exporter = root_of(x).exporter;
  if (exporter == nullptr || PyType_GetSlot(Py_TYPE(exporter), Py_bf_releasebuffer) == nullptr)
    return nullptr;
  return std::make_unique<HeldBuffer>(exporter);
}

struct Lend : owners::Node {
  Lend(void (*finish_function)(Node*), Writers who_writes, const Lending& how) noexcept
      : Node(finish_function), site(how.site), by(how.by), writers(who_writes) {}
  const char* site;
  LentBy by;
  Writers writers;
  bool is_in_block = false;
};

// The first lend of an array: it stands in the table until the last lend ends, and keeps the array alive by
// the one reference that Tenon has to it.
struct Lender : Lend {
  Lender(PyObject* x, Writers who_writes, const Lending& how);
  bool is_over = false;     // the first lend
  bool has_buffer = false;  // it is a BufferLender
  PyObject* array;
  Lender* next_in_bucket = nullptr;
  struct FurtherLend* further = nullptr;  // the latest of them
  uint32_t n_lends = 1;
  uint32_t n_cleared;  // lends for which the flag is cleared
};

// A lender whose array lies on the memory of an exporter.
struct BufferLender : Lender {
  BufferLender(PyObject* x, Writers who_writes, const Lending& how, std::unique_ptr<HeldBuffer> held)
      : Lender(x, who_writes, how), buffer(std::move(held)) {
    has_buffer = true;
  }
  std::unique_ptr<HeldBuffer> buffer;
};

// Another lend of the same array, in the list of its lender.
struct FurtherLend : Lend {
  FurtherLend(Lender* first, Writers who_writes, const Lending& how);
  ~FurtherLend();
  Lender* lender;
  FurtherLend* older;
  FurtherLend* newer = nullptr;
};
static_assert(sizeof(Lender) <= 64 && sizeof(FurtherLend) <= 64,
              "the free list of nodes has blocks of this size");

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

  template <class Visit>
  void visit(Visit visit) const {
    for (size_t i = 0; i < n_buckets_; ++i) {
      for (const Lender* lender = buckets_[i]; lender != nullptr; lender = lender->next_in_bucket)
        visit(*lender);
    }
  }

  void erase(Lender* lender) noexcept {
    Lender** link = &buckets_[bucket_of(lender->array)];
    while (*link != lender) link = &(*link)->next_in_bucket;
    *link = lender->next_in_bucket;
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
constinit size_t n_cleared_lenders = 0;  // arrays whose flag is cleared

void end_lend(Lender* lender, Writers writers) {
  if (writers == Writers::kBorrower && --lender->n_cleared == 0) {
    PyArray_ENABLEFLAGS(as_numpy(lender->array), NPY_ARRAY_WRITEABLE);
    --n_cleared_lenders;
  }
  if (--lender->n_lends != 0) return;
  table.erase(lender);
  PyObject* const array = lender->array;
  lender->has_buffer ? delete static_cast<BufferLender*>(lender) : delete lender;
  Py_DECREF(array);
}

[[gnu::hot]] void finish_first(owners::Node* node) {
  auto* const lender = static_cast<Lender*>(node);
  lender->is_over = true;
  end_lend(lender, lender->writers);
}

void finish_further(owners::Node* node) {
  auto* const self = static_cast<FurtherLend*>(node);
  Lender* const lender = self->lender;
  const Writers writers = self->writers;
  delete self;
  end_lend(lender, writers);
}

Lender::Lender(PyObject* x, Writers who_writes, const Lending& how)
    : Lend(finish_first, who_writes, how),
      array(Py_NewRef(x)),
      n_cleared(who_writes == Writers::kBorrower ? 1 : 0) {}

FurtherLend::FurtherLend(Lender* first, Writers who_writes, const Lending& how)
    : Lend(finish_further, who_writes, how), lender(first), older(first->further) {
  if (older != nullptr) older->newer = this;
  first->further = this;
}

FurtherLend::~FurtherLend() {
  if (older != nullptr) older->newer = newer;
  (newer != nullptr ? newer->older : lender->further) = older;
}

// Null: lend() did not make the node.
const Lend* lend_of(const owners::Node* node) noexcept {
  const bool is_lend = node != nullptr && (node->finish == finish_first || node->finish == finish_further);
  return is_lend ? static_cast<const Lend*>(node) : nullptr;
}

nb::tuple addresses(nb::handle array) {
  Addresses found{};
  if (is_ndarray(array.ptr())) {
    found = addresses_of(*tenon_array_describe(array_of(array.ptr())));
  } else {
    need_numpy();
    if (!is_numpy_array(array.ptr())) raise(PyExc_TypeError, "%R is no array", array.ptr());
    found = addresses_of(array.ptr());
  }
  if (found.begin == found.end) found = {};
  return nb::make_tuple(found.begin, found.end);
}

// (mode, shape, dtype, site) for tenon.borrowers().
nb::list borrowers(nb::handle x) {
  need_numpy();
  if (!is_numpy_array(x.ptr())) {
    raise(PyExc_TypeError, "x is of %R: borrowers() takes a numpy.ndarray",
          reinterpret_cast<PyObject*>(Py_TYPE(x.ptr())));
  }
  nb::list found;
  for (const Borrow& borrow : borrows_of(x.ptr())) {
    found.append(nb::make_tuple(borrow.writers == Writers::kBoth ? "writable" : "readonly",
                                borrow.array.attr("shape"), nb::str(nb::object(borrow.array.attr("dtype"))),
                                borrow.site != nullptr ? borrow.site : ""));
  }
  return found;
}

// The line that lent the memory of an NDArray, if its NumPy array is read-only meanwhile and nothing else
// refers to that.
nb::object lone_borrow(const Array& array) {
  const Borrow borrow = borrow_of(owner_of(array.get()));
  if (borrow.writers != Writers::kBorrower || !is_known_to_tenon_only(borrow.array.ptr(), 1))
    return nb::none();
  return nb::str(borrow.site != nullptr ? borrow.site : "");
}

}  // namespace

bool is_lent(PyObject* x) noexcept {
  const Lender* const lender = table.find(x);
  return lender != nullptr && lender->n_cleared != 0;
}

PyObject* lent_base_of(PyObject* x) noexcept {
  if (n_cleared_lenders == 0) return nullptr;
  bool has_other_views = false;
  for (PyObject* base = PyArray_BASE(as_numpy(x)); base != nullptr && is_numpy_array(base);
       base = PyArray_BASE(as_numpy(base))) {
    if (is_lent(base)) return base;
    has_other_views |= references_to(base) > 1;
  }
  if (!has_other_views) return nullptr;
  // The base of a view of a view is that of both. Of several lent views around x the widest one counts.
  const PyObject* const root = root_of(x).array;
  const Addresses inner = addresses_of(x);
  PyObject* found = nullptr;
  uintptr_t widest = 0;
  table.visit([&](const Lender& lender) {
    if (lender.n_cleared == 0) return;
    const Addresses outer = addresses_of(lender.array);
    const bool is_inside = outer.begin <= inner.begin && inner.end <= outer.end && inner.begin < inner.end;
    if (!is_inside || outer.end - outer.begin <= widest) return;
    if (root_of(lender.array).array != root) return;
    found = lender.array;
    widest = outer.end - outer.begin;
  });
  return found;
}

[[gnu::hot]] OwnedNode lend(PyObject* x, Writers writers, const Lending& how) {
  const bool is_cleared = writers == Writers::kBorrower;
  OwnedNode node;
  if (Lender* const first = table.find(x)) {
    node.reset(new FurtherLend(first, writers, how));
    ++first->n_lends;
    if (is_cleared && first->n_cleared++ == 0) ++n_cleared_lenders;
  } else {
    table.make_room();
    std::unique_ptr<HeldBuffer> held = hold_exporter_of(x);
    Lender* const lender =
        held != nullptr ? new BufferLender(x, writers, how, std::move(held)) : new Lender(x, writers, how);
    table.insert(lender);
    if (is_cleared) ++n_cleared_lenders;
    node.reset(lender);
  }
  if (is_cleared) PyArray_CLEARFLAGS(as_numpy(x), NPY_ARRAY_WRITEABLE);
  return node;
}

owners::Node* owner_of(const tenon_array* array) noexcept {
  if (tenon_array_moved_at(array) != nullptr) return nullptr;
  return static_cast<owners::Node*>(tenon_array_owner(array, owners::release));
}

bool is_lent_by_user(const owners::Node* node) noexcept {
  const Lend* const lend = lend_of(node);
  return lend != nullptr && lend->by == LentBy::kFromNumpy;
}

void set_in_block(owners::Node* node, bool is_in_block) noexcept {
  const_cast<Lend*>(lend_of(node))->is_in_block = is_in_block;
}

bool is_in_block(const owners::Node* node) noexcept {
  const Lend* const lend = lend_of(node);
  return lend != nullptr && lend->is_in_block;
}

std::vector<Borrow> borrows_of(PyObject* x) {
  std::vector<Borrow> borrows;
  const Addresses wanted = addresses_of(x);
  table.visit([&](const Lender& lender) {
    if (!wanted.overlaps(addresses_of(lender.array))) return;
    const nb::object array = nb::borrow(lender.array);
    if (!lender.is_over) borrows.push_back({array, lender.writers, lender.site});
    const auto oldest = static_cast<ptrdiff_t>(borrows.size());
    for (const FurtherLend* lend = lender.further; lend != nullptr; lend = lend->older)
      borrows.insert(borrows.begin() + oldest, {array, lend->writers, lend->site});
  });
  return borrows;
}

Borrow borrow_of(const owners::Node* node) noexcept {
  PyObject* const array = original_of(node);
  if (array == nullptr) return {};
  const Lend& lend = *lend_of(node);
  return {nb::borrow(array), lend.writers, lend.site};
}

Root root_of(PyObject* x) noexcept {
  PyObject* base = PyArray_BASE(as_numpy(x));
  while (base != nullptr && is_numpy_array(base)) {
    x = base;
    base = PyArray_BASE(as_numpy(x));
  }
  return {x, base};
}

PyObject* original_of(const owners::Node* node) noexcept {
  const Lend* const lend = lend_of(node);
  if (lend == nullptr || lend->writers == Writers::kNone) return nullptr;
  if (node->finish == finish_first) return static_cast<const Lender*>(lend)->array;
  return static_cast<const FurtherLend*>(lend)->lender->array;
}

bool is_used_elsewhere(PyObject* x, bool op_writes) noexcept {
  if (references_to(x) > 1 && (op_writes || (PyArray_FLAGS(as_numpy(x)) & NPY_ARRAY_WRITEABLE) != 0))
    return true;
  // Of each base the array over it has one reference.
  for (PyObject* base = PyArray_BASE(as_numpy(x)); base != nullptr && is_numpy_array(base);
       base = PyArray_BASE(as_numpy(base))) {
    if (references_to(base) > 1 && (PyArray_FLAGS(as_numpy(base)) & NPY_ARRAY_WRITEABLE) != 0) return true;
  }
  return false;
}

bool is_known_to_tenon_only(PyObject* x, Py_ssize_t n_own) noexcept {
  if (references_to(x) > 1 + n_own) return false;
  for (PyObject* base = PyArray_BASE(as_numpy(x)); base != nullptr && is_numpy_array(base);
       base = PyArray_BASE(as_numpy(base))) {
    if (references_to(base) > 1) return false;
  }
  return true;
}

void add_numpy_lend(nb::module_& module) {
  module.def("borrowers", borrowers, nb::arg("x").none(),
             nb::sig("def borrowers(x: Any) -> list[tuple[str, tuple[int, ...], str, str]]"),
             "(mode, shape, dtype, site) of each borrow of memory of x.");
  module.def(
      "addresses", addresses, nb::arg("array"), nb::sig("def addresses(array: Any) -> tuple[int, int]"),
      "Where the bytes of an NDArray, or of an array of NumPy, begin and end; (0, 0) without elements.");
  module.def("lone_borrow", lone_borrow, nb::arg("array"),
             nb::sig("def lone_borrow(array: NDArray) -> str | None"),
             "The line that lent the memory of an array, if its NumPy array is read-only meanwhile and "
             "nothing else\nrefers to that; else None.");
}

}  // namespace tenon::python
