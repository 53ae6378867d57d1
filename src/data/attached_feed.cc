// SPDX-License-Identifier: Apache-2.0
#include "data/attached_feed.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "data/failure_text.h"
#include "data/packed_states.h"
#include "ipc/lazy_copy.h"
#include "ipc/segments.h"

namespace tenon::impl {
namespace {

constexpr int64_t kBriefNs = 50'000'000;  // of calls that wait for no batch

std::byte* base_of(const Control& control) noexcept { return reinterpret_cast<std::byte*>(control.served()); }

// A checked copy.
FeedHead read_head(const Segment& segment) {
  const uint32_t slots = segment.control().feed_slots;
  FeedHead head{};
  std::memcpy(&head, base_of(segment.control()) + ServedState::end_at(slots), sizeof head);
  check_head(head, segment.data_nbytes());
  head.generator[sizeof head.generator - 1] = '\0';
  const uint64_t mapped = segment.header().feed_pages * kPage;
  if (!head.parts.is_served() || head.parts.nbytes > mapped || static_cast<uint32_t>(head.most) != slots ||
      head.nbytes > segment.data_nbytes() || head.slots_at % kPage != 0) {
    throw_error(Code::kValue, "it has ", head.most, " slots, and its segment says ", slots);
  }
  return head;
}

// The feeds to which this process is attached. A forked child has inherited those of its parent.
class Attached {
 public:
  static Attached& instance() {
    static auto* const attached = new Attached;
    return *attached;
  }
  bool add(const ServedState* state) {
    const std::scoped_lock lock(mutex_);
    const Entry entry(ForkMark::current(), state);
    if (std::ranges::find(entries_, entry) != entries_.end()) return false;
    entries_.push_back(entry);
    return true;
  }
  void remove(const ServedState* state) noexcept {
    const std::scoped_lock lock(mutex_);
    std::erase(entries_, Entry(ForkMark::current(), state));
  }

