// SPDX-License-Identifier: Apache-2.0
#include "sync/queue.h"

#include <algorithm>
#include <array>
#include <utility>

namespace tenon::impl {
namespace {

bool is_own(const Claim& claim) noexcept {
  if (claim.party == Party::kOp) return &claim == this_thread.running_claim;
  if (claim.is_detached.load(std::memory_order_relaxed) || claim.born_in != this_thread.running) return false;
  if (claim.owner.thread != this_thread_id()) return false;
  // What a thread does inside of a call of its own belongs to the call, whatever task it is.
  return claim.party == Party::kCall || claim.owner.task == 0 || claim.owner.task == current_task();
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

}  // namespace

void Queue::link_behind(Entry* entry, Entry* place) noexcept {
  entry->previous = place;
  entry->next = place != nullptr ? place->next : head_;
  (entry->next != nullptr ? entry->next->previous : tail_) = entry;
  (place != nullptr ? place->next : head_) = entry;
  entry->is_queued = true;
}

void Queue::unlink(Entry* entry) noexcept {
  (entry->previous != nullptr ? entry->previous->next : head_) = entry->next;
  (entry->next != nullptr ? entry->next->previous : tail_) = entry->previous;
  entry->is_queued = false;
}

void Queue::mark_granted(Entry* entry) noexcept {
  entry->is_granted = true;
  if (!is_counted_) ++(entry->access == Access::kWrite ? active_writers_ : active_readers_);
}

void Queue::grant(Entry* entry, ReadyList* ready) noexcept {
  mark_granted(entry);
  // pairs with: claims::append, "entries granted by others"
  if (entry->claim->missing.fetch_sub(1, std::memory_order_acq_rel) == 1) ready->add(entry->claim);
}

void Queue::count_holder() noexcept {
  if (holders_++ != 0) return;
  held_nbytes_ = bounds_.end - bounds_.begin;
  held_by_ops.fetch_add(held_nbytes_, std::memory_order_relaxed);
}

void Queue::uncount_holder() noexcept {
  if (--holders_ == 0) held_by_ops.fetch_sub(std::exchange(held_nbytes_, 0), std::memory_order_relaxed);
}

bool Queue::append(Entry* entry, ReadyList* ready) noexcept {
  entry->queue = this;
  entry->views = nullptr;
  entry->sequence = next_sequence_++;
  entry->blockers = 0;
  entry->is_granted = false;
  entry->is_ahead = false;
  entry->holds_memory = entry->claim->party == Party::kOp && is_large();
  if (entry->holds_memory) count_holder();
  if (entry->waits_for_host) note_kept(1);
  if (entry->claim->is_for_view) ++view_requests_;
  if (!is_counted_ && (!is_whole(*entry) || entry->waits_for_host || bound_views_ != 0))
    begin_counting(ready);
  if (is_counted_) {
    for (const Entry* e = head_; e != nullptr; e = e->next) entry->blockers += conflicts(*entry, *e) ? 1 : 0;
    link_behind(entry, tail_);
    if (entry->blockers != 0 || !views_allow(*entry)) return false;
    mark_granted(entry);
    return true;
  }
  link_behind(entry, tail_);
  const bool is_free = active_writers_ == 0 && (entry->access == Access::kRead || active_readers_ == 0);
  if (first_waiting_ == nullptr && is_free) {
    mark_granted(entry);
    return true;
  }
  if (first_waiting_ == nullptr) first_waiting_ = entry;
  return false;
}

bool Queue::insert_before(Entry* entry, Entry* place) noexcept {
  entry->queue = this;
  entry->views = nullptr;
  entry->holds_memory = false;
  entry->sequence = place->sequence;
  entry->blockers = 0;
  entry->is_granted = false;
  entry->is_ahead = true;
  ++ahead_;
  if (entry->claim->is_for_view) ++view_requests_;
  for (const Entry* e = head_; e != place; e = e->next) entry->blockers += conflicts(*entry, *e) ? 1 : 0;
  for (Entry* e = place; e != nullptr; e = e->next) {
    if (conflicts(*entry, *e)) ++(e->is_granted ? entry : e)->blockers;
  }
  link_behind(entry, place->previous);
  if (entry->blockers != 0 || !views_allow(*entry)) return false;
  mark_granted(entry);
  return true;
}

void Queue::insert_under(Entry* entry, Entry* holder, ReadyList* ready) noexcept {
  entry->queue = this;
  entry->views = nullptr;
  entry->holds_memory = false;
  entry->is_ahead = false;
  if (entry->claim->is_for_view) ++view_requests_;
  entry->sequence = holder->sequence;
  entry->blockers = 0;
  if (!is_counted_ && !is_whole(*entry)) begin_counting(ready);
  link_behind(entry, holder);
  mark_granted(entry);
  if (!is_counted_) return;
  for (Entry* e = ahead_ != 0 ? head_ : entry->next; e != nullptr; e = e->next) {
    if (!e->is_granted && conflicts(*entry, *e)) ++e->blockers;
  }
}

bool Queue::remove(Entry* entry, ReadyList* ready) noexcept {
  Entry* const next = entry->next;
  unlink(entry);
  if (entry->holds_memory) uncount_holder();
  if (entry->waits_for_host) note_kept(-1);
  if (entry->is_ahead) --ahead_;
  if (entry->claim->is_for_view) --view_requests_;
  const Moved moved = entry->views != nullptr ? move_views_to_host(entry) : Moved{};
  if (is_counted_) {
    grant_behind(*entry, next, ready);
    if (head_ == nullptr) is_counted_ = false;
  } else {
    if (entry->is_granted) {
      --(entry->access == Access::kWrite ? active_writers_ : active_readers_);
    } else if (entry == first_waiting_) {
      first_waiting_ = next;
    }
    if (moved.is_in_the_way) {
      begin_counting(ready);
    } else if (first_waiting_ != nullptr) {
      advance(ready);
    }
  }
  return moved.is_any;
}

// next: the one that stood behind it. What stands before it waits for it only if it was put there afterwards.
void Queue::grant_behind(const Entry& removed, Entry* next, ReadyList* ready) noexcept {
  for (Entry* e = ahead_ != 0 && removed.is_granted ? head_ : next; e != nullptr; e = e->next) {
    if (e->is_granted || !conflicts(removed, *e)) continue;
    if (--e->blockers == 0 && views_allow(*e)) grant(e, ready);
  }
}

void Queue::advance(ReadyList* ready) noexcept {
  while (Entry* const e = first_waiting_) {
    if (active_writers_ != 0 || (e->access == Access::kWrite && active_readers_ != 0)) return;
    first_waiting_ = e->next;
    grant(e, ready);
  }
}

// Entries that covered all of the memory when they came may cover a part now: where memory was bridged.
void Queue::begin_counting(ReadyList* ready) noexcept {
  is_counted_ = true;
  first_waiting_ = nullptr;
  active_readers_ = active_writers_ = 0;
  for (Entry* e = head_; e != nullptr; e = e->next) {
    if (e->is_granted) continue;
    e->blockers = 0;
    for (const Entry* earlier = head_; earlier != e; earlier = earlier->next) {
      e->blockers += conflicts(*e, *earlier) ? 1 : 0;
    }
    if (e->blockers == 0 && views_allow(*e)) grant(e, ready);
  }
}

// The views go to another entry of the same actor that allows them, else to the host.
Queue::Moved Queue::move_views_to_host(Entry* entry) noexcept {
  Moved moved;
  const Claim& claim = *entry->claim;
  while (View* const view = entry->views) {
    unlink_from(entry->views, view);
    Entry* const outer = holder_for(view->extent, view->access);
    view->holder = outer != nullptr && allows(*outer, view->extent, view->access) ? outer : nullptr;
    link_front(view->holder != nullptr ? view->holder->views : views_, view);
    if (view->holder != nullptr) continue;
    moved.is_any = true;
    if (claim.party == Party::kLease) {
      view->is_bound = true;
      ++bound_views_;
      note_kept(1);
      // A lease of nobody's is continued by the thread that took the view.
      if (!claim.is_detached.load(std::memory_order_relaxed)) view->actor = claim.owner;
    }
    for (Entry* e = head_; e != nullptr; e = e->next) {
      if (e->is_granted || !conflict(view->access, view->extent, e->access, e->extent)) continue;
      if (e->claim->heeds_host && !std::exchange(e->waits_for_host, true)) note_kept(1);
      moved.is_in_the_way |= e->waits_for_host || heeds_bound_views(*e);
    }
  }
  return moved;
}

Entry* Queue::holder_for(const Extent& extent, Access access) const noexcept {
  Entry* weaker = nullptr;
  Entry* innermost = nullptr;  // what acts under an entry stands behind it
  for (Entry* e = head_; e != nullptr; e = e->next) {
    if (!e->is_granted) {
      if (!is_counted_) break;
      continue;
    }
    if (e->needs_pass || !e->extent.overlaps(extent) || !is_own(*e->claim)) continue;
    (allows(*e, extent, access) ? innermost : weaker) = e;
  }
  return innermost != nullptr ? innermost : weaker;
}

Entry* Queue::detached_holder_for(const Extent& extent, Access access) const noexcept {
  for (Entry* e = head_; e != nullptr; e = e->next) {
    if (e->needs_pass || e->pass == kNoPass || e->claim->party != Party::kLease) continue;
    if (e->claim->is_detached.load(std::memory_order_relaxed) && allows(*e, extent, access)) return e;
  }
  return nullptr;
}

const View* Queue::passed_view(Access access, const Extent& extent) const noexcept {
  for (const View* v = views_; v != nullptr; v = v->next) {
    if (v->pass == kNoPass || v->pass == kInheritedPass) continue;
    if (includes(v->access, access) && v->extent.contains(extent)) return v;
  }
  return nullptr;
}

void Queue::mark_views_inherited() noexcept {
  for (View* v = views_; v != nullptr; v = v->next) {
    if (v->pass == kNoPass || v->pass == kInheritedPass) continue;
    v->pass = kInheritedPass;
    ++inherited_views_;
  }
}

const View* Queue::inherited_view() const noexcept {
  const View* v = inherited_views_ != 0 ? views_ : nullptr;
  while (v != nullptr && v->pass != kInheritedPass) v = v->next;
  return v;
}

View* Queue::host_conflict(Access access, const Extent& extent) const noexcept {
  for (View* v = views_; v != nullptr; v = v->next) {
    if (conflict(v->access, v->extent, access, extent)) return v;
  }
  return nullptr;
}

const View* Queue::bound_conflict(Access access, const Extent& extent) const noexcept {
  const View* v = bound_views_ != 0 ? views_ : nullptr;
  while (v != nullptr && !(v->is_bound && conflict(v->access, v->extent, access, extent))) v = v->next;
  return v;
}

const View* Queue::first_writer(const Extent& extent) const noexcept {
  const auto find = [&extent](const View* v) {
    while (v != nullptr && (v->access != Access::kWrite || !v->extent.overlaps(extent))) v = v->next;
    return v;
  };
  const View* found = find(views_);
  for (const Entry* e = head_; e != nullptr && found == nullptr; e = e->next) found = find(e->views);
  return found;
}

const Entry* Queue::view_request(Access access, const Extent& extent) const noexcept {
  const Entry* e = view_requests_ != 0 ? head_ : nullptr;
  while (e != nullptr && !(e->claim->is_for_view && conflict(access, extent, e->access, e->extent)))
    e = e->next;
  return e;
}

bool Queue::is_covered(Actor actor, bool is_host, Access access, const Extent& extent) const noexcept {
  for (const View* v = views_; v != nullptr; v = v->next) {
    if (!includes(v->access, access) || !v->extent.contains(extent)) continue;
    if (v->is_bound ? v->actor.includes(actor) : is_host) return true;
  }
  return false;
}

// Ops heed bound views as all others: by waits_for_host.
bool Queue::heeds_bound_views(const Entry& entry) const noexcept {
  if (entry.claim->party == Party::kOp) return entry.waits_for_host;
  return !is_covered(entry.claim->owner, false, entry.access, entry.extent);
}

View* Queue::view_in_the_way(const Entry& entry) const noexcept {
  if (entry.waits_for_host) return host_conflict(entry.access, entry.extent);
  View* first = nullptr;
  visit_bound_views(entry, [&first](View& v) { first = first == nullptr ? &v : first; });
  return first;
}

// It waits for a view of this actor's, or (is_host) of the host's, or for one that the host has asked for.
bool Queue::is_kept(const Entry& entry, Actor actor, bool is_host) const noexcept {
  if (entry.is_granted) return false;
  bool is_kept = false;
  visit_bound_views(entry, [&](const View& v) { is_kept |= v.actor.includes(actor); });
  if (is_kept || !is_host || !entry.waits_for_host) return is_kept;
  for (const View* v = views_; v != nullptr; v = v->next) {
    if (!v->is_bound && conflict(v->access, v->extent, entry.access, entry.extent)) return true;
  }
  for (const Entry* e = view_requests_ != 0 ? entry.previous : nullptr; e != nullptr; e = e->previous) {
    if (e->claim->is_for_view && conflict(e->access, e->extent, entry.access, entry.extent)) return true;
  }
  return false;
}

Entry* Queue::first_kept(Actor actor, bool is_host, Access access, const Extent& extent) const noexcept {
  if (views_ == nullptr && view_requests_ == 0) return nullptr;
  for (Entry* e = head_; e != nullptr; e = e->next) {
    if (conflict(access, extent, e->access, e->extent) && is_kept(*e, actor, is_host)) return e;
  }
  return nullptr;
}

namespace {

// Accesses with which others may conflict. Of more than it has room for it knows what contains them.
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
      return conflict(known.first, known.second, access, extent);
    });
  }

 private:
  std::array<std::pair<Access, Extent>, 8> all_;
  size_t n_ = 0;
};

}  // namespace

