// SPDX-License-Identifier: Apache-2.0
#include "data/ticket_ring.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "ipc/layout.h"

namespace tenon::impl {

namespace {

// For the short sections that are entered for each batch: a thread that finds the mutex locked looks some
// times before it sleeps.
std::unique_lock<std::mutex> lock_soon(std::mutex& mutex) {
  std::unique_lock lock(mutex, std::try_to_lock);
  if (!lock && !spin(kBriefLooks, [&lock] { return lock.try_lock(); })) lock.lock();
  return lock;
}

}  // namespace

TicketRing::TicketRing(Ref<Slots> slots, uint32_t feed)
    : Tickets(*slots),
      slots_(std::move(slots)),
      layout_(control_.head().layout),
      feed_(feed),
      is_served_(slots_->served() != nullptr),
      states_(round_robin_) {
  for (LastState& state : states_) state.bytes.reserve(layout_.state_nbytes);
  store(shared().round.base, round_.base);
  store(shared().round.limit, round_.limit);
}

// ------------------------------------------------------------------------------------------- consumers

// Passes what is skipped.
TicketRing::Front TicketRing::look_at_front(uint32_t* found) noexcept {
  while (true) {
    if (is_served_) next_ = std::max(next_, table_.passed() + 1);  // other processes pass tickets, too
    if (next_ == round_.limit) return Front::kEnd;
    const Look front = look_at(next_);
    if (found != nullptr) *found = front.slot;
    if (front.kind == Look::kPending) return Front::kPending;
    if (front.kind == Look::kBatch) return Front::kBatch;
    if (front.kind == Look::kFailure) return Front::kFailure;
    if (front.kind == Look::kEnd) return Front::kEnd;
    // Else a consumer would miss the state, and could not tell it from a batch of another one.
    if (is_of_others_ && slots_->served_ends().count() > 0) return Front::kSkip;
    if (front.slot != SlotTable::kNone && !control_.is_broadcast() && receive(front.slot)) {
      if (notes_for_others()) {  // in order, behind what they have received
        slots_->served_ends().release(slots_->self(), front.slot, next_);
      } else {
        read_notes(front.slot);
        slots_->give(static_cast<int32_t>(front.slot));
      }
    }
    pass_front();
  }
}

// Of the settled ticket next_. False: it is skipped, and its worker has the slot.
bool TicketRing::receive(uint32_t slot) noexcept {
  return table_.take(slots_->self(), slot, SlotWord::ready(next_), next_);
}

void TicketRing::pass_front() noexcept {
  table_.pass(next_);
  note_passed(next_++, round_.limit);
}

// Of the settled ticket next_, which the consumer passes.
void TicketRing::read_notes(uint32_t slot, uint64_t number) noexcept {
  // The notes before the number of their ticket: a worker writes the number first.
  const uint32_t notes = look(record(slot).notes);
  ignored_index_ = ignored_index_ || (notes & kIgnoredIndex) != 0;
  if ((notes & kHasState) == 0 || states_.empty()) return;
  if (look(record(slot).number) != number) return;  // it was skipped, and its slot is another ticket's
  const uint64_t before = states_[worker_of(round_, place_of(number))].number;
  if (number < before && before <= table_.given()) return;  // the end of a round is read before the rest
  const std::span<const std::byte> bytes = layout_.state_in(slots_->data(static_cast<int32_t>(slot)));
  LastState& last = states_[worker_of(round_, place_of(number))];
  last.bytes.assign(bytes.begin(), bytes.end());
  last.number = number;
  last.shared = {};
}

void TicketRing::set_states(const std::vector<WorkerState>& states) {
  for (size_t i = 0; i < states_.size(); ++i) {
    const WorkerState state = i < states.size() ? states[i] : WorkerState();
    const std::vector<std::byte> none, &bytes = state.bytes ? *state.bytes : none;
    states_[i].bytes.assign(bytes.begin(), bytes.end());
    states_[i].number = state.number;
    states_[i].shared = state.bytes;
  }
}

std::vector<WorkerState> TicketRing::states() {
  std::vector<WorkerState> states;
  for (LastState& last : states_) {
    if (last.number != 0 && !last.shared)
      last.shared = std::make_shared<const std::vector<std::byte>>(last.bytes);
    states.push_back({last.shared, last.number});
  }
  return states;
}

namespace {

void write_words(std::span<std::atomic<uint64_t>> to, std::span<const std::byte> bytes) noexcept {
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
    // pairs with: read_words, "a word of a state"
    to[at / sizeof word].store(word, std::memory_order_release);
  }
}

void write_state(LoopRecord::Start& cell, std::span<std::atomic<uint64_t>> words, uint64_t number,
                 std::span<const std::byte> bytes) noexcept {
  if (observe(cell.number) == number) return;
  const uint64_t version = observe(cell.version);
  // pairs with: read_state, "a state of a worker"
  announce(cell.version, version + 1);
  write_words(words, bytes);
  impl::publish(cell.nbytes, uint64_t{bytes.size()});
  impl::publish(cell.number, number);
  // pairs with: read_state, "a state of a worker"
  announce(cell.version, version + 2);
}

}  // namespace

