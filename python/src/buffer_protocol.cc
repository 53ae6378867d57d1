// SPDX-License-Identifier: Apache-2.0
//
// The buffer protocol (PEP 3118): memoryview(a), np.asarray(a), and whatever else takes buffers. Every buffer
// is an open view until it is released.
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "addresses.h"
#include "buffer_calls.h"
#include "callbacks.h"
#include "errors.h"
#include "free_list.h"
#include "ndarray.h"
#include "ndarray_parts.h"
#include "owners.h"
#include "sites.h"

namespace tenon::python {
namespace {

// The struct-module code of an element type, as NumPy chooses among those of one size; nullptr: it has none.
const char* format_of(DType dtype) {
  if (dtype.lanes() != 1) return nullptr;
  switch (dtype.code() << 8 | dtype.bits()) {
    case TENON_BOOL << 8 | 8: return "?";
    case TENON_INT << 8 | 8: return "b";
    case TENON_INT << 8 | 16: return "h";
    case TENON_INT << 8 | 32: return "i";
    case TENON_INT << 8 | 64: return sizeof(long) == 8 ? "l" : "q";
    case TENON_UINT << 8 | 8: return "B";
    case TENON_UINT << 8 | 16: return "H";
    case TENON_UINT << 8 | 32: return "I";
    case TENON_UINT << 8 | 64: return sizeof(long) == 8 ? "L" : "Q";
    case TENON_FLOAT << 8 | 16: return "e";
    case TENON_FLOAT << 8 | 32: return "f";
    case TENON_FLOAT << 8 | 64: return "d";
    case TENON_COMPLEX << 8 | 64: return "Zf";
    case TENON_COMPLEX << 8 | 128: return "Zd";
    default: return nullptr;
  }
}

// What one Py_buffer owns: the view, followed by the shape and the strides, because the NDArray may get new
// memory before the buffer is released.
struct BufferExport {
  tenon_view view;
  BufferCall call;
  size_t ndim;
  Py_ssize_t dims[];
};
// Exports of few axes come from a free list. Made and freed under the GIL.
constexpr size_t kFewAxes = 4;
constexpr size_t size_of_export(size_t ndim) { return sizeof(BufferExport) + 2 * ndim * sizeof(Py_ssize_t); }
constinit FreeList<size_of_export(kFewAxes)> exports;

BufferExport* make_export(size_t ndim) {
  void* const memory = ndim <= kFewAxes ? exports.take() : ::operator new(size_of_export(ndim));
  auto* const made = static_cast<BufferExport*>(memory);
  prepare(made->view);
  new (&made->call) BufferCall;
  made->ndim = ndim;
  return made;
}

void free_export(BufferExport* held) noexcept {
  held->ndim <= kFewAxes ? exports.give(held) : ::operator delete(held);
}

struct FreeExport {
  void operator()(BufferExport* held) const noexcept { free_export(held); }
};

bool is_fortran_contiguous(const tenon_array_desc& desc) {
  if (desc.size == 0) return true;
  int64_t expected = 1;
  for (int32_t i = 0; i < desc.ndim; ++i) {
    if (desc.shape[i] != 1 && desc.strides[i] != expected) return false;
    expected *= desc.shape[i];
  }
  return true;
}

bool wants(int flags, int request) { return (flags & request) == request; }

// The bits of requests for an order, without PyBUF_STRIDES.
constexpr int kAnyOrder = (PyBUF_C_CONTIGUOUS | PyBUF_F_CONTIGUOUS | PyBUF_ANY_CONTIGUOUS) & ~PyBUF_STRIDES;

// The requested order, if the elements are not in it; else nullptr.
const char* order_missing(int flags, bool is_c, bool is_f) {
  if (wants(flags, PyBUF_C_CONTIGUOUS) && !is_c) return "C order";
  if (wants(flags, PyBUF_F_CONTIGUOUS) && !is_f) return "Fortran order";
  if (wants(flags, PyBUF_ANY_CONTIGUOUS) && !is_c && !is_f) return "one piece";
  if (!wants(flags, PyBUF_STRIDES) && !is_c) return "C order, without strides,";
  return nullptr;
}

// Throws BufferError for requests that the layout cannot serve.
void check_request(PyObject* self, const tenon_array_desc& desc, int flags) {
  if (wants(flags, PyBUF_WRITABLE) && (desc.flags & TENON_READONLY) != 0) {
    raise(PyExc_BufferError, "a writable buffer was asked for, but the array is read-only");
  }
  if (wants(flags, PyBUF_FORMAT) && !wants(flags, PyBUF_ND)) {
    raise(PyExc_BufferError,
          "a buffer with a format but without a shape was asked for: a shape is needed too");
  }
  if (wants(flags, PyBUF_STRIDES) && (flags & kAnyOrder) == 0) return;
  const bool is_c = tenon_array_is_contiguous(array_of(self)) != 0;
  if (const char* const order = order_missing(flags, is_c, is_fortran_contiguous(desc))) {
    raise(PyExc_BufferError,
          "a buffer in %s was asked for, but the array's elements lie otherwise: pass a.copy()", order);
  }
}

[[gnu::hot]] void close(BufferExport& held) noexcept {
  held.call.end();
  const owners::Collector collector;
  tenon_view_close(&held.view);
}

// If it throws, the view is closed.
void renew(BufferExport& held) {
  try {
    held.call.renew();
  } catch (...) {
    close(held);
    throw;
  }
}

// The error that the program gets with a status of tenon_view_open(), if another kind of request would fail
// for the same reason.
bool fails_for_all(tenon_status status) {
  return status == TENON_ERR_LEASE_CONFLICT || status == TENON_ERR_DEADLOCK || status == TENON_ERR_OP ||
         status == TENON_ERR_INTERRUPTED;
}

// The error of the last refused buffer that is such an error. NumPy drops it and calls __array__ next.
struct Refused {
  PyObject* array = nullptr;  // not owned: only compared
  nb::object error;           // or:
  std::optional<Error> conflict;
};
Refused& refused = *new Refused;  // under the GIL; never destroyed, because the interpreter ends before it

// Opens the view. False: there is a conflict, and the Python error is set, without an exception of C++,
// because NumPy asks so for each shared array. Throws other errors.
[[gnu::hot]] bool open_view(PyObject* self, tenon_view& view, int32_t access, const char* site) {
  tenon_error error;  // as in tenon::call()
  error.struct_size = sizeof error;
  error.op_code = 0;
  error.message[0] = '\0';
  const tenon_status status = tenon_view_open(&view, array_of(self), access, site, &error);
  if (status == TENON_OK) return true;
  if (status != TENON_ERR_LEASE_CONFLICT) detail::throw_reported(status, error);
  Error conflict(status, error.message);
  set_error(conflict);
  refused = {self, {}, std::move(conflict)};
  return false;
}

// False: the Python error is set.
bool fill_buffer(PyObject* self, Py_buffer* buffer, int flags) {
  const tenon_array_desc& desc = desc_of(self);
  const char* const format = format_of(desc.dtype);
  if (format == nullptr) {
    raise(PyExc_BufferError,
          "the buffer protocol has no format for %s: take a.view('uint8') or, with ml_dtypes, a.numpy()",
          DType(desc.dtype).name().c_str());
  }
  check_request(self, desc, flags);
  const auto ndim = static_cast<size_t>(desc.ndim);
  std::unique_ptr<BufferExport, FreeExport> held(make_export(ndim));
  static_assert(sizeof(Py_ssize_t) == sizeof(int64_t));
  for (size_t i = 0; i < ndim; ++i) {
    held->dims[i] = desc.shape[i];
    held->dims[ndim + i] = desc.strides[i] * static_cast<Py_ssize_t>(desc.itemsize);
  }
  const auto [begin, end] = addresses_of(desc);
  const bool has_shape = wants(flags, PyBUF_ND);
  const bool has_axes = ndim > 0;  // without axes PEP 3118 has NULL for shape and strides
  buffer->buf = desc.data;
  buffer->len = static_cast<Py_ssize_t>(desc.nbytes);
  buffer->itemsize = static_cast<Py_ssize_t>(desc.itemsize);
  buffer->ndim = has_shape ? desc.ndim : 1;
  buffer->format = wants(flags, PyBUF_FORMAT) ? const_cast<char*>(format) : nullptr;
  buffer->shape = has_shape && has_axes ? held->dims : nullptr;
  buffer->strides = wants(flags, PyBUF_STRIDES) && has_axes ? held->dims + ndim : nullptr;
  buffer->suboffsets = nullptr;
  const int32_t wanted = (desc.flags & TENON_READONLY) != 0 ? TENON_READ
                         : wants(flags, PyBUF_WRITABLE)     ? TENON_WRITE
                                                            : TENON_WRITE_OR_READ;
  Caller caller;
  const char* const site = site_and_caller(&caller);
  const uint64_t waits = n_waits;
  if (!open_view(self, held->view, wanted, site)) [[unlikely]] {
    buffer->obj = nullptr;
    return false;
  }
  const Access access = wants(flags, PyBUF_WRITABLE) ? Access::kWrite : Access::kRead;
  held->call.begin({self, begin, end, access, site}, caller);
  if (n_waits != waits) [[unlikely]]
    renew(*held);
  buffer->readonly = tenon_view_access(&held->view) == TENON_READ ? 1 : 0;
  buffer->obj = Py_NewRef(self);
  buffer->internal = held.release();
  return true;
}

[[gnu::hot]] int get_buffer(PyObject* self, Py_buffer* buffer, int flags) noexcept {
  buffer->obj = nullptr;
  if (refused.array != nullptr) [[unlikely]]
    refused = {};
  return guarded([&] {
    try {
      return fill_buffer(self, buffer, flags) ? 0 : -1;
    } catch (const Error& error) {
      if (!fails_for_all(error.code())) throw;
      set_error_from_exception();
      nb::python_error set;  // takes the error that is set
      refused = {self, callback(Callback::kCopiedError)(set.value()), std::nullopt};
      throw set;
    }
  });
}

[[gnu::hot]] void release_buffer(PyObject*, Py_buffer* buffer) noexcept {
  auto* const held = static_cast<BufferExport*>(buffer->internal);
  close(*held);
  free_export(held);
}

}  // namespace

bool has_refused_buffer(PyObject* array) noexcept { return refused.array == array; }

void raise_refused_buffer(PyObject* array) {
  if (!has_refused_buffer(array)) return;
  Refused last = std::exchange(refused, {});
  if (last.conflict) throw std::move(*last.conflict);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(last.error.ptr())), last.error.ptr());
  nb::raise_python_error();
}

void add_buffer_protocol(Parts& parts) {
  parts.add_slot(Py_bf_getbuffer, get_buffer);
  parts.add_slot(Py_bf_releasebuffer, release_buffer);
}

}  // namespace tenon::python
