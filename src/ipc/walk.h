// SPDX-License-Identifier: Apache-2.0
//
// The wait-for graph across processes, as their places show it. A request is entered first, then it walks:
// along the grants that are in its way, from the thread that holds each of them to what that thread waits
// for.
#pragma once

#include "ipc/segment.h"
#include "sync/holder.h"

namespace tenon::impl {

// A way leads from this waiting grant back to its own thread and task. Sees what the segments that are open
// here show of the participants of this one; a longer way around is ended by the time-out of one of them.
bool is_waiting_for_itself(const Segment& segment, uint32_t participant, GrantId grant) noexcept;

void describe(const Place& place, const Grant& grant, Holder* holder) noexcept;

}  // namespace tenon::impl