// While the version of the round is odd, after its base was stored; or while the worker does not run.
void TicketRing::write_start(uint64_t worker, uint64_t number, std::span<const std::byte> bytes) noexcept {
  const auto loop = static_cast<int32_t>(worker);
  write_state(control_.loop(loop).start, control_.start_words(loop), number, bytes);
}

// Begins a round of so many tickets.
bool TicketRing::change_round(Round round, uint64_t length, const Beginning& beginning) {
  const uint64_t version = observe(shared().round.version);
  // pairs with: read_round, "an odd version"
  announce(shared().round.version, version + 1);
  if (beginning.may && !beginning.may(round_.base)) {
    // pairs with: read_round, "an even version"
    announce(shared().round.version, version + 2);
    // Those who have seen the odd version sleep.
    shared().work.signal_all();
    shared().settled.signal_all();
    return false;
  }
  round.base = table_.next_base();
  round.limit = length == Order::kNoEnd ? UINT64_MAX : round.base + length;
  announce(shared().round.base, round.base);
  // A consumer passes a number, then looks at the base. So what it keeps of the last round is passed now.
  if (notes_for_others()) {
    note_received();
    note_rest(round.base - 1);
  }
  table_.begin_anew(round.base);
  for (uint64_t worker = 0; length > 0 && worker < round_robin_; ++worker)
    write_start(worker, states_[worker].number, states_[worker].bytes);
  impl::publish(shared().round.limit, round.limit);
  impl::publish(shared().round.epoch, round.epoch);
  impl::publish(shared().round.begin, round.begin);
  impl::publish(shared().round.first_worker, round.first_worker);
  impl::publish(shared().round.flags, round.flags);
  if (beginning.note) beginning.note(round);
  // pairs with: read_round, "an even version"
  announce(shared().round.version, version + 2);
  round_ = round;
  next_ = round.base;
  for (int32_t i = 0; i < slots_->made(); ++i) {
    const auto slot = static_cast<uint32_t>(i);
    const uint64_t word = table_.word(slot);
    if (SlotWord::number(word) >= round.base) continue;
    if (SlotWord::kind(word) == SlotWord::kReady) (void)drop_settled(slot, word);
    if (SlotWord::kind(word) == SlotWord::kAsked) drop_past(slot, word);
  }
  shared().work.signal_all();
  return true;
}

void TicketRing::end_epoch() noexcept {
  uint32_t slot = SlotTable::kNone;
  const Front front = look_at_front(&slot);
  if (front == Front::kEnd && next_ != round_.limit) read_notes(slot);
  (void)change_round({.epoch = epoch_}, 0);
  end_waiting();
  is_active_ = false;
}

void TicketRing::notify_consumers() noexcept {
  announce(shared().changes, observe(shared().changes) + 1);
  shared().settled.signal_all();
}

void TicketRing::begin() {
  const std::scoped_lock lock(consuming_);
  if (is_stopped()) throw_error(Code::kClosed, "the feed is closed");
  if (is_being_served_)
    throw_error(Code::kValue, "the feed is being served to other processes, which get its batches");
  if (is_active_) end_epoch();
  if (is_served_) announce(slots_->served()->noted, ServedState::kNoStates);  // next() notes states itself
  (void)begin_round({});
  notify_consumers();
}

