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
#include "base/spin_budget.h"
#include "ipc/ending_pace.h"
#include "ipc/lazy_copy.h"
#include "ipc/openings.h"
#include "ipc/slot_gate.h"
#include "ipc/watcher.h"
#include "sync/waiter.h"

namespace tenon::impl {
namespace {

constexpr uint64_t kSlotAlignment = 256;
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

}  // namespace

Ref<Channel> Channel::create(std::span<const tenon_field> given, const ChannelPlan& plan,
                             const SharedOptions& options) {
  static_assert(kMostSlots <= SlotTable::kMostSlots);
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
  const uint64_t state_nbytes = ChannelState::nbytes_before_description(plan.slots) + description.size();
  // Slots of bytes begin with a page, so that their pages are theirs alone.
  const uint64_t sizes[] = {plan.holds_bytes() ? round_up(state_nbytes, os::page_nbytes()) : state_nbytes,
                            slots_nbytes};
  SharedOptions prepared = options;
  bool is_made = false;
  prepared.channel_slots = plan.slots;
  prepared.committed_nbytes = sizes[0];
  prepared.prepare = [&](std::byte* base) {
    auto* const state = reinterpret_cast<ChannelState*>(base);
    is_made = true;
    state->slots = plan.slots;
    state->mode = static_cast<uint32_t>(plan.mode);
    state->when_full = static_cast<uint32_t>(plan.when_full);
    state->description_nbytes = description.size();
    state->capacity_nbytes = slots_nbytes / plan.slots;
    state->budget_nbytes = plan.holds_bytes() ? plan.budget_nbytes : slots_nbytes;
    state->holds_bytes = plan.holds_bytes() ? 1 : 0;
    for (uint32_t i = 0; options.is_populated && i < plan.slots; ++i) {
      SlotMemory& memory = state->memories(plan.slots)[i];
      memory.reserved.store(state->capacity_nbytes, std::memory_order_relaxed);
      memory.committed.store(state->capacity_nbytes, std::memory_order_relaxed);
    }
    std::memcpy(base + ChannelState::nbytes_before_description(plan.slots), description.data(),
                description.size());
    // pairs with: Channel::of, "the description of a channel"
    state->mark.store(kChannelMark, std::memory_order_release);
  };
  channel->memory_ = Segments::instance().create_blocks(sizes, prepared);
  if (!is_made) return of(std::move(channel->memory_));
  channel->open_slots();
  return channel;
}

Ref<Channel> Channel::create_bytes(const ChannelPlan& given, const SharedOptions& options) {
  ChannelPlan plan = given;
  const uint64_t page = os::page_nbytes();
  const bool keeps_newest = plan.mode == ChannelMode::kLatest;
  if (plan.largest_nbytes == 0) {
    plan.largest_nbytes =
        keeps_newest ? std::max(plan.budget_nbytes / 3 / page * page, page) : plan.budget_nbytes;
  }
  if (plan.largest_nbytes == 0 || plan.largest_nbytes > plan.budget_nbytes ||
      plan.budget_nbytes > uint64_t{PTRDIFF_MAX} - page) {
    throw_error(Code::kValue, "the largest item of a channel of ", plan.budget_nbytes, " bytes cannot have ",
                plan.largest_nbytes, " bytes");
  }
  if (options.has_huge_pages || options.is_populated) {
    throw_error(Code::kValue,
                "huge pages and populated pages are options of channels whose items have fields: the memory "
                "of other channels is taken when an item is written");
  }
  plan.budget_nbytes = round_up(plan.budget_nbytes, page);
  plan.largest_nbytes = round_up(plan.largest_nbytes, page);
  if (keeps_newest && plan.largest_nbytes > plan.budget_nbytes / 2) {
    throw_error(Code::kValue,
                "a channel of mode 'latest' keeps its newest item while the next one is written: "
                "items of ",
                plan.largest_nbytes, " bytes need twice as many, not ", plan.budget_nbytes);
  }
  const auto n = static_cast<int64_t>(plan.largest_nbytes);
  const tenon_field bytes{"bytes", DType(TENON_UINT, 8), 1, &n};
  return create({&bytes, 1}, plan, options);
}

Ref<Channel> Channel::of(Ref<Array> memory, const OpeningPlan& opening) {
  auto channel = Ref<Channel>::adopt(new Channel);
  channel->opening_ = opening;
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
  if (state->holds_bytes != 0) {
    channel->plan_.budget_nbytes = std::max<uint64_t>(state->budget_nbytes, 1);
    channel->plan_.largest_nbytes = state->capacity_nbytes;
  }
  const uint64_t at = ChannelState::nbytes_before_description(channel->plan_.slots);
  const uint64_t description_nbytes = state->description_nbytes;
  if (channel->plan_.slots == 0 || channel->plan_.slots > kMostSlots || state->mode > TENON_CHANNEL_LATEST ||
      state->when_full > TENON_WHEN_FULL_KEEP || at > nbytes || description_nbytes > nbytes - at) {
    throw_no_channel(*memory);
  }
  const std::vector<std::byte> copy(memory->data() + at, memory->data() + at + description_nbytes);
  std::span<const std::byte> rest(copy);
  channel->schema_ = Schema::decode(&rest);
  if (opening.receives_latest && channel->plan_.mode == ChannelMode::kQueue) {
    throw_error(
        Code::kValue,
        "each item of a queue goes to one consumer, so no consumer can receive the newest items only: "
        "use a broadcast");
  }
  channel->memory_ = std::move(memory);
  channel->open_slots();
  return channel;
}

void Channel::open_slots() {
  segment_ = &Segments::instance().writable_segment_of(*memory_);
  const Control& control = segment_->control();
  if (control.channel_slots != plan_.slots || memory_->data() != segment_->data()) throw_no_channel(*memory_);
  if (look(control.has_state()) == 0) publish(control.has_state(), 1u);
  state_ = reinterpret_cast<ChannelState*>(control.base + control.state_at);
  ends_ = ChannelEnds(control, *state_);
  table_ = state_->table(plan_.slots);
  const uint64_t nbytes = slot_nbytes_of(*schema_);
  const uint64_t budget = plan_.holds_bytes() ? plan_.budget_nbytes : nbytes * plan_.slots;
  const std::span<std::byte> slots = segment_->bytes_of(1);
  if (segment_->header().blocks != 2 || slots.size() / nbytes < plan_.slots ||
      state_->capacity_nbytes != nbytes || state_->budget_nbytes != budget ||
      (plan_.holds_bytes() && nbytes % os::page_nbytes() != 0)) {
    throw_no_channel(*memory_);
  }
  const auto slots_at = static_cast<uint64_t>(slots.data() - segment_->data());
  memories_ = {segment_->file(),
               {segment_->header().data_at + slots_at, slots.data(), nbytes, budget},
               {state_->memories(plan_.slots), plan_.slots},
               table_};
  const SlotGate::Slots gated{slots.data(), nbytes, plan_.slots, table_};
  auto* const gate =
      dynamic_cast<SlotGate*>(&segment_->set_lock(1, std::make_unique<SlotGate>(*segment_, 1, gated)));
  if (gate == nullptr) throw_no_channel(*memory_);  // an array lies over the slots
  gate_ = gate;
  openings_ = &gate->openings();
  if (PrivatePages* const pages = segment_->private_pages()) {
    pages->copy_at_forks();  // a child does not hold the items of its parent
    (void)LentMappings::instance().add(slots.data(), slots.size(), {pages, slots_at});
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
  deaths_at_opening_ = look(state_->deaths);
  const Segment::DeathsWhileJoining joining = segment_->take_deaths_while_joining();
  const uint64_t seen = deaths_at_opening_ - std::min(deaths_at_opening_, joining.count);
  deaths_between_ = seen - joining.before;
  seen_deaths_.store(seen, std::memory_order_relaxed);
  is_closed_.store(false, std::memory_order_relaxed);
}

// The participant that this process is now, and its generation, which is not 0. 0: it has no place.
uint64_t Channel::taker() const noexcept {
  const Participant& self = segment_->participant();
  if (self.index() == Participant::kNone) return 0;
  return uint64_t{self.index()} << 32 | self.place().generation.load(std::memory_order_relaxed);
}

// This opening has the role, and is open.
bool Channel::has_role(ChannelRole role) const noexcept {
  // pairs with: Channel::take_role, "the roles of a forked child"
  return roles_taker_.load(std::memory_order_acquire) == taker() &&
         // pairs with: Channel::give_up_roles, "a role that was given up"
         // pairs with: Channel::take_role, "a role that was taken"
         (roles_.load(std::memory_order_acquire) & role) != 0 && !is_closed_.load(std::memory_order_relaxed);
}

void Channel::ensure_role(ChannelRole role) {
  if (!has_role(role)) take_role(role);
}

void Channel::take_role(ChannelRole role) {
  if (self() == Participant::kNone) segment_->throw_no_place();
  {
    const std::scoped_lock local(openings_->lock());
    const uint64_t taker = this->taker();
    // A forked child has none of its parent's roles.
    if (roles_taker_.load(std::memory_order_relaxed) != taker) {
      roles_.store(0, std::memory_order_relaxed);
      // pairs with: Channel::has_role, "the roles of a forked child"
      roles_taker_.store(taker, std::memory_order_release);
    }
    if (is_closed_.load(std::memory_order_relaxed)) throw_error(Code::kClosed, "the channel was closed here");
    const uint32_t roles = roles_.load(std::memory_order_relaxed);
    if ((roles & role) != 0) return;
    const bool is_broadcast = plan_.mode == ChannelMode::kBroadcast;
    if (role == kConsumer) {
      // Items before the last one may be gone, so the consumer would get items with gaps between them.
      cursor_ = &openings_->add_cursor(taker, is_broadcast ? observe(state_->last_received) : 0, true);
      note_cursors();
    } else if (role == kViewer) {
      cursor_ = &openings_->add_cursor(taker, 0, false);
    }
    ends_.set_roles(self(), openings_->add_role(taker, role));
    if (role == kConsumer && is_broadcast) {
      // Other consumers may have received items before this one had its role, and their slots may be taken.
      // From now on none is: so it begins after the last one that is gone.
      const auto is_there = [&](uint64_t n) {
        const SlotTable::Found found = table_.next(n - 1);
        return found.slot != SlotTable::kNone && found.word == SlotWord::ready(n);
      };
      uint64_t gone = observe(state_->last_received);
      while (gone > cursor_->sequence && is_there(gone)) --gone;
      cursor_->sequence = std::max(cursor_->sequence, gone);
      note_cursors();
    }
    // pairs with: Channel::has_role, "a role that was taken"
    roles_.store(roles | role, std::memory_order_release);
  }
  // So that sleeping processes also wait for this process' life.
  ends_.wake_all();
}

// Whether a call is to report that there is no producer: how many have ended; else 0. An opening reports it
// once after the last one has left, and in addition in each call that began before. closings_before: of the
// call, when it began.
uint64_t Channel::ended(uint64_t closings_before) const noexcept {
  return ends_.ended_after(std::min(closings_before, seen_closings_.load(std::memory_order_relaxed)),
                           opening_.awaits_crashed);
}

// There is a death to report.
bool Channel::has_death() const noexcept {
  return !opening_.awaits_crashed && look(state_->deaths) > seen_deaths_.load(std::memory_order_relaxed);
}

// There is a death or an end to report, of which the event may tell later: its reaper may be stopped.
bool Channel::has_news(const SharedEvent& event) const noexcept {
  return &event == &state_->items && (ended(UINT64_MAX) != 0 || has_death());
}

// There is no item, no death and no end to report. signals: of the event, from before the attempt.
void Channel::note_empty(uint32_t signals) noexcept {
  const std::scoped_lock local(openings_->lock());
  const uint32_t self = this->self();
  uint64_t peers[std::extent_v<Mask>]{};
  ends_.visit_ends([&](uint32_t p, const ChannelEnd& end) {
    if (p != self && EndWord::roles(look(end.word)) != 0) peers[p / 64] |= uint64_t{1} << (p % 64);
  });
  for (size_t i = 0; i < std::size(peers_); ++i) peers_[i].store(peers[i], std::memory_order_relaxed);
  empty_at_ms_.store(coarse_now_ms(), std::memory_order_relaxed);
  // pairs with: Channel::is_still_empty, "an attempt that found nothing"
  empty_at_.store(kIsEmpty | signals, std::memory_order_release);
}

// An attempt to receive would find nothing, as the last one: the event was not signaled since then, and the
// processes that had a role are alive. False if unknown.
bool Channel::is_still_empty() const noexcept {
  // pairs with: Channel::note_empty, "an attempt that found nothing"
  if (empty_at_.load(std::memory_order_acquire) != (kIsEmpty | look(state_->items.signals))) return false;
  if (is_closed_.load(std::memory_order_relaxed) || watch_of(state_->items) != nullptr) return false;
  // After a fork the child has no role yet.
  if (self() == Participant::kNone) return false;
  if (roles_taker_.load(std::memory_order_relaxed) != taker()) return false;
  if (coarse_now_ms() - empty_at_ms_.load(std::memory_order_relaxed) > kLookAtEndsMs) return false;
  bool are_alive = true;
  visit_bits(peers_, [&](uint32_t p) { are_alive = are_alive && ends_.is_alive(p); });
  return are_alive;
}

// Adds the words on which to sleep to notice the deaths of other processes. event: what the caller waits for;
// a process without a role may still hold slots. False: there are too many words, or a process is ending, so
// that its end will not wake this one.
bool Channel::add_lives(const SharedEvent& event, os::Sleep* words, size_t* n) const noexcept {
  const uint32_t self = segment_->participant().index();
  uint64_t holders[std::extent_v<Mask>]{};
  if (&event == &state_->room) visit_users([&](uint32_t p) { holders[p / 64] |= uint64_t{1} << (p % 64); });
  bool is_complete = true;
  ends_.visit_ends([&](uint32_t p, const ChannelEnd& end) {
    const bool is_holder = (holders[p / 64] >> (p % 64) & 1) != 0;
    const bool is_used = EndWord::roles(look(end.word)) != 0 || is_holder;
    if (p == self || (!is_used && !ends_.is_marked(p))) return;
    // Also one whose death the kernel could not mark, and one from whose reaper only the signals are missing.
    if (reap(segment_->control(), p) || !is_used) return;
    if (!ends_.is_alive(p) || *n == os::kMostWords) {
      is_complete = false;
    } else {
      std::atomic<uint32_t>& life = life_word(segment_->control().life(p));
      words[(*n)++] = {&life, note_sleeper(life)};
      is_complete &= !is_dead(look(life));
    }
  });
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
  if (self() == Participant::kNone) segment_->throw_no_place();
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
  return concat(now.in_use, " of ", plan_.slots, " slots in use, ", bytes_text(), counted(now.ready, "item"),
                ", ", counted(now.producers, "producer"), " and ", counted(now.consumers, "consumer"),
                ends_.stopped_text(segment_->file()));
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
    words[n++] = {&event.signals, look(event.signals)};
    const bool will_be_woken = add_lives(event, words, &n);
    if (will_be_woken) pace.restart();
    if (attempt()) return;
    const int64_t slice = will_be_woken ? Waiter::kSliceNs : pace.next_ns(Waiter::kSliceNs);
    const WaitEnd end = waiter.sleep_on(words, n, slice, describe);
    if (end == WaitEnd::kTimeout) {
      if (!try_once_more(event, attempt)) throw_timeout(doing, deadline);
      return;
    }
    if (end == WaitEnd::kInterrupted)
      throw_error(Code::kInterrupted, "the wait to ", doing, " the channel was interrupted");
    // The kernel wakes only one thread when a process begins to end. From then on, the others poll, too.
    const auto is_ending = [](const os::Sleep& life) { return is_dead(look(*life.word)); };
    if (will_be_woken && std::any_of(words + 1, words + n, is_ending)) ends_.wake_all();
  }
}

// Fetches the cache lines that a receive of the most recent item needs, all at the same time. The producer
// has written to each of them on another processor.
void Channel::prefetch_item() const noexcept {
  table_.prefetch_to_find();
  const uint32_t slot = look(state_->recent_slot);
  if (slot >= plan_.slots) return;
  prefetch_to_write(&state_->slot_states()[slot]);
  prefetch_to_read(slots_[slot]->data());
}

Ref<Item> Channel::loan(const Deadline& deadline, const char* site, uint64_t nbytes, bool will_retry) {
  check_size(nbytes);
  prefetch_to_write(&state_->slot_states()[0]);  // the first that lend_spare() tries
  table_.prefetch_to_give();
  auto item = Ref<Item>::adopt(new Item(Ref<Channel>::share(this)));
  item->nbytes_.store(nbytes, std::memory_order_relaxed);
  try {
    if (!wait_for_loan(*item, deadline)) {
      if (!will_retry) (void)add(state_->refused, uint64_t{1});
      return {};
    }
  } catch (const Error& e) {
    const bool is_refusal = e.code() == Code::kTimeout || e.code() == Code::kLeaseConflict;
    if (is_refusal && !will_retry) (void)add(state_->refused, uint64_t{1});
    throw;
  }
  item->begin(site);
  return item;
}

// False: the deadline left no time.
bool Channel::wait_for_loan(Item& item, const Deadline& deadline) {
  const auto attempt = [&] { return try_loan(item); };
  if (plan_.when_full != WhenFull::kRaise)
    return wait(state_->room, loan_budget_, deadline, "lend from", attempt);
  if (attempt() || try_once_more(state_->room, attempt)) return true;
  if (plan_.holds_bytes()) {
    throw_error(Code::kLeaseConflict, "the channel has no room for ", item.nbytes(), " bytes: ", use_text(),
                ": receive or drop items, or create it with more slots or bytes");
  }
  throw_error(Code::kLeaseConflict, "all ", plan_.slots,
              " slots of the channel are in use: receive or drop items, or create it with more slots");
}

Ref<Item> Channel::receive(const Deadline& deadline, const char* site) {
  if (deadline.leaves_no_time() && is_still_empty()) return {};
  prefetch_item();
  auto item = Ref<Item>::adopt(new Item(Ref<Channel>::share(this)));
  const uint64_t closings = ends_.closings();
  const auto attempt = [&] { return try_receive(*item, closings); };
  if (!wait(state_->items, receive_budget_, deadline, "receive from", attempt)) return {};
  if (plan_.holds_bytes()) item->nbytes_.store(memories_.used(item->slot_), std::memory_order_relaxed);
  item->begin(site);
  return item;
}

void Channel::join() {
  if (!is_closed_.load(std::memory_order_relaxed)) take_role(kMember);
}

bool Channel::wait_for_item(const Deadline& deadline) {
  const uint64_t closings = ends_.closings();
  const auto has_news = [&] {
    ensure_role(receiving_role());
    (void)ends_.reap_dead(waited_for_);
    return has_item() || has_death() || ended(closings) != 0;
  };
  return wait(state_->items, receive_budget_, deadline, "receive from", has_news);
}

void Channel::close() noexcept {
  if (is_closed_.exchange(true, std::memory_order_relaxed)) return;
  for (const SharedEvent* const event : {&state_->items, &state_->room}) {
    Watch* const watch = watch_of(*event);
    if (watch == nullptr) continue;
    watch->end();
    watch->signal();
  }
  if (self() == Participant::kNone) return;
  // A producer that has died before this one closes is not the last one.
  if ((roles_.load(std::memory_order_relaxed) & kProducer) != 0) (void)ends_.reap_dead(waited_for_);
  {
    const std::scoped_lock local(openings_->lock());  // no thread takes a role, sends, or uses the cursor
    give_up_roles();
  }
  ends_.wake_all();
}

// Removes the roles from this opening. Requires Openings::lock().
void Channel::give_up_roles() noexcept {
  if (roles_taker_.load(std::memory_order_relaxed) != taker()) return;
  // pairs with: Channel::has_role, "a role that was given up"
  const uint32_t given = roles_.exchange(0, std::memory_order_release);
  // pairs with: Openings::add_cursor, "a cursor that is free"
  if ((given & (kConsumer | kViewer)) != 0) cursor_->taker.store(0, std::memory_order_release);
  for (const ChannelRole role : kRoles) {
    if ((given & role) != 0) ends_.set_roles(self(), openings_->remove_role(role));
  }
  if ((given & kConsumer) != 0) note_cursors();
}

// The numbers are from different moments if other processes use the channel meanwhile.
ChannelStatistics Channel::statistics() const {
  ChannelStatistics s;
  s.sent = table_.given();
  s.received = look(state_->received);
  s.dropped = look(state_->dropped);
  s.deaths = look(state_->deaths);
  const uint64_t seen = plan_.mode == ChannelMode::kBroadcast ? ends_.received_by_all() : 0;
  const uint64_t spare = spare_up_to();
  for (uint32_t i = 0; i < plan_.slots; ++i) {
    s.ready += SlotWord::item(table_.word(i)) > seen ? 1 : 0;
    s.in_use += is_held(i) ? 1 : 0;
    s.used_nbytes += used_nbytes(i, spare);
    s.committed_nbytes += memories_.committed(i);
  }
  if (plan_.mode == ChannelMode::kLatest) s.ready = std::min(s.ready, 1u);  // the others are out of date
  s.producers = ends_.count(kProducer);
  s.consumers = ends_.count(kConsumer | kViewer);
  s.refused = look(state_->refused);
  s.nbytes = memories_.budget_nbytes();
  s.largest_sent_nbytes = plan_.holds_bytes() ? look(state_->largest_sent_nbytes)
                          : s.sent != 0       ? schema_->fields_nbytes()
                                              : 0;
  return s;
}

// Of an item that is ready or that a process has; of a loan, what it has of the memory. 0: there is none.
// spare: items up to this number are over.
uint64_t Channel::used_nbytes(uint32_t slot, uint64_t spare) const noexcept {
  const uint64_t word = table_.word(slot);
  if (is_spare(slot, word, spare)) return 0;
  const bool is_loan = SlotWord::kind(word) == SlotWord::kHeld && SlotWord::number(word) == 0;
  return is_loan || !plan_.holds_bytes() ? memories_.committed(slot) : memories_.used(slot);
}

}  // namespace tenon::impl
