// SPDX-License-Identifier: Apache-2.0
#include "feed/ticket_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace tenon {

TicketQueue::TicketQueue(Ref<Slots> slots, int32_t workers, int64_t batches)
    : slots_(std::move(slots)),
      end_(batches < 0 ? UINT64_MAX : static_cast<uint64_t>(batches)),
      ring_(static_cast<size_t>(slots_->count())),
      filling_(static_cast<size_t>(workers)),
      deliveries_(ring_.size()) {}

bool TicketQueue::is_filled() const {
  const Entry& front = ring_[deliver_ % ring_.size()];
  return front.slot >= 0 || front.code != 0;
}

bool TicketQueue::take(int32_t worker, Ticket& ticket) {
  std::unique_lock lock(mutex_);
  work_.wait(lock, [this] { return is_stopped_ || has_tickets(); });
  if (is_stopped_) return false;
  ticket = {epoch_, next_++};
  filling_[static_cast<size_t>(worker)] = {ticket, now_ns(), true};
  return true;
}

void TicketQueue::note_filled(int32_t worker) noexcept {
  Filling& filling = filling_[static_cast<size_t>(worker)];
  filling.is_busy = false;
  fill_ns_ += static_cast<uint64_t>(now_ns() - filling.since_ns);
}

void TicketQueue::publish(int32_t worker, const Ticket& ticket, int32_t slot) noexcept {
  std::unique_lock lock(mutex_);
  note_filled(worker);
  if (!is_current(ticket)) {
    lock.unlock();
    slots_->give(slot);
    return;
  }
  entry(ticket.index).slot = slot;
  ++ready_count_;
  const bool is_awaited = consumers_waiting_ > 0 && ticket.index == deliver_;
  news_.fetch_add(1, std::memory_order_relaxed);
  lock.unlock();
  if (is_awaited) ready_.notify_all();
}

void TicketQueue::fail(int32_t worker, const Ticket& ticket, int32_t slot, int32_t code,
                       const char* message) noexcept {
  {
    const std::scoped_lock lock(mutex_);
    note_filled(worker);
    if (is_current(ticket)) {
      Entry& failed = entry(ticket.index);
      failed.code = code;
      std::strncpy(failed.message, message, sizeof failed.message - 1);
      failed.message[sizeof failed.message - 1] = '\0';
      limit_ = std::min(limit_, ticket.index + 1);
      tell_consumers();
    }
  }
  slots_->give(slot);  // after the limit: a ticket for this slot would take the failure's place in the ring
}

void TicketQueue::end_epoch() noexcept {
  for (uint64_t index = deliver_; index < next_; ++index) {
    Entry& undelivered = entry(index);
    if (undelivered.slot >= 0) slots_->give(std::exchange(undelivered.slot, -1));
    undelivered.code = 0;
  }
  ready_count_ = 0;
  waiting_since_ns_ = 0;
  is_active_ = false;
}

void TicketQueue::tell_consumers() noexcept {
  news_.fetch_add(1, std::memory_order_relaxed);
  ready_.notify_all();
}

void TicketQueue::begin() {
  const std::scoped_lock lock(mutex_);
  if (is_stopped_) throw_error(Code::kClosed, "the feed is closed");
  if (is_active_) end_epoch();
  ++epoch_;
  next_ = 0;
  deliver_ = 0;
  limit_ = end_;
  is_active_ = true;
  work_.notify_all();
  tell_consumers();
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

// True when next() has something to say.
bool TicketQueue::wait_settled(std::unique_lock<std::mutex>& lock, int64_t timeout_ns) {
  if (is_settled()) return true;
  const int64_t start = now_ns();
  if (waiting_since_ns_ == 0) waiting_since_ns_ = start;
  if (timeout_ns == 0) return false;
  const bool is_in_time = poll_settled(lock) || sleep_settled(lock, Deadline(timeout_ns));
  const int64_t waited = now_ns() - start;
  short_wait_.note(waited);
  starved_ns_ += static_cast<uint64_t>(waited);
  return is_in_time;
}

bool TicketQueue::poll_settled(std::unique_lock<std::mutex>& lock) {
  const int64_t budget = short_wait_.budget_ns();
  const uint64_t before = news_.load(std::memory_order_relaxed);
  lock.unlock();
  const bool has_news =
      ShortWait::poll(budget, [&] { return news_.load(std::memory_order_relaxed) != before; });
  lock.lock();
  return has_news && is_settled();
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

TicketQueue::Outcome TicketQueue::next(int64_t timeout_ns, Item& item) {
  std::unique_lock lock(mutex_);
  if (!wait_settled(lock, timeout_ns)) return Outcome::kLate;
  waiting_since_ns_ = 0;
  if (is_stopped_) return Outcome::kStopped;
  if (is_active_ && deliver_ == end_) end_epoch();
  if (!is_active_) return Outcome::kEnd;
  Entry& front = entry(deliver_);
  item.ticket = {epoch_, deliver_};
  if (front.code != 0) {
    item.message = front.message;
    item.code = front.code;
    end_epoch();
    tell_consumers();
    return Outcome::kFailure;
  }
  ++deliver_;
  item.slot = std::exchange(front.slot, -1);
  deliveries_[static_cast<size_t>(item.slot)] = {item.ticket, now_ns()};
  --ready_count_;
  return Outcome::kBatch;
}

TicketQueue::Snapshot TicketQueue::snapshot() {
  const std::scoped_lock lock(mutex_);
  Snapshot view;
  view.ready = ready_count_;
  view.fill_ns = fill_ns_;
  view.starved_ns = starved_ns_;
  if (waiting_since_ns_ != 0) {
    view.wanted = Ticket{epoch_, deliver_};
    view.waiting_since_ns = waiting_since_ns_;
  }
  for (const Filling& filling : filling_) {
    if (!filling.is_busy) continue;
    ++view.filling;
    if (!view.longest || filling.since_ns < view.longest->since_ns) view.longest = filling;
  }
  return view;
}

std::vector<TicketQueue::Delivery> TicketQueue::deliveries() {
  const std::scoped_lock lock(mutex_);
  return deliveries_;
}

}  // namespace tenon
