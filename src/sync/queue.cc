// SPDX-License-Identifier: Apache-2.0
#include "sync/queue.h"

#include <algorithm>
#include <array>
#include <new>
#include <optional>
#include <utility>

#include "sync/part_index.h"
#include "sync/requests.h"

namespace tenon::impl {
namespace {

bool is_own(const Request& request) noexcept {
  if (request.kind == HolderKind::kOp) return &request == this_thread.running_request;
  if (request.is_detached.load(std::memory_order_relaxed) || request.born_in != this_thread.running)
    return false;
  if (request.owner.thread != this_thread_id()) return false;
  // Everything that a thread does inside of its own call belongs to the call, in any task.
  return request.kind == HolderKind::kCall || request.owner.task == 0 || request.owner.task == current_task();
}

// The actor to which a view belongs when the request has ended under which it was taken: for a lease without
// an owner, the thread that took the view.
Actor owner_of(const View& view, const Request& ended) noexcept {
  const bool has_owner = !ended.is_detached.load(std::memory_order_relaxed);
  return has_owner ? ended.owner : Actor{view.thread, view.number, 0};
}

template <class T>
void link_front(T*& head, T* item) noexcept {
  item->previous = nullptr;
  item->next = head;
  if (head != nullptr) head->previous = item;
  head = item;
}

template <class T>
void unlink_from(T*& head, T* item) noexcept {
  (item->previous != nullptr ? item->previous->next : head) = item->next;
  if (item->next != nullptr) item->next->previous = item->previous;
}

// Of two parts of one queue. Those with the same sequence number act under one part, are its ended parts, or
// were inserted before it. If one of two that act under a part covers the other one, it is the outer one.
bool is_before(const RequestPart& a, const RequestPart& b) noexcept {
  if (a.sequence != b.sequence) return a.sequence < b.sequence;
  const bool are_under = !a.is_ahead && !b.is_ahead && !a.is_submitted && !b.is_submitted;
  if (are_under && a.extent != b.extent) {
    if (a.extent.contains(b.extent)) return true;
    if (b.extent.contains(a.extent)) return false;
  }
  const RequestPart* e = a.next;
  while (e != nullptr && e != &b && e->sequence == b.sequence) e = e->next;
  return e == &b;
}

}  // namespace

void Queue::link_behind(RequestPart* part, RequestPart* place) noexcept {
  part->previous = place;
  part->next = place != nullptr ? place->next : head_;
  (part->next != nullptr ? part->next->previous : tail_) = part;
  (place != nullptr ? place->next : head_) = part;
  part->is_queued = true;
}

void Queue::link_counted(RequestPart* part, RequestPart* place) noexcept {
  link_behind(part, place);
  ++length_;
  if (index_ != nullptr) [[unlikely]] {
    add_to_index(part);
  } else if (length_ > kLong) [[unlikely]] {
    make_index(2 * length_);
  }
}

void Queue::make_index(size_t room) noexcept {
  index_ = PartIndex::make(room);
  for (RequestPart* e = index_ != nullptr ? head_ : nullptr; e != nullptr; e = e->next) index_->insert(e);
}

void Queue::add_to_index(RequestPart* part) noexcept {
  if (!index_->is_full()) return index_->insert(part);
  delete std::exchange(index_, nullptr);
  make_index(2 * length_);
}

void Queue::remove_from_index(RequestPart* part) noexcept {
  index_->erase(part);
  if (index_->size() < kShort) delete std::exchange(index_, nullptr);
}

// Calls visit with each part that overlaps the extent, in no order. False: nothing was visited, because there
// is no index or the extent covers most of the parts.
template <class Visit>
bool Queue::visit_near(const Extent& extent, Visit visit) const noexcept {
  return is_counted_ && index_ != nullptr && index_->visit(extent, visit);
}

// A part on these bytes for which the condition holds; null: there is none. With the index, it visits all
// parts there.
template <class Condition>
RequestPart* Queue::any_near(const Extent& extent, Condition condition) const noexcept {
  RequestPart* found = nullptr;
  const auto take = [&](RequestPart* e) {
    if (found == nullptr && condition(*e)) found = e;
  };
  if (visit_near(extent, take)) return found;
  RequestPart* e = head_;
  while (e != nullptr && !condition(*e)) e = e->next;
  return e;
}

void Queue::unlink(RequestPart* part) noexcept {
  (part->previous != nullptr ? part->previous->next : head_) = part->next;
  (part->next != nullptr ? part->next->previous : tail_) = part->previous;
  part->is_queued = false;
}

void Queue::mark_granted(RequestPart* part) noexcept {
  part->is_granted = true;
  if (!is_counted_) ++(part->access == Access::kWrite ? active_writers_ : active_readers_);
}

void Queue::grant(RequestPart* part, ReadyList* ready) noexcept {
  mark_granted(part);
  if (is_counted_) --waiting_;
  // pairs with: requests::cancel, "parts granted by others"
  if (part->request->missing.fetch_sub(1, std::memory_order_acq_rel) == 1) ready->add(part->request);
}

void Queue::count_holder(RequestPart* part) noexcept {
  part->holds_memory = true;
  if (holders_++ != 0) return;
  held_nbytes_ = bounds_.end - bounds_.begin;
  held_by_ops.fetch_add(held_nbytes_, std::memory_order_relaxed);
}

void Queue::uncount_holder() noexcept {
  if (--holders_ == 0) held_by_ops.fetch_sub(std::exchange(held_nbytes_, 0), std::memory_order_relaxed);
}

bool Queue::append(RequestPart* part, ReadyList* ready) noexcept {
  part->sequence = next_sequence_++;
  if (part->request->kind == HolderKind::kOp) hold_memory(part);
  if (part->waits_for_host) note_behind_views(1);
  if (part->request->traits != 0) [[unlikely]]
    note_traits(*part, ready);
  if (!is_counted_ && (!is_whole(*part) || part->waits_for_host)) begin_counting(ready);
  if (is_counted_) {
    if (index_ != nullptr) [[unlikely]] {
      append_by_index(part);
    } else {
      for (const RequestPart* e = head_; e != nullptr; e = e->next)
        part->blockers += waits_for(*part, *e) ? 1 : 0;
      link_counted(part, tail_);
    }
    return is_granted_at_once(part);
  }
  link_behind(part, tail_);
  const bool is_free = active_writers_ == 0 && (part->access == Access::kRead || active_readers_ == 0);
  if (first_waiting_ == nullptr && is_free) {
    mark_granted(part);
    return true;
  }
  if (first_waiting_ == nullptr) first_waiting_ = part;
  return false;
}

// A part that was put in a counted queue.
bool Queue::is_granted_at_once(RequestPart* part) noexcept {
  if (part->blockers != 0 || !views_allow(*part)) {
    ++waiting_;
    return false;
  }
  mark_granted(part);
  return true;
}

void Queue::append_by_index(RequestPart* part) noexcept {
  const auto count = [part](const RequestPart* e) { part->blockers += waits_for(*part, *e) ? 1 : 0; };
  if (!index_->visit(part->extent, count)) {
    for (const RequestPart* e = head_; e != nullptr; e = e->next) count(e);
  }
  link_counted(part, tail_);
}

// Of a part that is put in.
void Queue::note_traits(const RequestPart& part, ReadyList* ready) noexcept {
  if (part.request->is_for_view()) ++view_requests_;
  if (part.request->is_on_stream() && !is_counted_) begin_counting(ready);
}

bool Queue::insert_before(RequestPart* part, RequestPart* place, ReadyList* ready) noexcept {
  if (!is_counted_) begin_counting(ready);
  part->sequence = place->sequence;
  part->is_ahead = true;
  ++ahead_;
  if (part->request->is_for_view()) ++view_requests_;
  for (const RequestPart* e = head_; e != place; e = e->next) part->blockers += waits_for(*part, *e) ? 1 : 0;
  for (RequestPart* e = place; e != nullptr; e = e->next) {
    if (waits_for(*part, *e)) ++(e->is_granted ? part : e)->blockers;
  }
  link_counted(part, place->previous);
  return is_granted_at_once(part);
}

void Queue::insert_under(RequestPart* part, RequestPart* under, ReadyList* ready) noexcept {
  part->sequence = under->sequence;
  if (part->request->is_for_view()) ++view_requests_;
  if (!is_counted_ && !is_whole(*part)) begin_counting(ready);
  if (!is_counted_) {
    link_behind(part, under);
    return mark_granted(part);
  }
  link_counted(part, under);
  mark_granted(part);
  RequestPart* e = first_of_last_waiting();
  if (e == nullptr && waiting_ != 0) e = ahead_ != 0 ? head_ : part->next;
  for (; e != nullptr; e = e->next) {
    if (!e->is_granted && conflicts(*part, *e)) ++e->blockers;
  }
}

bool Queue::remove_among(RequestPart* part, ReadyList* ready) noexcept {
  const bool has_views = part->views != nullptr && move_views_out(part, ready);
  RequestPart* const next = part->next;
  unlink(part);
  if (is_counted_ && index_ != nullptr) [[unlikely]]
    remove_from_index(part);
  if (part->holds_memory) uncount_holder();
  if (part->waits_for_host) note_behind_views(-1);
  if (part->is_ahead) --ahead_;
  if (part->request->is_for_view()) --view_requests_;
  if (part->is_ended) note_ended(*part, -1);
  if (is_counted_) {
    --length_;
    if (!part->is_granted) --waiting_;
    if (waiting_ != 0) grant_behind(*part, next, ready);
    if (head_ == nullptr) {
      is_counted_ = false;
      first_waiting_ = nullptr;
      active_readers_ = active_writers_ = 0;
    }
  } else {
    if (part->is_granted) {
      --(part->access == Access::kWrite ? active_writers_ : active_readers_);
    } else if (part == first_waiting_) {
      first_waiting_ = next;
    }
    if (first_waiting_ != nullptr) advance(ready);
  }
  return has_views;
}

// The first part that waits, if all of these are among the last parts; else null. Beside many ended parts
// there are few that wait.
RequestPart* Queue::first_of_last_waiting() const noexcept {
  RequestPart* first = nullptr;
  uint32_t n = 0;
  size_t left = kLong;
  for (RequestPart* e = tail_; e != nullptr && n < waiting_ && left != 0; e = e->previous, --left) {
    if (e->is_granted) continue;
    first = e;
    ++n;
  }
  return n == waiting_ ? first : nullptr;
}

// next: the part behind the removed one. A part before it waits for it only if it was inserted later.
void Queue::grant_behind(const RequestPart& removed, RequestPart* next, ReadyList* ready) noexcept {
  if (ended_ != 0 && removed.is_granted) [[unlikely]] {
    if (RequestPart* const first = first_of_last_waiting()) return grant_from(first, removed, ready);
  }
  if (index_ != nullptr && grant_behind_by_index(removed, ready)) [[unlikely]]
    return;
  grant_from(ahead_ != 0 && removed.is_granted ? head_ : next, removed, ready);
}

void Queue::grant_from(RequestPart* first, const RequestPart& removed, ReadyList* ready) noexcept {
  for (RequestPart* e = first; e != nullptr; e = e->next) {
    if (e->is_granted || !waits_for(*e, removed)) continue;
    if (--e->blockers == 0 && views_allow(*e)) grant(e, ready);
  }
}

bool Queue::grant_behind_by_index(const RequestPart& removed, ReadyList* ready) noexcept {
  return grant_by_index(removed, ready, [&](const RequestPart& e) { return waits_for(e, removed); });
}

// `part` is not in the way any more of the waiting parts behind it for which the condition holds. False:
// nothing was done. All waiting parts were appended, so they differ in their sequence numbers.
template <class Condition>
bool Queue::grant_by_index(const RequestPart& part, ReadyList* ready, Condition condition) noexcept {
  if (ahead_ != 0) return false;
  std::vector<RequestPart*>& found = index_->found();
  const auto take = [&](RequestPart* e) {
    if (e->is_granted || e->sequence < part.sequence || !condition(*e)) return;
    if (--e->blockers == 0 && views_allow(*e)) found.push_back(e);
  };
  if (!index_->visit(part.extent, take)) return false;
  std::sort(found.begin(), found.end(),
            [](const RequestPart* a, const RequestPart* b) { return a->sequence < b->sequence; });
  for (RequestPart* e : found) grant(e, ready);
  return true;
}

void Queue::mark_submitted(RequestPart* part, ReadyList* ready) noexcept {
  const auto waits_no_more = [part](const RequestPart& e) {
    return e.request->is_on_stream() && !e.is_for_host && conflicts(*part, e);
  };
  if (!is_counted_ || index_ == nullptr || !grant_by_index(*part, ready, waits_no_more)) {
    for (RequestPart* e = ahead_ != 0 ? head_ : part->next; e != nullptr; e = e->next) {
      if (e->is_granted || !waits_no_more(*e)) continue;
      if (--e->blockers == 0 && views_allow(*e)) grant(e, ready);
    }
  }
  part->is_submitted = true;
}

void Queue::insert_submitted(RequestPart* part, ReadyList* ready) noexcept {
  if (!is_counted_) begin_counting(ready);
  part->is_submitted = true;
  link_counted(part, nullptr);
  mark_granted(part);
  for (RequestPart* e = part->next; e != nullptr; e = e->next) {
    if (!e->is_granted && waits_for(*e, *part)) ++e->blockers;
  }
}

void Queue::advance(ReadyList* ready) noexcept {
  while (RequestPart* const e = first_waiting_) {
    if (active_writers_ != 0 || (e->access == Access::kWrite && active_readers_ != 0)) return;
    first_waiting_ = e->next;
    grant(e, ready);
  }
}

// Recomputes all blockers: a part that covered all of the memory may cover only some of it now, because the
// memory was bridged with other memory.
void Queue::begin_counting(ReadyList* ready) noexcept {
  is_counted_ = true;
  index_ = nullptr;
  waiting_ = length_ = 0;
  for (RequestPart* e = head_; e != nullptr; e = e->next) {
    ++length_;
    if (e->is_granted) continue;
    ++waiting_;
    e->blockers = 0;
    for (const RequestPart* earlier = head_; earlier != e; earlier = earlier->next) {
      e->blockers += waits_for(*e, *earlier) ? 1 : 0;
    }
    if (e->blockers == 0 && views_allow(*e)) grant(e, ready);
  }
}

// The views under a part that is about to be removed stay under another part of the same actor that allows
// them. Else a view of a lease gets an ended part, and another one is of the host from now on; true if there
// is one.
bool Queue::move_views_out(RequestPart* part, ReadyList* ready) noexcept {
  const Request& request = *part->request;
  View* rest = nullptr;
  RequestPart* last = nullptr;
  std::optional<Actor> owner;  // to which `last` belongs
  while (View* const view = part->views) {
    if (const Actor its_owner = owner_of(*view, request); owner != its_owner) {
      owner = its_owner;
      last = tail_;
      while (last != nullptr && !is_outer(*last, *owner, request)) last = last->previous;
    }
    view->under = last != nullptr ? outer_part_for(*view, *owner, request, last) : nullptr;
    unlink_from(part->views, view);
    link_front(view->under != nullptr ? view->under->views : rest, view);
  }
  if (rest == nullptr) return false;
  if (request.kind == HolderKind::kLease) {
    insert_ended(rest, part, ready);
    return true;
  }
  bool is_awaited = false;
  while (View* const view = rest) {
    unlink_from(rest, view);
    link_front(views_, view);
    is_awaited |= is_shown_to_ops(*view);
  }
  if (is_awaited && !is_counted_) begin_counting(ready);
  return true;
}

// The ops that must wait for the view from now on wait for views of the host. True if there is one.
bool Queue::is_shown_to_ops(const View& view) noexcept {
  bool is_awaited = false;
  for (RequestPart* e = head_; e != nullptr; e = e->next) {
    if (e->is_granted || !in_conflict(view.access, view.extent, e->access, e->extent)) continue;
    if (e->request->heeds_views && !std::exchange(e->waits_for_host, true)) note_behind_views(1);
    is_awaited |= e->waits_for_host;
  }
  return is_awaited;
}

// Of all views in the list, in the place of the part of their lease, which is still there. First the queue is
// made counted.
void Queue::insert_ended(View* views, RequestPart* lease, ReadyList* ready) noexcept {
  if (!is_counted_) begin_counting(ready);
  if (lease->request->is_detached.load(std::memory_order_relaxed))
    owned_views.fetch_add(1, std::memory_order_relaxed);
  RequestPart* const first_waiting = first_of_last_waiting();
  RequestPart* place = lease;
  while (View* const view = views) {
    unlink_from(views, view);
    auto* const part = new (view->room) EndedPart;
    part->is_appended = true;
    part->request = &part->lease;
    part->home = view->home;
    part->queue = this;
    part->extent = view->extent;
    part->access = view->access;
    part->sequence = lease->sequence;
    part->is_ended = part->is_granted = true;
    part->views = view;
    part->lease.owner = owner_of(*view, *lease->request);
    view->under = part;
    view->previous = view->next = nullptr;
    note_ended(*part, 1);
    link_counted(part, place);
    place = part;
    const auto block = [part](RequestPart* e) {
      e->blockers += !e->is_granted && waits_for(*e, *part) ? 1 : 0;
    };
    if (waiting_ == 0 || (first_waiting == nullptr && visit_near(part->extent, block))) continue;
    for (RequestPart* e = first_waiting != nullptr ? first_waiting : head_; e != nullptr; e = e->next)
      block(e);
  }
}

// An ended part has come (1) or goes (-1).
void Queue::note_ended(const RequestPart& part, int n) noexcept {
  ended_ += static_cast<uint32_t>(n);
  note_behind_views(n);
  if (part.request->owner.thread == this_thread_id()) {
    this_thread.requests += n;
  } else if (n > 0) {
    detail::has_requests_of_others.store(true, std::memory_order_relaxed);
  }
}

// From the last granted part: parts that act under a part are behind it, and a program with many leases uses
// the last one most.
RequestPart* Queue::own_part_for(const Extent& extent, Access access) const noexcept {
  const auto may_act_under = [&extent](const RequestPart& e) {
    return e.is_granted && !e.needs_grant && !e.is_ended && e.extent.overlaps(extent) && is_own(*e.request);
  };
  RequestPart *last = nullptr, *weaker = nullptr;
  const auto take = [&](RequestPart* e) {
    if (!may_act_under(*e)) return;
    RequestPart*& best = allows(*e, extent, access) ? last : weaker;
    if (best == nullptr || is_before(*best, *e)) best = e;
  };
  if (is_counted_ && index_ != nullptr) {
    if (tail_ != nullptr && may_act_under(*tail_) && allows(*tail_, extent, access)) return tail_;
    if (index_->visit(extent, take)) return last != nullptr ? last : weaker;
  }
  RequestPart* e = !is_counted_ && first_waiting_ != nullptr ? first_waiting_->previous : tail_;
  for (; e != nullptr; e = e->previous) {
    if (!may_act_under(*e)) continue;
    if (allows(*e, extent, access)) return e;
    if (weaker == nullptr) weaker = e;
  }
  return weaker;
}

// A view of the owner, taken under the request that ends, may stay under this part. In whichever thread or
// task the request ends.
bool Queue::is_outer(const RequestPart& part, const Actor& owner, const Request& ended) noexcept {
  const Request& outer = *part.request;
  if (!part.is_granted || part.needs_grant || part.is_ended || &outer == &ended) return false;
  if (outer.kind == HolderKind::kOp)
    return &outer == this_thread.running_request && ended.born_in == this_thread.running;
  if (outer.is_detached.load(std::memory_order_relaxed)) return false;
  if (outer.owner.thread != owner.thread || outer.born_in != ended.born_in) return false;
  // A view that was taken under a lease must not become one of the host with the end of a call around it.
  if (outer.kind == HolderKind::kCall) return ended.kind == HolderKind::kCall;
  if (outer.owner.task == 0) return true;
  return outer.owner.task == (ended.kind == HolderKind::kCall ? current_task() : owner.task);
}

// The innermost such part that allows the view; `last` is the last one of all. Null: there is none.
RequestPart* Queue::outer_part_for(const View& view, const Actor& owner, const Request& ended,
                                   RequestPart* last) const noexcept {
  const auto allows_it = [&view](const RequestPart& e) { return allows(e, view.extent, view.access); };
  if (allows_it(*last)) return last;
  RequestPart* found = nullptr;
  const auto take = [&](RequestPart* e) {
    if (!allows_it(*e) || !is_outer(*e, owner, ended)) return;
    if (found == nullptr || is_before(*found, *e)) found = e;
  };
  if (visit_near(view.extent, take)) return found;
  RequestPart* e = last->previous;
  while (e != nullptr && !(allows_it(*e) && is_outer(*e, owner, ended))) e = e->previous;
  return e;
}

RequestPart* Queue::part_of(const Request& request, const Extent& extent, Access access) const noexcept {
  RequestPart* weaker = nullptr;
  for (size_t i = request.parts.size(); i-- > 0;) {
    RequestPart& e = request.parts[i];
    if (!e.is_appended || e.queue != this || !e.is_queued || e.needs_grant || !e.extent.overlaps(extent))
      continue;
    if (allows(e, extent, access)) return &e;
    if (weaker == nullptr) weaker = &e;
  }
  return weaker;
}

RequestPart* Queue::detached_part_for(const Extent& extent, Access access) const noexcept {
  for (RequestPart* e = head_; e != nullptr; e = e->next) {
    if (!e->is_granted || e->needs_grant || e->grant == kNoGrant) continue;
    if (e->request->kind != HolderKind::kLease) continue;
    if (e->request->is_detached.load(std::memory_order_relaxed) && allows(*e, extent, access)) return e;
  }
  return nullptr;
}

const View* Queue::granted_view(Access access, const Extent& extent) const noexcept {
  const auto allows_it = [&](const View& v) {
    return v.grant != kNoGrant && includes(v.access, access) && v.extent.contains(extent);
  };
  for (const View* v = views_; v != nullptr; v = v->next) {
    if (allows_it(*v)) return v;
  }
  for (const RequestPart* e = ended_ != 0 ? head_ : nullptr; e != nullptr; e = e->next) {
    if (e->is_ended && allows_it(*e->views)) return e->views;
  }
  return nullptr;
}

bool Queue::is_grant_of_others(GrantId grant) const noexcept {
  bool is_any = false;
  const auto is_of_own_view = [grant, &is_any](const View* v) {
    for (; v != nullptr; v = v->next) {
      if (v->grant != grant) continue;
      if (!v->is_exported) return true;
      is_any = true;
    }
    return false;
  };
  if (is_of_own_view(views_)) return false;
  for (const RequestPart* e = head_; e != nullptr; e = e->next) {
    // Its gate may be about to write the grant of a part that needs one.
    const bool has_it = !e->needs_grant && e->grant == grant;
    if ((has_it && !e->is_submitted) || is_of_own_view(e->views)) return false;
    is_any |= has_it;
  }
  return is_any;
}

void Queue::mark_views_inherited() noexcept {
  for (View* v = views_; v != nullptr; v = v->next) {
    if (v->grant == kNoGrant) continue;
    v->grant = kNoGrant;  // it belonged to the parent
    v->is_inherited = true;
    ++inherited_views_;
  }
}

const View* Queue::inherited_view() const noexcept {
  const View* v = inherited_views_ != 0 ? views_ : nullptr;
  while (v != nullptr && !v->is_inherited) v = v->next;
  return v;
}

View* Queue::host_conflict(Access access, const Extent& extent) const noexcept {
  for (View* v = views_; v != nullptr; v = v->next) {
    if (in_conflict(v->access, v->extent, access, extent)) return v;
  }
  return nullptr;
}

const RequestPart* Queue::ended_conflict(Access access, const Extent& extent) const noexcept {
  if (ended_ == 0) return nullptr;
  return any_near(extent, [&](const RequestPart& e) {
    return e.is_ended && in_conflict(access, extent, e.access, e.extent);
  });
}

bool Queue::has_views_of(uint32_t thread, const Extent& extent) const noexcept {
  const auto has_one = [&](const RequestPart& e) {
    const bool is_op = e.request->kind == HolderKind::kOp;
    if (is_op ? e.request != this_thread.running_request : e.request->owner.thread != thread) return false;
    const View* v = e.views;
    while (v != nullptr && !v->extent.overlaps(extent)) v = v->next;
    return v != nullptr;
  };
  return any_near(extent, has_one) != nullptr;
}

const View* Queue::first_writer(const Extent& extent) const noexcept {
  const auto find = [&extent](const View* v) {
    while (v != nullptr && (v->access != Access::kWrite || !v->extent.overlaps(extent))) v = v->next;
    return v;
  };
  const View* found = find(views_);
  for (const RequestPart* e = head_; e != nullptr && found == nullptr; e = e->next) found = find(e->views);
  return found;
}

const RequestPart* Queue::view_request(Access access, const Extent& extent) const noexcept {
  const RequestPart* e = view_requests_ != 0 ? head_ : nullptr;
  while (e != nullptr && !(e->request->is_for_view() && in_conflict(access, extent, e->access, e->extent)))
    e = e->next;
  return e;
}

bool Queue::is_in_view(Access access, const Extent& extent) const noexcept {
  const View* v = views_;
  while (v != nullptr && !(includes(v->access, access) && v->extent.contains(extent))) v = v->next;
  return v != nullptr;
}

bool Queue::is_in_ended(Actor actor, Access access, const Extent& extent) const noexcept {
  if (ended_ == 0) return false;
  return any_near(extent, [&](const RequestPart& e) {
           return e.is_ended && allows(e, extent, access) && e.request->owner.includes(actor);
         }) != nullptr;
}

// It waits for a view of the host, or for one that the host has requested.
bool Queue::is_behind_host(const RequestPart& part) const noexcept {
  if (part.is_granted || !part.waits_for_host) return false;
  if (host_conflict(part.access, part.extent) != nullptr) return true;
  for (const RequestPart* e = view_requests_ != 0 ? part.previous : nullptr; e != nullptr; e = e->previous) {
    if (e->request->is_for_view() && in_conflict(e->access, e->extent, part.access, part.extent)) return true;
  }
  return false;
}

RequestPart* Queue::first_behind_host(Access access, const Extent& extent) const noexcept {
  if (!has_waiting() || (views_ == nullptr && view_requests_ == 0)) return nullptr;
  for (RequestPart* e = head_; e != nullptr; e = e->next) {
    if (in_conflict(access, extent, e->access, e->extent) && is_behind_host(*e)) return e;
  }
  return nullptr;
}

namespace {

// A set of accesses. If it is full, the last entry is widened to contain further ones: under the lock there
// is no memory for a set of any size, and no time to compare each part with each.
class Accesses {
 public:
  void add(Access access, const Extent& extent) noexcept {
    for (size_t i = 0; i < n_; ++i) {
      const auto& [known_access, known] = all_[i];
      if (includes(known_access, access) && known.contains(extent)) return;
    }
    if (n_ < all_.size()) {
      all_[n_++] = {access, extent};
      return;
    }
    auto& [last_access, last] = all_.back();
    if (access == Access::kWrite) last_access = access;
    last = {std::min(last.begin, extent.begin), std::max(last.end, extent.end)};
  }
  bool conflict_with(Access access, const Extent& extent) const noexcept {
    return std::any_of(all_.begin(), all_.begin() + static_cast<ptrdiff_t>(n_), [&](const auto& known) {
      return in_conflict(known.first, known.second, access, extent);
    });
  }

