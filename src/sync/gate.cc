// SPDX-License-Identifier: Apache-2.0
#include "sync/gate.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

namespace tenon::impl {
namespace {

std::atomic<int64_t> timeout_ns{5'000'000'000};

// The part without a grant whose gate comes first in the order of gates; null: there is none.
RequestPart* next_at_gates(Request& request) noexcept {
  RequestPart* first = nullptr;
  for (RequestPart& e : request.parts) {
    if (!e.needs_grant) continue;
    if (first == nullptr || e.queue->gate()->precedes(*first->queue->gate())) first = &e;
  }
  return first;
}

// The part has got a grant: shares it with the other parts on the same memory. False: a fork has removed the
// part from its queue.
bool spread_grant(Request& request, RequestPart& passed) noexcept {
  Queue& queue = *passed.queue;
  const std::scoped_lock lock(queue.lock);
  for (RequestPart& e : request.parts) {
    if (e.queue != &queue || !e.needs_grant) continue;
    if (&e != &passed) {
      queue.gate()->share(passed.grant);
      e.grant = passed.grant;
    }
    e.needs_grant = false;
  }
  return passed.is_queued;
}

// A request that an open view allows does not wait at the gate: other processes are excluded as long as the
// view is open, and the request would wait forever behind a process that waits for the view. True: the part
// shares the grant of the view.
bool join_view(Request& request, RequestPart& part) noexcept {
  const Asked asked = asked_of(request, part);
  Queue& queue = *part.queue;
  {
    const std::scoped_lock lock(queue.lock);
    const View* const view = queue.granted_view(asked.access, asked.extent);
    if (view == nullptr) return false;
    queue.gate()->share(view->grant);
    part.grant = view->grant;
    part.needs_grant = false;
  }
  return spread_grant(request, part);
}

// Requires request.gates_lock.
void refuse(Request& request, const Conflict& conflict) noexcept {
  leave_gates(request, false);
  request.is_refused = true;
  request.refuse_at_gates(conflict);
}

// Requires request.gates_lock. False: it waits.
bool go_on(Request& request) noexcept {
  Conflict conflict;
  while (!request.is_refused) {
    RequestPart* const e = next_at_gates(request);
    if (e == nullptr) break;
    Appended passed = Appended::kRefused;
    if (!request.is_withdrawn && join_view(request, *e)) continue;
    if (request.is_withdrawn) {
      conflict.reason = Conflict::Reason::kInterrupted;
    } else {
      passed = e->queue->gate()->submit(request, *e, &conflict);
    }
    switch (passed) {
      case Appended::kGranted: (void)spread_grant(request, *e); break;
      case Appended::kWaiting: request.waits_at_gate = true; return false;
      case Appended::kRefused: conflict.part = e; refuse(request, conflict);
    }
  }
  return true;
}

}  // namespace

int64_t gate_timeout_ns() noexcept { return timeout_ns.load(std::memory_order_relaxed); }

int64_t set_gate_timeout_ns(int64_t timeout) noexcept {
  return timeout_ns.exchange(timeout, std::memory_order_relaxed);
}

Asked asked_of(const Request& request, const RequestPart& part) noexcept {
  Asked asked{part.extent, part.access, part.is_overwrite};
  for (const RequestPart& e : request.parts) {
    if (&e == &part || e.queue != part.queue || !e.needs_grant) continue;
    asked.extent.begin = std::min(asked.extent.begin, e.extent.begin);
    asked.extent.end = std::max(asked.extent.end, e.extent.end);
    if (e.access == Access::kWrite) asked.access = Access::kWrite;
    asked.overwrites = false;  // the bytes between the parts may not be overwritten
  }
  return asked;
}

bool pass_gates(Request& request) noexcept {
  // Held to the end, also if a grant arrives meanwhile.
  const std::scoped_lock lock(request.gates_lock);
  return go_on(request);
}

void arrive_at_gates(Request& request, const Conflict* conflict) noexcept {
  {
    const std::scoped_lock lock(request.gates_lock);
    RequestPart& part = *next_at_gates(request);
    request.waits_at_gate = false;
    if (conflict == nullptr) {
      (void)spread_grant(request, part);
    } else {
      Conflict told = *conflict;
      told.part = &part;
      refuse(request, told);
    }
  }
  request.become_ready();
}

bool enter_gates(Request& request, const Deadline& deadline, Conflict* conflict) noexcept {
  const bool may_wait = this_thread.running == 0;
  const Deadline now = Deadline::from_first_look(0);
  while (RequestPart* const e = next_at_gates(request)) {
    if (join_view(request, *e)) continue;
    if (e->queue->gate()->enter(request, *e, may_wait ? deadline : now, conflict)) {
      if (spread_grant(request, *e)) continue;
      conflict->reason = Conflict::Reason::kInterrupted;  // it forked while it waited
    } else if (!may_wait && conflict->reason == Conflict::Reason::kTimeout) {
      conflict->reason = Conflict::Reason::kInBody;
    }
    conflict->part = e;
    leave_gates(request, false);
    return false;
  }
  return true;
}

void leave_gates(Request& request, bool has_written) noexcept {
  for (RequestPart& e : request.parts) {
    if (e.grant == kNoGrant) continue;
    if (e.grant == kUncountedGrant) {
      e.queue->gate()->leave(e.grant, has_written && e.access == Access::kWrite);
      continue;
    }
    GrantId grant = kNoGrant;
    bool is_left_to_others = false;
    {
      const std::scoped_lock lock(e.queue->lock);
      grant = std::exchange(e.grant, kNoGrant);
      e.needs_grant = e.is_appended;
      const bool may_be_left = !e.queue->is_plain() || e.views != nullptr;
      is_left_to_others = may_be_left && e.queue->is_grant_of_others(grant);
    }
    if (is_left_to_others) e.queue->gate()->disown(grant);
    e.queue->gate()->leave(grant, has_written && e.access == Access::kWrite);
  }
  if (request.gate_quota == 0) return;
  for (const RequestPart& e : request.parts) {
    if (e.queue->gate() != nullptr) return e.queue->gate()->return_quota(request);
  }
}

bool describe_at_gates(Request& request, Holder* holder) noexcept {
  const std::scoped_lock lock(request.gates_lock);  // so that no grant arrives, and its memory stays valid
  const RequestPart* const e = request.waits_at_gate ? next_at_gates(request) : nullptr;
  return e != nullptr && e->queue->gate()->describe_holder(asked_of(request, *e), holder);
}

void forget_gates(Request& request) noexcept {
  for (RequestPart& e : request.parts) e.grant = kNoGrant;
  request.waits_at_gate = false;
  request.gate_quota = 0;
  request.gates_lock.unlock();
}

bool cancel_at_gates(Request& request) noexcept {
  const std::scoped_lock lock(request.gates_lock);
  RequestPart* const e = request.waits_at_gate ? next_at_gates(request) : nullptr;
  if (e == nullptr || !e->queue->gate()->cancel(*e)) {
    request.is_withdrawn = true;
    return false;
  }
  request.waits_at_gate = false;
  leave_gates(request, false);
  return true;
}

}  // namespace tenon::impl
