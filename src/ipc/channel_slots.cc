// SPDX-License-Identifier: Apache-2.0
//
// How a channel lends slots and receives items: which slot is taken, by the words of its table.
#include <algorithm>
#include <mutex>
#include <utility>

#include "array/access.h"
#include "base/error.h"
#include "base/prefetch.h"
#include "base/spin_budget.h"
#include "ipc/channel.h"
#include "ipc/openings.h"

namespace tenon::impl {
namespace {

constexpr uint32_t kNoSlot = SlotTable::kNone;

// This is a forked child with a view of the slot from before the fork.
bool has_inherited_view(const Array& slot) {
  Queue& queue = lock_home(slot.storage().home());
  const bool is_any = queue.inherited_view() != nullptr;
  queue.lock.unlock();
  return is_any;
}

// Fails with kLeaseConflict: this is a forked child with a view of the slot from before the fork.
void check_inherited_views(const Array& slot) {
  Queue& queue = lock_home(slot.storage().home());
  Conflict conflict;
  conflict.reason = Conflict::Reason::kInherited;
  const View* const view = queue.inherited_view();
  if (view != nullptr) conflict.holder = Holder::of(*view);
  queue.lock.unlock();
  if (view != nullptr) throw_conflict(conflict, "use the slot with", &slot);
}

}  // namespace

uint32_t Channel::self() const noexcept { return segment_->participant().index(); }

// A process that lives reads the slot.
bool Channel::is_read(uint32_t slot) const noexcept {
  bool has_reader = false;
  visit_bits(table_.readers(slot), [&](uint32_t p) { has_reader = has_reader || ends_.is_alive(p); });
  return has_reader;
}

// A process that lives uses the slot.
bool Channel::is_held(uint32_t slot) const noexcept {
  const uint64_t word = table_.word(slot);
  return (SlotWord::has_holder(word) && ends_.is_alive(SlotWord::holder(word))) || is_read(slot);
}

// event: what the caller waits for. False if it is not a slot.
bool Channel::has_free_slot(const SharedEvent& event) const noexcept {
  if (&event != &state_->room) return false;
  const uint64_t spare = spare_up_to();
  for (uint32_t i = 0; i < plan_.slots; ++i) {
    if (is_spare(i, table_.word(i), spare)) return true;
  }
  return false;
}

// Before this process uses a slot for the first time: the process that has forked this one may have left it
// arrays of an item, which must not use the next one.
void Channel::prepare_slot(uint32_t slot) noexcept {
  if (!openings_->is_new(slot)) return;
  const std::scoped_lock local(openings_->lock());
  prepare_slot_locked(slot);
}

void Channel::prepare_slot_locked(uint32_t slot) noexcept {
  if (!openings_->is_new(slot)) return;
  Storage::end_parts(storage_of(slot), Item::release_array);
  openings_->note_used(slot);
}

void Channel::note_held(Item& item, uint32_t slot, bool is_readonly) noexcept {
  item.taker_ = taker();
  item.slot_ = slot;
  item.is_readonly_ = is_readonly;
}

// Ends the use of its slot.
void Channel::give_back(Item& item) noexcept {
  const uint64_t holder = std::exchange(item.taker_, 0);
  if (holder == 0 || holder != taker()) return;  // a forked child does not hold what its parent holds
  if (item.is_readonly_) {
    openings_->remove_item(item.slot_, [&] { table_.clear_reader(self(), item.slot_); });
  } else {
    table_.release(item.slot_);
  }
}

// The consumers of this process have received other items, or one has come or gone. Requires
// Openings::lock().
void Channel::note_cursors() noexcept {
  std::atomic<uint64_t>& cursor = state_->ends[self()].cursor;
  const uint64_t received = openings_->received_up_to(taker());
  if (look(cursor) != received) announce(cursor, received);
}

// The slots of items up to this number may be taken.
uint64_t Channel::spare_up_to() const noexcept {
  if (plan_.mode == ChannelMode::kBroadcast) return ends_.received_by_all();
  const uint64_t given = plan_.mode == ChannelMode::kLatest ? table_.given() : 0;
  return given == 0 ? 0 : given - 1;
}

// No process has the slot, or its item is one of those up to this number, and no process reads it.
bool Channel::is_spare(uint32_t slot, uint64_t word, uint64_t up_to) const noexcept {
  return word == SlotWord::kFree ||
         (SlotWord::kind(word) == SlotWord::kReady && SlotWord::number(word) <= up_to && !is_read(slot));
}

bool Channel::try_loan(Item& item) {
  ensure_role(kProducer);
  const uint32_t signals = look(state_->room.signals);
  if (lend(item)) return true;
  // Before an item is dropped: the slots of the dead, also those of items that only dead consumers of a
  // broadcast have not received. Another process may have given them back since the look, and a slot that was
  // looked at first may have become free before a later one was taken.
  const bool were_dead = ends_.reap_dead(waited_for_);
  if ((were_dead || look(state_->room.signals) != signals) && lend(item)) return true;
  if (may_drop() && (plan_.holds_bytes() ? drop_for_bytes(item) : drop_oldest(item))) return true;
  if (look(state_->room.signals) != signals && lend(item)) return true;
  check_spare_slots(item);
  return false;
}

// Fails with kLeaseConflict: not others have the slots, or the bytes, that the loan needs, but this is a
// forked child with views from before the fork, and cannot lend the slots of these.
void Channel::check_spare_slots(const Item& item) const {
  const uint64_t up_to = may_drop() ? UINT64_MAX : spare_up_to();
  const Array* in_the_way = nullptr;
  bool has_other = false;
  uint64_t held = 0, kept = 0;
  for (uint32_t i = 0; i < plan_.slots; ++i) {
    const uint64_t reserved = std::min(memories_.reserved(i), memories_.capacity_nbytes());
    if (!is_spare(i, table_.word(i), up_to)) {
      held += reserved;
    } else if (has_inherited_view(*slots_[i])) {
      in_the_way = slots_[i].get();
      kept += reserved;
    } else {
      has_other = true;
    }
  }
  if (in_the_way == nullptr) return;
  const bool lacks_bytes =
      !memories_.has_room(held, item.nbytes()) || memories_.has_room(held + kept, item.nbytes());
  if (!plan_.holds_bytes() || !has_other || !lacks_bytes) check_inherited_views(*in_the_way);
}

// A broadcast without consumers drops the oldest items, unless it keeps them for the first consumer.
bool Channel::may_drop() const noexcept {
  if (plan_.mode == ChannelMode::kLatest) return false;
  const bool is_unheard = plan_.mode == ChannelMode::kBroadcast && plan_.when_full != WhenFull::kKeep &&
                          ends_.count(kConsumer) == 0;
  return plan_.when_full == WhenFull::kDropOldest || is_unheard;
}

// Code of this process may use a slot that no process has: it has a view from before the fork, or has
// imported the memory by its address.
bool Channel::take_free(uint32_t slot) noexcept {
  if (storage_of(slot).is_used()) return false;
  prepare_slot(slot);
  if (!table_.take_free(self(), slot)) return false;
  if (!storage_of(slot).is_used()) return true;
  table_.release(slot);
  return false;
}

// Takes the slot of an item that is ready: of one that is spare, or to drop it.
bool Channel::take_over(uint32_t slot, uint64_t word, bool drops) noexcept {
  if (is_read(slot) || storage_of(slot).is_used()) return false;
  prepare_slot(slot);
  if (plan_.mode == ChannelMode::kQueue) return table_.take(self(), slot, word, 0);
  const uint64_t n = SlotWord::number(word);
  if (!table_.claim(self(), slot, n)) return false;
  // A reader or a first consumer may have come, or an item was put back, before the claim.
  const bool is_taken = !is_read(slot) && ((drops && may_drop()) || n <= spare_up_to());
  table_.end_claim(self(), slot, n, is_taken);
  // A consumer that wants the item, and has found it claimed, looks again.
  if (plan_.mode == ChannelMode::kBroadcast && (drops || !is_taken)) signal_event(state_->items);
  return is_taken;
}

// As SlotMemories::grow(). Tries again with the unused memory of the arrays of this process.
bool Channel::grow(uint32_t slot, uint64_t nbytes) const {
  try {
    return memories_.grow(slot, nbytes);
  } catch (const Error& e) {
    if (e.code() != Code::kNoMemory || !Segments::instance().trim()) throw;
  }
  return memories_.grow(slot, nbytes);
}

// For a slot that this process is about to lend. If there is none, the slot is free again.
void Channel::take_memory(uint32_t slot) const {
  try {
    (void)grow(slot, memories_.capacity_nbytes());
  } catch (...) {
    table_.release(slot);
    signal_event(state_->room);
    throw;
  }
}

void Channel::note_loan(Item& item, uint32_t slot) noexcept {
  prefetch_to_write(slots_[slot]->data());  // the caller fills it next
  for (size_t field = 0; field < schema_->fields().size(); ++field)
    use_of(slot, field).store(false, std::memory_order_relaxed);
  note_held(item, slot, false);
}

bool Channel::lend_spare(Item& item) {
  const uint64_t spare = spare_up_to();
  for (uint32_t i = 0; i < plan_.slots; ++i) {
    const uint64_t word = table_.word(i);
    if (!is_spare(i, word, spare) || !take_spare(i, word)) continue;
    take_memory(i);
    note_loan(item, i);
    return true;
  }
  return false;
}

bool Channel::drop_oldest(Item& item) {
  for (SlotTable::Found f = table_.next(0); f.slot != kNoSlot; f = table_.next(f.number())) {
    if (SlotWord::kind(f.word) != SlotWord::kReady || !take_over(f.slot, f.word, true)) continue;
    (void)add(state_->dropped, uint64_t{1});
    take_memory(f.slot);
    note_loan(item, f.slot);
    return true;
  }
  return false;
}

// The next item for this opening; of a broadcast, after the number skipped, which is to be dropped. Requires
// that it is a consumer; in other modes than a queue, Openings::lock().
SlotTable::Found Channel::item_to_receive(uint64_t skipped) noexcept {
  if (plan_.mode == ChannelMode::kQueue) return table_.next(0);
  if (plan_.mode == ChannelMode::kLatest || is_viewer()) {
    const SlotTable::Found newest = table_.newest();
    return newest.slot != kNoSlot && newest.number() > cursor_->sequence ? newest : SlotTable::Found();
  }
  std::vector<uint64_t>& put_back = cursor_->put_back;
  for (size_t i = 0; i < put_back.size();) {
    const uint64_t n = put_back[i];
    if (n <= skipped) {
      ++i;
      continue;
    }
    const SlotTable::Found found = table_.next(n - 1);
    if (found.slot != kNoSlot && found.number() == n) return found;
    put_back.erase(put_back.begin() + static_cast<ptrdiff_t>(i));
  }
  return table_.next(std::max(cursor_->sequence, skipped));
}

// There is an item to receive, which no producer is about to drop.
bool Channel::has_item() noexcept {
  if (plan_.mode == ChannelMode::kQueue) return item_to_receive().slot != kNoSlot;
  const std::scoped_lock local(openings_->lock());
  if (!has_role(receiving_role())) return false;
  SlotTable::Found found = item_to_receive();
  if (found.slot != kNoSlot && SlotWord::kind(found.word) == SlotWord::kClaimed && may_drop())
    found = item_to_receive(found.number());
  return found.slot != kNoSlot && SlotWord::kind(found.word) == SlotWord::kReady;
}

// From a queue. refused: the slot of an item whose memory code of this process uses.
bool Channel::take_item(Item& item, uint32_t* refused) {
  while (true) {
    const SlotTable::Found found = table_.next(0);
    if (found.slot == kNoSlot) return false;
    if (storage_of(found.slot).is_used()) {
      if (table_.word(found.slot) != found.word) continue;  // it is of another item
      *refused = found.slot;
      return false;
    }
    prepare_slot(found.slot);
    if (!table_.take(self(), found.slot, found.word, found.number())) continue;
    note_held(item, found.slot, false);
    item.sequence_.store(found.number(), std::memory_order_relaxed);
    store(state_->ends[self()].cursor, found.number());  // for reports alone
    return true;
  }
}

// An item that others may read, too.
bool Channel::join_item(Item& item, uint32_t* refused) {
  const std::scoped_lock local(openings_->lock());
  // Else another thread has closed the opening, and its cursor is free.
  if (!has_role(receiving_role())) return false;
  // A producer may have seen a reader that did not get its item.
  struct InVain {
    SharedEvent& room;
    bool is_any = false;
    explicit InVain(SharedEvent& event) noexcept : room(event) {}
    InVain(const InVain&) = delete;
    InVain& operator=(const InVain&) = delete;
    ~InVain() {
      if (is_any) signal_event(room);
    }
  } in_vain{state_->room};
  int claims = 0;
  uint64_t skipped = 0;
  while (true) {
    const SlotTable::Found found = item_to_receive(skipped);
    if (found.slot == kNoSlot) return false;
    const uint64_t n = found.number();
    if (!openings_->join_item(found.slot)) {
      if (storage_of(found.slot).is_used()) {
        *refused = found.slot;
        return false;
      }
      prepare_slot_locked(found.slot);
      openings_->add_item(found.slot);
      table_.set_reader(self(), found.slot);
      const uint64_t word = table_.word(found.slot);
      if (word != SlotWord::ready(n)) {
        openings_->remove_item(found.slot, [&] { table_.clear_reader(self(), found.slot); });
        in_vain.is_any = true;
        // Of a broadcast, the item comes back, or is dropped: its claimer signals that. It may be stopped.
        if (SlotWord::item(word) != n || ++claims < kBriefLooks) continue;
        if (is_viewer() || !may_drop() || !ends_.is_alive(SlotWord::holder(word))) return false;
        skipped = n;
        claims = 0;
        continue;
      }
    }
    note_held(item, found.slot, true);
    item.sequence_.store(n, std::memory_order_relaxed);
    if (!std::erase(cursor_->put_back, n)) cursor_->sequence = n;
    note_cursors();
    if (plan_.mode == ChannelMode::kBroadcast && !is_viewer()) note_received(n);
    return true;
  }
}

// Of a broadcast. Also if the number is not larger: forget() may be about to lower it.
void Channel::note_received(uint64_t n) noexcept {
  uint64_t last = observe(state_->last_received);
  while (!exchange(state_->last_received, last, std::max(last, n))) {
  }
}

bool Channel::try_receive(Item& item, uint64_t closings_before) {
  ensure_role(receiving_role());
  const uint32_t signals = look(state_->items.signals);
  uint32_t refused = kNoSlot;
  const auto take = [&] {
    if (!(plan_.mode == ChannelMode::kQueue ? take_item(item, &refused) : join_item(item, &refused)))
      return false;
    (void)add(state_->received, uint64_t{1});
    return true;
  };
  if (take()) return true;
  const bool were_dead =
      ends_.reap_dead(waited_for_);  // an item that a dead producer had claimed may be back
  // First the news, then another look: what a producer has sent before its end is received before the news.
  // The deaths last: a death is counted before the role of its process ends.
  const uint64_t ended = this->ended(closings_before);
  uint64_t seen = seen_deaths_.load(std::memory_order_relaxed);
  const uint64_t deaths = opening_.awaits_crashed ? seen : look(state_->deaths);
  if (refused == kNoSlot && (deaths > seen || ended != 0 || were_dead) && take()) return true;
  if (refused != kNoSlot) {
    check_inherited_views(*slots_[refused]);
    return false;
  }
  // Else another thread of this opening has just reported it.
  if (deaths > seen && seen_deaths_.compare_exchange_strong(seen, seen + 1, std::memory_order_relaxed))
    throw_death(seen + 1);
  if (deaths > seen) return false;
  if (ended != 0) {
    uint64_t known = seen_closings_.load(std::memory_order_relaxed);
    while (known < ended && !seen_closings_.compare_exchange_weak(known, ended, std::memory_order_relaxed)) {
    }
    throw_error(Code::kClosed, "all producers of the channel have closed it, and all items were received");
  }
  note_empty(signals);
  return false;
}

// number: of the news.
void Channel::throw_death(uint64_t number) const {
  const uint64_t death = number <= deaths_at_opening_ ? number - deaths_between_ : number;
  const auto pid = static_cast<int32_t>(ends_.pid_of_death(death));
  // The reaper may not have ended the roles of the dead one yet. It may be stopped.
  uint32_t others = 0, ending = 0;
  ends_.visit_ends([&](uint32_t, const ChannelEnd& end) {
    const uint64_t word = observe(end.word);
    if ((EndWord::roles(word) & kProducer) != 0)
      ++(EndWord::death(word) == EndWord::kAlive ? others : ending);
  });
  const bool is_over = ending != 0 || ended(UINT64_MAX) != 0;
  const char* const next = others > 0 ? "; receive again to get the items of other producers"
                           : is_over ? ", and no producer is left: the next receive reports that the channel "
                                       "has ended, and later ones wait for a new producer"
                                     : "; receive again to wait for a producer";
  throw Error(Code::kOwnerDied,
              concat("a process that could send to the channel has died (process ", pid,
                     "): items that it had not sent are lost", next),
              pid);
}

}  // namespace tenon::impl
