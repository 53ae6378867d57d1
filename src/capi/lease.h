// SPDX-License-Identifier: Apache-2.0
//
// What callers say of the leases and shared arrays that they want.
#pragma once

#include "core/lease.h"
#include "share/segments.h"
#include "tenon/tenon.h"

namespace tenon::capi {

struct LeaseRequest {
  Access access;
  LeaseFlags flags;
  engine::Actor owner;
};

// Fails with kValue for arguments that cannot work, and for a lease that is held.
LeaseRequest lease_request(tenon_lease* lease, const tenon_lease_options* options, const char* function);

// Fails with kValue.
share::SharedOptions shared_options_in(const tenon_shared_options* given);

}  // namespace tenon::capi
