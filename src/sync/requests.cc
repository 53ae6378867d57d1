// SPDX-License-Identifier: Apache-2.0
#include "sync/requests.h"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <new>
#include <type_traits>
#include <utility>

#include "sync/gate.h"

namespace tenon::impl {
namespace {

// The parts are sorted by their queues; the first part of each queue locks it.
QueueLock* lock_of(std::span<RequestPart> parts, size_t i) noexcept {
  return i == 0 || parts[i].queue != parts[i - 1].queue ? &parts[i].queue->lock : nullptr;
}

void lock_queues(std::span<RequestPart> parts) noexcept {
  lock_together(parts.size(), [parts](size_t i) { return lock_of(parts, i); });
}

void unlock_queues(std::span<RequestPart> parts) noexcept {
  for (size_t i = parts.size(); i-- > 0;) {
    if (QueueLock* const lock = lock_of(parts, i)) lock->unlock();
  }
}

bool is_at_home(const RequestPart& e) noexcept {
  // pairs with: KnownMemory::merge, "a home and its queue"
  return e.home->load(std::memory_order_acquire) == e.queue;
}

// Finds the queues, and sorts the parts by them.
void find_queues(std::span<RequestPart> parts) noexcept {
  bool is_sorted = true;
  const Queue* last = nullptr;
  for (RequestPart& e : parts) {
    // pairs with: KnownMemory::merge, "a home and its queue"
    e.queue = e.home->load(std::memory_order_acquire);
    is_sorted &= last <= e.queue;
    last = e.queue;
  }
  if (is_sorted) return;
  std::sort(parts.begin(), parts.end(),
            [](const RequestPart& a, const RequestPart& b) { return a.queue < b.queue; });
}

void lock_homes(std::span<RequestPart> parts) noexcept {
  if (parts.size() == 1) {
    parts[0].queue = &lock_home(*parts[0].home);
    return;
  }
  while (true) {
    find_queues(parts);
    lock_queues(parts);
    if (std::all_of(parts.begin(), parts.end(), is_at_home)) return;
    unlock_queues(parts);
  }
}

// Merges parts of one request that each cover all of one memory.
void merge_wholes(std::span<RequestPart> parts) noexcept {
  for (size_t i = 1; i < parts.size(); ++i) {
    if (!parts[i].queue->are_whole(parts[i], parts[i])) continue;
    for (size_t k = i; k-- > 0 && parts[k].queue == parts[i].queue;) {
      if (!parts[k].is_appended || !parts[i].queue->are_whole(parts[k], parts[i])) continue;
      parts[k].is_overwrite &= parts[i].is_overwrite;
      parts[k].is_for_host |= parts[i].is_for_host;
      if (parts[i].access == Access::kWrite) parts[k].access = Access::kWrite;
      parts[i].is_appended = false;
      break;
    }
  }
}

void share_grant(Queue& queue, GrantId grant, RequestPart& part) noexcept {
  queue.gate()->share(grant);
  part.grant = grant;
}

// The grant under which ordinary code of this process may use gated memory: that of the memory itself, of a
// part or of a view. kNoGrant: none.
struct Possession {
  GrantId grant = kNoGrant;
  RequestPart* under = nullptr;
};

Possession possession_in(const Queue& queue, Access access, const Extent& extent) noexcept {
  if (queue.gate()->right_to(access, extent) == Gate::Right::kHeld) return {kUncountedGrant};
  if (RequestPart* const under = queue.detached_part_for(extent, access)) return {under->grant, under};
  const View* const view = queue.granted_view(access, extent);
  return {view != nullptr ? view->grant : kNoGrant};
}

// Each part on gated memory shares the grant of the part under which it acts, or needs a grant.
void prepare_grants(std::span<RequestPart> parts) noexcept {
  for (RequestPart& e : parts) {
    if (e.queue->gate() == nullptr || !e.is_appended || e.grant != kNoGrant) continue;
    if (e.previous != nullptr) {
      share_grant(*e.queue, e.previous->grant, e);
    } else {
      e.needs_grant = true;
    }
  }
}

// A request that another thread removes stays in the count. One that was refused at a gate is removed twice:
// then, and when its owner is told.
void count_out(Request& request) noexcept {
  if (std::exchange(request.is_counted, false) && request.owner.thread == this_thread_id())
    --this_thread.requests;
}

Appended refuse(Conflict* conflict, Conflict::Reason reason, const Holder& holder) noexcept {
  if (conflict != nullptr) *conflict = {reason, nullptr, holder};
  return Appended::kRefused;
}

// Refuses memory that was moved out, and the arrays of an item that was sent.
Appended check_memory(const Queue& queue, Conflict* conflict) noexcept {
  if (queue.is_plain()) [[likely]]
    return Appended::kGranted;
  if (queue.is_gone()) return refuse(conflict, Conflict::Reason::kMoved, {});
  if (queue.is_sent()) return refuse(conflict, Conflict::Reason::kNotHeld, {});
  return Appended::kGranted;
}

// The body of an op uses memory that it did not create and did not declare.
bool is_undeclared(const Queue& queue) noexcept {
  return this_thread.running != 0 && queue.birth() != this_thread.running && queue.birth() != Queue::kAnyOp;
}

// A request that its gate would refuse is not appended: a refused op leaves memory without a value.
Appended check_gate(const RequestPart& part, Conflict* conflict) noexcept {
  const Gate* const gate = part.queue->gate();
  if (gate == nullptr || gate->right_to(part.access, part.extent) != Gate::Right::kNone)
    return Appended::kGranted;
  return refuse(conflict, Conflict::Reason::kNotHeld, {});
}

// A forked child has the views of its parent, but not the grants of the parent.
Appended check_inherited(const Queue& queue, Conflict* conflict) noexcept {
  const View* const inherited = queue.inherited_view();
  if (inherited == nullptr) return Appended::kGranted;
  return refuse(conflict, Conflict::Reason::kInherited, Holder::of(*inherited));
}

[[gnu::noinline]] Appended check_op_fully(RequestPart& part, OnHost on_host, Conflict* conflict) noexcept {
  if (check_memory(*part.queue, conflict) != Appended::kGranted) return Appended::kRefused;
  if (on_host == OnHost::kIgnore) return Appended::kGranted;
  const View* const view = part.queue->host_conflict(part.access, part.extent);
  // A requested view counts, too: else the push would wait for that view, and the view for the push.
  const RequestPart* const request = part.queue->view_request(part.access, part.extent);
  const RequestPart* const ended = part.queue->ended_conflict(part.access, part.extent);
  if (on_host == OnHost::kRaise && (view != nullptr || ended != nullptr || request != nullptr)) {
    return refuse(conflict, Conflict::Reason::kHostView,
                  view != nullptr ? Holder::of(*view) : Holder::of(ended != nullptr ? *ended : *request));
  }
  part.waits_for_host = view != nullptr || request != nullptr;
  return Appended::kGranted;
}

Appended check_op(RequestPart& part, OnHost on_host, Conflict* conflict) noexcept {
  const Queue& queue = *part.queue;
  const bool has_views = queue.has_views() || queue.has_view_requests() || queue.has_ended_parts();
  if (queue.is_plain() && !has_views) [[likely]]
    return Appended::kGranted;
  return check_op_fully(part, on_host, conflict);
}

// Queue::own_part_for(). If the thread runs an op and has nothing else, it looks at the few parts of the op:
// many ops that became ready together may be behind it in the queue.
RequestPart* own_part_in(const Queue& queue, const Extent& extent, Access access) noexcept {
  const Request* const op = this_thread.running_request;
  if (op != nullptr && has_empty_hands(op)) return queue.part_of(*op, extent, access);
  return queue.own_part_for(extent, access);
}

// If other parts wait for views of the caller or for its ended parts, its part is inserted before them,
// because they would wait for each other otherwise. It waits for parts that are granted.
Appended check_views(RequestPart& part, Request& request, Conflict* conflict) noexcept {
  Queue& queue = *part.queue;
  const bool is_host = request.kind == HolderKind::kCall;
  // Only if it matters, because finding the task takes long.
  if (is_host && queue.has_ended_parts()) request.owner = current_actor();
  part.is_nested = queue.is_in_ended(request.owner, part.access, part.extent);
  if (part.is_nested || (is_host && queue.is_in_view(part.access, part.extent))) {
    part.next = queue.first_behind_own(request.owner, is_host, part.access, part.extent);
    return Appended::kGranted;
  }
  const RequestPart* behind = is_host ? queue.first_behind_host(part.access, part.extent) : nullptr;
  if (behind == nullptr && is_host && queue.has_ended_parts()) {
    behind = queue.first_behind_own(request.owner, false, part.access, part.extent, true);
  }
  // The search for deadlocks handles the rest. It does not follow exports, because other threads may close
  // them.
  if (behind == nullptr) return Appended::kGranted;
  return refuse(conflict, Conflict::Reason::kWaitsForHost, Holder::of(*behind));
}

// Synchronous code: a lease or a call. Finds the place of its part in the queue: right behind the part under
// which it acts (part.previous), right before one that waits for the caller (part.next), else the end.
Appended check_synchronous(RequestPart& part, Request& request, Conflict* conflict) noexcept {
  Queue& queue = *part.queue;
  if (check_memory(queue, conflict) != Appended::kGranted) return Appended::kRefused;
  if (queue.has_parts()) {
    RequestPart* const own = own_part_in(queue, part.extent, part.access);
    if (own != nullptr && Queue::allows(*own, part.extent, part.access)) {
      part.previous = own;
      return Appended::kGranted;
    }
    if (own != nullptr && own->access == Access::kRead && part.access == Access::kWrite) {
      return refuse(conflict, Conflict::Reason::kOwnLease, Holder::of(*own));
    }
  }
  if (is_undeclared(queue)) return refuse(conflict, Conflict::Reason::kUndeclared, {});
  if (request.kind == HolderKind::kCall && queue.gate() != nullptr) [[unlikely]] {
    const Possession has = possession_in(queue, part.access, part.extent);
    part.previous = has.under;
    if (has.under != nullptr) return Appended::kGranted;
    if (has.grant != kNoGrant) share_grant(queue, has.grant, part);
  }
  if (!queue.has_parts()) return Appended::kGranted;
  return check_views(part, request, conflict);
}

}  // namespace

void notify(ReadyList& ready) noexcept {
  Request* request = ready.take_all();
  while (request != nullptr) {
    Request* const next = request->next_ready;
    request->become_ready();
    request = next;
  }
}

constinit std::atomic<bool> detail::has_requests_of_others{false};

bool detail::lock_parts(Request& request) noexcept {
  lock_homes(request.parts);
  return !request.parts.empty();
}

namespace {

// Appends an op in one pass over its queues. False: nothing has changed, because a queue needs a closer look.
bool append_to_all(Request& op, uint32_t* missing) noexcept {
  const std::span<RequestPart> parts = op.parts;
  find_queues(parts);
  size_t n = 0;
  for (const Queue* last = nullptr; n < parts.size(); ++n) {
    RequestPart& part = parts[n];
    Queue& queue = *part.queue;
    if (&queue == last || !queue.lock.lock_if_listed()) break;
    if (!is_at_home(part) || !queue.is_simple_for(part)) {
      queue.lock.unlock();
      break;
    }
    *missing += queue.append_next(&part, &op) ? 0 : 1;
    last = &queue;
  }
  const bool is_appended = n == parts.size();
  op.missing.store(*missing, std::memory_order_relaxed);
  ReadyList none;  // no part behind the last one waits for it
  for (RequestPart& part : parts.first(n)) {
    if (!is_appended) (void)part.queue->remove(&part, &none);
    part.queue->lock.unlock();
  }
  return is_appended;
}

// The same for an op with one part. False: its queue is locked.
bool append_to_one(Request& op, uint32_t* missing) noexcept {
  RequestPart& part = op.parts[0];
  Queue& queue = lock_home(*part.home);
  part.queue = &queue;
  if (op.is_on_stream() || !queue.is_simple_for(part)) [[unlikely]]
    return false;
  *missing = queue.append_next(&part, &op) ? 0 : 1;
  op.missing.store(*missing, std::memory_order_relaxed);
  queue.lock.unlock();
  return true;
}

Appended append_op(Request& op, OnHost on_host, Conflict* conflict) noexcept {
  uint32_t missing = 0;
  op.born_in = this_thread.running;
  op.is_gated = false;
  if (op.parts.size() == 1) {
    if (!append_to_one(op, &missing)) return append_locked(op, on_host, conflict);
  } else if (op.is_on_stream() || !append_to_all(op, &missing)) {
    lock_homes(op.parts);
    return append_locked(op, on_host, conflict);
  }
  return missing == 0 ? Appended::kGranted : Appended::kWaiting;
}

}  // namespace

Appended append(Request& request, OnHost on_host, Conflict* conflict) noexcept {
  request.heeds_views = request.kind == HolderKind::kOp && on_host != OnHost::kIgnore;
  if (request.kind == HolderKind::kOp) return append_op(request, on_host, conflict);
  return append_to_idle(request) ? Appended::kGranted : append_locked(request, on_host, conflict);
}

Appended append_locked(Request& request, OnHost on_host, Conflict* conflict) noexcept {
  const std::span<RequestPart> parts = request.parts;
  request.born_in = this_thread.running;
  bool is_gated = false;
  for (RequestPart& e : parts) {
    e.begin(&request);
    is_gated |= e.queue->gate() != nullptr;
  }
  request.is_gated = is_gated;
  if (parts.size() > 1) merge_wholes(parts);
  for (RequestPart& e : parts) {
    if (!e.is_appended) continue;
    Appended checked = Appended::kGranted;
    if (is_gated) [[unlikely]] {
      checked = check_inherited(*e.queue, conflict);
      if (checked == Appended::kGranted) checked = check_gate(e, conflict);
    }
    if (checked == Appended::kGranted) [[likely]] {
      checked = request.kind == HolderKind::kOp ? check_op(e, on_host, conflict)
                                                : check_synchronous(e, request, conflict);
    }
    e.is_overwriting = e.previous != nullptr && (e.previous->is_overwrite || e.previous->is_overwriting);
    if (checked == Appended::kGranted) continue;
    if (conflict != nullptr) conflict->part = &e;
    unlock_queues(parts);
    if (is_gated) leave_gates(request, false);
    return checked;
  }
  if (is_gated) [[unlikely]] {
    request.waits_at_gate = request.is_withdrawn = request.is_refused = false;
    prepare_grants(parts);
  }
  ReadyList ready;
  // All parts are missing until they are in their queues: a part may make its queue counted, which may grant
  // an earlier part of this request.
  uint32_t granted = 0;
  request.missing.store(static_cast<uint32_t>(parts.size()), std::memory_order_relaxed);
  for (RequestPart& e : parts) {
    if (!e.is_appended) {
      ++granted;
    } else if (e.previous == nullptr) {
      const bool is_granted =
          e.next != nullptr ? e.queue->insert_before(&e, e.next, &ready) : e.queue->append(&e, &ready);
      granted += is_granted ? 1 : 0;
    } else {
      // A call under a lease without an owner may outlive it, because another thread may release the lease.
      const bool is_of_nobody = e.previous->request->is_detached.load(std::memory_order_relaxed);
      if (request.kind == HolderKind::kCall && !is_of_nobody) {
        e.is_appended = false;
      } else {
        e.queue->insert_under(&e, e.previous, &ready);
      }
      ++granted;
    }
  }
  const uint32_t missing = request.missing.load(std::memory_order_relaxed) - granted;
  request.missing.store(missing, std::memory_order_relaxed);
  if (request.kind != HolderKind::kOp) detail::count_in(request);
  unlock_queues(parts);
  if (!ready.is_empty()) notify(ready);
  return missing == 0 ? Appended::kGranted : Appended::kWaiting;
}

namespace {

// Removes a part of a request that ends. Its queue is locked, and is unlocked then. True if a view that was
// taken under it is still open.
bool remove_and_unlock(RequestPart& part, bool has_written, ReadyList* ready) noexcept {
  Queue& queue = *part.queue;
  bool has_view = false;
  Gate* gate = nullptr;  // of memory with a view that outlived the request
  if (part.is_queued) {  // a fork may have removed it
    if (has_written && part.access == Access::kWrite) queue.note_write();
    has_view = queue.remove(&part, ready);
    if (has_view) gate = queue.gate();
  }
  queue.lock.unlock();
  if (gate != nullptr) [[unlikely]]
    gate->note_outlived_view();
  return has_view;
}

[[gnu::noinline]] bool release_locked(Request& request, bool has_written) noexcept {
  ReadyList ready;
  const bool has_outlived = remove_and_unlock(request.parts[0], has_written, &ready);
  count_out(request);
  if (!ready.is_empty()) notify(ready);
  return has_outlived;
}

[[gnu::noinline]] bool release_each(Request& request, bool has_written) noexcept {
  ReadyList ready;
  const bool has_outlived = release(request, &ready, has_written);
  if (!ready.is_empty()) notify(ready);
  return has_outlived;
}

}  // namespace

bool release(Request& request, ReadyList* ready, bool has_written) noexcept {
  bool has_outlived = false;
  // First, so that the next requests of this process do not meet this one at the gate.
  if (request.is_gated) [[unlikely]]
    leave_gates(request, has_written);
  for (RequestPart& e : request.parts) {
    if (!e.is_appended) continue;
    e.queue->lock.lock();
    has_outlived |= remove_and_unlock(e, has_written, ready);
  }
  count_out(request);
  return has_outlived;
}

bool release(Request& request, bool has_written) noexcept {
  if (request.parts.size() != 1 || request.is_gated || !request.parts[0].is_appended) [[unlikely]]
    return release_each(request, has_written);
  RequestPart& part = request.parts[0];
  Queue& queue = *part.queue;
  queue.lock.lock();
  if (!part.is_queued || !queue.is_only_part(part)) [[unlikely]]
    return release_locked(request, has_written);
  if (has_written && part.access == Access::kWrite) queue.note_write();
  queue.remove_only_part(&part);
  queue.lock.unlock();
  count_out(request);
  return false;
}

namespace {

// Removes a request that has not been used from its queues, if the condition holds.
template <class Condition>
bool take_out(Request& request, Condition condition) noexcept {
  ReadyList ready;
  lock_queues(request.parts);
  const bool is_taken = condition();
  for (RequestPart& e : request.parts) {
    if (is_taken && e.is_appended && e.is_queued) e.queue->remove(&e, &ready);
  }
  unlock_queues(request.parts);
  if (is_taken) count_out(request);
  if (!ready.is_empty()) notify(ready);
  return is_taken;
}

}  // namespace

bool cancel(Request& request) noexcept {
  // pairs with: Queue::grant, "parts granted by others"
  const auto is_waiting = [&request] { return request.missing.load(std::memory_order_acquire) != 0; };
  if (take_out(request, is_waiting)) {
    // Parts that act under others share their grants.
    if (request.is_gated) leave_gates(request, false);
    return true;
  }
  if (!request.is_gated || !cancel_at_gates(request)) return false;
  withdraw(request);
  return true;
}

void withdraw(Request& request) noexcept {
  (void)take_out(request, [] { return true; });
}

bool has_empty_hands(const Request* awaited) noexcept {
  if (detail::has_requests_of_others.load(std::memory_order_relaxed)) return false;
  const bool is_own = awaited != nullptr && awaited->kind != HolderKind::kOp;
  if (is_own && awaited->parts.size() > 1) return false;  // some may have been granted
  return this_thread.requests <= (is_own ? 1 : 0);
}

namespace {

// Finds the part of the same actor under which a view is taken, if there is one. With may_weaken the view may
// become one for reading.
Appended find_own_part(Queue& queue, View& view, bool may_weaken, RequestPart** under,
                       Conflict* conflict) noexcept {
  RequestPart* const own = own_part_in(queue, view.extent, view.access);
  *under = own;
  if (own == nullptr || Queue::allows(*own, view.extent, view.access)) return Appended::kGranted;
  // A part that allows reading may be before one that covers fewer bytes.
  RequestPart* const reader = may_weaken ? own_part_in(queue, view.extent, Access::kRead) : nullptr;
  if (reader != nullptr && Queue::allows(*reader, view.extent, Access::kRead)) {
    *under = reader;
    view.access = Access::kRead;
  } else if (own->access == Access::kRead && view.access == Access::kWrite) {
    return refuse(conflict, Conflict::Reason::kOwnLease, Holder::of(*own));
  } else {
    *under = nullptr;  // it does not cover all bytes
  }
  return Appended::kGranted;
}

// For gated memory. With may_weaken the view may become one for reading.
Appended find_possession(const Queue& queue, View& view, bool may_weaken, Possession* has,
                         Conflict* conflict) noexcept {
  *has = possession_in(queue, view.access, view.extent);
  if (has->grant == kNoGrant && may_weaken) {
    view.access = Access::kRead;
    *has = possession_in(queue, view.access, view.extent);
  }
  if (has->grant != kNoGrant) return Appended::kGranted;
  const bool has_no_right = queue.gate()->right_to(view.access, view.extent) == Gate::Right::kNone;
  return refuse(conflict, has_no_right ? Conflict::Reason::kNotHeld : Conflict::Reason::kNoPossession, {});
}

// Requires the lock of the queue. needs_room: set if nothing has changed because the thread has no memory for
// the ended part of the view.
Appended try_open(Queue& queue, View& view, bool may_weaken, bool* needs_room, Conflict* conflict) noexcept {
  if (!queue.is_plain()) [[unlikely]] {
    if (check_memory(queue, conflict) != Appended::kGranted) return Appended::kRefused;
    if (view.device == nullptr) return refuse(conflict, Conflict::Reason::kOnDevice, {});
  }
  if (view.extent.end == 0) {  // a view without bytes never waits
    queue.add_view(&view, nullptr);
    return Appended::kGranted;
  }
  const bool is_gated = queue.gate() != nullptr;
  Possession has;
  if (is_gated) [[unlikely]] {
    if (const Appended checked = check_inherited(queue, conflict); checked != Appended::kGranted)
      return checked;
  }
  if (queue.has_parts()) {
    const Appended checked = find_own_part(queue, view, may_weaken, &has.under, conflict);
    if (checked != Appended::kGranted) return checked;
    if (has.under != nullptr) has.grant = has.under->grant;
  }
  if (has.under == nullptr) {
    if (is_undeclared(queue)) return refuse(conflict, Conflict::Reason::kUndeclared, {});
    if (is_gated) [[unlikely]] {
      const Appended checked = find_possession(queue, view, may_weaken, &has, conflict);
      if (checked != Appended::kGranted) return checked;
    }
  }
  if (has.under == nullptr && queue.has_parts()) {
    // Submitted parts are not in the way of a view on a device: its stream waits for them.
    const bool has_conflict = queue.is_plain() ? queue.has_conflict(view.access, view.extent)
                                               : queue.has_unsubmitted_conflict(view.access, view.extent);
    if (has_conflict) return Appended::kWaiting;
  }
  if (has.under != nullptr && this_thread.room == nullptr) [[unlikely]] {
    *needs_room = true;
    return Appended::kRefused;
  }
  if (is_gated) [[unlikely]] {
    view.grant = has.grant;
    queue.gate()->share(view.grant);
  }
  if (has.under != nullptr) view.room = std::exchange(this_thread.room, nullptr);
  queue.add_view(&view, has.under);
  return Appended::kGranted;
}

}  // namespace

namespace {

// Memory for an ended part. Each thread keeps some that is not used.
bool make_room() noexcept {
  if (this_thread.room == nullptr) this_thread.room = ::operator new(sizeof(EndedPart), std::nothrow);
  return this_thread.room != nullptr;
}

[[gnu::noinline]] void free_room(void* room) noexcept { ::operator delete(room); }

void give_back(void* room) noexcept {
  static_assert(std::is_trivially_destructible_v<EndedPart>);
  if (this_thread.keeps_room && this_thread.room == nullptr) {
    this_thread.room = room;
  } else {
    free_room(room);
  }
}

// In a queue that is locked, and is unlocked then.
[[gnu::noinline]] Appended try_open_and_unlock(Queue* queue, View& view, bool may_weaken,
                                               Conflict* conflict) noexcept {
  while (true) {
    bool needs_room = false;
    const Appended result = try_open(*queue, view, may_weaken, &needs_room, conflict);
    queue->lock.unlock();
    if (!needs_room) [[likely]]
      return result;
    if (!make_room()) return refuse(conflict, Conflict::Reason::kNoMemory, {});
    queue = &lock_home(*view.home);
  }
}

}  // namespace

[[gnu::hot]] Appended try_open_view(View& view, bool may_weaken, Conflict* conflict) noexcept {
  view.thread = this_thread_id();
  view.number = this_thread.number;
  view.opened_ms = coarse_now_ms();
  Queue& queue = lock_home(*view.home);
  if (!queue.is_idle() || this_thread.running != 0) [[unlikely]]
    return try_open_and_unlock(&queue, view, may_weaken, conflict);
  queue.add_view(&view, nullptr);
  queue.lock.unlock();
  return Appended::kGranted;
}

namespace {

// A lost view does not keep its memory from being merged into another queue.
Queue& lock_queue_of(const View& view) noexcept {
  if (view.is_lost) [[unlikely]]
    return lock_home(*view.home);
  view.queue->lock.lock();
  return *view.queue;
}

}  // namespace

[[gnu::hot]] void close_view(View& view) noexcept {
  ReadyList ready;
  Queue& queue = lock_queue_of(view);
  queue.remove_view(&view, &ready);
  const bool is_left_to_others =
      view.grant != kNoGrant && !view.is_exported && queue.is_grant_of_others(view.grant);
  queue.lock.unlock();
  if (view.grant != kNoGrant) [[unlikely]] {
    if (is_left_to_others) queue.gate()->disown(view.grant);
    queue.gate()->leave(std::exchange(view.grant, kNoGrant), view.access == Access::kWrite);
  }
  if (view.room != nullptr) give_back(std::exchange(view.room, nullptr));
  if (!ready.is_empty()) notify(ready);
}

void mark_submitted(Request& request) noexcept {
  ReadyList ready;
  for (RequestPart& e : request.parts) {
    if (!e.is_appended) continue;
    const std::scoped_lock lock(e.queue->lock);
    if (e.is_queued) e.queue->mark_submitted(&e, &ready);
  }
  if (!ready.is_empty()) notify(ready);
}

void close_view(View& view, Request& rest) noexcept {
  ReadyList ready;
  RequestPart& part = rest.parts[0];
  part.home = view.home;
  part.extent = view.extent;
  part.access = view.access;
  Queue& queue = lock_queue_of(view);
  part.queue = &queue;
  part.begin(&rest);
  // Other processes wait until the work on the stream is done.
  part.grant = std::exchange(view.grant, kNoGrant);
  rest.is_gated = part.grant != kNoGrant;
  queue.insert_submitted(&part, &ready);
  queue.remove_view(&view, &ready);
  const GrantId grant = part.grant;
  const bool is_left_to_others = rest.is_gated && queue.is_grant_of_others(grant);
  queue.lock.unlock();
  if (is_left_to_others) queue.gate()->disown(grant);
  if (view.room != nullptr) give_back(std::exchange(view.room, nullptr));
  if (!ready.is_empty()) notify(ready);
}

namespace {

// The events of submitted parts before `end` that conflict with the access; null is the end of the queue. No
// memory is allocated under the lock, which is taken again if there are more parts than were expected.
void add_events_until(const RequestPart* end, Home& home, Access access, const Extent& extent,
                      Events* events) {
  size_t room = 8;
  while (true) {
    events->reserve(events->size() + room);
    size_t found = 0;
    Queue& queue = lock_home(home);
    const auto visit = [&](auto&& use) {
      for (const RequestPart* e = queue.first(); e != end; e = e->next) {
        if (e->is_submitted && in_conflict(access, extent, e->access, e->extent)) use(*e);
      }
    };
    visit([&](const RequestPart&) { ++found; });
    if (found <= room) {
      visit([&](const RequestPart& e) { events->push_back(Ref<device::Event>::share(e.request->event())); });
    }
    queue.lock.unlock();
    if (found <= room) return;
    room = found;
  }
}

}  // namespace

void add_events_before(const Request& request, Events* events) {
  for (const RequestPart& e : request.parts) {
    if (e.is_appended) add_events_until(&e, *e.home, e.access, e.extent, events);
  }
}

void add_events_in(Home& home, Access access, const Extent& extent, Events* events) {
  add_events_until(nullptr, home, access, extent, events);
}

std::vector<UsedStream> streams_of_views(Home& home, Access access, const Extent& extent, const View* self) {
  std::vector<UsedStream> streams;
  size_t room = 4;
  while (true) {
    streams.reserve(room);
    size_t found = 0;
    Queue& queue = lock_home(home);
    const auto visit_list = [&](const View* v) {
      for (; v != nullptr; v = v->next) {
        if (v == self || v->stream == nullptr || !in_conflict(v->access, v->extent, access, extent)) continue;
        if (found++ < room) streams.push_back({v->device, v->stream, v->thread});
      }
    };
    visit_list(queue.first_view());
    for (const RequestPart* e = queue.first(); e != nullptr; e = e->next) visit_list(e->views);
    queue.lock.unlock();
    if (found <= room) return streams;
    streams.clear();
    room = found;
  }
}

void detach(Request& request) noexcept {
  request.is_detached.store(true, std::memory_order_relaxed);
  if (!request.is_gated) return;
  for (const RequestPart& e : request.parts) {
    if (e.grant != kNoGrant) e.queue->gate()->disown(e.grant);
  }
}

bool has_views(const Request& request) noexcept {
  for (const RequestPart& e : request.parts) {
    if (!e.is_appended) continue;
    const std::scoped_lock lock(e.queue->lock);
    if (e.views != nullptr) return true;
    // What was taken under it, and the views that have outlived that, are right behind it.
    const RequestPart* const inner = e.is_queued ? e.next : nullptr;
    if (inner != nullptr && inner->sequence == e.sequence && !inner->is_ahead) return true;
  }
  return false;
}

}  // namespace tenon::impl