 private:
  using Entry = std::pair<uint64_t, const ServedState*>;
  std::mutex mutex_;
  std::vector<Entry> entries_;  // guarded by mutex_
};

}  // namespace

// ------------------------------------------------------------------------------------------- slots

Ref<AttachedSlots> AttachedSlots::attach(const std::string& name) {
  Ref<Array> shared = Segments::instance().attach(name, true);
  Segment* segment = nullptr;
  try {
    segment = &Segments::feed_segment_of(*shared);
  } catch (const Error&) {
    throw_error(Code::kValue, "'", name, "' is the name of something that is shared, but of no feed");
  }
  try {
    return Ref<AttachedSlots>::adopt(new AttachedSlots(std::move(shared), *segment, read_head(*segment)));
  } catch (const Error& e) {
    if (e.code() != Code::kValue && e.code() != Code::kType) throw;
    throw_error(Code::kValue, "the memory of feed '", name, "' is damaged: ", e.what());
  }
}

AttachedSlots::AttachedSlots(Ref<Array> shared, Segment& segment, const FeedHead& head)
    : shared_(std::move(shared)),
      ends_(segment.control()),
      control_(base_of(segment.control()), head),
      place_(segment.participant().index()),
      is_readonly_(ends_.is_broadcast()),
      schema_(read_schema(control_)),
      nbytes_(static_cast<size_t>(head.most) * head.layout.slot_nbytes) {
  check_slots(head, *schema_);
  if (place_ >= kParticipants) segment.throw_no_place();
  map(segment);
  Segments::instance().begin_name_use(*shared_);
}

void AttachedSlots::map(Segment& segment) {
  const uint64_t at = segment.header().data_at + control_.head().slots_at;
  memory_ = os::map(segment.file(), at, nbytes_, !is_readonly_, kPage, true);
  if (!is_readonly_) return;
  try {
    private_pages_.emplace(segment.file(), at, nbytes_);
    private_pages_->copy_at_forks();  // a child does not hold the batches of its parent
    (void)LentMappings::instance().add(memory_, nbytes_, {&*private_pages_, 0, true});
  } catch (...) {
    os::unmap(memory_, nbytes_);
    throw;
  }
}

AttachedSlots::~AttachedSlots() {
  if (memory_ == nullptr) return;
  if (private_pages_) LentMappings::instance().remove(*private_pages_);
  private_pages_.reset();
  os::unmap(memory_, nbytes_);
  if (!process_.is_child()) Segments::instance().end_name_use(*shared_);
}

void AttachedSlots::give_back(int32_t slot, uint64_t number) const noexcept {
  if (is_readonly_) {
    ends_.end_read(place_, static_cast<uint32_t>(slot));
  } else {
    ends_.release(place_, static_cast<uint32_t>(slot), number);
  }
}

void AttachedSlots::end_loan(void* owner) noexcept {
  const std::unique_ptr<Loan> loan(static_cast<Loan*>(owner));
  // The words are those of the parent, too.
  if (!loan->slots->process_.is_child()) loan->slots->give_back(loan->slot, loan->number);
}

Ref<Storage> AttachedSlots::lend_storage(int32_t slot, uint64_t number) {
  std::unique_ptr<Loan> loan;
  try {
    loan = std::make_unique<Loan>(Loan{Ref<AttachedSlots>::share(this), slot, number});
  } catch (...) {
    give_back(slot, number);
    throw;
  }
  Memory memory;
  memory.data = memory.extent = data(slot);
  memory.nbytes = memory.extent_nbytes = control_.head().layout.slot_nbytes;
  memory.is_readonly = is_readonly_;
  memory.owner = loan.get();
  memory.deleter = end_loan;
  try {
    Ref<Storage> storage = Storage::adopt(memory);
    (void)loan.release();
    return storage;
  } catch (...) {
    end_loan(loan.release());
    throw;
  }
}

// -------------------------------------------------------------------------------------------- loops

AttachedFeed::AttachedFeed(const std::string& name)
    : name_(name),
      slots_(AttachedSlots::attach(name)),
      ends_(slots_->ends()),
      tickets_(FreeSlots(slots_->control(), {nullptr, nullptr}, slots_->place())),
      order_(slots_->control().head().order()),
      is_broadcast_(slots_->is_broadcast()) {
  if (!Attached::instance().add(&ends_.state()))
    throw_error(Code::kValue, "this process is attached to feed '", name, "' already");
}

void AttachedFeed::check_open() const {
  if (is_closed() || process_.is_child()) throw_error(Code::kClosed, "feed '", name_, "' was closed here");
}

void AttachedFeed::throw_damaged(const std::string& what) const {
  throw_error(Code::kValue, "the memory of feed '", name_, "' (process ", slots_->control().head().pid,
              ") is damaged: ", what);
}

void AttachedFeed::throw_served_no_more() const {
  throw_error(Code::kClosed, "feed '", name_, "' is not served any more by process ",
              slots_->control().head().pid);
}

void AttachedFeed::throw_died() {
  has_died_ = is_over_ = true;
  const uint32_t pid = slots_->control().head().pid;
  throw Error(Code::kOwnerDied,
              concat("process ", pid, ", which served feed '", name_,
                     "', has died; the batches that this process has stay valid"),
              static_cast<int32_t>(pid));
}

uint64_t AttachedFeed::next_number(const Tickets::Round& round) const noexcept {
  return std::max(is_broadcast_ && has_joined_ ? cursor_ : ends_.table().passed(), round.base - 1) + 1;
}

// The server says where it closes twice: first in a way that consumers wait there, then it looks what they
// have begun to receive meanwhile. docs/dev/slots.md.
AttachedFeed::Open AttachedFeed::is_open(uint64_t number) const noexcept {
  const uint64_t closing = observe(ends_.state().closing);
  if (closing == 0 || number < (closing & ~ServedState::kProvisional)) return Open::kYes;
  return (closing & ServedState::kProvisional) != 0 ? Open::kNotKnown : Open::kNo;
}

// Of a serving that is over. It may turn out that other consumers have got all of it.
bool AttachedFeed::has_left() const noexcept {
  Tickets::Round round;
  if (!tickets_.read_round(round)) return true;
  return (!has_joined_ || round.base > ended_) && is_open(next_number(round)) != Open::kNo;
}

Ref<Array> AttachedFeed::pack_wanted(CursorRecord& own) {
  const std::vector<WorkerState>& states = wanted_->first.states;
  store(own.states, static_cast<int32_t>(states.size()));
  if (states.empty()) return {};
  const std::vector<std::byte> bytes = pack_states(states);
  const auto length = static_cast<int64_t>(bytes.size());
  Ref<Array> shared = Segments::instance().create(DType(TENON_UINT, 8), {&length, 1}, 0, {});
  std::memcpy(shared->data(), bytes.data(), bytes.size());
  const std::string handle = Segments::instance().handle_of(*shared);
  if (handle.size() > sizeof own.handle)
    throw_error(Code::kInternal, "a handle of ", handle.size(), " bytes");
  std::memcpy(own.handle, handle.data(), handle.size());
  store(own.handle_nbytes, static_cast<uint32_t>(handle.size()));
  return shared;
}

// The word is announced, then the round is read. The server makes the version odd, then looks at the words.
// So one of them sees the other. The phase changes with the round, while the version is odd.
//
// The first step: from now on no round begins without this consumer.
void AttachedFeed::announce_join() {
  bool has_wanted = false;
  {
    const std::scoped_lock lock(noting_);
    if (wanted_) {
      const auto& [position, ranks] = *wanted_;
      CursorRecord& own = own_record();
      store(own.epoch, position.epoch);
      store(own.place, position.place);
      store(own.worker, position.worker);
      wanted_states_ = pack_wanted(own);
      store(own.rank, ranks.first);
      store(own.world_size, ranks.second);
      store(own.indexed, position.ignored_index ? 1U : 0U);
      has_wanted = true;
    }
  }
  ends_.begin_join(slots_->place(), has_wanted);
  has_announced_ = true;
}

// The second step. False: the server writes the round now, or has written it meanwhile.
bool AttachedFeed::end_join() {
  Tickets::Round round, again;
  if (!tickets_.read_round(round)) return false;
  const ServedPhase seen = phase();
  if (!tickets_.read_round(again) || again.base != round.base) return false;
  cursor_ = observe(own_record().cursor);
  has_joined_ = true;
  // What is left of a round that others were told the end of, or that belongs to the serving before, is for
  // them.
  const bool is_gathering = seen == ServedPhase::kGathering || seen == ServedPhase::kUnserved;
  bool is_of_others = is_gathering;
  if (observe(ends_.state().told) == round.base) {
    const uint64_t number = next_number(round);
    const Tickets::Look::Kind front =
        number == round.limit ? Tickets::Look::kEnd : tickets_.look_at(number).kind;
    is_of_others = is_of_others || front == Tickets::Look::kEnd || front == Tickets::Look::kFailure;
  }
  ended_ = is_of_others ? round.base : 0;
  ends_.end_join(slots_->place(), ended_, is_gathering);
  return true;
}

std::unique_lock<TimedMutex> AttachedFeed::lock_taking() {
  check_open();  // in a forked child, a thread of the parent may have the lock
  if (!taking_.lock_within(kBriefNs))
    throw_error(Code::kValue, "another thread waits for a batch of feed '", name_, "'");
  return {taking_, std::adopt_lock};
}

// A server that is stopped while it writes the round holds up the second step of the join: the loop takes it
// then, in next().
void AttachedFeed::begin() {
  const std::unique_lock<TimedMutex> locked = lock_taking();
  check_open();
  if (has_died_) throw_died();
  is_late_ = phase() == ServedPhase::kOver;
  if (is_late_ && !has_left()) throw_served_no_more();
  if (!has_joined_) {
    if (!has_announced_) announce_join();
    (void)ends_.sleep(
        slots_->place(), slots_->control().shared().settled, Deadline(kBriefNs),
        [&] { return is_closed() || end_join() || !ends_.is_server_alive(); },
        [&](auto add) { add(impl::look(ends_.state().server)); });
  } else if (Tickets::Round round;
             phase() == ServedPhase::kGathering && tickets_.read_round(round) && round.base > ended_) {
    round_ = round;  // it belongs to the serving before
    (void)end_loop(false);
  }
  is_over_ = has_batch_ = false;
  waiting_since_ns_.store(0, std::memory_order_relaxed);
  is_in_round_.store(false, std::memory_order_relaxed);
}

AttachedFeed::Step AttachedFeed::end_loop(bool is_told) {
  ended_ = round_.base;
  is_told ? ends_.end_round(slots_->place(), ended_) : ends_.end_loop(slots_->place(), ended_);
  return over();
}

AttachedFeed::Step AttachedFeed::over() {
  is_in_round_.store(false, std::memory_order_relaxed);
  is_over_ = true;
  return Step::kOver;
}

// Waits for nothing.
AttachedFeed::Step AttachedFeed::look(Ref<Batch>& batch) {
  if (!has_joined_ && !end_join()) return Step::kWait;
  const ServedPhase seen = phase();  // before the round: of a serving that is over, no other one begins
  Tickets::Round round;
  if (!tickets_.read_round(round)) return Step::kWait;
  if (!is_in_round_.load(std::memory_order_relaxed)) {
    if (round.base <= ended_) {
      if (seen != ServedPhase::kOver) return Step::kWait;
      (void)over();
      if (is_late_) throw_served_no_more();
      return Step::kOver;
    }
    if (round.base != round_.base) {  // else the loop goes on where the last one was left
      round_ = round;
      next_own_ = 0;
      has_looked_for_states_ = !slots_->control().head().has(kHasStates);
      cursor_ = std::max(cursor_, round.base - 1);
    }
    is_in_round_.store(true, std::memory_order_relaxed);
  } else if (round.base != round_.base) {
    return over();  // the rest of it is past
  }
  const Step step = look_at_front(batch);
  if (step == Step::kOver && is_late_ && !has_batch_) throw_served_no_more();
  return step;
}

// Passes what is skipped. Each number costs one look, so it ends after as many as there may be, and the
// caller looks again: the memory may be damaged.
AttachedFeed::Step AttachedFeed::look_at_front(Ref<Batch>& batch) {
  if (!has_looked_for_states_ && !(has_looked_for_states_ = learn_states())) return Step::kWait;
  const uint64_t looks = ends_.table().entries();
  for (uint64_t i = 0; i < looks; ++i) {
    if (!is_broadcast_) ends_.help();
    const uint64_t number = next_number(round_);
    if (number >= round_.limit) {
      note_position(number, true);
      return end_loop(true);
    }
    const Tickets::Look front = tickets_.look_at(number);
    if (front.kind == Tickets::Look::kEnd) {
      note_state(front.slot, number);
      note_position(number, true);
      return end_loop(true);
    }
    if (front.kind == Tickets::Look::kFailure) {
      const TicketFailure failure = tickets_.failure_at(front, number);
      Tickets::Round again;
      if (!tickets_.read_round(again) || again.base != round_.base) return Step::kWait;  // it may be of that
      note_state(front.slot, number);
      note_position(number, true);
      (void)end_loop(true);
      throw_failure(number, failure);
    }
    const Open open = is_open(number);
    if (open == Open::kNotKnown) return Step::kWait;
    if (open == Open::kNo) return end_loop(false);
    if (front.kind == Tickets::Look::kPending) return Step::kWait;
    if (front.kind == Tickets::Look::kSkip) {
      if (front.slot != SlotTable::kNone && !is_broadcast_) {
        if (!ends_.take(slots_->place(), front.slot, number)) continue;
        note_state(front.slot, number);
        slots_->give_back(static_cast<int32_t>(front.slot), number);
      }
      if (is_broadcast_) note_state(front.slot, number);  // it is not filled again before the cursor moves
      pass(number);
      continue;
    }
    const bool is_counted = is_broadcast_ && ends_.is_read(front.slot);
    // Nobody fills slots after the death of the feed's process.
    if (!is_counted && ends_.held() >= impl::look(ends_.state().tokens) && ends_.is_server_alive())
      return Step::kWaitForRoom;
    if (!receive(front.slot, number)) continue;
    if (observe(slots_->control().shared().round.base) != round_.base) {  // the slot may be another's now
      slots_->give_back(static_cast<int32_t>(front.slot), number);
      return over();
    }
    batch = batch_of(front.slot, number);
    return Step::kBatch;
  }
  return Step::kWait;
}

void AttachedFeed::pass(uint64_t number) noexcept {
  cursor_ = number;
  announce(own_record().cursor, number);
  (void)ends_.table().pass(number);
  if (is_broadcast_) slots_->control().shared().room.signal_all();  // its slot may be a spare one now
  tickets_.note_passed(number, round_.limit);
  if (next_own_ == number) next_own_ = number + 1;
}

bool AttachedFeed::receive(uint32_t slot, uint64_t number) noexcept {
  const uint32_t p = slots_->place();
  if (is_broadcast_) {
    // Between the bit and the cursor: the server looks at the bits after it has said where it closes.
    if (!ends_.read(p, slot, number, &is_first_, [&] { return is_open(number) == Open::kYes; })) return false;
    cursor_ = number;
  } else {
    if (!ends_.take(p, slot, number)) return false;
    is_first_ = true;
    publish(own_record().cursor, number);
  }
  tickets_.note_passed(number, round_.limit);
  return true;
}

// The record belongs to the number: the slot's word is that of this process, or has its bit.
Ref<Batch> AttachedFeed::batch_of(uint32_t slot, uint64_t number) {
  const Ticket ticket = tickets_.read_record(slot);
  if (ticket.number != number) {
    slots_->give_back(static_cast<int32_t>(slot), number);
    throw_damaged(concat("slot ", slot, " has batch number ", number, " by its word, and ", ticket.number,
                         " by its record"));
  }
  note_state(slot, number);
  const SlotLayout& layout = slots_->control().head().layout;
  Ref<Storage> storage = slots_->lend_storage(ticket.slot, number);
  Ref<Batch> batch;
  try {
    batch = Batch::make(*slots_->schema(), layout, std::move(storage), ticket);
  } catch (const Error& e) {
    if (e.code() != Code::kValue) throw;
    throw_damaged(e.what());
  }
  note_delivery(ticket, *batch);
  return batch;
}

// Before another process can fill the slot.
void AttachedFeed::note_state(uint32_t slot, uint64_t number) {
  const FeedHead& head = slots_->control().head();
  if (slot >= static_cast<uint32_t>(head.most)) return;
  const uint32_t notes = impl::look(slots_->control().record(slot).notes);
  ServedState& state = ends_.state();
  if ((notes & kIgnoredIndex) != 0 && impl::look(state.ignored_index) == 0) publish(state.ignored_index, 1U);
  if ((notes & kHasState) == 0 || states_.empty()) return;
  const std::span<const std::byte> bytes = head.layout.state_in(slots_->data(static_cast<int32_t>(slot)));
  const uint64_t worker = (number - round_.base + round_.first_worker) % states_.size();
  states_[worker] = {std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end()), number};
}

