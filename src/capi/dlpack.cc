// SPDX-License-Identifier: Apache-2.0
//
// The section "DLPack" of tenon.h.
#include "array/dlpack_export.h"
#include "array/dlpack_import.h"
#include "capi/boundary.h"

using namespace tenon::impl;        // NOLINT(google-build-using-namespace)
using namespace tenon::impl::capi;  // NOLINT(google-build-using-namespace)

namespace {

// The tensor is consumed even when the other arguments are wrong.
template <class Tensor>
tenon_status consume(Tensor* tensor, uint32_t flags, tenon_array** out, tenon_error* error,
                     Ref<Array> (*import)(Tensor*, uint32_t), const char* function) {
  bool is_consumed = false;
  const tenon_status status = guarded(error, [&] {
    not_null(tensor, "tensor");
    not_null(out, "out");
    check_flags(flags, TENON_READONLY, function);
    is_consumed = true;
    *out = capi::wrap(import(tensor, flags));
  });
  if (!is_consumed && tensor != nullptr && tensor->deleter != nullptr) tensor->deleter(tensor);
  return status;
}

constexpr uint32_t kExportFlags = TENON_EXPORT_FOR_READ | TENON_EXPORT_COPIED;

}  // namespace

extern "C" {

tenon_status tenon_array_to_dlpack(tenon_array* array, uint32_t flags, const char* site,
                                   DLManagedTensorVersioned** out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(array, "array");
    not_null(out, "out");
    check_flags(flags, kExportFlags, "tenon_array_to_dlpack");
    *out = dlpack::export_versioned(*unwrap(array), flags, site);
  });
}

tenon_status tenon_array_to_dlpack_legacy(tenon_array* array, uint32_t flags, const char* site,
                                          DLManagedTensor** out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(array, "array");
    not_null(out, "out");
    check_flags(flags, kExportFlags, "tenon_array_to_dlpack_legacy");
    *out = dlpack::export_legacy(*unwrap(array), flags, site);
  });
}

[[gnu::hot]] tenon_status tenon_array_to_dlpack_on(tenon_array* array, uint32_t flags, int64_t stream,
                                                   const char* site, DLManagedTensorVersioned** out,
                                                   tenon_error* error) {
  return guarded(error, [&] {
    not_null(array, "array");
    not_null(out, "out");
    check_flags(flags, kExportFlags, "tenon_array_to_dlpack_on");
    check_stream(stream);
    *out = dlpack::export_versioned(*unwrap(array), flags, site, stream);
  });
}

tenon_status tenon_array_to_dlpack_legacy_on(tenon_array* array, uint32_t flags, int64_t stream,
                                             const char* site, DLManagedTensor** out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(array, "array");
    not_null(out, "out");
    check_flags(flags, kExportFlags, "tenon_array_to_dlpack_legacy_on");
    check_stream(stream);
    *out = dlpack::export_legacy(*unwrap(array), flags, site, stream);
  });
}

tenon_status tenon_array_from_dlpack(DLManagedTensorVersioned* tensor, uint32_t flags, tenon_array** out,
                                     tenon_error* error) {
  return consume(tensor, flags, out, error, dlpack::import_versioned, "tenon_array_from_dlpack");
}

tenon_status tenon_array_from_dlpack_legacy(DLManagedTensor* tensor, uint32_t flags, tenon_array** out,
                                            tenon_error* error) {
  return consume(tensor, flags, out, error, dlpack::import_legacy, "tenon_array_from_dlpack_legacy");
}

}  // extern "C"
