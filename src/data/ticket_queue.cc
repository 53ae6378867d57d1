// SPDX-License-Identifier: Apache-2.0
#include "data/ticket_queue.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace tenon::impl {

TicketQueue::TicketQueue(Ref<Slots> slots, Order order, int32_t round_robin, uint32_t feed)
    : slots_(std::move(slots)),
      round_robin_(static_cast<uint64_t>(round_robin)),
      feed_(feed),
      order_(order),
      ring_(static_cast<size_t>(slots_->most())),
      uses_(ring_.size()) {}

TicketQueue::TicketTake TicketQueue::take(int32_t slot, int32_t worker, bool may_wait, Ticket& ticket) {
  std::unique_lock lock(mutex_);
  if (may_wait) work_.wait(lock, [&] { return is_stopped_ || has_ticket_for(worker); });
  if (is_stopped_) return TicketTake::kStopped;
  if (!has_ticket_for(worker)) return TicketTake::kNone;
  ticket = ticket_at(epoch_, next_++);
  uses_[static_cast<size_t>(slot)] = {ticket, now_ns(), true};
  if (round_robin_ != 0) work_.notify_all();
  return TicketTake::kTicket;
}

bool TicketQueue::wait_for_turn(int32_t worker) {
  std::unique_lock lock(mutex_);
  work_.wait(lock, [&] { return is_stopped_ || has_ticket_for(worker); });
  return !is_stopped_;
}

bool TicketQueue::is_turn_of(int32_t worker) {
  const std::scoped_lock lock(mutex_);
  return has_ticket_for(worker);
}

void TicketQueue::note_filled(int32_t slot, uint64_t fill_ns) noexcept {
  uses_[static_cast<size_t>(slot)].is_filling = false;
  fill_ns_ += fill_ns;
}

void TicketQueue::publish(const Ticket& ticket, int32_t slot, uint64_t fill_ns) noexcept {
  std::unique_lock lock(mutex_);
  note_filled(slot, fill_ns);
  if (!is_awaited(ticket)) {
    lock.unlock();
    slots_->give(slot);
    return;
  }
  entry(ticket.place) = {EntryState::kFilled, slot};
  ++ready_count_;
  const bool is_next = consumers_waiting_ > 0 && ticket.place == deliver_;
  settled_.fetch_add(1, std::memory_order_relaxed);
  lock.unlock();
  if (is_next) ready_.notify_all();
}

void TicketQueue::note_failed(uint64_t place, const TicketFailure& failure) noexcept {
  if (place >= limit_) return;  // an earlier one has failed, and ends the epoch
  entry(place).state = EntryState::kFailed;
  failure_ = failure;
  limit_ = place + 1;
  tell_consumers();
}

void TicketQueue::fail(const Ticket& ticket, int32_t slot, const TicketFailure& failure) noexcept {
  {
    const std::scoped_lock lock(mutex_);
    note_filled(slot, 0);
    if (is_awaited(ticket)) note_failed(ticket.place, failure);
  }
  slots_->give(slot);  // after the limit: a ticket for this slot would take the failure's place in the ring
}

void TicketQueue::note_skipped(uint64_t place) noexcept {
  entry(place).state = EntryState::kSkipped;
  ++skipped_;
  drop_skipped();
  tell_consumers();
}

void TicketQueue::skip(const Ticket& ticket, int32_t slot) noexcept {
  {
    const std::scoped_lock lock(mutex_);
    note_filled(slot, 0);
    if (is_awaited(ticket)) note_skipped(ticket.place);
  }
  slots_->give(slot);
}

// Moves on to what the consumer gets next.
void TicketQueue::drop_skipped() noexcept {
  while (deliver_ < next_ && entry(deliver_).state == EntryState::kSkipped) {
    entry(deliver_).state = EntryState::kPending;
    ++deliver_;
  }
  work_.notify_all();  // there is room for tickets
}

void TicketQueue::finish(const Ticket& ticket, int32_t slot) noexcept {
  {
    const std::scoped_lock lock(mutex_);
    note_filled(slot, 0);
    if (is_awaited(ticket) && ticket.place < end_) {
      end_ = ticket.place;
      limit_ = std::min(limit_, end_);
      tell_consumers();
    }
  }
  slots_->give(slot);
}