static WorkerState state_of(KnownState& known) {
  if (known.number == 0) return {};
  return {std::make_shared<const std::vector<std::byte>>(std::move(known.bytes)), known.number};
}

// The states after what others have received before this consumer. The server notes them in order; what it
// has not noted lies in the slots. False: it writes them now.
bool AttachedFeed::learn_states() {
  constexpr int kTries = 100;
  const FeedControl& control = slots_->control();
  const SlotTable& table = ends_.table();
  std::vector<KnownState> noted;
  for (int i = 0; i < kTries; ++i) {
    uint64_t last = 0;
    if (!tickets_.read_noted(noted, last)) {
      std::this_thread::yield();
      continue;
    }
    states_.clear();
    for (KnownState& known : noted) states_.push_back(state_of(known));
    const uint64_t next = next_number(round_);
    if (last >= next) {
      if (!is_broadcast_) continue;  // others have received more
      if (next != round_.base) {     // a late consumer: it begins behind that
        pass(last);
        return true;
      }
      return read_starts();
    }
    // Those before have no entries any more, so they are not there.
    const uint64_t first = std::max(last + 1, next - std::min(next, table.entries()));
    for (uint64_t number = first; number < next; ++number) {
      const uint32_t slot = table.slot_of(number);
      if (slot != SlotTable::kNone && impl::look(control.record(slot).number) == number)
        note_state(slot, number);
    }
    if (observe(ends_.state().noted) == last && next_number(round_) == next) return true;
  }
  return false;
}

