// SPDX-License-Identifier: Apache-2.0
#include "sync/claims.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

#include "sync/gate.h"

namespace tenon::impl {
namespace {

// The entries stand in the order of their queues: the first of each queue locks it.
bool is_first_of_queue(std::span<Entry> entries, size_t i) noexcept {
  return i == 0 || entries[i].queue != entries[i - 1].queue;
}

void lock_queues(std::span<Entry> entries) noexcept {
  for (size_t i = 0; i < entries.size(); ++i) {
    if (is_first_of_queue(entries, i)) entries[i].queue->lock.lock();
  }
}

void unlock_queues(std::span<Entry> entries) noexcept {
  for (size_t i = entries.size(); i-- > 0;) {
    if (is_first_of_queue(entries, i)) entries[i].queue->lock.unlock();
  }
}

// Finds the queues, puts the entries into their order and locks them.
void lock_homes(std::span<Entry> entries) noexcept {
  if (entries.size() == 1) {
    entries[0].queue = &lock_home(*entries[0].home);
    return;
  }
  const auto is_at_home = [](const Entry& e) {
    // pairs with: KnownMemory::merge, "a home and its queue"
    return e.home->load(std::memory_order_acquire) == e.queue;
  };
  while (true) {
    // pairs with: KnownMemory::merge, "a home and its queue"
    for (Entry& e : entries) e.queue = e.home->load(std::memory_order_acquire);
    std::sort(entries.begin(), entries.end(),
              [](const Entry& a, const Entry& b) { return a.queue < b.queue; });
    lock_queues(entries);
    if (std::all_of(entries.begin(), entries.end(), is_at_home)) return;
    unlock_queues(entries);
  }
}

// Two entries of one claim that both cover all of one memory become one.
void merge_wholes(std::span<Entry> entries) noexcept {
  for (size_t i = 1; i < entries.size(); ++i) {
    for (size_t k = i; k-- > 0 && entries[k].queue == entries[i].queue;) {
      if (entries[k].sequence == 0 || !entries[i].queue->are_whole(entries[k], entries[i])) continue;
      entries[k].is_overwrite &= entries[i].is_overwrite;
      if (entries[i].access == Access::kWrite) entries[k].access = Access::kWrite;
      entries[i].sequence = 0;
      break;
    }
  }
}

void share_pass(Queue& queue, Pass pass, Entry& entry) noexcept {
  queue.gate()->share(pass);
  entry.pass = pass;
}

// What this process has of gated memory, so that ordinary code may act under it: one of both, or nothing.
struct Possession {
  Entry* holder = nullptr;
  const View* view = nullptr;

