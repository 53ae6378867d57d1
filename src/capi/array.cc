// SPDX-License-Identifier: Apache-2.0
//
// The sections "dtypes", "arrays", "views of an array", "elements" and "host views" of tenon.h.
#include <cstddef>
#include <new>

#include "array/access.h"
#include "array/device_copy.h"
#include "array/dtype.h"
#include "array/ownership.h"
#include "capi/boundary.h"
#include "memory/known_memory.h"

using namespace tenon::impl;        // NOLINT(google-build-using-namespace)
using namespace tenon::impl::capi;  // NOLINT(google-build-using-namespace)

namespace {

const tenon_adoption& checked(const tenon_adoption* adoption, const char* function) {
  not_null(adoption, "adoption");
  check_struct_size(adoption->struct_size, sizeof(tenon_adoption), "tenon_adoption");
  check_flags(adoption->flags, TENON_READONLY | TENON_SUBBYTE_PADDED, function);
  return *adoption;
}

// The content of a tenon_view while it is open; all zero while it is not.
HostView* unwrap(tenon_view* view) noexcept { return reinterpret_cast<HostView*>(view); }
static_assert(sizeof(HostView) <= sizeof(tenon_view) && alignof(HostView) <= alignof(tenon_view));

}  // namespace

extern "C" {

tenon_status tenon_dtype_from_name(const char* name, tenon_dtype* out, tenon_error* error) {
  return guarded(error, [&] { *not_null(out, "out") = dtype_from_name(not_null(name, "name")); });
}

void tenon_dtype_name(tenon_dtype dtype, char* buffer, size_t size) {
  copy_text("", buffer, size);
  (void)guarded(nullptr, [&] { copy_text(DType(dtype).name(), buffer, size); });
}

tenon_status tenon_dtype_check(tenon_dtype dtype, tenon_error* error) {
  return guarded(error, [&] { check_dtype(dtype); });
}

const tenon_array_desc* tenon_array_describe(const tenon_array* array) { return &unwrap(array)->desc(); }

tenon_status tenon_array_create(tenon_dtype dtype, int32_t ndim, const int64_t* shape, tenon_device device,
                                uint32_t flags, tenon_array** out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(out, "out");
    check_flags(flags, TENON_ZEROED | TENON_SUBBYTE_PADDED, "tenon_array_create");
    *out = wrap(Array::create(dtype, checked_shape(ndim, shape), flags, device));
  });
}

tenon_status tenon_array_adopt(const tenon_adoption* adoption, tenon_array** out, tenon_error* error) {
  return guarded(error,
                 [&] { *not_null(out, "out") = wrap(Array::adopt(checked(adoption, "tenon_array_adopt"))); });
}

tenon_status tenon_array_adopt_on(const tenon_adoption* adoption, int64_t stream, tenon_array** out,
                                  tenon_error* error) {
  return guarded(error, [&] {
    not_null(out, "out");
    check_stream(stream);
    *out = wrap(adopt_on_stream(checked(adoption, "tenon_array_adopt_on"), stream));
  });
}

tenon_status tenon_array_alias(const tenon_adoption* adoption, tenon_array** out, tenon_error* error) {
  return guarded(error,
                 [&] { *not_null(out, "out") = wrap(Array::alias(checked(adoption, "tenon_array_alias"))); });
}

void tenon_array_retain(tenon_array* array) { unwrap(array)->retain(); }

void tenon_array_release(tenon_array* array) {
  if (array != nullptr) unwrap(array)->release();
}

void* tenon_array_owner(const tenon_array* array, void (*deleter)(void*)) {
  return unwrap(array)->storage().owner_with(deleter);
}

tenon_status tenon_array_move_out(tenon_array* array, const char* site, tenon_memory* out,
                                  tenon_error* error) {
  return guarded(error, [&] {
    not_null(out, "out");
    check_struct_size(out->struct_size, sizeof *out, "tenon_memory");
    const Memory memory = move_out(*capi::unwrap(not_null(array, "array")), site);
    out->is_readonly = memory.is_readonly ? 1 : 0;
    out->data = memory.data;
    out->nbytes = memory.nbytes;
    out->owner = memory.owner;
    out->deleter = memory.deleter;
  });
}

const char* tenon_array_moved_at(const tenon_array* array) {
  return capi::unwrap(array)->storage().moved_at();
}

tenon_status tenon_array_renew(tenon_array* array, tenon_array** out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(out, "out");
    *out = wrap(renew(*capi::unwrap(not_null(array, "array"))));
  });
}

tenon_status tenon_array_unchecked(tenon_array* array, tenon_array** out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(out, "out");
    *out = wrap(unchecked(*capi::unwrap(not_null(array, "array"))));
  });
}

uint64_t tenon_array_version(const tenon_array* array) { return unwrap(array)->storage().region().version(); }