// Those with which the round began.
bool AttachedFeed::read_starts() {
  for (size_t worker = 0; worker < states_.size(); ++worker) {
    KnownState known;
    if (!tickets_.read_start(static_cast<int32_t>(worker), known)) return false;
    states_[worker] = state_of(known);
  }
  return true;
}

void AttachedFeed::note_delivery(const Ticket& ticket, const Batch& batch) {
  ServedState& state = ends_.state();
  if (is_first_) {
    (void)add(state.delivered, uint64_t{1});
    (void)add(state.delivered_nbytes, batch.nbytes());
  }
  uint64_t first = observe(state.first_batch);
  while ((first == 0 || ticket.number < first) && !exchange(state.first_batch, first, ticket.number)) {
  }
  has_batch_ = true;
  last_number_.store(ticket.number, std::memory_order_relaxed);
  {
    const std::scoped_lock lock(noting_);
    has_gap_ = has_gap_ || (next_own_ != 0 && next_own_ != ticket.number);
  }
  wanted_states_ = {};
  next_own_ = ticket.number + 1;
  note_position(next_own_, false);
}

// The position of the whole feed before this number of the round. is_end: the round is over there.
void AttachedFeed::note_position(uint64_t next, bool is_end) {
  const FeedHead& head = slots_->control().head();
  const uint64_t place = round_.begin + (next - round_.base);
  FeedPosition position;
  position.ignored_index = impl::look(ends_.state().ignored_index) != 0;
  position.states = states_;
  if (is_end || (next == round_.limit && order_.is_end_of_all(round_.begin, place))) {
    position.epoch = round_.epoch + 1;
  } else {
    position.epoch = round_.epoch;
    position.place = order_.delivered_by_all(round_.begin, place);
    if (head.has(kGoesRound)) {
      const auto workers = static_cast<uint64_t>(head.workers);
      position.worker = static_cast<int32_t>((place - round_.begin + round_.first_worker) % workers);
    }
  }
  const std::scoped_lock lock(noting_);
  if (is_end) has_gap_ = false;
  wanted_.reset();
  delivered_ = std::move(position);
}

