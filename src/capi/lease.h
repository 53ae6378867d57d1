// SPDX-License-Identifier: Apache-2.0
//
// Checks the options of leases and shared arrays.
#pragma once

#include "array/lease.h"
#include "ipc/segments.h"
#include "tenon/tenon.h"

namespace tenon::impl::capi {

struct LeaseRequest {
  Access access;
  LeaseFlags flags;
  Actor owner;
};

// Fails with kValue for invalid arguments, and for a lease that is held.
LeaseRequest lease_request(tenon_lease* lease, const tenon_lease_options* options, const char* function);

// As tenon_lease_report and tenon_await_report; node may be null.
int32_t report_wait(const WaitNode* node, char* text, size_t size) noexcept;

// Fails with kValue.
SharedOptions shared_options_in(const tenon_shared_options* given, const char* function);

}  // namespace tenon::impl::capi
