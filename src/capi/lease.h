// SPDX-License-Identifier: Apache-2.0
//
// Checks the options of leases and shared arrays.
#pragma once

#include <new>

#include "array/lease.h"
#include "capi/boundary.h"
#include "ipc/segments.h"
#include "tenon/tenon.h"

namespace tenon::impl::capi {

struct LeaseRequest {
  Access access;
  LeaseFlags flags;
  Actor owner;
};

// The lease in the memory of the caller, which is zero before the first use. It is never destroyed, so that
// it can be used again: constructing it takes a sixth of the time of an acquire and a release.
inline Lease* lease_in(tenon_lease* lease) noexcept {
  auto* const used = reinterpret_cast<Lease*>(lease);
  return used->is_constructed() ? used : new (lease) Lease;
}

// The owner of a lease for the thread that options name. Fails with kValue if it has not called Tenon.
[[gnu::cold]] Actor owner_on_thread(const tenon_lease_options& options);

// Fails with kValue for invalid arguments, and for a lease that is held.
inline LeaseRequest lease_request(tenon_lease* lease, const tenon_lease_options* options,
                                  const char* function) {
  not_null(lease, "lease");
  not_null(options, "options");
  check_struct_size(options->struct_size, sizeof *options, "tenon_lease_options");
  check_flags(options->flags, TENON_OVERWRITE | TENON_IGNORE_OWNER_DIED, function);
  if (reinterpret_cast<Lease*>(lease)->is_held()) [[unlikely]]
    refuse::held_lease();
  LeaseFlags flags;
  flags.is_overwrite = (options->flags & TENON_OVERWRITE) != 0;
  flags.ignores_dead_owner = (options->flags & TENON_IGNORE_OWNER_DIED) != 0;
  flags.heeds_gate_timeout = options->timeout_ns == TENON_DEFAULT_TIMEOUT;
  return {checked_access(options->access), flags,
          options->thread == 0 ? actor_of_task(options->task) : owner_on_thread(*options)};
}

// As tenon_lease_report and tenon_await_report; node may be null.
int32_t report_wait(const WaitNode* node, char* text, size_t size) noexcept;

// Fails with kValue.
SharedOptions shared_options_in(const tenon_shared_options* given, const char* function,
                                uint32_t more_flags = 0);

}  // namespace tenon::impl::capi
