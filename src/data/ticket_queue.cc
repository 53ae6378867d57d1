// SPDX-License-Identifier: Apache-2.0
#include "data/ticket_queue.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error.h"

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

std::string ticket_text(const Ticket& ticket) {
  return concat("batch ", ticket.index, " of epoch ", ticket.epoch);
}

TicketQueue::TicketQueue(Ref<Slots> slots, Order order, int32_t round_robin, uint32_t feed)
    : slots_(std::move(slots)),
      round_robin_(static_cast<uint64_t>(round_robin)),
      feed_(feed),
      order_(order),
      ring_(static_cast<size_t>(slots_->most())),
      uses_(ring_.size()),
      states_(round_robin_),
      state_rounds_(round_robin_) {}

TicketQueue::TicketTake TicketQueue::await_ticket(std::unique_lock<std::mutex>& lock, int32_t worker,
                                                  bool may_wait) {
  if (may_wait) work_.wait(lock, [&] { return is_stopped_ || has_ticket_for(worker); });
  if (is_stopped_) return TicketTake::kStopped;
  return has_ticket_for(worker) ? TicketTake::kTicket : TicketTake::kNone;
}

TicketQueue::TicketTake TicketQueue::await_turn(int32_t worker, bool may_wait) {
  std::unique_lock lock(mutex_);
  return await_ticket(lock, worker, may_wait);
}

TicketQueue::TicketTake TicketQueue::take(int32_t worker, bool may_wait, Ticket& ticket) {
  std::unique_lock lock = lock_soon(mutex_);
  const TicketTake taken = await_ticket(lock, worker, may_wait);
  if (taken != TicketTake::kTicket) return taken;
  ticket = ticket_at(epoch_, next_++, ticket.slot);
  uses_[static_cast<size_t>(ticket.slot)] = {ticket, now_ns(), true};
  if (round_robin_ != 0) work_.notify_all();
  return taken;
}

void TicketQueue::note_filled(int32_t slot, uint64_t fill_ns) noexcept {
  uses_[static_cast<size_t>(slot)].is_filling = false;
  fill_ns_ += fill_ns;
}

void TicketQueue::publish(const Ticket& ticket, uint64_t fill_ns, FillReport report) noexcept {
  std::unique_lock lock = lock_soon(mutex_);
  note_filled(ticket.slot, fill_ns);
  if (!is_awaited(ticket)) {
    lock.unlock();
    slots_->give(ticket.slot);
    return;
  }
  entry(ticket.place) = {EntryState::kFilled, ticket.slot, std::move(report)};
  ready_count_.fetch_add(1, std::memory_order_relaxed);
  const bool is_next = consumers_waiting_ > 0 && ticket.place == deliver_;
  settled_.fetch_add(1, std::memory_order_relaxed);
  lock.unlock();
  if (is_next) ready_.notify_all();
}

void TicketQueue::note_failed(uint64_t place, const TicketFailure& failure, FillReport report) noexcept {
  if (place >= limit_) return;  // an earlier one has failed, and ends the epoch
  entry(place) = {EntryState::kFailed, -1, std::move(report)};
  failure_ = failure;
  limit_ = place + 1;
  notify_consumers();
}

void TicketQueue::note_given_up(uint64_t place, bool skips, const TicketFailure& failure) noexcept {
  skips ? note_skipped(place, {}) : note_failed(place, failure, {});
}

template <class Note>
void TicketQueue::settle_without_batch(const Ticket& ticket, Note note) noexcept {
  {
    const std::scoped_lock lock(mutex_);
    note_filled(ticket.slot, 0);
    if (is_awaited(ticket)) note();
  }
  // After note(), which may set the limit: else a ticket for this slot could take the entry of a failure.
  slots_->give(ticket.slot);
}

void TicketQueue::fail(const Ticket& ticket, const TicketFailure& failure, FillReport report) noexcept {
  settle_without_batch(ticket, [&] { note_failed(ticket.place, failure, std::move(report)); });
}

void TicketQueue::note_skipped(uint64_t place, FillReport report) noexcept {
  entry(place) = {EntryState::kSkipped, -1, std::move(report)};
  ++skipped_;
  drop_skipped();
  notify_consumers();
}

void TicketQueue::skip(const Ticket& ticket, FillReport report) noexcept {
  settle_without_batch(ticket, [&] { note_skipped(ticket.place, std::move(report)); });
}

// Moves on to what the consumer gets next.
void TicketQueue::drop_skipped() noexcept {
  while (deliver_ < next_ && entry(deliver_).state == EntryState::kSkipped) {
    note_report(deliver_, entry(deliver_).report);
    entry(deliver_) = {};
    ++deliver_;
  }
  work_.notify_all();  // there is room for tickets
}

void TicketQueue::finish(const Ticket& ticket, FillReport report) noexcept {
  settle_without_batch(ticket, [&] {
    if (ticket.place >= end_) return;
    end_ = ticket.place;
    end_report_ = std::move(report);
    limit_ = std::min(limit_, end_);
    notify_consumers();
  });
}