Entry* Queue::first_behind_kept(Actor actor, bool is_host, Access access,
                                const Extent& extent) const noexcept {
  if (views_ == nullptr && view_requests_ == 0) return nullptr;
  Accesses kept;
  for (Entry* e = head_; e != nullptr; e = e->next) {
    if (e->is_granted || (!kept.conflict_with(e->access, e->extent) && !is_kept(*e, actor, is_host)))
      continue;
    if (conflict(access, extent, e->access, e->extent)) return e;
    kept.add(e->access, e->extent);
  }
  return nullptr;
}

Entry* Queue::first_conflict(Access access, const Extent& extent) const noexcept {
  Entry* e = head_;
  while (e != nullptr && !conflict(access, extent, e->access, e->extent)) e = e->next;
  return e;
}

void Queue::add_view(View* view, Entry* holder) noexcept {
  view->queue = this;
  view->holder = holder;
  view->is_overwriting = holder != nullptr && (holder->is_overwrite || holder->is_overwriting);
  view->is_bound = view->is_reported = false;
  ++(view->access == Access::kWrite ? writers_ : readers_);
  link_front(holder != nullptr ? holder->views : views_, view);
}

void Queue::remove_view(View* view, ReadyList* ready) noexcept {
  const bool is_of_host = view->holder == nullptr;
  unlink_from(is_of_host ? views_ : view->holder->views, view);
  view->queue = nullptr;
  if (view->pass == kInheritedPass) --inherited_views_;
  --(view->access == Access::kWrite ? writers_ : readers_);
  if (view->access == Access::kWrite) note_write();
  if (view->is_bound) {
    --bound_views_;
    note_kept(-1);
  }
  if (!is_of_host || !is_counted_) return;
  for (Entry* e = head_; e != nullptr; e = e->next) {
    if (!e->is_granted && e->blockers == 0 && views_allow(*e)) grant(e, ready);
  }
}