bool TicketRing::begin_round(const Beginning& beginning) {
  Round round;
  round.epoch = epoch_ + 1;
  bool is_resumed = is_resumed_;
  if (has_start_) {
    is_resumed = is_resumed || has_begun_ || start_.epoch != 0 || start_.place != 0;
    round.epoch = start_.epoch;
    round.begin = start_.place;
    round.first_worker = static_cast<uint64_t>(start_.worker);
  }
  round.flags = is_resumed ? uint64_t{TENON_RESUMED} : 0;
  const uint64_t end = order_.end(round.begin), length = end == Order::kNoEnd ? end : end - round.begin;
  const auto may = [&](uint64_t base) {
    if (beginning.may && !beginning.may(base)) return false;
    if (has_start_) set_states(start_.states);  // there is room for each
    return true;
  };
  if (!change_round(round, length, {may, beginning.note})) return false;
  epoch_ = round.epoch;
  is_resumed_ = is_resumed;
  has_start_ = false;
  has_begun_ = is_active_ = true;
  is_of_others_ = false;
  return true;
}

// Of what other processes have received.
void TicketRing::note_received() {
  if (!is_served_) return;
  ServedState& state = *slots_->served();
  const uint64_t noted = observe(state.noted), passed = table_.passed();
  if (noted == ServedState::kNoStates || noted >= passed) return;
  const uint64_t noting = observe(state.noting);
  // pairs with: Tickets::read_noted, "noted states"
  announce(state.noting, noting + 1);
  slots_->served_ends().note_up_to(passed, [this](uint32_t slot, uint64_t number) {
    if (number >= round_.base && number < round_.limit) read_notes(slot, number);
  });
  write_noted();
  // pairs with: Tickets::read_noted, "noted states"
  announce(state.noting, noting + 2);
}

// While noting is odd.
void TicketRing::write_noted() noexcept {
  for (size_t worker = 0; worker < states_.size(); ++worker) {
    const auto loop = static_cast<int32_t>(worker);
    LoopRecord::Start& cell = control_.loop(loop).noted;
    const LastState& last = states_[worker];
    if (look(cell.number) == last.number) continue;
    write_words(control_.noted_words(loop), last.bytes);
    impl::publish(cell.nbytes, uint64_t{last.bytes.size()});
    impl::publish(cell.number, last.number);
  }
}

// What nobody receives any more has no effect. With the states with which the next round begins.
void TicketRing::note_rest(uint64_t last) noexcept {
  ServedState& state = *slots_->served();
  const uint64_t noting = observe(state.noting);
  // pairs with: Tickets::read_noted, "noted states"
  announce(state.noting, noting + 1);
  slots_->served_ends().note_up_to(last, [](uint32_t, uint64_t) {});
  write_noted();
  // pairs with: Tickets::read_noted, "noted states"
  announce(state.noting, noting + 2);
}

void TicketRing::begin_serving() {
  const std::scoped_lock lock(consuming_);
  // Consumers of an earlier serving may still receive what it has left. They are noted later, unless the
  // feed's own consumer has begun a round since.
  note_received();
  if (is_own()) end_epoch();
  is_of_others_ = is_being_served_ = true;
  ServedState& state = *slots_->served();
  if (control_.head().has(kHasStates) && observe(state.noted) == ServedState::kNoStates)
    announce(state.noted, table_.passed());
}

void TicketRing::end_serving() noexcept {
  const std::scoped_lock lock(consuming_);
  is_being_served_ = false;
}