 private:
  std::array<std::pair<Access, Extent>, 8> all_;
  size_t n_ = 0;
};

}  // namespace

RequestPart* Queue::first_behind_own(Actor actor, bool is_host, Access access, const Extent& extent,
                                     bool only_exported) const noexcept {
  if (!has_waiting() || (views_ == nullptr && view_requests_ == 0 && ended_ == 0)) return nullptr;
  const auto is_candidate = [&](const RequestPart& e) {
    return !e.is_granted && in_conflict(access, extent, e.access, e.extent);
  };
  if (any_near(extent, is_candidate) == nullptr) return nullptr;  // the usual case
  Accesses own, behind;  // of the own ended parts; of the parts found so far that wait for them
  for (const RequestPart* e = ended_ != 0 ? head_ : nullptr; e != nullptr; e = e->next) {
    if (!e->is_ended || (only_exported && !e->views->is_exported)) continue;
    if (e->request->owner.includes(actor)) own.add(e->access, e->extent);
  }
  for (RequestPart* e = head_; e != nullptr; e = e->next) {
    if (e->is_granted) continue;
    const bool heeds_ended = e->request->kind != HolderKind::kOp || e->request->heeds_views;
    if (!behind.conflict_with(e->access, e->extent) && !(is_host && is_behind_host(*e)) &&
        !(heeds_ended && own.conflict_with(e->access, e->extent))) {
      continue;
    }
    if (in_conflict(access, extent, e->access, e->extent)) return e;
    behind.add(e->access, e->extent);
  }
  return nullptr;
}

bool Queue::has_conflict(Access access, const Extent& extent) const noexcept {
  return any_near(extent, [&](const RequestPart& e) {
           return in_conflict(access, extent, e.access, e.extent);
         }) != nullptr;
}

bool Queue::has_unsubmitted_conflict(Access access, const Extent& extent) const noexcept {
  return any_near(extent, [&](const RequestPart& e) {
           return !e.is_submitted && in_conflict(access, extent, e.access, e.extent);
         }) != nullptr;
}

void Queue::add_view(View* view, RequestPart* under) noexcept {
  view->queue = this;
  view->under = under;
  view->is_overwriting = under != nullptr && (under->is_overwrite || under->is_overwriting);
  view->is_reported = view->is_inherited = false;
  ++(view->access == Access::kWrite ? writers_ : readers_);
  link_front(under != nullptr ? under->views : views_, view);
}

[[gnu::hot]] void Queue::remove_view(View* view, ReadyList* ready) noexcept {
  view->queue = nullptr;
  if (std::exchange(view->is_lost, false)) [[unlikely]] {
    --inherited_views_;
    return;
  }
  RequestPart* const under = view->under;
  unlink_from(under == nullptr ? views_ : under->views, view);
  if (view->is_inherited) --inherited_views_;
  --(view->access == Access::kWrite ? writers_ : readers_);
  if (view->access == Access::kWrite) note_write();
  if (under != nullptr) return under->is_ended ? (void)remove_among(under, ready) : void();
  if (!is_counted_ || waiting_ == 0) return;
  for (RequestPart* e = head_; e != nullptr; e = e->next) {
    if (!e->is_granted && e->blockers == 0 && views_allow(*e)) grant(e, ready);
  }
}

void Queue::lose(View* view, View*& list) noexcept {
  unlink_from(list, view);
  view->is_lost = true;
  ++inherited_views_;
  --(view->access == Access::kWrite ? writers_ : readers_);
  if (view->access == Access::kWrite) note_write();
}

void Queue::lose_views_of_others(RequestPart* part, uint32_t thread) noexcept {
  for (View *v = part->views, *next = nullptr; v != nullptr; v = next) {
    next = v->next;
    if (v->thread == thread) continue;
    lose(v, part->views);
    v->under = nullptr;
  }
}

void Queue::end_parts_after_fork(uint32_t thread) noexcept {
  ReadyList ready;  // stays empty: nothing waits in the child
  for (RequestPart *e = ended_ != 0 ? head_ : nullptr, *next = nullptr; e != nullptr; e = next) {
    next = e->next;
    if (!e->is_ended || (gate_ == nullptr && e->request->owner.thread == thread)) continue;
    View* const view = e->views;
    view->under = nullptr;
    if (gate_ == nullptr) {
      lose(view, e->views);
    } else {
      unlink_from(e->views, view);
      link_front(views_, view);
    }
    remove_among(e, &ready);
  }
}

}  // namespace tenon::impl