tenon_status tenon_array_index(tenon_array* array, int32_t n, const tenon_index* indices, tenon_array** out,
                               tenon_error* error) {
  return guarded(error, [&] {
    not_null(array, "array");
    not_null(out, "out");
    if (n < 0) throw_error(Code::kValue, "n is ", n, ": the number of indices cannot be negative");
    if (n > 0) not_null(indices, "indices");
    *out = wrap(index(*unwrap(array), {indices, static_cast<size_t>(n)}));
  });
}

tenon_status tenon_array_reshape(tenon_array* array, int32_t ndim, const int64_t* shape, int32_t copy,
                                 tenon_array** out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(array, "array");
    not_null(out, "out");
    if (ndim < 0 || ndim > TENON_MAX_NDIM) {
      throw_error(Code::kValue, "ndim is ", ndim, ": it must lie in 0..", TENON_MAX_NDIM);
    }
    if (ndim > 0) not_null(shape, "shape");
    *out = wrap(reshape(*unwrap(array), {shape, static_cast<size_t>(ndim)}, copy));
  });
}

tenon_status tenon_array_transpose(tenon_array* array, const int32_t* axes, tenon_array** out,
                                   tenon_error* error) {
  return guarded(error,
                 [&] { *not_null(out, "out") = wrap(transpose(*unwrap(not_null(array, "array")), axes)); });
}

tenon_status tenon_array_reinterpret(tenon_array* array, tenon_dtype dtype, int32_t ndim,
                                     const int64_t* shape, uint64_t byte_offset, tenon_array** out,
                                     tenon_error* error) {
  return guarded(error, [&] {
    not_null(array, "array");
    not_null(out, "out");
    Dims dims;
    if (shape != nullptr) dims = checked_shape(ndim, shape);
    *out = wrap(reinterpret(*unwrap(array), dtype, shape != nullptr ? &dims : nullptr, byte_offset));
  });
}

tenon_status tenon_array_broadcast(tenon_array* array, int32_t ndim, const int64_t* shape, tenon_array** out,
                                   tenon_error* error) {
  return guarded(error, [&] {
    not_null(array, "array");
    *not_null(out, "out") = wrap(broadcast(*unwrap(array), checked_shape(ndim, shape)));
  });
}

tenon_status tenon_array_readonly(tenon_array* array, tenon_array** out, tenon_error* error) {
  return guarded(error,
                 [&] { *not_null(out, "out") = wrap(as_readonly(*unwrap(not_null(array, "array")))); });
}

int32_t tenon_array_is_contiguous(const tenon_array* array) { return unwrap(array)->is_contiguous() ? 1 : 0; }

tenon_status tenon_array_copy_to(tenon_array* src, tenon_array* dst, tenon_error* error) {
  return guarded(error, [&] { copy_to(*unwrap(not_null(src, "src")), *unwrap(not_null(dst, "dst"))); });
}

tenon_status tenon_array_fill(tenon_array* dst, const void* value, tenon_dtype value_dtype,
                              tenon_error* error) {
  return guarded(error, [&] { fill(*unwrap(not_null(dst, "dst")), not_null(value, "value"), value_dtype); });
}

tenon_status tenon_array_copy(tenon_array* array, tenon_dtype dtype, tenon_array** out, tenon_error* error) {
  return guarded(error,
                 [&] { *not_null(out, "out") = wrap(copy(*unwrap(not_null(array, "array")), dtype)); });
}

[[gnu::hot]] tenon_status tenon_view_open(tenon_view* view, tenon_array* array, int32_t access,
                                          const char* site, tenon_error* error) {
  return guarded(error, [&]() -> tenon_status {
    not_null(view, "view");
    const Array& source = *unwrap(not_null(array, "array"));
    if (access != TENON_READ && access != TENON_WRITE && access != TENON_WRITE_OR_READ) {
      throw_error(Code::kValue, "access is ", access,
                  ": it must be TENON_READ (0), TENON_WRITE (1) or TENON_WRITE_OR_READ (2)");
    }
    if (view->reserved[0] != nullptr) throw_error(Code::kValue, "the view is open already: close it first");
    if (access != TENON_READ && source.is_readonly()) {
      throw_error(Code::kBuffer, "a read-only array of shape ", shape_text(source.shape()),
                  " cannot be opened for writing");
    }
    auto* const opened = new (view) HostView;  // sets all of it
    const Access wanted = access == TENON_READ ? Access::kRead : Access::kWrite;
    Conflict conflict;
    if (opened->try_open(source, wanted, site, access == TENON_WRITE_OR_READ, &conflict)) return TENON_OK;
    return report(error, error_of(conflict, infinitive(wanted), &source));
  });
}

[[gnu::hot]] int32_t tenon_view_access(const tenon_view* view) {
  return static_cast<int32_t>(reinterpret_cast<const HostView*>(view)->access());
}

[[gnu::hot]] void tenon_view_close(tenon_view* view) {
  if (view != nullptr) unwrap(view)->close();
}

tenon_view_count tenon_array_views(const tenon_array* array) {
  return unwrap(array)->storage().region().views();
}

void tenon_statistics_get(tenon_statistics* out) {
  if (out->struct_size >= sizeof(tenon_statistics)) KnownMemory::instance().statistics(out);
}

}  // extern "C"
