// SPDX-License-Identifier: Apache-2.0
//
// device.h.
#include "device/device.h"

#include <algorithm>

#include "array/device_copy.h"
#include "capi/boundary.h"
#include "device/completions.h"
#include "device/submitted_work.h"
#include "tenon/tenon.h"

using namespace tenon::impl;        // NOLINT(google-build-using-namespace)
using namespace tenon::impl::capi;  // NOLINT(google-build-using-namespace)

// Pinned memory, and what keeps it.
struct tenon_registration : device::AfterWork {
  tenon_registration(void* data, uint64_t nbytes, bool is_readonly, Array* kept)
      : registration(data, nbytes, is_readonly) {
    call = [](device::AfterWork* self) noexcept { delete static_cast<tenon_registration*>(self); };
    if (kept == nullptr) return;
    device::SubmittedWork::instance().prepare();
    array = Ref<Array>::share(kept);
  }
  Ref<Array> array;  // null: the caller keeps it
  device::Registration registration;
};

extern "C" {

tenon_status tenon_device_from_name(const char* name, tenon_device* out, tenon_error* error) {
  return guarded(error, [&] { *not_null(out, "out") = device::device_from_text(not_null(name, "name")); });
}

void tenon_device_name(tenon_device device, char* buffer, size_t size) {
  copy_text("", buffer, size);
  (void)guarded(nullptr, [&] { copy_text(device::text_of(device), buffer, size); });
}

tenon_status tenon_device_count(int32_t type, int32_t* out, tenon_error* error) {
  return guarded(error, [&] { *not_null(out, "out") = device::Device::count(type); });
}

tenon_status tenon_device_describe(tenon_device id, tenon_device_info* out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(out, "out");
    check_struct_size(out->struct_size, sizeof *out, "tenon_device_info");
    device::Device& device = device::Device::of(id);
    const device::DeviceTraits& traits = device.traits();
    const uint64_t free = device.free_nbytes();
    out->has_pools = traits.has_pools ? 1 : 0;
    copy_text(traits.name, out->model, sizeof out->model);
    out->total_nbytes = traits.total_nbytes;
    out->free_nbytes = free;
  });
}

void tenon_device_statistics_get(tenon_device_statistics* out) {
  if (out->struct_size < sizeof *out) return;
  const device::Statistics now = device::statistics();
  out->reserved = 0;
  out->device_nbytes = now.device_nbytes;
  out->pinned_nbytes = now.pinned_nbytes;
  out->registered_nbytes = now.registered_nbytes;
  out->events = now.events;
  out->submitted = device::Completions::instance().pending();
}

tenon_status tenon_array_copy_on(tenon_array* array, tenon_dtype dtype, tenon_device device,
                                 tenon_array** out, tenon_error* error) {
  return guarded(error, [&] {
    const Array& source = *unwrap(not_null(array, "array"));
    *not_null(out, "out") = wrap(copy(source, dtype, device));
  });
}

tenon_status tenon_push_copy(tenon_array* src, tenon_array* dst, const tenon_copy_options* options,
                             tenon_op** out, tenon_error* error) {
  return guarded(error, [&] {
    Array& source = *unwrap(not_null(src, "src"));
    Array& target = *unwrap(not_null(dst, "dst"));
    tenon_copy_options given{};
    given.on_conflict = TENON_CONFLICT_RAISE;
    if (options != nullptr) {
      check_struct_size(options->struct_size, sizeof *options, "tenon_copy_options");
      given = *options;
    }
    Ref<Op> op = push_copy(source, target, on_host_from(given.on_conflict), given.name, given.site);
    if (out != nullptr) *out = reinterpret_cast<tenon_op*>(op.detach());
  });
}

tenon_status tenon_device_stream(tenon_device id, int64_t* out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(out, "out");
    *out = static_cast<int64_t>(
        reinterpret_cast<intptr_t>(device::Device::of(id).stream(device::StreamKind::kMemory)));
  });
}

tenon_status tenon_device_register(void* data, uint64_t nbytes, uint32_t flags, tenon_registration** out,
                                   tenon_error* error) {
  return guarded(error, [&] {
    not_null(data, "data");
    not_null(out, "out");
    check_flags(flags, TENON_READONLY, "tenon_device_register");
    *out = new tenon_registration(data, nbytes, (flags & TENON_READONLY) != 0, nullptr);
  });
}

tenon_status tenon_array_register(tenon_array* array, tenon_registration** out, tenon_error* error) {
  return guarded(error, [&] {
    Array& source = *unwrap(not_null(array, "array"));
    not_null(out, "out");
    const Storage& storage = source.storage();
    if (source.is_on_device() || storage.nbytes() == 0) {
      throw_error(Code::kValue, "the array of shape ", shape_text(source.shape()), " on ",
                  device::text_of(source.desc().device), " cannot be pinned: it has no bytes on the host");
    }
    *out = new tenon_registration(storage.data(), storage.nbytes(), storage.is_readonly(), &source);
  });
}

void tenon_registration_release(tenon_registration* registration) {
  const bool may_wait = registration != nullptr && registration->array;
  if (!may_wait || !device::SubmittedWork::instance().then(registration)) delete registration;
}

void tenon_graph_capture_begin(void) { device::SubmittedWork::instance().begin_capture(); }
void tenon_graph_capture_end(void) { device::SubmittedWork::instance().end_capture(); }

}  // extern "C"