void TicketQueue::end_epoch() noexcept {
  for (uint64_t place = deliver_; place < next_; ++place) {
    RingEntry& undelivered = entry(place);
    if (undelivered.state == EntryState::kFilled) slots_->give(undelivered.slot);
    undelivered = {};
  }
  ready_count_ = 0;
  end_waiting();
  is_active_ = false;
}

void TicketQueue::tell_consumers() noexcept {
  settled_.fetch_add(1, std::memory_order_relaxed);
  ready_.notify_all();
}

void TicketQueue::begin() {
  const std::scoped_lock lock(mutex_);
  if (is_stopped_) throw_error(Code::kClosed, "the feed is closed");
  if (is_active_) end_epoch();
  std::tie(epoch_, begin_) = has_start_ ? start_ : std::pair{epoch_ + 1, uint64_t{0}};
  has_start_ = false;
  ++round_;
  next_ = begin_;
  deliver_ = begin_;
  end_ = order_.end(begin_);
  limit_ = end_;
  is_active_ = true;
  work_.notify_all();
  tell_consumers();
}

void TicketQueue::seek(uint64_t epoch, uint64_t place) {
  const std::scoped_lock lock(mutex_);
  start_ = {epoch, place};
  has_start_ = true;
}

std::pair<uint64_t, uint64_t> TicketQueue::position() {
  const std::scoped_lock lock(mutex_);
  // At the end of this rank's batches others may have some.
  const bool has_left =
      deliver_ != end_ || (end_ == order_.end(begin_) && !order_.is_end_of_all(begin_, end_));
  if (is_active_ && has_left) return {epoch_, order_.delivered_by_all(begin_, deliver_)};
  return has_start_ ? start_ : std::pair{epoch_ + 1, uint64_t{0}};
}

bool TicketQueue::give_up(int64_t longer_than_ns, bool skips, const TicketFailure& failure) {
  const std::scoped_lock lock(mutex_);
  const Ticket wanted = ticket_at(epoch_, deliver_);
  if (!is_active_ || deliver_ >= next_ || !is_awaited(wanted)) return false;
  const auto use = std::ranges::find_if(uses_, [&](const SlotUse& u) {
    return u.is_filling && u.ticket.round == wanted.round && u.ticket.place == wanted.place;
  });
  if (use == uses_.end() || now_ns() - use->since_ns < longer_than_ns) return false;
  if (skips) {
    note_skipped(wanted.place);
  } else {
    note_failed(wanted.place, failure);
  }
  return true;
}

void TicketQueue::end() {
  const std::scoped_lock lock(mutex_);
  if (is_active_) end_epoch();
  tell_consumers();
}

void TicketQueue::stop() {
  const std::scoped_lock lock(mutex_);
  if (is_active_) end_epoch();
  is_stopped_ = true;
  work_.notify_all();
  tell_consumers();
}

// A call that finds no batch begins it, whatever becomes of that call; one that finds something ends it.
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

// True when next() has something to say.
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
  std::unique_lock lock(mutex_);
  if (!wait_settled(lock, timeout_ns)) return NextBatch::kLate;
  end_waiting();
  if (is_stopped_) return NextBatch::kStopped;
  if (is_active_ && deliver_ == end_) end_epoch();
  if (!is_active_) return NextBatch::kEnd;
  RingEntry& front = entry(deliver_);
  item.ticket = ticket_at(epoch_, deliver_);
  if (front.state == EntryState::kFailed) {
    item.failure = failure_;
    end_epoch();
    tell_consumers();
    return NextBatch::kFailure;
  }
  item.slot = front.slot;
  front = {};
  ++deliver_;
  drop_skipped();
  uses_[static_cast<size_t>(item.slot)] = {item.ticket, now_ns(), false};
  --ready_count_;
  return NextBatch::kBatch;
}

bool TicketQueue::has_ready() {
  const std::scoped_lock lock(mutex_);
  return ready_count_ > 0;
}

bool TicketQueue::is_past(const Ticket& ticket) {
  const std::scoped_lock lock(mutex_);
  return is_stopped_ || !is_awaited(ticket);
}

TicketQueue::Snapshot TicketQueue::snapshot() {
  const std::scoped_lock lock(mutex_);
  Snapshot view;
  view.ready = ready_count_;
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