// What is left of the last round is past.
bool TicketRing::begin_served(std::function<bool(uint64_t base)> may,
                              std::function<void(const Round& next)> note) {
  const std::scoped_lock lock(consuming_);
  if (is_stopped()) throw_error(Code::kClosed, "the feed is closed");
  note_received();
  // All consumers have ended the last round, so what they have received, and how it ended, is known now.
  const auto end_last = [&] {
    note_received();
    uint32_t slot = SlotTable::kNone;
    const Front front = is_active_ ? look_at_front(&slot) : Front::kPending;
    const bool has_end = (front == Front::kEnd && next_ != round_.limit) || front == Front::kFailure;
    if (has_end && slot != SlotTable::kNone) read_notes(slot, next_);
  };
  if (!begin_round({[&](uint64_t base) {
                      if (!may(base)) return false;
                      end_last();
                      return true;
                    },
                    note})) {
    return false;
  }
  is_of_others_ = true;
  end_waiting();
  notify_consumers();
  return true;
}

TicketRing::RoundView TicketRing::view_round() {
  const std::scoped_lock lock(consuming_);
  RoundView view;
  view.base = round_.base;
  view.is_over = !is_active_;
  if (!is_active_) return view;
  note_received();
  uint32_t slot = SlotTable::kNone;
  const Front front = look_at_front(&slot);
  view.is_over = front == Front::kEnd || front == Front::kFailure;
  if (front == Front::kFailure) {
    view.failure = failure_at({Look::kFailure, slot}, next_);
    view.ticket = ticket_at(round_, next_);
  }
  for (uint64_t n = next_; view.ready < table_.entries(); ++n) {
    const Look::Kind kind = n == round_.limit ? Look::kEnd : look_at(n).kind;
    view.is_filled = kind == Look::kEnd || kind == Look::kFailure;
    if (kind == Look::kSkip) continue;
    if (kind != Look::kBatch) break;
    ++view.ready;
  }
  return view;
}

void TicketRing::seek(uint64_t epoch, uint64_t place) {
  const int32_t worker = round_robin_ == 0 ? 0 : static_cast<int32_t>(place % round_robin_);
  seek({.epoch = epoch, .place = place, .worker = worker, .states = {}});
}

void TicketRing::seek(FeedPosition position) {
  const std::scoped_lock lock(consuming_);
  start_ = std::move(position);
  start_.states.resize(round_robin_);
  for (WorkerState& state : start_.states) {
    if (state.bytes && state.number == 0) state.number = --foreign_;
  }
  has_start_ = true;
}

FeedPosition TicketRing::position(bool looks) {
  const std::scoped_lock lock(consuming_);
  const bool is_noted = looks && notes_for_others();
  if (is_noted) note_received();
  if (is_active_ && looks && !is_noted) (void)look_at_front();
  // Others may receive meanwhile: the place is that of the states.
  const uint64_t next = is_noted ? std::max(observe(slots_->served()->noted) + 1, round_.base) : next_;
  const uint64_t place = place_of(next);
  // At the end of this rank's batches others may have some. An end that the generator has said counts once
  // the consumer has seen it: the position does not depend on how far ahead the workers are.
  const bool has_left = next != round_.limit || !order_.is_end_of_all(round_.begin, place);
  FeedPosition found{.ignored_index = ignored_index_, .states = states()};
  if (is_active_ && has_left) {
    found.epoch = epoch_;
    found.place = order_.delivered_by_all(round_.begin, place);
    found.worker = static_cast<int32_t>(worker_of(round_, place));
    return found;
  }
  if (has_start_) return start_;
  found.epoch = epoch_ + 1;
  return found;
}

void TicketRing::note_failure(const TicketFailure& failure) noexcept {
  LoopRecord& own = control_.loop_of_consumers();
  own.failure = failure;
  impl::publish(own.failed_number, next_);
  impl::publish(shared().round.given_up, next_);
  raise_closed(next_);
}

bool TicketRing::give_up(int64_t longer_than_ns, bool skips, const TicketFailure& failure) {
  const std::scoped_lock lock(consuming_);
  if (!is_active_ || look_at_front() != Front::kPending) return false;
  const uint32_t slot = table_.slot_of(next_);
  if (slot == SlotTable::kNone || now_ns() - look(record(slot).since_ns) < longer_than_ns) return false;
  if (!table_.leave(slot, next_)) return false;  // it has just been settled
  if (skips) {
    table_.skip(next_, slot);  // for each consumer
    shared().skipped.fetch_add(1, std::memory_order_relaxed);
    pass_front();
  } else {
    note_failure(failure);
  }
  notify_consumers();
  return true;
}