std::optional<StateRef> TicketQueue::first_state(const Ticket& ticket, int32_t worker) {
  const std::scoped_lock lock(mutex_);
  uint64_t& round = state_rounds_[static_cast<size_t>(worker)];
  if (!is_current(ticket) || round == round_) return std::nullopt;
  round = round_;
  return states_[static_cast<size_t>(worker)];
}

// The consumer is behind the place now.
void TicketQueue::note_report(uint64_t place, FillReport& report) noexcept {
  ignored_index_ = ignored_index_ || report.ignored_index;
  if (report.state) states_[worker_of(place)] = std::move(report.state);
}

void TicketQueue::end_epoch() noexcept {
  if (deliver_ == end_) note_report(end_, end_report_);
  for (uint64_t place = deliver_; place < next_; ++place) {
    RingEntry& undelivered = entry(place);
    if (undelivered.state == EntryState::kFilled) slots_->give(undelivered.slot);
    undelivered = {};
  }
  ready_count_.store(0, std::memory_order_relaxed);
  end_waiting();
  is_active_ = false;
}

void TicketQueue::notify_consumers() noexcept {
  settled_.fetch_add(1, std::memory_order_relaxed);
  ready_.notify_all();
}

void TicketQueue::begin() {
  const std::scoped_lock lock(mutex_);
  if (is_stopped_) throw_error(Code::kClosed, "the feed is closed");
  if (is_active_) end_epoch();
  if (has_start_) {
    is_resumed_ = is_resumed_ || round_ > 0 || start_.epoch != 0 || start_.place != 0;
    states_ = std::move(start_.states);
    states_.resize(round_robin_);
  }
  std::tie(epoch_, begin_) =
      has_start_ ? std::pair{start_.epoch, start_.place} : std::pair{epoch_ + 1, uint64_t{0}};
  first_worker_ = has_start_ ? static_cast<uint64_t>(start_.worker) : 0;
  has_start_ = false;
  end_report_ = {};
  ++round_;
  next_ = begin_;
  deliver_ = begin_;
  end_ = order_.end(begin_);
  limit_ = end_;
  is_active_ = true;
  work_.notify_all();
  notify_consumers();
}

void TicketQueue::seek(uint64_t epoch, uint64_t place) {
  const int32_t worker = round_robin_ == 0 ? 0 : static_cast<int32_t>(place % round_robin_);
  seek({.epoch = epoch, .place = place, .worker = worker, .states = {}});
}

void TicketQueue::seek(FeedPosition position) {
  const std::scoped_lock lock(mutex_);
  start_ = std::move(position);
  start_.states.resize(round_robin_);
  has_start_ = true;
}

FeedPosition TicketQueue::position() {
  const std::scoped_lock lock(mutex_);
  // At the end of this rank's batches others may have some. An end that the generator has said counts once
  // the consumer has seen it: the position does not depend on how far ahead the workers are.
  const bool has_left = deliver_ != end_ || end_ != order_.end(begin_) || !order_.is_end_of_all(begin_, end_);
  FeedPosition found{.ignored_index = ignored_index_, .states = states_};
  if (is_active_ && has_left) {
    found.epoch = epoch_;
    found.place = order_.delivered_by_all(begin_, deliver_);
    found.worker = static_cast<int32_t>(worker_of(deliver_));
    return found;
  }
  if (has_start_) return start_;
  found.epoch = epoch_ + 1;
  return found;
}

bool TicketQueue::give_up(int64_t longer_than_ns, bool skips, const TicketFailure& failure) {
  const std::scoped_lock lock(mutex_);
  const Ticket wanted = ticket_at(epoch_, deliver_);
  if (!is_active_ || deliver_ >= next_ || !is_awaited(wanted)) return false;
  const auto use = std::ranges::find_if(uses_, [&](const SlotUse& u) {
    return u.is_filling && u.ticket.round == wanted.round && u.ticket.place == wanted.place;
  });
  if (use == uses_.end() || now_ns() - use->since_ns < longer_than_ns) return false;
  note_given_up(wanted.place, skips, failure);
  return true;
}

bool TicketQueue::give_up(const Ticket& ticket, bool skips, const TicketFailure& failure) {
  const std::scoped_lock lock(mutex_);
  if (!is_awaited(ticket)) return false;
  note_given_up(ticket.place, skips, failure);
  return true;
}

bool TicketQueue::fail_wanted(const TicketFailure& failure) {
  const std::scoped_lock lock(mutex_);
  if (!is_active_ || is_there() || deliver_ >= end_) return false;
  next_ = std::max(next_, deliver_ + 1);  // its entry is then cleared with the others at the end of the epoch
  note_failed(deliver_, failure, {});
  return true;
}

void TicketQueue::abandon(int32_t slot, const Ticket* again) {
  const std::scoped_lock lock(mutex_);
  uses_[static_cast<size_t>(slot)].is_filling = false;
  if (again != nullptr) uses_[static_cast<size_t>(again->slot)] = {*again, now_ns(), true};
}