void AttachedFeed::throw_failure(uint64_t number, const TicketFailure& f) {
  const Ticket ticket = tickets_.ticket_at(round_, number);
  const std::scoped_lock lock(noting_);
  failure_ = failure_record(ticket, f);
  throw Error(Code::kOp, failure_text(ticket, f, slots_->control().head()), f.code);
}

bool AttachedFeed::next(int64_t timeout_ns, Ref<Batch>& batch) {
  batch = {};
  const Deadline deadline(timeout_ns);
  check_open();  // as in lock_taking()
  if (!taking_.lock_within(timeout_ns)) return false;
  const std::unique_lock<TimedMutex> locked(taking_, std::adopt_lock);
  check_open();
  if (is_over_) return true;
  const auto waits = [](Step step) { return step == Step::kWait || step == Step::kWaitForRoom; };
  Step step = look(batch);
  if (!waits(step)) {
    waiting_since_ns_.store(0, std::memory_order_relaxed);
    return true;
  }
  const int64_t began = now_ns();
  if (waiting_since_ns_.load(std::memory_order_relaxed) == 0)
    waiting_since_ns_.store(began, std::memory_order_relaxed);
  FeedShared& shared = slots_->control().shared();
  // Its part of the average: the sum over all consumers would be longer than the time itself.
  struct Note {
    const ServedEnds& ends;
    const int64_t began;
    const uint32_t before;  // some may end while this one waits
    ~Note() {
      const uint64_t consumers = std::max({ends.count(), before, 1U});
      (void)add(ends.state().starved_ns, static_cast<uint64_t>(now_ns() - began) / consumers);
    }
  } const note{ends_, began, ends_.count()};
  bool is_in_time = true;
  while (waits(step) && is_in_time) {
    const Step before = step;
    bool is_dead = false;
    is_in_time = ends_.sleep(
        slots_->place(), before == Step::kWaitForRoom ? shared.room : shared.settled, deadline,
        [&] {
          if (is_closed()) return true;
          ends_.reap_dead();                   // consumers that were killed with slots
          is_dead = !ends_.is_server_alive();  // before the look: what it has done comes first
          step = look(batch);
          return step != before || is_dead;
        },
        [&](auto add) {
          add(impl::look(ends_.state().server));
          if (before == Step::kWaitForRoom) ends_.visit_consumers(add);
        });
    check_open();
    if (waits(step) && is_dead) throw_died();
  }
  if (waits(step)) return false;
  waiting_since_ns_.store(0, std::memory_order_relaxed);
  return true;
}

