// SPDX-License-Identifier: Apache-2.0
#include "ipc/channel.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "array/access.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/prefetch.h"
#include "ipc/ending_pace.h"
#include "ipc/lazy_copy.h"
#include "ipc/openings.h"
#include "ipc/slot_gate.h"
#include "ipc/watcher.h"
#include "sync/waiter.h"

namespace tenon::impl {
namespace {

constexpr uint64_t kSlotAlignment = 256;
constexpr uint32_t kMostSlots = 4095;
constexpr uint32_t kNoSlot = SentItems::kNoSlot;
constexpr uint64_t kIsEmpty = uint64_t{1} << 32;
// A process that dies as it takes a role, before it signals, is noticed after this time at the latest.
constexpr int64_t kLookAtEndsMs = 20;

[[noreturn]] void throw_no_channel(const Array& memory) {
  throw_error(Code::kValue, "this shared memory of shape ", shape_text(memory.shape()), " holds no channel");
}

// Large slots share no page, so that each can be pinned.
uint64_t slot_nbytes_of(const Schema& schema) noexcept {
  const uint64_t nbytes = std::max<uint64_t>(schema.fields_nbytes(), 1);
  return round_up(nbytes, nbytes < kPage ? kSlotAlignment : kPage);
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

Ref<Channel> Channel::create(std::span<const tenon_field> given, const ChannelPlan& plan,
                             const SharedOptions& options) {
  if (plan.slots == 0 || plan.slots > kMostSlots) {
    throw_error(Code::kValue, "a channel has 1 to ", kMostSlots, " slots, not ", plan.slots);
  }
  if (plan.mode == ChannelMode::kLatest && plan.slots < 3) {
    throw_error(Code::kValue, "a channel of the latest item needs at least 3 slots, not ", plan.slots,
                ": one that is written, one with the newest item, and one for each reader");
  }
  auto channel = Ref<Channel>::adopt(new Channel);
  channel->is_closed_.store(true, std::memory_order_relaxed);  // until it is complete
  channel->schema_ = Schema::make(given, "channel", kSharedRules);
  channel->plan_ = plan;
  std::string description;
  channel->schema_->encode(&description);
  uint64_t slots_nbytes = 0;
  if (__builtin_mul_overflow(slot_nbytes_of(*channel->schema_), uint64_t{plan.slots}, &slots_nbytes)) {
    throw_error(Code::kValue, plan.slots, " slots of ", channel->schema_->fields_nbytes(),
                " bytes do not fit into 63 bits");
  }
  const uint64_t sizes[] = {sizeof(ChannelState) + plan.slots * sizeof(ChannelSlot) + description.size(),
                            slots_nbytes};
  SharedOptions prepared = options;
  prepared.prepare = [&](std::byte* base) {
    auto* const state = reinterpret_cast<ChannelState*>(base);
    state->slots = plan.slots;
    state->mode = static_cast<uint32_t>(plan.mode);
    state->when_full = static_cast<uint32_t>(plan.when_full);
    state->description_nbytes = description.size();
    make_robust(&state->mutex);
    std::memcpy(base + sizeof(ChannelState) + plan.slots * sizeof(ChannelSlot), description.data(),
                description.size());
    // pairs with: Channel::of, "the description of a channel"
    state->mark.store(kChannelMark, std::memory_order_release);
  };
  channel->memory_ = Segments::instance().create_blocks(sizes, prepared);
  channel->open_slots();
  return channel;
}

Ref<Channel> Channel::of(Ref<Array> memory) {
  auto channel = Ref<Channel>::adopt(new Channel);
  channel->is_closed_.store(true, std::memory_order_relaxed);
  memory->check_memory();
  const uint64_t nbytes = memory->desc().nbytes;
  auto* const state = reinterpret_cast<ChannelState*>(memory->data());
  const bool has_room = !memory->is_on_device() && memory->shape().size() == 1 &&
                        memory->desc().itemsize == 1 && nbytes > sizeof(ChannelState);
  // pairs with: Channel::create, "the description of a channel"
  if (!has_room || state->mark.load(std::memory_order_acquire) != kChannelMark) throw_no_channel(*memory);
  channel->plan_ = {state->slots, static_cast<ChannelMode>(state->mode),
                    static_cast<WhenFull>(state->when_full)};
  const uint64_t at = sizeof(ChannelState) + uint64_t{channel->plan_.slots} * sizeof(ChannelSlot);
  const uint64_t description_nbytes = state->description_nbytes;
  if (channel->plan_.slots == 0 || channel->plan_.slots > kMostSlots || state->mode > TENON_CHANNEL_LATEST ||
      state->when_full > TENON_WHEN_FULL_KEEP || at > nbytes || description_nbytes > nbytes - at) {
    throw_no_channel(*memory);
  }
  const std::vector<std::byte> copy(memory->data() + at, memory->data() + at + description_nbytes);
  std::span<const std::byte> rest(copy);
  channel->schema_ = Schema::decode(&rest);
  channel->memory_ = std::move(memory);
  channel->open_slots();
  return channel;
}

void Channel::open_slots() {
  state_ = reinterpret_cast<ChannelState*>(memory_->data());
  slot_states_ = reinterpret_cast<ChannelSlot*>(state_ + 1);
  segment_ = &Segments::instance().writable_segment_of(*memory_);
  ends_ = ChannelEnds(*segment_, *state_);
  sent_ = SentItems(*state_, {slot_states_, plan_.slots});
  const uint64_t nbytes = slot_nbytes_of(*schema_);
  const std::span<std::byte> slots = segment_->bytes_of(1);
  if (segment_->header().blocks != 2 || slots.size() / nbytes < plan_.slots) throw_no_channel(*memory_);
  const SlotGate::Slots gated{slots.data(), nbytes, plan_.slots, slot_states_};
  auto* const gate =
      dynamic_cast<SlotGate*>(&segment_->set_lock(1, std::make_unique<SlotGate>(*segment_, 1, gated)));
  if (gate == nullptr) throw_no_channel(*memory_);  // an array lies over the slots
  gate_ = gate;
  openings_ = &gate->openings();
  if (PrivatePages* const pages = segment_->private_pages()) {
    pages->copy_at_forks();  // a child does not hold the items of its parent
    const auto at = static_cast<uint64_t>(slots.data() - segment_->data());
    (void)LentMappings::instance().add(slots.data(), slots.size(), {pages, at});
  }
  Memory memory;
  memory.gate = gate_;
  memory.nbytes = memory.extent_nbytes = nbytes;
  const auto shape = static_cast<int64_t>(nbytes);
  for (uint32_t i = 0; i < plan_.slots; ++i) {
    memory.data = memory.extent = slots.data() + i * nbytes;
    slots_.push_back(Array::over(Storage::adopt(memory), DType(TENON_UINT, 8, 1), {&shape, 1}, 0));
  }
  used_fields_ = std::make_unique<std::atomic<bool>[]>(plan_.slots * schema_->fields().size());
  seen_deaths_.store(look(state_->deaths), std::memory_order_relaxed);
  is_closed_.store(false, std::memory_order_relaxed);
}

// The participant that this process is now, and its generation, which is not 0. 0: it has no place.
uint64_t Channel::taker() const noexcept {
  const Participant& self = segment_->participant();
  if (self.index() == Participant::kNone) return 0;
  return uint64_t{self.index()} << 32 | self.place().generation.load(std::memory_order_relaxed);
}

// Requires the mutex, as do all functions from here to try_receive(), unless they say otherwise.
void Channel::take_role(ChannelRole role) {
  if (segment_->participant().index() == Participant::kNone) segment_->throw_no_place();
  ChannelEnd& end = ends_.own();
  const uint64_t taker = this->taker();
  const auto generation = static_cast<uint32_t>(taker);
  // A forked child has none of its parent's roles.
  if (roles_taker_.load(std::memory_order_relaxed) != taker) {
    roles_taker_.store(taker, std::memory_order_relaxed);
    roles_.store(0, std::memory_order_relaxed);
  }
  // pairs with: Channel::give_roles, "a role that was given up"
  const bool has_role = (roles_.load(std::memory_order_acquire) & role) != 0;
  // After the role: close() frees the cursor of the role that it gives up, so no other cursor may replace it.
  if (is_closed_.load(std::memory_order_relaxed)) throw_error(Code::kClosed, "the channel was closed here");
  if (has_role) return;
  (void)ends_.end_dead();  // this process may have the place of a process that died with a role
  if (look(end.generation) != generation) {
    const uint32_t self = segment_->participant().index();
    for (uint32_t i = 0; i < plan_.slots; ++i) {  // of the process that had the place before
      if (has_bit(slot_states_[i].holders, self)) clear_bit(slot_states_[i].holders, self);
    }
    store(end.producers, 0u);
    store(end.consumers, 0u);
    store(end.members, 0u);
    store(end.has_used, 0u);
    store(end.cursor, uint64_t{0});
    store(end.death, uint64_t{0});
    store(end.pid, static_cast<uint32_t>(getpid()));
    publish(end.generation, generation);
  }
  if (role == kConsumer) {
    // Items before the last one may be gone, so the consumer would get items with gaps between them.
    const bool is_broadcast = plan_.mode == ChannelMode::kBroadcast;
    cursor_ = &openings_->add_cursor(taker, is_broadcast ? look(state_->last_received) : 0);
    note_cursors();
  }
  ends_.add_role(role);
  // First adds the role, then reads is_closed_; close() does the opposite.
  // pairs with: Channel::close, "a role of an opening"
  roles_.fetch_or(role, std::memory_order_seq_cst);
  // pairs with: Channel::close, "an opening that is closed"
  if (is_closed_.load(std::memory_order_seq_cst)) {
    if (give_roles() != 0) ends_.end_closed(end);
    throw_error(Code::kClosed, "the channel was closed here");
  }
  // So that sleeping processes also wait for this process' life.
  ends_.wake_all();
}

// Whether a call is to report that there is no producer. An opening reports it once after the last one has
// left, and in addition in each call that began before. closings_before: of the call, when it began.
bool Channel::has_ended(uint64_t closings_before) const noexcept {
  return look(state_->closings) > std::min(closings_before, seen_closings_.load(std::memory_order_relaxed)) &&
         ends_.count(kProducer) == 0;
}

// A process that lives uses the slot. Does not require the mutex.
bool Channel::is_held(uint32_t slot) const noexcept {
  bool has_holder = false;
  visit_bits(slot_states_[slot].holders, [&](uint32_t p) { has_holder = has_holder || ends_.is_alive(p); });
  return has_holder;
}

// event: what the caller waits for. False if it is not a slot. Does not require the mutex.
bool Channel::has_free_slot(const SharedEvent& event) const noexcept {
  if (&event != &state_->room) return false;
  const auto is_free = [](const ChannelSlot& slot) {
    return look(slot.sequence) == 0 && is_empty(slot.holders);
  };
  return std::any_of(slot_states_, slot_states_ + plan_.slots, is_free);
}

// Removes the processes that have ended from the holders of all slots. True: there was one.
bool Channel::drop_dead_holders() noexcept {
  bool has_found = false;
  for (uint32_t i = 0; i < plan_.slots; ++i) {
    visit_bits(slot_states_[i].holders, [&](uint32_t p) {
      if (ends_.is_alive(p)) return;
      clear_bit(slot_states_[i].holders, p);
      has_found = true;
    });
  }
  if (has_found) signal_event(state_->room);
  return has_found;
}

// Takes the slot for an item. To write, it requires that no living process uses the slot. False: code of this
// process still uses it, or has inherited a view of it.
bool Channel::hold(Item& item, uint32_t slot, bool is_readonly) noexcept {
  if (!is_readonly || !openings_->join_item(slot)) {
    Storage& storage = storage_of(slot);
    if (storage.is_used()) return false;
    // The process that has forked this one may have left it arrays of an item, which must not use this item.
    if (!openings_->add_item(slot, ForkMark::current())) Storage::end_parts(storage, Item::release_array);
    set_bit(slot_states_[slot].holders, segment_->participant().index());
  }
  item.taker_ = taker();
  item.slot_ = slot;
  item.is_readonly_ = is_readonly;
  return true;
}

// Ends the use of its slot. Does not require the mutex.
void Channel::give_back(Item& item) noexcept {
  const uint64_t holder = std::exchange(item.taker_, 0);
  if (holder == 0 || holder != taker()) return;  // a forked child does not hold what its parent holds
  openings_->remove_item(
      item.slot_, [&] { clear_bit(slot_states_[item.slot_].holders, segment_->participant().index()); });
}

// The consumers of this process have received other items, or one has come or gone. False: it is the same.
bool Channel::note_cursors() noexcept {
  std::atomic<uint64_t>& cursor = ends_.own().cursor;
  const uint64_t received = openings_->received_up_to(taker());
  if (look(cursor) == received) return false;
  publish(cursor, received);
  return true;
}

bool Channel::try_loan(Item& item, const Deadline& deadline) {
  const TimedLock lock(state_->mutex, deadline, "lend from the channel");
  take_role(kProducer);
  return try_to_lend(item);
}

bool Channel::try_to_lend(Item& item) {
  const uint32_t newest = plan_.mode == ChannelMode::kLatest ? sent_.newest() : kNoSlot;
  const bool is_broadcast = plan_.mode == ChannelMode::kBroadcast;
  const uint64_t seen = is_broadcast ? ends_.received_by_all() : 0;
  const auto is_spare = [&](uint32_t i) {
    const uint64_t sequence = look(slot_states_[i].sequence);
    return sequence <= seen || (plan_.mode == ChannelMode::kLatest && i != newest);
  };
  const auto try_slot = [&](uint32_t i) {
    // In this order: no item is lost if the slot is refused or the process dies here.
    if (is_held(i) || !hold(item, i, false)) return false;
    publish(slot_states_[i].sequence, uint64_t{0});
    prefetch_to_write(slots_[i]->data());  // the caller fills it next
    for (size_t field = 0; field < schema_->fields().size(); ++field)
      use_of(i, field).store(false, std::memory_order_relaxed);
    return true;
  };
  for (uint32_t i = 0; i < plan_.slots; ++i) {
    if (is_spare(i) && try_slot(i)) return true;
  }
  // A broadcast without consumers drops the oldest items, unless it keeps them for the first consumer.
  const bool is_unheard = is_broadcast && plan_.when_full != WhenFull::kKeep && ends_.count(kConsumer) == 0;
  const bool may_drop =
      plan_.mode != ChannelMode::kLatest && (plan_.when_full == WhenFull::kDropOldest || is_unheard);
  if (may_drop) {
    for (uint32_t i = sent_.next(0); i != kNoSlot; i = sent_.next(look(slot_states_[i].sequence))) {
      if (!try_slot(i)) continue;
      (void)add(state_->dropped, uint64_t{1});
      return true;
    }
  }
  // So that add_lives() finds none. And dead consumers do not receive the items of a broadcast.
  const bool has_changed = drop_dead_holders();
  if (ends_.end_dead() || has_changed) return try_to_lend(item);
  for (uint32_t i = 0; i < plan_.slots; ++i) {
    if ((may_drop || is_spare(i)) && !is_held(i)) check_inherited_views(*slots_[i]);
  }
  return false;
}

// The slot with the next item for this process; kNoSlot: none. Requires that it is a consumer.
uint32_t Channel::slot_to_receive() noexcept {
  if (plan_.mode == ChannelMode::kQueue) return sent_.next(0);
  if (plan_.mode == ChannelMode::kLatest) {
    const uint32_t newest = sent_.newest();
    return newest != kNoSlot && look(slot_states_[newest].sequence) > cursor_->sequence ? newest : kNoSlot;
  }
  std::vector<uint64_t>& put_back = cursor_->put_back;
  for (; !put_back.empty(); put_back.erase(put_back.begin())) {
    const uint32_t slot = sent_.next(put_back.front() - 1);
    if (slot != kNoSlot && look(slot_states_[slot].sequence) == put_back.front()) return slot;
  }
  return sent_.next(cursor_->sequence);
}

// There is no item, no death and no end to report. signals: of the event, from before the attempt.
void Channel::note_empty(uint32_t signals) noexcept {
  const uint32_t self = segment_->participant().index();
  uint64_t peers[std::extent_v<Mask>]{};
  ends_.visit_ends([&](uint32_t p, const ChannelEnd& end) {
    if (p != self && look(end.roles) != 0) peers[p / 64] |= uint64_t{1} << (p % 64);
  });
  for (size_t i = 0; i < std::size(peers_); ++i) peers_[i].store(peers[i], std::memory_order_relaxed);
  empty_at_ms_.store(coarse_now_ms(), std::memory_order_relaxed);
  // pairs with: Channel::is_still_empty, "an attempt that found nothing"
  empty_at_.store(kIsEmpty | signals, std::memory_order_release);
}

// An attempt to receive would find nothing, as the last one: the event was not signaled since then, and the
// processes that had a role are alive. False if unknown. Does not require the mutex.
bool Channel::is_still_empty() const noexcept {
  // pairs with: Channel::note_empty, "an attempt that found nothing"
  if (empty_at_.load(std::memory_order_acquire) != (kIsEmpty | look(state_->items.signals))) return false;
  if (is_closed_.load(std::memory_order_relaxed) || watch_of(state_->items) != nullptr) return false;
  // After a fork the child has no role yet.
  if (segment_->participant().index() == Participant::kNone) return false;
  if (roles_taker_.load(std::memory_order_relaxed) != taker()) return false;
  if (coarse_now_ms() - empty_at_ms_.load(std::memory_order_relaxed) > kLookAtEndsMs) return false;
  bool are_alive = true;
  visit_bits(peers_, [&](uint32_t p) { are_alive = are_alive && ends_.is_alive(p); });
  return are_alive;
}

bool Channel::try_receive(Item& item, const Deadline& deadline, uint64_t closings_before) {
  const TimedLock lock(state_->mutex, deadline, "receive from the channel");
  take_role(kConsumer);
  const uint32_t signals = look(state_->items.signals);
  const uint32_t slot = slot_to_receive();
  if (slot != kNoSlot) {
    const bool is_queue = plan_.mode == ChannelMode::kQueue;
    if (hold(item, slot, !is_queue)) {
      const uint64_t sequence = look(slot_states_[slot].sequence);
      item.sequence_.store(sequence, std::memory_order_relaxed);
      if (is_queue) publish(slot_states_[slot].sequence, uint64_t{0});
      if (!std::erase(cursor_->put_back, sequence)) cursor_->sequence = sequence;
      note_cursors();
      if (plan_.mode == ChannelMode::kBroadcast && sequence > look(state_->last_received))
        publish(state_->last_received, sequence);
      publish(state_->received, look(state_->received) + 1);
      return true;
    }
  }
  (void)ends_.end_dead();
  if (slot != kNoSlot) {
    check_inherited_views(*slots_[slot]);
    return false;
  }
  const uint64_t deaths = look(state_->deaths), seen = seen_deaths_.load(std::memory_order_relaxed);
  if (deaths > seen) {
    seen_deaths_.store(seen + 1, std::memory_order_relaxed);
    const bool is_known = deaths - seen <= kKnownDead;
    const int32_t pid = is_known ? static_cast<int32_t>(look(state_->dead_pids[seen % kKnownDead])) : 0;
    const uint32_t others = ends_.count(kProducer);
    const bool is_over = has_ended(UINT64_MAX);
    const char* const next = others > 0 ? "; receive again to get the items of other producers"
                             : is_over
                                 ? ", and no producer is left: the next receive reports that the channel "
                                   "has ended, and later ones wait for a new producer"
                                 : "; receive again to wait for a producer";
    throw Error(Code::kOwnerDied,
                concat("a process that could send to the channel has died (process ", pid,
                       "): items that it had not sent are lost", next),
                pid);
  }
  if (has_ended(closings_before)) {
    seen_closings_.store(look(state_->closings), std::memory_order_relaxed);
    throw_error(Code::kClosed, "all producers of the channel have closed it, and all items were received");
  }
  // An opening that was closed while a stopped process had the mutex could not do it.
  if (note_cursors()) signal_event(state_->room);
  note_empty(signals);
  return false;
}

// Adds the words on which to sleep to notice the deaths of other processes. event: what the caller waits for;
// a process without a role may still hold slots. False: there are too many words, or a process is ending, so
// that its end will not wake this one. has_died: set to true if a process has died; then ends_.end_dead()
// must be called.
bool Channel::add_lives(const SharedEvent& event, os::Sleep* words, size_t* n,
                        bool* has_died) const noexcept {
  const uint32_t self = segment_->participant().index();
  uint64_t holders[std::extent_v<Mask>]{};
  for (uint32_t i = 0; &event == &state_->room && i < plan_.slots; ++i) {
    for (size_t w = 0; w < std::size(holders); ++w) holders[w] |= look(slot_states_[i].holders[w]);
  }
  bool is_complete = true;
  for (uint32_t p = 0; p < segment_->control().used_places(); ++p) {
    const bool is_holder = (holders[p / 64] >> (p % 64) & 1) != 0;
    if (p == self || (look(state_->ends[p].roles) == 0 && !is_holder)) continue;
    (void)reap(segment_->control(), p);  // also one whose death the kernel could not mark
    if (!ends_.is_alive(p)) {
      *has_died = true;
    } else if (*n == os::kMostWords) {
      is_complete = false;
    } else {
      std::atomic<uint32_t>& life = life_word(segment_->control().life(p));
      words[(*n)++] = {&life, note_sleeper(life)};
      is_complete &= !is_dead(look(life));
    }
  }
  return is_complete;
}

Watch* Channel::watch_of(const SharedEvent& event) const noexcept {
  const auto& current = &event == &state_->items ? item_watch_ : room_watch_;
  // pairs with: Channel::descriptor, "the watch of an end"
  Watch* const watch = current.load(std::memory_order_acquire);
  return watch == nullptr || watch->is_inherited() ? nullptr : watch;
}

// After an attempt that found nothing to do: makes the descriptor not readable, and tries again, because
// something may have happened in between. If this succeeds, makes the descriptor readable again, as there may
// be more to do for other threads.
template <class Try>
bool Channel::try_once_more(const SharedEvent& event, Try attempt) {
  Watch* const watch = watch_of(event);
  if (watch == nullptr) return false;
  watch->clear();
  if (is_closed_.load(std::memory_order_relaxed)) watch->signal();
  try {
    if (!attempt()) return false;
  } catch (...) {
    watch->signal();
    throw;
  }
  watch->signal();
  return true;
}

int Channel::descriptor(Access access) {
  SharedEvent& event = access == Access::kRead ? state_->items : state_->room;
  auto& current = access == Access::kRead ? item_watch_ : room_watch_;
  if (segment_->participant().index() == Participant::kNone) segment_->throw_no_place();
  // pairs with: Channel::descriptor, "the watch of an end"
  Watch* watch = current.load(std::memory_order_acquire);
  while (watch == nullptr || watch->is_inherited() || watch->fd() < 0) {
    auto fresh = std::make_unique<Watch>(*this, event);
    // pairs with: Channel::descriptor, "the watch of an end"
    if (!current.compare_exchange_strong(watch, fresh.get(), std::memory_order_acq_rel)) continue;
    if (watch != nullptr && !watch->is_inherited()) watch->end();  // its descriptor is lost
    fresh->keep(watch);
    watch = fresh.release();
    if (is_closed_.load(std::memory_order_relaxed)) watch->end();
  }
  const int fd = watch->fd();
  if (fd < 0) throw_error(Code::kSystem, "a channel has no descriptor: ", os::kLostText);
  return fd;
}

Channel::~Channel() {
  delete item_watch_.load(std::memory_order_relaxed);
  delete room_watch_.load(std::memory_order_relaxed);
}

std::string Channel::use_text() const {
  const ChannelStatistics now = statistics();
  const auto counted = [](uint32_t n, const char* what) { return concat(n, " ", what, n == 1 ? "" : "s"); };
  return concat(now.in_use, " of ", plan_.slots, " slots in use, ", counted(now.ready, "item"), ", ",
                counted(now.producers, "producer"), " and ", counted(now.consumers, "consumer"),
                ends_.stopped_text());
}

void Channel::throw_timeout(const char* doing, const Deadline& deadline) const {
  throw_error(Code::kTimeout, "nothing to ", doing, " the channel in the time given",
              timeout_text(deadline.timeout_ns()), ": ", use_text());
}

// Tries until it succeeds: polls the event for a while, then sleeps. False: the deadline left no time.
template <class Try>
bool Channel::wait(SharedEvent& event, SpinBudget& budget, const Deadline& deadline, const char* doing,
                   Try attempt) {
  // First without a look at the signals: a loan usually finds a slot, and other processes write to the cache
  // line of the signals.
  if (attempt()) return true;
  if (deadline.leaves_no_time()) return try_once_more(event, attempt);
  const int64_t began = now_ns();
  std::optional<uint32_t> signals;  // none: it must try again
  const auto has_come = [&] {
    const uint32_t now = look(event.signals);
    if (std::exchange(signals, now) == now) return false;
    if (&event == &state_->items) prefetch_item();
    return attempt();
  };
  if (SpinBudget::poll(budget.budget_ns(), has_come, false)) {
    budget.note(now_ns() - began);
    return true;
  }
  budget.note(SpinBudget::kInVain);
  sleep_until(event, deadline, doing, attempt);
  return true;
}

template <class Try>
void Channel::sleep_until(SharedEvent& event, const Deadline& deadline, const char* doing, Try attempt) {
  Waiter waiter(deadline);
  EndingPace pace;
  struct EventWait {
    Segment& segment;
    SharedEvent& event;
    EventWait(Segment& in, SharedEvent& at) : segment(in), event(at) { segment.begin_wait(event); }
    EventWait(const EventWait&) = delete;
    EventWait& operator=(const EventWait&) = delete;
    ~EventWait() { segment.end_wait(event); }
  } const waiting{*segment_, event};
  const auto describe = [&] { return concat("to ", doing, " a channel with ", use_text()); };
  while (true) {
    os::Sleep words[os::kMostWords];
    size_t n = 0;
    bool has_died = false;
    words[n++] = {&event.signals, look(event.signals)};
    const bool will_be_woken = add_lives(event, words, &n, &has_died);
    if (will_be_woken) pace.restart();
    if (attempt()) return;
    const int64_t slice = has_died ? 0 : will_be_woken ? Waiter::kSliceNs : pace.next_ns(Waiter::kSliceNs);
    const WaitEnd end = waiter.sleep_on(words, n, slice, describe);
    if (end == WaitEnd::kTimeout) {
      if (!try_once_more(event, attempt)) throw_timeout(doing, deadline);
      return;
    }
    if (end == WaitEnd::kInterrupted)
      throw_error(Code::kInterrupted, "the wait to ", doing, " the channel was interrupted");
    if (has_died ||
        std::any_of(words + 1, words + n, [](const os::Sleep& life) { return is_dead(look(*life.word)); })) {
      // The kernel wakes only one thread, and the process may have died before it signaled.
      if (const TimedLock lock(state_->mutex); lock.is_held()) (void)ends_.end_dead();
      if (will_be_woken) ends_.wake_all();  // else the other processes poll, too
    }
  }
}

// Fetches the cache lines that a receive of the most recent item needs, all at the same time. The producer
// has written to each of them on another processor. Does not require the mutex.
void Channel::prefetch_item() const noexcept {
  prefetch_to_write(&state_->mutex);
  const uint32_t slot = look(state_->recent_slot);
  if (slot >= plan_.slots) return;
  prefetch_to_write(&slot_states_[slot]);
  prefetch_to_read(slots_[slot]->data());
}

Ref<Item> Channel::loan(const Deadline& deadline, const char* site) {
  prefetch_to_write(&state_->mutex);
  prefetch_to_write(&slot_states_[0]);  // the first that try_to_lend() tries
  auto item = Ref<Item>::adopt(new Item(Ref<Channel>::share(this)));
  const auto attempt = [&] { return try_loan(*item, deadline); };
  if (plan_.when_full == WhenFull::kRaise) {
    if (attempt() || try_once_more(state_->room, attempt)) {
      item->begin(site);
      return item;
    }
    throw_error(Code::kLeaseConflict, "all ", plan_.slots,
                " slots of the channel are in use: receive or drop items, or create it with more slots");
  }
  if (!wait(state_->room, loan_budget_, deadline, "lend from", attempt)) return {};
  item->begin(site);
  return item;
}

Ref<Item> Channel::receive(const Deadline& deadline, const char* site) {
  if (deadline.leaves_no_time() && is_still_empty()) return {};
  prefetch_item();
  auto item = Ref<Item>::adopt(new Item(Ref<Channel>::share(this)));
  const uint64_t closings = look(state_->closings);
  const auto attempt = [&] { return try_receive(*item, deadline, closings); };
  if (!wait(state_->items, receive_budget_, deadline, "receive from", attempt)) return {};
  item->begin(site);
  return item;
}

void Channel::join(const Deadline& deadline) {
  const TimedLock lock(state_->mutex, deadline, "join the channel");
  if (!is_closed_.load(std::memory_order_relaxed)) take_role(kMember);
}

bool Channel::wait_for_item(const Deadline& deadline) {
  const uint64_t closings = look(state_->closings);
  const auto has_news = [&] {
    const TimedLock lock(state_->mutex, deadline, "receive from the channel");
    take_role(kConsumer);
    (void)ends_.end_dead();
    return slot_to_receive() != kNoSlot ||
           look(state_->deaths) > seen_deaths_.load(std::memory_order_relaxed) || has_ended(closings);
  };
  return wait(state_->items, receive_budget_, deadline, "receive from", has_news);
}

void Channel::close() noexcept {
  // pairs with: Channel::take_role, "an opening that is closed"
  if (is_closed_.exchange(true, std::memory_order_seq_cst)) return;
  for (const SharedEvent* const event : {&state_->items, &state_->room}) {
    Watch* const watch = watch_of(*event);
    if (watch == nullptr) continue;
    watch->end();
    watch->signal();
  }
  if (segment_->participant().index() == Participant::kNone) return;
  // If a process is stopped while it holds the mutex, the next process with the mutex ends the roles.
  constexpr int kTries = 20;
  const uint32_t changed = give_roles();
  for (int i = 0; changed != 0 && i < kTries; ++i) {
    if (const TimedLock lock(state_->mutex); lock.is_held()) {
      ends_.end_closed(ends_.own());
      (void)note_cursors();
      break;
    }
    sched_yield();
  }
  ends_.wake_all();
}

// Removes the roles from this opening, without the mutex. Returns those that change the end of the process:
// it was the last opening with the role, or a consumer.
uint32_t Channel::give_roles() noexcept {
  // pairs with: Channel::take_role, "a role of an opening"
  // pairs with: Channel::take_role, "a role that was given up"
  const uint32_t roles = roles_.exchange(0, std::memory_order_seq_cst);
  if (roles_taker_.load(std::memory_order_relaxed) != taker()) return 0;
  uint32_t changed = roles & kConsumer;
  // pairs with: Openings::add_cursor, "a cursor that is free"
  if (changed != 0) cursor_->taker.store(0, std::memory_order_release);
  for (const ChannelRole role : kRoles) {
    if ((roles & role) != 0 && add(ends_.own().openings(role), ~0u) == 1) changed |= role;
  }
  return changed;
}

// The numbers are from different moments if other processes use the channel meanwhile.
ChannelStatistics Channel::statistics() const {
  ChannelStatistics s;
  s.sent = look(state_->last_sequence);
  s.received = look(state_->received);
  s.dropped = look(state_->dropped);
  s.deaths = look(state_->deaths);
  const uint64_t seen = plan_.mode == ChannelMode::kBroadcast ? ends_.received_by_all() : 0;
  for (uint32_t i = 0; i < plan_.slots; ++i) {
    s.ready += look(slot_states_[i].sequence) > seen ? 1 : 0;
    s.in_use += is_held(i) ? 1 : 0;
  }
  if (plan_.mode == ChannelMode::kLatest) s.ready = std::min(s.ready, 1u);  // the others are out of date
  s.producers = ends_.count(kProducer);
  s.consumers = ends_.count(kConsumer);
  return s;
}

}  // namespace tenon::impl