bool TicketRing::fail_wanted(const TicketFailure& failure) {
  const std::scoped_lock lock(consuming_);
  if (!is_active_ || look_at_front() != Front::kPending) return false;
  note_failure(failure);
  notify_consumers();
  return true;
}

std::optional<int32_t> TicketRing::worker_in_turn() {
  const std::scoped_lock lock(consuming_);
  if (round_robin_ == 0 || !is_active_ || table_.given() >= next_) return std::nullopt;
  return static_cast<int32_t>(worker_of(round_, place_of(next_)));
}

// The entry changes after the word, and only from the slot of the ticket, which may be free by then.
bool TicketRing::abandon(const Ticket& ticket, const Ticket& again, uint32_t holder) {
  const std::scoped_lock lock(consuming_);
  const auto from = static_cast<uint32_t>(ticket.slot), to = static_cast<uint32_t>(again.slot);
  const bool is_awaited = is_active_ && ticket.number >= next_ && ticket.number != given_up();
  if (is_awaited) {
    Ticket moved = ticket;
    moved.slot = again.slot;
    write_record(moved, holder);
    table_.hold(holder, to, ticket.number);
  }
  const bool has_left = table_.leave(from, ticket.number);
  // It settles nothing more. So if it has not settled it, it has returned, and its slot may be another's now.
  if (!has_left && (!is_awaited || is_ready(ticket.number))) {
    if (is_awaited) table_.set_aside(to);
    return false;
  }
  if (has_left) impl::publish(record(from).outcome, Outcome::kElsewhere);
  if (is_awaited) table_.move(ticket.number, from, to);
  return is_awaited;
}

void TicketRing::end() {
  const std::scoped_lock lock(consuming_);
  if (is_own()) end_epoch();
  notify_consumers();
}

void TicketRing::end_at(FeedPosition delivered) {
  const std::scoped_lock lock(consuming_);
  if (is_active_) end_epoch();
  set_states(delivered.states);
  ignored_index_ = delivered.ignored_index;
  notify_consumers();
}

void TicketRing::stop() {
  const std::scoped_lock lock(consuming_);
  // What is ready stays for consumers in other processes.
  if (is_active_ && is_served_) {
    end_waiting();
    is_active_ = false;
  }
  if (is_active_) end_epoch();
  announce(shared().is_stopped, 1U);
  shared().work.signal_all();
  notify_consumers();
}

// The loop has one ticket at most. A row of docs/dev/slots.md for each kind of word; a word that changes
// while it is looked at is another thread's, or was left, and is looked at again.
bool TicketRing::reclaim(int32_t loop, const std::function<void(const Ticket& ticket)>& settle_dead) {
  constexpr int kMostLooks = 3;
  const uint32_t dead = Slots::kFirstLoop + static_cast<uint32_t>(loop);
  bool had_ticket = false;
  for (uint32_t slot = 0; slot < static_cast<uint32_t>(slots_->made()); ++slot) {
    for (int look = 0; look < kMostLooks; ++look) {
      const uint64_t word = table_.word(slot), number = SlotWord::number(word);
      const bool counts = number >= base() && table_.slot_of(number) == slot;
      if (SlotWord::kind(word) == SlotWord::kReady) {
        // It died before it looked at the base, or had given back the slot of a ticket that it skips; or
        // before it said that its ticket has ended the round.
        if (!counts) {
          (void)drop_settled(slot, word);
        } else if (const Outcome outcome = impl::look(record(slot).outcome);
                   (outcome == Outcome::kFailure || outcome == Outcome::kEnd) && table_.word(slot) == word) {
          raise_closed(number);
          shared().settled.signal_all();
        }
        break;
      }
      if (SlotWord::holder(word) != dead || SlotWord::kind(word) == SlotWord::kAsked) break;
      if (SlotWord::kind(word) == SlotWord::kHeld && number != 0 && counts) {
        had_ticket = true;
        // What it has written of a failure is of no settled ticket.
        LoopRecord& own = control_.loop(loop);
        if (impl::look(own.failed_number) == number) impl::publish(own.failed_number, uint64_t{0});
        settle_dead(read_record(slot));
        break;
      }
      if (!table_.take(slots_->self(), slot, word, 0)) continue;
      slots_->give(static_cast<int32_t>(slot));
      break;
    }
  }
  LoopRecord& record = control_.loop(loop);
  impl::publish(record.ended, impl::look(record.begun));
  impl::publish(record.number, uint64_t{0});
  impl::publish(record.is_asleep, 0U);
  for (LoopRecord::Report& report : record.reports) {
    uint32_t written = LoopRecord::Report::kWritten;  // not to its end
    (void)exchange(report.state, written, uint32_t{LoopRecord::Report::kFree});
  }
  write_successor_start(static_cast<uint64_t>(loop));
  for (Event* event : {&shared().room, &shared().work, &shared().settled}) event->forget();
  return had_ticket;
}