void TicketQueue::end() {
  const std::scoped_lock lock(mutex_);
  if (is_active_) end_epoch();
  notify_consumers();
}

void TicketQueue::end_at(FeedPosition delivered) {
  const std::scoped_lock lock(mutex_);
  if (is_active_) end_epoch();
  states_ = std::move(delivered.states);
  states_.resize(round_robin_);
  ignored_index_ = delivered.ignored_index;
  notify_consumers();
}

void TicketQueue::stop() {
  const std::scoped_lock lock(mutex_);
  if (is_active_) end_epoch();
  is_stopped_ = true;
  work_.notify_all();
  notify_consumers();
}

// A wait begins with the first call of next() that finds no result. It ends with the next call that finds
// one.
void TicketQueue::begin_waiting(int64_t now) noexcept {
  waiting_since_ns_ = now;
  waiting_ = trace::open(trace::SpanKind::kStarved, trace::key_of(this), [this](trace::Record& record) {
    record.group = feed_;
    record.epoch = epoch_;
    record.index = order_.index_at(epoch_, begin_, deliver_);
  });
}

void TicketQueue::end_waiting() noexcept {
  waiting_since_ns_ = 0;
  trace::close(std::exchange(waiting_, trace::kNoSpan), trace::key_of(this), trace::SpanOutcome::kDone);
}

// True if next() has a result.
bool TicketQueue::wait_settled(std::unique_lock<std::mutex>& lock, int64_t timeout_ns) {
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

bool TicketQueue::poll_settled(std::unique_lock<std::mutex>& lock) {
  const int64_t budget = short_wait_.budget_ns();
  const uint64_t before = settled_.load(std::memory_order_relaxed);
  lock.unlock();
  const bool has_settled =
      SpinBudget::poll(budget, [&] { return settled_.load(std::memory_order_relaxed) != before; });
  lock.lock();
  return has_settled && is_settled();
}

bool TicketQueue::sleep_settled(std::unique_lock<std::mutex>& lock, const Deadline& deadline) {
  const auto settled = [this] { return is_settled(); };
  ++consumers_waiting_;
  bool is_in_time = true;
  if (deadline.is_never()) {
    ready_.wait(lock, settled);
  } else {
    is_in_time = ready_.wait_until(lock, deadline.time_point(), settled);
  }
  --consumers_waiting_;
  return is_in_time;
}

TicketQueue::NextBatch TicketQueue::next(int64_t timeout_ns, Delivery& item) {
  std::unique_lock lock = lock_soon(mutex_);
  if (!wait_settled(lock, timeout_ns)) return NextBatch::kLate;
  end_waiting();
  if (is_stopped_) return NextBatch::kStopped;
  if (is_active_ && deliver_ == end_) end_epoch();
  if (!is_active_) return NextBatch::kEnd;
  RingEntry& front = entry(deliver_);
  item.ticket = ticket_at(epoch_, deliver_, front.slot);
  if (front.state == EntryState::kFailed) {
    item.failure = failure_;
    note_report(deliver_, front.report);
    end_epoch();
    notify_consumers();
    return NextBatch::kFailure;
  }
  note_report(deliver_, front.report);
  front = {};
  ++deliver_;
  drop_skipped();
  uses_[static_cast<size_t>(item.ticket.slot)] = {item.ticket, now_ns(), false};
  ready_count_.fetch_sub(1, std::memory_order_relaxed);
  return NextBatch::kBatch;
}

TicketQueue::NextBatch TicketQueue::peek(int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  if (!is_settled() && (timeout_ns == 0 || !wait_settled(lock, timeout_ns))) return NextBatch::kLate;
  if (is_stopped_) return NextBatch::kStopped;
  if (!is_active_ || deliver_ == end_) return NextBatch::kEnd;
  return entry(deliver_).state == EntryState::kFailed ? NextBatch::kFailure : NextBatch::kBatch;
}

bool TicketQueue::is_past(const Ticket& ticket) {
  const std::scoped_lock lock(mutex_);
  return is_stopped_ || !is_awaited(ticket);
}

TicketQueue::Snapshot TicketQueue::snapshot() {
  const std::scoped_lock lock(mutex_);
  Snapshot view;
  view.ready = ready_count_.load(std::memory_order_relaxed);
  view.skipped = skipped_;
  view.fill_ns = fill_ns_;
  view.starved_ns = starved_ns_;
  if (waiting_since_ns_ != 0) {
    view.wanted = ticket_at(epoch_, deliver_);
    view.waiting_since_ns = waiting_since_ns_;
  }
  for (const SlotUse& use : uses_) {
    if (!use.is_filling) continue;
    ++view.filling;
    if (!view.longest || use.since_ns < view.longest->since_ns) view.longest = use;
  }
  return view;
}

std::vector<TicketQueue::SlotUse> TicketQueue::uses() {
  const std::scoped_lock lock(mutex_);
  return uses_;
}

}  // namespace tenon::impl
