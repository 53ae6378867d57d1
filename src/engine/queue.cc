// SPDX-License-Identifier: Apache-2.0
#include "engine/queue.h"

#include <utility>

namespace tenon::engine {
namespace {

bool is_own(const Claim& claim) noexcept {
  switch (claim.kind) {
    case Kind::kOp: return &claim == this_thread.running_claim;
    case Kind::kCall: return false;
    case Kind::kLease: break;
  }
  if (claim.is_detached.load(std::memory_order_relaxed) || claim.born_in != this_thread.running) return false;
  if (claim.owner.thread != this_thread_id()) return false;
  return claim.owner.task == 0 || claim.owner.task == current_task();
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
  if (!is_counted_) ++(entry->mode == Mode::kWrite ? active_writers_ : active_readers_);
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
  entry->holds_memory = entry->claim->kind == Kind::kOp && is_large();
  if (entry->holds_memory) count_holder();
  if (!is_counted_ && (!is_whole(*entry) || entry->waits_for_host)) begin_counting(ready);
  if (is_counted_) {
    for (const Entry* e = head_; e != nullptr; e = e->next) entry->blockers += conflicts(*entry, *e) ? 1 : 0;
    link_behind(entry, tail_);
    if (entry->blockers != 0 || !host_allows(*entry)) return false;
    mark_granted(entry);
    return true;
  }
  link_behind(entry, tail_);
  const bool is_free = active_writers_ == 0 && (entry->mode == Mode::kRead || active_readers_ == 0);
  if (first_waiting_ == nullptr && is_free) {
    mark_granted(entry);
    return true;
  }
  if (first_waiting_ == nullptr) first_waiting_ = entry;
  return false;
}

void Queue::insert_under(Entry* entry, Entry* holder, ReadyList* ready) noexcept {
  entry->queue = this;
  entry->views = nullptr;
  entry->holds_memory = false;
  entry->sequence = holder->sequence;
  entry->blockers = 0;
  if (!is_counted_ && !is_whole(*entry)) begin_counting(ready);
  link_behind(entry, holder);
  mark_granted(entry);
  if (is_counted_) {
    for (Entry* e = entry->next; e != nullptr; e = e->next) {
      if (!e->is_granted && conflicts(*entry, *e)) ++e->blockers;
    }
  }
  for (View* v = waiting_views_ != 0 ? views_ : nullptr; v != nullptr; v = v->next) {
    const bool waits = v->is_open.load(std::memory_order_relaxed) == 0;
    if (waits && v->sequence > entry->sequence && conflict(v->mode, v->extent, entry->mode, entry->extent)) {
      ++v->blockers;
    }
  }
}

bool Queue::remove(Entry* entry, ReadyList* ready) noexcept {
  Entry* const next = entry->next;
  unlink(entry);
  if (entry->holds_memory) uncount_holder();
  const Moved moved = entry->views != nullptr ? move_views_to_host(entry) : Moved{};
  if (waiting_views_ != 0) open_waiting_views(*entry, ready);
  if (is_counted_) {
    for (Entry* e = next; e != nullptr; e = e->next) {
      if (e->is_granted || !conflicts(*entry, *e)) continue;
      if (--e->blockers == 0 && host_allows(*e)) grant(e, ready);
    }
    if (head_ == nullptr) is_counted_ = false;
  } else {
    if (entry->is_granted) {
      --(entry->mode == Mode::kWrite ? active_writers_ : active_readers_);
    } else if (entry == first_waiting_) {
      first_waiting_ = next;
    }
    if (moved.is_in_the_way) {
      begin_counting(ready);
    } else if (first_waiting_ != nullptr) {
      advance(ready);
    }
  }
  return moved.is_in_the_way || (moved.is_any && gate_ != nullptr);
}

void Queue::advance(ReadyList* ready) noexcept {
  while (Entry* const e = first_waiting_) {
    if (active_writers_ != 0 || (e->mode == Mode::kWrite && active_readers_ != 0)) return;
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
    if (e->blockers == 0 && host_allows(*e)) grant(e, ready);
  }
}

void Queue::open_waiting_views(const Entry& removed, ReadyList* ready) noexcept {
  for (View* v = views_; v != nullptr; v = v->next) {
    if (v->is_open.load(std::memory_order_relaxed) != 0 || v->sequence <= removed.sequence) continue;
    if (!conflict(v->mode, v->extent, removed.mode, removed.extent) || --v->blockers != 0) continue;
    --waiting_views_;
    ready->has_opened_views = true;
    // pairs with: open_view, "what the entries before the view have written"
    v->is_open.store(1, std::memory_order_release);
  }
  if (ready->has_opened_views) turns.fetch_add(1, std::memory_order_relaxed);
}

// The views go to another entry of the same actor that allows them, else to the host. True if one of these
// is in the way of work that waits.
Queue::Moved Queue::move_views_to_host(Entry* entry) noexcept {
  Moved moved;
  while (View* const view = entry->views) {
    unlink_from(entry->views, view);
    Entry* const outer = holder_for(view->extent, view->mode);
    view->holder = outer != nullptr && allows(*outer, view->extent, view->mode) ? outer : nullptr;
    link_front(view->holder != nullptr ? view->holder->views : views_, view);
    moved.is_any |= view->holder == nullptr;
    for (Entry* e = view->holder != nullptr ? nullptr : head_; e != nullptr; e = e->next) {
      if (e->is_granted || !e->claim->heeds_host) continue;
      if (!conflict(view->mode, view->extent, e->mode, e->extent)) continue;
      e->waits_for_host = true;
      moved.is_in_the_way = true;
    }
  }
  return moved;
}

Entry* Queue::holder_for(const Extent& extent, Mode mode) const noexcept {
  Entry* weaker = nullptr;
  Entry* innermost = nullptr;  // what acts under an entry stands behind it
  for (Entry* e = head_; e != nullptr; e = e->next) {
    if (!e->is_granted) {
      if (!is_counted_) break;
      continue;
    }
    if (e->needs_pass || !e->extent.overlaps(extent) || !is_own(*e->claim)) continue;
    (allows(*e, extent, mode) ? innermost : weaker) = e;
  }
  return innermost != nullptr ? innermost : weaker;
}

Entry* Queue::detached_holder_for(const Extent& extent, Mode mode) const noexcept {
  for (Entry* e = head_; e != nullptr; e = e->next) {
    if (e->needs_pass || e->pass == kNoPass || e->claim->kind != Kind::kLease) continue;
    if (e->claim->is_detached.load(std::memory_order_relaxed) && allows(*e, extent, mode)) return e;
  }
  return nullptr;
}

const View* Queue::passed_view(Mode mode, const Extent& extent) const noexcept {
  for (const View* v = views_; v != nullptr; v = v->next) {
    if (v->pass == kNoPass || v->pass == kInheritedPass) continue;
    if ((v->mode == Mode::kWrite || mode == Mode::kRead) && v->extent.contains(extent)) return v;
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

View* Queue::host_conflict(Mode mode, const Extent& extent) const noexcept {
  for (View* v = views_; v != nullptr; v = v->next) {
    if (conflict(v->mode, v->extent, mode, extent)) return v;
  }
  return nullptr;
}

const View* Queue::first_writer(const Extent& extent) const noexcept {
  const auto find = [&extent](const View* v) {
    while (v != nullptr && (v->mode != Mode::kWrite || !v->extent.overlaps(extent))) v = v->next;
    return v;
  };
  const View* found = find(views_);
  for (const Entry* e = head_; e != nullptr && found == nullptr; e = e->next) found = find(e->views);
  return found;
}

bool Queue::host_holds(Mode mode, const Extent& extent) const noexcept {
  for (const View* v = views_; v != nullptr; v = v->next) {
    const bool is_open = v->is_open.load(std::memory_order_relaxed) != 0;
    if (is_open && (v->mode == Mode::kWrite || mode == Mode::kRead) && v->extent.contains(extent))
      return true;
  }
  return false;
}

bool Queue::is_host_in_the_way(const Entry& entry) const noexcept {
  for (const View* v = views_; v != nullptr; v = v->next) {
    const bool is_open = v->is_open.load(std::memory_order_relaxed) != 0;
    if (!is_open && v->sequence > entry.sequence) continue;
    if (conflict(v->mode, v->extent, entry.mode, entry.extent)) return true;
  }
  return false;
}

Entry* Queue::first_conflict(Mode mode, const Extent& extent, bool is_for_host) const noexcept {
  for (Entry* e = head_; e != nullptr; e = e->next) {
    if (is_for_host && (e->is_granted || host_allows(*e))) continue;
    if (conflict(mode, extent, e->mode, e->extent)) return e;
  }
  return nullptr;
}

bool Queue::add_view(View* view, Entry* holder, bool may_join) noexcept {
  view->queue = this;
  view->holder = holder;
  view->is_overwriting = holder != nullptr && holder->is_overwrite;
  view->sequence = next_sequence_++;
  view->blockers = 0;
  ++(view->mode == Mode::kWrite ? writers_ : readers_);
  if (holder == nullptr && head_ != nullptr && !may_join) {
    for (const Entry* e = head_; e != nullptr; e = e->next) {
      view->blockers += conflict(view->mode, view->extent, e->mode, e->extent) ? 1 : 0;
    }
  }
  link_front(holder != nullptr ? holder->views : views_, view);
  const bool is_open = view->blockers == 0;
  view->is_open.store(is_open ? 1 : 0, std::memory_order_relaxed);
  if (!is_open) ++waiting_views_;
  return is_open;
}

void Queue::remove_view(View* view, ReadyList* ready) noexcept {
  const bool is_of_host = view->holder == nullptr;
  unlink_from(is_of_host ? views_ : view->holder->views, view);
  view->queue = nullptr;
  if (view->pass == kInheritedPass) --inherited_views_;
  --(view->mode == Mode::kWrite ? writers_ : readers_);
  if (view->mode == Mode::kWrite) note_write();
  if (view->is_open.load(std::memory_order_relaxed) == 0) --waiting_views_;
  if (!is_of_host || !is_counted_) return;
  for (Entry* e = head_; e != nullptr; e = e->next) {
    if (!e->is_granted && e->blockers == 0 && host_allows(*e)) grant(e, ready);
  }
}

void Queue::poison(Poison* node) noexcept {
  node->next = std::exchange(poison_, node);
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
  has_poison.store(poison_ != nullptr, std::memory_order_relaxed);
  return healed;
}

Ref<Failure> Queue::failure_in(const Extent& extent) const noexcept {
  Ref<Failure> first;  // the list begins with the latest
  for (const Poison* node = poison_; node != nullptr; node = node->next) {
    if (node->extent.overlaps(extent)) first = node->failure;
  }
  return first;
}

void Queue::take_over(Queue& other) noexcept {
  version_.fetch_add(other.version_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  while (Poison* const node = other.poison_) {
    other.poison_ = node->next;
    poison(node);
  }
  other.has_poison.store(false, std::memory_order_relaxed);
}

}  // namespace tenon::engine