// A new process begins after the last ticket of its worker that was filled, also if no consumer has it yet.
// In a feed that is served, others receive meanwhile: but no state is lost before it is noted here, under
// consuming_.
void TicketRing::write_successor_start(uint64_t worker) noexcept {
  if (worker >= round_robin_) return;
  const std::scoped_lock lock(consuming_);
  note_received();
  const bool notes = notes_for_others();
  const uint64_t known = notes ? observe(slots_->served()->noted) : next_ - 1;
  uint64_t newest = 0;
  std::span<const std::byte> bytes = states_[worker].bytes;
  for (int32_t i = 0; i < slots_->made(); ++i) {
    const auto slot = static_cast<uint32_t>(i);
    const uint64_t word = table_.word(slot), number = SlotWord::number(word);
    const bool is_settled = notes ? ServedEnds::is_settled(word) : SlotWord::kind(word) == SlotWord::kReady;
    if (!is_settled || number <= known || number < round_.base || number <= newest) continue;
    const bool has_state = (impl::look(record(slot).notes) & kHasState) != 0;
    if (!has_state || worker_of(round_, place_of(number)) != worker) continue;
    newest = number;
    bytes = layout_.state_in(slots_->data(i));
  }
  const uint64_t number = newest != 0 ? newest : states_[worker].number;
  if (!is_served_) return write_start(worker, number, bytes);
  const auto loop = static_cast<int32_t>(worker);
  write_state(control_.loop(loop).again, control_.again_words(loop), number, bytes);
  impl::publish(control_.loop(loop).again_in, round_.base);
}

// A wait begins with the first call of next() that finds no result. It ends with the next call that finds
// one.
void TicketRing::begin_waiting(int64_t now) noexcept {
  waiting_since_ns_ = now;
  waiting_ = trace::open(trace::SpanKind::kStarved, trace::key_of(this), [this](trace::Record& record) {
    record.group = feed_;
    record.epoch = epoch_;
    record.index = order_.index_at(epoch_, round_.begin, place_of(next_));
  });
}

void TicketRing::end_waiting() noexcept {
  waiting_since_ns_ = 0;
  trace::close(std::exchange(waiting_, trace::kNoSpan), trace::key_of(this), trace::SpanOutcome::kDone);
}

// True if next() has a result.
bool TicketRing::wait_settled(std::unique_lock<std::mutex>& lock, int64_t timeout_ns) {
  if (is_settled()) return true;
  const int64_t start = now_ns();
  if (waiting_since_ns_ == 0) begin_waiting(start);
  if (timeout_ns == 0) return false;
  const bool is_in_time = poll_settled(lock) || sleep_settled(lock, Deadline(timeout_ns));
  const int64_t waited = now_ns() - start;
  short_wait_.note(waited);
  starved_ns_ += static_cast<uint64_t>(waited);
  return is_in_time;
}

bool TicketRing::poll_settled(std::unique_lock<std::mutex>& lock) {
  const int64_t budget = short_wait_.budget_ns();
  const Seen before = seen();
  lock.unlock();
  const bool changed = SpinBudget::poll(budget, [&] { return has_changed(before); });
  lock.lock();
  return changed && is_settled();
}