std::string AttachedFeed::waiting_text() const {
  const int64_t since = waiting_since_ns_.load(std::memory_order_relaxed);
  const std::string text = concat("no batch of feed '", name_, "' (process ", slots_->control().head().pid,
                                  ") for ", seconds_text(since == 0 ? 0 : now_ns() - since), ": ");
  const uint32_t tokens = impl::look(ends_.state().tokens);
  if (ends_.held() >= tokens) {
    return concat(
        text, "all ", tokens,
        " batches that may be out are in the hands of its consumers. Let go of those that are done "
        "with, and keep copies of fields (.copy()); or make the feed with more slots, if no more are "
        "kept than now");
  }
  if (is_in_round_.load(std::memory_order_relaxed)) return text + "it waits for its generator";
  return text + "it waits for other consumers, or has not begun to serve";
}

// ---------------------------------------------------------------------------------------- positions

void AttachedFeed::resume(const FeedPosition& position, int32_t rank, int32_t world_size) {
  const std::unique_lock<TimedMutex> locked = lock_taking();
  check_open();
  if (has_announced_) throw_error(Code::kValue, "a loop over feed '", name_, "' has begun");
  const FeedHead& head = slots_->control().head();
  const size_t workers = head.has(kHasStates) ? static_cast<size_t>(head.workers) : 0;
  if (!position.states.empty() && position.states.size() != workers)
    throw_error(Code::kValue, "a state of feed '", name_, "' has states of ", workers, " workers, not of ",
                position.states.size());
  const std::scoped_lock lock(noting_);
  wanted_ = {position, {rank, world_size}};
}

