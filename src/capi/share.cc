// SPDX-License-Identifier: Apache-2.0
//
// share.h of the C ABI.
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "array/shape.h"
#include "base/clock.h"
#include "base/json.h"
#include "capi/boundary.h"
#include "capi/lease.h"
#include "data/inspect_feeds.h"
#include "ipc/collect.h"
#include "ipc/inspect.h"
#include "ipc/segments.h"
#include "sync/gate.h"

using namespace tenon::impl;
using capi::check_flags;
using capi::check_struct_size;
using capi::guarded;
using capi::not_null;

namespace tenon::impl::capi {

SharedOptions shared_options_in(const tenon_shared_options* given, const char* function,
                                uint32_t more_flags) {
  SharedOptions options;
  if (given == nullptr) return options;
  check_struct_size(given->struct_size, offsetof(tenon_shared_options, device), "tenon_shared_options");
  check_flags(given->flags, TENON_HUGE_PAGES | TENON_POPULATED | more_flags, function);
  if (given->name != nullptr) {
    options.name = given->name;
    check_name(options.name);
  }
  options.has_huge_pages = (given->flags & TENON_HUGE_PAGES) != 0;
  options.is_populated = (given->flags & TENON_POPULATED) != 0;
  options.opens_existing = (given->flags & TENON_OPEN_EXISTING) != 0;
  options.node = given->numa_node;
  const bool has_device = given->struct_size >= offsetof(tenon_shared_options, device) + sizeof given->device;
  if (has_device && given->device.type != 0) options.device = given->device;
  return options;
}

}  // namespace tenon::impl::capi

namespace {

// The version of the document format in docs/inspect.md.
constexpr int kFormat = 1;

char* document_out(Json json) {
  const std::string text = json.take();
  auto* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

// 0: no limit.
int64_t until(int64_t timeout_ns) noexcept {
  int64_t until_ns = 0;
  if (timeout_ns < 0) return 0;
  return __builtin_add_overflow(now_ns(), timeout_ns, &until_ns) ? INT64_MAX : until_ns;
}

}  // namespace

extern "C" {

tenon_status tenon_shared_create(tenon_dtype dtype, int32_t ndim, const int64_t* shape, uint32_t flags,
                                 const tenon_shared_options* options, tenon_array** out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(out, "out");
    check_flags(flags, uint32_t{TENON_ZEROED} | uint32_t{TENON_SUBBYTE_PADDED}, "tenon_shared_create");
    *out = capi::wrap(Segments::instance().create(dtype, checked_shape(ndim, shape), flags,
                                                  capi::shared_options_in(options, "tenon_shared_create")));
  });
}

tenon_status tenon_shared_attach(const char* name, uint32_t flags, tenon_array** out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(name, "name");
    not_null(out, "out");
    check_flags(flags, TENON_READONLY, "tenon_shared_attach");
    Ref<Array> array = Segments::instance().attach(name, (flags & TENON_READONLY) != 0);
    if (Segments::is_feed(*array)) {
      throw_error(Code::kValue, "'", name,
                  "' is the name of a feed: open it with tenon_attach_feed, tn.Feed.attach('", name, "')");
    }
    *out = capi::wrap(std::move(array));
  });
}

int32_t tenon_array_is_shared(const tenon_array* array) {
  return Segments::is_shared(*capi::unwrap(array)) ? 1 : 0;
}

tenon_status tenon_shared_send(tenon_array* array, tenon_handle* out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(array, "array");
    not_null(out, "out");
    const std::string bytes = Segments::instance().handle_of(*capi::unwrap(array));
    static_assert(sizeof out->data >= kMostHandleBytes);
    out->nbytes = static_cast<uint32_t>(bytes.size());
    std::memcpy(out->data, bytes.data(), bytes.size());
  });
}

tenon_status tenon_handle_limit(const tenon_handle* handle, uint32_t receiver, int64_t timeout_ns,
                                tenon_error* error) {
  return guarded(error, [&] {
    not_null(handle, "handle");
    os::Process process;
    if (receiver != 0) {
      process = os::process_of(receiver);
      if (process.start == 0) {
        throw_error(Code::kNotFound, "there is no process ", receiver, " to receive a shared array");
      }
    }
    const size_t nbytes = std::min<size_t>(handle->nbytes, sizeof handle->data);
    Segments::instance().limit({reinterpret_cast<const std::byte*>(handle->data), nbytes},
                               {process, until(timeout_ns)});
  });
}

tenon_status tenon_handle_set_opens(tenon_handle* handle, uint32_t opens, tenon_error* error) {
  return guarded(error, [&] {
    not_null(handle, "handle");
    const size_t nbytes = std::min<size_t>(handle->nbytes, sizeof handle->data);
    Segments::instance().set_opens({reinterpret_cast<std::byte*>(handle->data), nbytes}, opens);
  });
}

tenon_status tenon_shared_revoke(tenon_array* array, uint32_t* count, tenon_error* error) {
  return guarded(error, [&] {
    not_null(array, "array");
    const uint32_t revoked = Segments::instance().revoke(*capi::unwrap(array));
    if (count != nullptr) *count = revoked;
  });
}

tenon_status tenon_shared_open(const void* data, uint64_t nbytes, tenon_array** out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(data, "data");
    not_null(out, "out");
    *out = capi::wrap(Segments::instance().open({static_cast<const std::byte*>(data), nbytes}));
  });
}

tenon_status tenon_shared_receive(const void* data, uint64_t nbytes, tenon_array** out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(data, "data");
    not_null(out, "out");
    *out = capi::wrap(Segments::instance().open_or_lose({static_cast<const std::byte*>(data), nbytes}));
  });
}

tenon_status tenon_handle_take_over(const void* data, uint64_t nbytes, int64_t timeout_ns, int32_t* is_kept,
                                    tenon_error* error) {
  return guarded(error, [&] {
    not_null(data, "data");
    const std::span handle{static_cast<const std::byte*>(data), nbytes};
    const bool has_it = Segments::instance().take_over(handle, until(timeout_ns));
    if (is_kept != nullptr) *is_kept = has_it ? 1 : 0;
  });
}

int32_t tenon_handle_is_unopened(const void* data, uint64_t nbytes) {
  bool is_unopened = false;
  (void)guarded(nullptr, [&] {
    not_null(data, "data");
    is_unopened = Segments::instance().is_unopened({static_cast<const std::byte*>(data), nbytes});
  });
  return is_unopened ? 1 : 0;
}

int64_t tenon_set_lock_timeout(int64_t timeout_ns) { return set_gate_timeout_ns(timeout_ns); }

tenon_status tenon_shared_describe(char** out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(out, "out");
    Json json;
    json.value([&] {
      json.member("format", kFormat).member("segments", inspect()).member("feeds", inspect_feeds());
    });
    *out = document_out(std::move(json));
  });
}

tenon_status tenon_shared_collect(char** out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(out, "out");
    Json json;
    json.value([&] { json.member("format", kFormat).member("segments", collect()); });
    *out = document_out(std::move(json));
  });
}

void tenon_text_free(char* text) { std::free(text); }

}  // extern "C"