bool TicketRing::sleep_settled(std::unique_lock<std::mutex>& lock, const Deadline& deadline) {
  while (!is_settled()) {
    const Seen before = seen();
    lock.unlock();
    const bool is_in_time =
        shared().settled.sleep(deadline, [&] { return has_changed(before); }, control_.look_ns());
    lock.lock();
    if (!is_in_time) return is_settled();
  }
  return true;
}

TicketRing::NextBatch TicketRing::next(int64_t timeout_ns, Delivery& item) {
  std::unique_lock lock = lock_soon(consuming_);
  if (!wait_settled(lock, timeout_ns)) return NextBatch::kLate;
  end_waiting();
  if (is_stopped()) return NextBatch::kStopped;
  uint32_t slot = SlotTable::kNone;
  const Front front = is_own() ? look_at_front(&slot) : Front::kEnd;
  if (front == Front::kEnd) {
    if (is_own()) {
      end_epoch();
      notify_consumers();
    }
    return NextBatch::kEnd;
  }
  if (front == Front::kFailure) {
    item.ticket = ticket_at(round_, next_);
    item.failure = failure_at({Look::kFailure, slot}, next_);
    if (slot != SlotTable::kNone) read_notes(slot);
    end_epoch();
    notify_consumers();
    return NextBatch::kFailure;
  }
  item.ticket = read_record(slot);
  (void)receive(slot);  // a batch is taken by consumers alone
  read_notes(slot);
  impl::publish(record(slot).since_ns, now_ns());
  pass_front();
  return NextBatch::kBatch;
}

TicketRing::NextBatch TicketRing::peek(int64_t timeout_ns) {
  std::unique_lock lock(consuming_);
  if (!is_settled() && (timeout_ns == 0 || !wait_settled(lock, timeout_ns))) return NextBatch::kLate;
  if (is_stopped()) return NextBatch::kStopped;
  const Front front = is_own() ? look_at_front() : Front::kEnd;
  if (front == Front::kEnd) return NextBatch::kEnd;
  return front == Front::kFailure ? NextBatch::kFailure : NextBatch::kBatch;
}

// ------------------------------------------------------------------------------------------- statistics

TicketRing::SlotUse TicketRing::use_of(uint32_t slot) const noexcept {
  SlotUse use;
  uint64_t before = 0, word = 0;
  do {
    before = table_.word(slot);
    const Outcome outcome = look(record(slot).outcome);
    use.ticket = read_record(slot);
    use.since_ns = look(record(slot).since_ns);
    const bool is_loops = SlotWord::holder(before) >= Slots::kFirstLoop && SlotWord::number(before) != 0;
    const bool is_left = SlotWord::kind(before) == SlotWord::kLeft && outcome != Outcome::kElsewhere;
    const bool is_held = SlotWord::kind(before) == SlotWord::kHeld;
    use.is_filling = (is_loops && (is_left || is_held)) || SlotWord::kind(before) == SlotWord::kAsked;
    word = table_.word(slot);
  } while (word != before);
  return use;
}

TicketRing::Snapshot TicketRing::snapshot() {
  const std::scoped_lock lock(consuming_);
  Snapshot view;
  view.ready = count_ready();
  view.skipped = shared().skipped.load(std::memory_order_relaxed);
  view.starved_ns = starved_ns_;
  if (waiting_since_ns_ != 0) {
    view.wanted = ticket_at(round_, next_);
    view.waiting_since_ns = waiting_since_ns_;
  }
  for (const SlotUse& use : uses()) {
    if (!use.is_filling) continue;
    ++view.filling;
    if (!view.longest || use.since_ns < view.longest->since_ns) view.longest = use;
  }
  return view;
}

std::vector<TicketRing::SlotUse> TicketRing::uses() const {
  std::vector<SlotUse> uses(static_cast<size_t>(control_.head().most));
  for (int32_t slot = 0; slot < slots_->made(); ++slot)
    uses[static_cast<size_t>(slot)] = use_of(static_cast<uint32_t>(slot));
  return uses;
}

}  // namespace tenon::impl