void Queue::unbind_views_of_others(uint32_t thread) noexcept {
  for (View* v = bound_views_ != 0 ? views_ : nullptr; v != nullptr; v = v->next) {
    if (!v->is_bound || v->actor.thread == thread) continue;
    v->is_bound = false;
    --bound_views_;
    note_kept(-1);
  }
}

void Queue::poison(Poison* node) noexcept {
  node->next = std::exchange(poison_, node);
  has_poison.store(true, std::memory_order_relaxed);
}

void Queue::poison_without_node(const Extent& extent) noexcept {
  unnoted_ = unnoted_.end == 0
                 ? extent
                 : Extent{std::min(unnoted_.begin, extent.begin), std::max(unnoted_.end, extent.end)};
  has_poison.store(true, std::memory_order_relaxed);
}

Poison* Queue::heal(const Extent& extent, Poison** spare) noexcept {
  Poison* healed = nullptr;
  Poison** place = &poison_;
  while (Poison* const node = *place) {
    Extent& bytes = node->extent;
    if (extent.contains(bytes)) {
      *place = node->next;
      node->next = std::exchange(healed, node);
      continue;
    }
    place = &node->next;
    if (!extent.overlaps(bytes)) continue;
    if (extent.begin <= bytes.begin) {
      bytes.begin = extent.end;
    } else if (extent.end >= bytes.end) {
      bytes.end = extent.begin;
    } else if (spare != nullptr && *spare != nullptr) {
      Poison* const behind = std::exchange(*spare, nullptr);
      behind->extent = {extent.end, bytes.end};
      behind->failure = node->failure;
      behind->next = std::exchange(node->next, behind);
      bytes.end = extent.begin;
      place = &behind->next;
    }
  }
  if (extent.contains(unnoted_)) unnoted_ = {0, 0};
  has_poison.store(poison_ != nullptr || unnoted_.end != 0, std::memory_order_relaxed);
  return healed;
}

Ref<Failure> Queue::failure_in(const Extent& extent) const noexcept {
  Ref<Failure> first;  // the list begins with the latest
  for (const Poison* node = poison_; node != nullptr; node = node->next) {
    if (node->extent.overlaps(extent)) first = node->failure;
  }
  return first || !has_failed(extent) ? first : Failure::without_memory();
}

void Queue::take_over(Queue& other) noexcept {
  version_.fetch_add(other.version_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  while (Poison* const node = other.poison_) {
    other.poison_ = node->next;
    poison(node);
  }
  if (other.unnoted_.end != 0) poison_without_node(std::exchange(other.unnoted_, {0, 0}));
  other.has_poison.store(false, std::memory_order_relaxed);
}

}  // namespace tenon::impl
