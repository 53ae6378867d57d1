// SPDX-License-Identifier: Apache-2.0
#include "sync/gate.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

namespace tenon::impl {
namespace {

std::atomic<int64_t> timeout_ns{5'000'000'000};

// The first in the order of the gates of those without a pass; null: there is none.
Entry* next_at_gates(Claim& claim) noexcept {
  Entry* first = nullptr;
  for (Entry& e : claim.entries) {
    if (!e.needs_pass) continue;
    if (first == nullptr || e.queue->gate()->precedes(*first->queue->gate())) first = &e;
  }
  return first;
}

// The entry has got a pass: also for the others on the same memory. False: a fork has taken it out of its
// queue.
bool note_pass(Claim& claim, Entry& passed) noexcept {
  Queue& queue = *passed.queue;
  const std::scoped_lock lock(queue.lock);
  for (Entry& e : claim.entries) {
    if (e.queue != &queue || !e.needs_pass) continue;
    if (&e != &passed) {
      queue.gate()->share(passed.pass);
      e.pass = passed.pass;
    }
    e.needs_pass = false;
  }
  return passed.is_queued;
}

// What a view allows that lives needs no turn: other processes stay out as long as it does, and in a queue
// with one that waits for the view the claim would wait for ever. True: the entry has the view's pass.
bool join_view(Claim& claim, Entry& entry) noexcept {
  const Asked asked = asked_of(claim, entry);
  Queue& queue = *entry.queue;
  {
    const std::scoped_lock lock(queue.lock);
    const View* const view = queue.passed_view(asked.access, asked.extent);
    if (view == nullptr) return false;
    queue.gate()->share(view->pass);
    entry.pass = view->pass;
  }
  return note_pass(claim, entry);
}

// Under the claim's lock.
void refuse(Claim& claim, const Refusal& refusal) noexcept {
  leave_gates(claim, false);
  claim.is_refused = true;
  claim.refuse_at_gates(refusal);
}

// Under the claim's lock. False: it waits.
bool go_on(Claim& claim) noexcept {
  Refusal refusal;
  while (!claim.is_refused) {
    Entry* const e = next_at_gates(claim);
    if (e == nullptr) break;
    Appended passed = Appended::kRefused;
    if (!claim.is_withdrawn && join_view(claim, *e)) continue;
    if (claim.is_withdrawn) {
      refusal.reason = Refusal::Reason::kInterrupted;
    } else {
      passed = e->queue->gate()->request(claim, *e, &refusal);
    }
    switch (passed) {
      case Appended::kGranted: (void)note_pass(claim, *e); break;
      case Appended::kWaiting: claim.waits_at_gate = true; return false;
      case Appended::kRefused: refusal.entry = e; refuse(claim, refusal);
    }
  }
  return true;
}

}  // namespace

int64_t gate_timeout_ns() noexcept { return timeout_ns.load(std::memory_order_relaxed); }

int64_t set_gate_timeout_ns(int64_t timeout) noexcept {
  return timeout_ns.exchange(timeout, std::memory_order_relaxed);
}

Asked asked_of(const Claim& claim, const Entry& entry) noexcept {
  Asked asked{entry.extent, entry.access, entry.is_overwrite};
  for (const Entry& e : claim.entries) {
    if (&e == &entry || e.queue != entry.queue || !e.needs_pass) continue;
    asked.extent.begin = std::min(asked.extent.begin, e.extent.begin);
    asked.extent.end = std::max(asked.extent.end, e.extent.end);
    if (e.access == Access::kWrite) asked.access = Access::kWrite;
    asked.overwrites = false;  // nobody has looked at the bytes between them
  }
  return asked;
}

bool pass_gates(Claim& claim) noexcept {
  // To the end of this section, also when what was requested arrives meanwhile.
  const std::scoped_lock lock(claim.gates_lock);
  return go_on(claim);
}

void arrive_at_gates(Claim& claim, const Refusal* refusal) noexcept {
  {
    const std::scoped_lock lock(claim.gates_lock);
    Entry& entry = *next_at_gates(claim);
    claim.waits_at_gate = false;
    if (refusal == nullptr) {
      (void)note_pass(claim, entry);
    } else {
      Refusal told = *refusal;
      told.entry = &entry;
      refuse(claim, told);
    }
  }
  claim.become_ready();
}

bool enter_gates(Claim& claim, const Deadline& deadline, Refusal* refusal) noexcept {
  const bool may_wait = this_thread.running == 0;
  const Deadline now = Deadline::from_first_look(0);
  while (Entry* const e = next_at_gates(claim)) {
    if (join_view(claim, *e)) continue;
    if (e->queue->gate()->enter(claim, *e, may_wait ? deadline : now, refusal)) {
      if (note_pass(claim, *e)) continue;
      refusal->reason = Refusal::Reason::kInterrupted;  // it forked while it waited
    } else if (!may_wait && refusal->reason == Refusal::Reason::kTimeout) {
      refusal->reason = Refusal::Reason::kInBody;
    }
    refusal->entry = e;
    leave_gates(claim, false);
    return false;
  }
  return true;
}

void leave_gates(Claim& claim, bool has_written) noexcept {
  for (Entry& e : claim.entries) {
    if (e.pass == kNoPass) continue;
    Pass pass = kNoPass;
    {
      const std::scoped_lock lock(e.queue->lock);
      pass = std::exchange(e.pass, kNoPass);
      e.needs_pass = e.sequence != 0;
    }
    e.queue->gate()->leave(pass, has_written && e.access == Access::kWrite);
  }
  if (claim.gate_share == 0) return;
  for (const Entry& e : claim.entries) {
    if (e.queue->gate() != nullptr) return e.queue->gate()->dismiss(claim);
  }
}

bool describe_at_gates(Claim& claim, Obstacle* obstacle) noexcept {
  const std::scoped_lock lock(claim.gates_lock);  // it gets no pass meanwhile, so that its memory stays
  const Entry* const e = claim.waits_at_gate ? next_at_gates(claim) : nullptr;
  return e != nullptr && e->queue->gate()->describe_obstacle(asked_of(claim, *e), obstacle);
}

void forget_gates(Claim& claim) noexcept {
  for (Entry& e : claim.entries) e.pass = kNoPass;
  claim.waits_at_gate = false;
  claim.gate_share = 0;
  claim.gates_lock.unlock();
}

bool cancel_at_gates(Claim& claim) noexcept {
  const std::scoped_lock lock(claim.gates_lock);
  Entry* const e = claim.waits_at_gate ? next_at_gates(claim) : nullptr;
  if (e == nullptr || !e->queue->gate()->cancel(*e)) {
    claim.is_withdrawn = true;
    return false;
  }
  claim.waits_at_gate = false;
  leave_gates(claim, false);
  return true;
}

}  // namespace tenon::impl