FeedPosition AttachedFeed::state(bool* is_gap) const {
  const std::scoped_lock lock(noting_);
  *is_gap = has_gap_;
  if (wanted_) return wanted_->first;
  if (!delivered_) throw_error(Code::kNotFound, "feed '", name_, "' has delivered no batch here yet");
  return *delivered_;
}

tenon_feed_failure AttachedFeed::failure() const {
  const std::scoped_lock lock(noting_);
  tenon_feed_failure copy = failure_;
  copy.struct_size = sizeof copy;
  return copy;
}

AttachedFeed::Info AttachedFeed::describe() const noexcept {
  const ServedState& state = ends_.state();
  Info info{.mode = impl::look(state.mode), .phase = phase()};
  info.pid = slots_->control().head().pid;
  info.tokens = impl::look(state.tokens);
  info.held = ends_.held();
  info.consumers = ends_.count();
  info.first_number = observe(state.first_number);
  info.first_epoch = impl::look(state.first_epoch);
  info.first_place = impl::look(state.first_place);
  info.last_number = last_number_.load(std::memory_order_relaxed);
  const uint64_t first_batch = observe(state.first_batch);
  info.is_first = is_broadcast_ || first_batch == 0 || first_batch == info.last_number;
  return info;
}

std::string AttachedFeed::note() const {
  const uint64_t nbytes = std::min(ends_.state().note_nbytes, FeedLayout::kNoteNbytes);
  const FeedControl& control = slots_->control();
  return {reinterpret_cast<const char*>(control.base() + control.head().parts.note_at), nbytes};
}

void AttachedFeed::close() noexcept {
  // pairs with: is_closed, "closed"
  if (process_.is_child() || is_closed_.exchange(true, std::memory_order_seq_cst)) return;
  FeedShared& shared = slots_->control().shared();
  for (Event* const event : {&shared.settled, &shared.room}) event->signal_all();  // for a thread in next()
  (void)taking_.lock_within(-1);
  const std::unique_lock<TimedMutex> locked(taking_, std::adopt_lock);
  if (has_announced_) ends_.leave(slots_->place());
  Attached::instance().remove(&ends_.state());
}

}  // namespace tenon::impl
