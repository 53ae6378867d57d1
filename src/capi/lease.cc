// SPDX-License-Identifier: Apache-2.0
//
// The section "leases" of tenon.h.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "capi/boundary.h"
#include "capi/lease.h"
#include "sync/gate.h"
#include "sync/report.h"

using namespace tenon::impl;        // NOLINT(google-build-using-namespace)
using namespace tenon::impl::capi;  // NOLINT(google-build-using-namespace)

namespace {

Lease* unwrap(tenon_lease* lease) noexcept { return reinterpret_cast<Lease*>(lease); }
static_assert(sizeof(Lease) <= sizeof(tenon_lease) && alignof(Lease) <= alignof(tenon_lease));

void describe(const Holder& from, int64_t now_ms, tenon_holder* to) noexcept {
  static_assert(sizeof to->name == sizeof from.name && sizeof to->site == sizeof from.site);
  *to = {};
  to->kind = static_cast<int32_t>(from.kind);
  to->access = static_cast<int32_t>(from.access);
  to->is_granted = from.is_granted ? 1 : 0;
  to->thread = from.kind == HolderKind::kProcess ? from.pid : from.thread;
  to->age_ns = std::max<int64_t>(now_ms - from.since_ms, 0) * 1'000'000;
  std::memcpy(to->name, from.name, std::strlen(from.name));
  std::memcpy(to->site, from.site, std::strlen(from.site));
}

// Set once, when the language binding is loaded.
void (*given_finder)(const tenon_holder*, const void*, const void*, char*, size_t) = nullptr;

void call_finder(const Holder& holder, char* text, size_t size) noexcept {
  tenon_holder described;
  describe(holder, coarse_now_ms(), &described);
  given_finder(&described, reinterpret_cast<const void*>(holder.extent.begin),
               reinterpret_cast<const void*>(holder.extent.end), text, size);
}

}  // namespace

namespace tenon::impl::capi {

Actor owner_on_thread(const tenon_lease_options& options) {
  const Actor self = actor_of_task(options.task);
  if (options.thread == self.number) return self;
  const uint32_t id = thread_id_of(options.thread);
  if (id == 0) {
    throw_error(
        Code::kValue, "the lease is for thread ", options.thread,
        ", which has not called Tenon yet, or has ended: let that thread take it, or make a call first");
  }
  return {id, options.thread, options.task};
}

int32_t report_wait(const WaitNode* node, char* text, size_t size) noexcept {
  if (text == nullptr) size = 0;
  copy_text("", text, size);
  if (node == nullptr) return 0;
  bool is_waiting = false;
  (void)guarded(nullptr, [&] {
    report_outlived_views(*node);
    if (size == 0) return;
    const std::string full = text_of_wait(*node);
    copy_text(full, text, size);
    is_waiting = !full.empty();
  });
  return is_waiting ? 1 : 0;
}

}  // namespace tenon::impl::capi

extern "C" {

tenon_status tenon_lease_acquire(tenon_lease* lease, tenon_array* array, const tenon_lease_options* options,
                                 tenon_error* error) {
  return guarded(error, [&]() -> tenon_status {
    not_null(array, "array");
    const LeaseRequest request = lease_request(lease, options, "tenon_lease_acquire");
    const auto refused =
        lease_in(lease)->try_acquire(*capi::unwrap(array), request.access, request.flags, request.owner,
                                     options->site, Deadline::from_first_look(options->timeout_ns));
    return refused ? capi::report(error, *refused) : TENON_OK;
  });
}

tenon_status tenon_lease_request(tenon_lease* lease, tenon_array* array, const tenon_lease_options* options,
                                 void (*done)(void*), void* context, int32_t* is_granted,
                                 tenon_error* error) {
  return guarded(error, [&] {
    not_null(array, "array");
    const LeaseRequest request = lease_request(lease, options, "tenon_lease_request");
    not_null(reinterpret_cast<const void*>(done), "done");
    not_null(is_granted, "is_granted");
    const bool is_held = lease_in(lease)->request(*capi::unwrap(array), request.access, request.flags,
                                                  request.owner, options->site, done, context);
    *is_granted = is_held ? 1 : 0;
  });
}

int32_t tenon_lease_cancel(tenon_lease* lease) { return lease != nullptr && unwrap(lease)->cancel() ? 1 : 0; }

int32_t tenon_lease_report(tenon_lease* lease, char* text, size_t size) {
  return report_wait(lease != nullptr ? unwrap(lease)->node() : nullptr, text, size);
}

tenon_status tenon_lease_check(tenon_lease* lease, tenon_error* error) {
  return guarded(error, [&] { unwrap(not_null(lease, "lease"))->check(); });
}

int32_t tenon_lease_release(tenon_lease* lease) {
  return lease != nullptr && unwrap(lease)->release() ? 1 : 0;
}

int32_t tenon_lease_fail(tenon_lease* lease, const char* message) {
  return lease != nullptr && unwrap(lease)->fail(message != nullptr ? message : "") ? 1 : 0;
}

void tenon_lease_detach(tenon_lease* lease) {
  if (lease != nullptr) unwrap(lease)->detach();
}

int32_t tenon_array_holders(tenon_array* array, int32_t n, tenon_holder* out) {
  const Extent extent = capi::unwrap(array)->extent();
  Queue& queue = lock_home(capi::unwrap(array)->storage().home());
  const int64_t now = coarse_now_ms();
  int32_t count = 0;
  const auto add = [&](const auto& holder) {
    if (!holder.extent.overlaps(extent)) return;
    if (count < n) describe(Holder::of(holder), now, out + count);
    ++count;
  };
  for (const RequestPart* e = queue.first(); e != nullptr; e = e->next) add(*e);
  for (const View* v = queue.first_view(); v != nullptr; v = v->next) add(*v);
  Gate* const gate = queue.gate();
  queue.lock.unlock();
  if (gate != nullptr) {
    auto add_other = [&](const Holder& other) {
      if (count < n) describe(other, now, out + count);
      ++count;
    };
    const auto visit = [](const Holder& other, void* context) {
      (*static_cast<decltype(add_other)*>(context))(other);
    };
    gate->visit_others(extent, visit, &add_other);
  }
  return count;
}

int32_t tenon_array_has_own_views(tenon_array* array) {
  Queue& queue = lock_home(capi::unwrap(array)->storage().home());
  const bool has_one = queue.has_views_of(this_thread_id(), capi::unwrap(array)->extent());
  queue.lock.unlock();
  return has_one ? 1 : 0;
}

void tenon_set_wait_hooks(const tenon_wait_hooks* hooks) {
  if (hooks == nullptr || hooks->struct_size < offsetof(tenon_wait_hooks, enter)) return;
  const bool has_lock =
      hooks->struct_size >= sizeof *hooks && hooks->enter != nullptr && hooks->leave != nullptr;
  set_wait_hooks({hooks->begin, hooks->poll, hooks->end, hooks->current_task, hooks->report, hooks->is_alone,
                  has_lock ? hooks->enter : nullptr, has_lock ? hooks->leave : nullptr});
}

int64_t tenon_next_report(int64_t waited_ns) { return next_report_ns(waited_ns); }

int64_t tenon_set_report_period(int64_t period_ns) { return set_report_period_ns(period_ns); }

void tenon_set_view_finder(void (*find)(const tenon_holder* holder, const void* begin, const void* end,
                                        char* text, size_t size)) {
  given_finder = find;
  set_view_finder(find != nullptr ? call_finder : nullptr);
}

}  // extern "C"
