// SPDX-License-Identifier: Apache-2.0
//
// The search for a cycle in the wait-for graph of all processes, as their places show it. A request enters
// the graph before it searches. The search follows the grants that block a request to the threads that hold
// them, and from these to the requests for which they wait.
#pragma once

#include "ipc/segment.h"
#include "sync/holder.h"

namespace tenon::impl {

// Whether a path leads from a waiting grant of this process back to its own thread and task. The search sees
// the segments that are open in this process. A longer cycle ends with the timeout of one of its requests.
bool is_waiting_for_itself(Segment& segment, GrantId grant) noexcept;

void describe(const Place& place, const Grant& grant, Holder* holder) noexcept;

}  // namespace tenon::impl