  explicit operator bool() const noexcept { return holder != nullptr || view != nullptr; }
  Pass pass() const noexcept { return holder != nullptr ? holder->pass : view->pass; }
};

Possession possession_in(const Queue& queue, Access access, const Extent& extent) noexcept {
  if (Entry* const holder = queue.detached_holder_for(extent, access)) return {holder, nullptr};
  return {nullptr, queue.passed_view(access, extent)};
}

// Each entry on gated memory shares the pass of the one that it acts under, or needs one.
void prepare_passes(std::span<Entry> entries) noexcept {
  for (Entry& e : entries) {
    if (e.queue->gate() == nullptr || e.sequence == 0 || e.pass != kNoPass) continue;
    if (e.next != nullptr) {
      share_pass(*e.queue, e.next->pass, e);
    } else {
      e.needs_pass = true;
    }
  }
}

// A thread has, or may have, what another one took for it: then no thread's count says all that it holds.
constinit std::atomic<bool> has_claims_of_others{false};

void count_in(const Claim& claim) noexcept {
  if (claim.party == Party::kOp) return;
  if (claim.owner.thread == this_thread_id()) {
    ++this_thread.claims;
  } else {
    has_claims_of_others.store(true, std::memory_order_relaxed);
  }
}

// What another thread takes out stays in the count.
void count_out(const Claim& claim) noexcept {
  if (claim.party == Party::kOp || claim.entries.empty()) return;
  if (claim.owner.thread == this_thread_id()) --this_thread.claims;
}

Appended refuse(Refusal* refusal, Refusal::Reason reason, const Obstacle& obstacle) noexcept {
  if (refusal != nullptr) *refusal = {reason, nullptr, obstacle};
  return Appended::kRefused;
}

// The code of an op's body touches memory that was there before it, outside of what it declared.
bool is_undeclared(const Queue& queue) noexcept {
  return this_thread.running != 0 && queue.birth() != this_thread.running && queue.birth() != Queue::kAnyOp;
}

// A forked child has the views of its parent without the parent's right to them.
Appended check_inherited(const Queue& queue, Refusal* refusal) noexcept {
  const View* const inherited = queue.inherited_view();
  if (inherited == nullptr) return Appended::kGranted;
  return refuse(refusal, Refusal::Reason::kInherited, Obstacle::of(*inherited));
}

Appended check_op(Entry& entry, OnHost on_host, Refusal* refusal) noexcept {
  entry.waits_for_host = false;
  if (entry.queue->is_gone()) return refuse(refusal, Refusal::Reason::kMoved, {});
  if (on_host == OnHost::kIgnore) return Appended::kGranted;
  const View* const view = entry.queue->host_conflict(entry.access, entry.extent);
  // A view that is asked for counts: else a push would wait for it, and another request for the push.
  const Entry* const request = entry.queue->view_request(entry.access, entry.extent);
  if (view == nullptr && request == nullptr) return Appended::kGranted;
  if (on_host == OnHost::kRaise) {
    return refuse(refusal, Refusal::Reason::kHostView,
                  view != nullptr ? Obstacle::of(*view) : Obstacle::of(*request));
  }
  entry.waits_for_host = true;
  return Appended::kGranted;
}

// Where an entry of synchronous code is to stand: under its holder, before a place, or else at the end.
struct Standing {
  Entry* holder = nullptr;
  Entry* place = nullptr;
};

// The caller holds views for which others wait: it goes before them, or they would wait for each other. What
// has been granted it waits for.
Appended check_views(Entry& entry, Claim& claim, Standing* standing, Refusal* refusal) noexcept {
  Queue& queue = *entry.queue;
  const bool is_host = claim.party == Party::kCall;
  // Not before it matters: to ask for the task takes long.
  if (is_host && queue.has_bound_views()) claim.owner = current_actor();
  if (queue.is_covered(claim.owner, is_host, entry.access, entry.extent)) {
    standing->place = queue.first_behind_kept(claim.owner, is_host, entry.access, entry.extent);
    return Appended::kGranted;
  }
  const Entry* const kept =
      is_host ? queue.first_kept(claim.owner, true, entry.access, entry.extent) : nullptr;
  if (kept == nullptr || !kept->waits_for_host)
    return Appended::kGranted;  // the search for deadlocks sees it
  return refuse(refusal, Refusal::Reason::kWaitsForHost, Obstacle::of(*kept));
}

// Synchronous code: a lease or a call.
Appended check_synchronous(Entry& entry, Claim& claim, Standing* standing, Refusal* refusal) noexcept {
  Queue& queue = *entry.queue;
  entry.waits_for_host = false;
  if (queue.is_gone()) return refuse(refusal, Refusal::Reason::kMoved, {});
  if (queue.has_entries()) {
    Entry* const own = queue.holder_for(entry.extent, entry.access);
    if (own != nullptr && Queue::allows(*own, entry.extent, entry.access)) {
      standing->holder = own;
      return Appended::kGranted;
    }
    if (own != nullptr && own->access == Access::kRead && entry.access == Access::kWrite) {
      return refuse(refusal, Refusal::Reason::kOwnLease, Obstacle::of(*own));
    }
  }
  if (is_undeclared(queue)) return refuse(refusal, Refusal::Reason::kUndeclared, {});
  if (claim.party == Party::kCall && queue.gate() != nullptr) [[unlikely]] {
    const Possession has = possession_in(queue, entry.access, entry.extent);
    standing->holder = has.holder;
    if (has.holder != nullptr) return Appended::kGranted;
    if (has.view != nullptr) share_pass(queue, has.view->pass, entry);
  }
  if (!queue.has_entries() && !queue.has_bound_views()) return Appended::kGranted;
  return check_views(entry, claim, standing, refusal);
}

}  // namespace

Queue& lock_home(Home& home) noexcept {
  while (true) {
    // pairs with: KnownMemory::merge, "a home and its queue"
    Queue* const queue = home.load(std::memory_order_acquire);
    queue->lock.lock();
    // pairs with: KnownMemory::merge, "a home and its queue"
    if (home.load(std::memory_order_acquire) == queue) return *queue;
    queue->lock.unlock();
  }
}

void notify(ReadyList& ready) noexcept {
  Claim* claim = ready.take_all();
  while (claim != nullptr) {
    Claim* const next = claim->next_ready;
    claim->become_ready();
    claim = next;
  }
}

Appended append(Claim& claim, OnHost on_host, Refusal* refusal) noexcept {
  const std::span<Entry> entries = claim.entries;
  if (entries.empty()) return Appended::kGranted;
  claim.born_in = this_thread.running;
  claim.heeds_host = claim.party == Party::kOp && on_host != OnHost::kIgnore;
  lock_homes(entries);
  bool is_gated = false;
  for (Entry& e : entries) {
    e.sequence = 1;
    e.claim = &claim;
    e.needs_pass = false;
    is_gated |= e.queue->gate() != nullptr;
  }
  claim.is_gated = is_gated;
  if (entries.size() > 1) merge_wholes(entries);
  for (Entry& e : entries) {
    Standing standing;
    if (e.sequence == 0) continue;
    Appended checked = Appended::kGranted;
    if (is_gated) [[unlikely]]
      checked = check_inherited(*e.queue, refusal);
    if (checked == Appended::kGranted) [[likely]] {
      checked = claim.party == Party::kOp ? check_op(e, on_host, refusal)
                                          : check_synchronous(e, claim, &standing, refusal);
    }
    e.next = standing.holder;
    e.is_overwriting =
        standing.holder != nullptr && (standing.holder->is_overwrite || standing.holder->is_overwriting);
    e.previous = standing.place;
    if (checked == Appended::kGranted) continue;
    if (refusal != nullptr) refusal->entry = &e;
    unlock_queues(entries);
    if (is_gated) leave_gates(claim, false);
    return checked;
  }
  if (is_gated) [[unlikely]] {
    claim.waits_at_gate = claim.is_withdrawn = claim.is_refused = false;
    prepare_passes(entries);
  }
  ReadyList ready;
  // All are missing until they are in: an entry may make a queue count, which may grant one before it.
  uint32_t granted = 0;
  claim.missing.store(static_cast<uint32_t>(entries.size()), std::memory_order_relaxed);
  for (Entry& e : entries) {
    if (e.sequence == 0) {
      ++granted;
    } else if (e.next == nullptr) {
      const bool is_granted =
          e.previous != nullptr ? e.queue->insert_before(&e, e.previous) : e.queue->append(&e, &ready);
      granted += is_granted ? 1 : 0;
    } else {
      // What is taken under a lease of nobody's outlives it, when another thread gives that back.
      const bool is_of_nobody = e.next->claim->is_detached.load(std::memory_order_relaxed);
      if (claim.party == Party::kCall && !is_of_nobody) {
        e.sequence = 0;
      } else {
        e.queue->insert_under(&e, e.next, &ready);
      }
      ++granted;
    }
  }
  const uint32_t missing = claim.missing.load(std::memory_order_relaxed) - granted;
  claim.missing.store(missing, std::memory_order_relaxed);
  count_in(claim);
  unlock_queues(entries);
  if (!ready.is_empty()) notify(ready);
  return missing == 0 ? Appended::kGranted : Appended::kWaiting;
}

bool release(Claim& claim, ReadyList* ready) noexcept {
  bool has_escaped = false;
  // Before those who come next here would meet it there.
  if (claim.is_gated) [[unlikely]]
    leave_gates(claim, true);
  for (Entry& e : claim.entries) {
    if (e.sequence == 0) continue;
    Queue& queue = *e.queue;
    Gate* gate = nullptr;  // of memory that a view keeps from other processes
    queue.lock.lock();
    if (e.is_queued) {  // a fork may have taken it out
      if (e.access == Access::kWrite) queue.note_write();
      const bool has_view = queue.remove(&e, ready);
      has_escaped |= has_view;
      if (has_view) gate = queue.gate();
    }
    queue.lock.unlock();
    if (gate != nullptr) [[unlikely]]
      gate->note_kept_view();
  }
  if (!has_escaped || claim.party != Party::kLease) {
    count_out(claim);
  } else if (claim.is_detached.load(std::memory_order_relaxed)) {
    // The views are bound to the threads that took them. Else the owner keeps them in its count.
    has_claims_of_others.store(true, std::memory_order_relaxed);
  }
  return has_escaped;
}

bool release(Claim& claim) noexcept {
  ReadyList ready;
  const bool has_escaped = release(claim, &ready);
  if (!ready.is_empty()) notify(ready);
  return has_escaped;
}

namespace {

// Takes a claim out of its queues that has not been used, if it is to be.
template <class IsTo>
bool take_out(Claim& claim, IsTo is_to) noexcept {
  ReadyList ready;
  lock_queues(claim.entries);
  const bool is_taken = is_to();
  for (Entry& e : claim.entries) {
    if (is_taken && e.sequence != 0 && e.is_queued) e.queue->remove(&e, &ready);
  }
  unlock_queues(claim.entries);
  if (is_taken) count_out(claim);
  if (!ready.is_empty()) notify(ready);
  return is_taken;
}

}  // namespace

bool cancel(Claim& claim) noexcept {
  // pairs with: Queue::grant, "entries granted by others"
  const auto is_waiting = [&claim] { return claim.missing.load(std::memory_order_acquire) != 0; };
  if (take_out(claim, is_waiting)) {
    // What stood under others has shared their passes.
    if (claim.is_gated) leave_gates(claim, false);
    return true;
  }
  if (!claim.is_gated || !cancel_at_gates(claim)) return false;
  withdraw(claim);
  return true;
}

void withdraw(Claim& claim) noexcept {
  (void)take_out(claim, [] { return true; });
}

bool has_empty_hands(const Claim* awaited) noexcept {
  if (has_claims_of_others.load(std::memory_order_relaxed)) return false;
  const bool is_own = awaited != nullptr && awaited->party != Party::kOp;
  if (is_own && awaited->entries.size() > 1) return false;  // some may have been granted
  return this_thread.claims <= (is_own ? 1 : 0);
}

namespace {

// The entry of the same actor under which a view is taken, if there is one; the view may become one for
// reading.
Appended find_holder(Queue& queue, View& view, bool may_weaken, Entry** holder, Refusal* refusal) noexcept {
  Entry* const own = queue.holder_for(view.extent, view.access);
  *holder = own;
  if (own == nullptr || Queue::allows(*own, view.extent, view.access)) return Appended::kGranted;
  // One that allows reading may stand before one that covers fewer bytes.
  Entry* const reader = may_weaken ? queue.holder_for(view.extent, Access::kRead) : nullptr;
  if (reader != nullptr && Queue::allows(*reader, view.extent, Access::kRead)) {
    *holder = reader;
    view.access = Access::kRead;
  } else if (own->access == Access::kRead && view.access == Access::kWrite) {
    return refuse(refusal, Refusal::Reason::kOwnLease, Obstacle::of(*own));
  } else {
    *holder = nullptr;  // it covers other bytes, too few
  }
  return Appended::kGranted;
}

// What stands in the way of a view of ordinary code: an entry of another actor, granted or not, or a view
// that is bound to one.
bool must_take_turn(const Queue& queue, const View& view) noexcept {
  if (queue.first_conflict(view.access, view.extent) != nullptr) return true;
  return queue.bound_conflict(view.access, view.extent) != nullptr &&
         !queue.is_covered(current_actor(), false, view.access, view.extent);
}

// Of gated memory: a view stands under something that has a pass, or joins a view that does.
Appended find_possession(const Queue& queue, View& view, bool may_weaken, Possession* has,
                         Refusal* refusal) noexcept {
  *has = possession_in(queue, view.access, view.extent);
  if (!*has && may_weaken) {
    view.access = Access::kRead;
    *has = possession_in(queue, view.access, view.extent);
  }
  return *has ? Appended::kGranted : refuse(refusal, Refusal::Reason::kNoPossession, {});
}

// With the lock of the queue.
Appended try_open(Queue& queue, View& view, bool may_weaken, Refusal* refusal) noexcept {
  if (queue.is_gone()) return refuse(refusal, Refusal::Reason::kMoved, {});
  if (view.extent.end == 0) {  // no byte: nothing is in its way
    queue.add_view(&view, nullptr);
    return Appended::kGranted;
  }
  const bool is_gated = queue.gate() != nullptr;
  Possession has;
  if (is_gated) [[unlikely]] {
    if (const Appended checked = check_inherited(queue, refusal); checked != Appended::kGranted)
      return checked;
  }
  if (queue.has_entries()) {
    const Appended checked = find_holder(queue, view, may_weaken, &has.holder, refusal);
    if (checked != Appended::kGranted) return checked;
  }
  if (has.holder == nullptr) {
    if (is_undeclared(queue)) return refuse(refusal, Refusal::Reason::kUndeclared, {});
    if (is_gated) [[unlikely]] {
      const Appended checked = find_possession(queue, view, may_weaken, &has, refusal);
      if (checked != Appended::kGranted) return checked;
    }
  }
  if (has.holder == nullptr && (queue.has_entries() || queue.has_bound_views()) &&
      must_take_turn(queue, view)) {
    return Appended::kWaiting;
  }
  if (is_gated) [[unlikely]] {
    view.pass = has.pass();
    queue.gate()->share(view.pass);
  }
  queue.add_view(&view, has.holder);
  return Appended::kGranted;
}

}  // namespace

Appended try_open_view(View& view, bool may_weaken, Refusal* refusal) noexcept {
  view.actor = actor_of_task(0);
  view.opened_ms = coarse_now_ms();
  Queue& queue = lock_home(*view.home);
  const Appended result = try_open(queue, view, may_weaken, refusal);
  queue.lock.unlock();
  return result;
}

void close_view(View& view) noexcept {
  ReadyList ready;
  Queue& queue = *view.queue;
  queue.lock.lock();
  queue.remove_view(&view, &ready);
  queue.lock.unlock();
  if (view.pass != kNoPass) [[unlikely]] {
    const Pass pass = std::exchange(view.pass, kNoPass);
    if (pass != kInheritedPass) queue.gate()->leave(pass, view.access == Access::kWrite);
  }
  if (!ready.is_empty()) notify(ready);
}

Ref<Failure> failure_of(Home& home, const Extent& extent) noexcept {
  Queue& queue = lock_home(home);
  Ref<Failure> failure = queue.failure_in(extent);
  queue.lock.unlock();
  return failure;
}

Ref<Failure> failure_of(const Claim& claim) noexcept {
  for (const Entry& e : claim.entries) {
    if (e.is_overwrite || e.is_overwriting || !e.queue->has_poison.load(std::memory_order_relaxed)) continue;
    if (Ref<Failure> failure = failure_of(*e.home, e.extent)) return failure;
  }
  return {};
}

void detach(Claim& claim) noexcept {
  claim.is_detached.store(true, std::memory_order_relaxed);
  if (!claim.is_gated) return;
  for (const Entry& e : claim.entries) {
    if (e.pass != kNoPass) e.queue->gate()->disown(e.pass);
  }
}

bool has_views(const Claim& claim) noexcept {
  for (const Entry& e : claim.entries) {
    if (e.sequence == 0) continue;
    const std::scoped_lock lock(e.queue->lock);
    if (e.views != nullptr) return true;
    if (e.is_queued && e.next != nullptr && e.next->sequence == e.sequence) return true;
  }
  return false;
}

bool clear_failures(Home& home, const Extent& extent, Refusal* refusal) noexcept {
  Poison* spare = new (std::nothrow) Poison;
  Queue& queue = lock_home(home);
  Poison* healed = queue.heal(extent, &spare);
  Gate* const gate = queue.gate();
  queue.lock.unlock();
  delete spare;
  while (healed != nullptr) delete std::exchange(healed, healed->next);
  return gate == nullptr || gate->clear_deaths(extent, Deadline(gate_timeout_ns()), refusal);
}

void settle(const Claim& claim, const Ref<Failure>& failure) noexcept {
  for (const Entry& e : claim.entries) {
    if (e.access != Access::kWrite) continue;
    if (e.is_overwrite && !failure && e.queue->gate() != nullptr) [[unlikely]] {
      e.queue->gate()->heal(e.extent);
    }
    Poison* node = failure ? new (std::nothrow) Poison{e.extent, failure, nullptr} : nullptr;
    Poison* healed = nullptr;
    const bool may_heal = e.is_overwrite && e.queue->has_poison.load(std::memory_order_relaxed);
    if (failure || may_heal) {
      Poison* spare = new (std::nothrow) Poison;
      {
        const std::scoped_lock lock(e.queue->lock);
        healed = e.queue->heal(e.extent, &spare);
        if (node != nullptr) {
          e.queue->poison(node);
        } else if (failure) {
          e.queue->poison_without_node(e.extent);
        }
      }
      delete spare;
    }
    while (healed != nullptr) delete std::exchange(healed, healed->next);
  }
}

}  // namespace tenon::impl
