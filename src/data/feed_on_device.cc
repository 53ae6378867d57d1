// SPDX-License-Identifier: Apache-2.0
//
// The part of Feed that delivers batches on a device. next() copies filled slots as far ahead as device slots
// are free, without a wait: the copy of a batch runs beside the consumer's work on the batch before it. There
// is no thread for this, because workers fill ahead of the consumer in any case.
#include <algorithm>
#include <exception>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "data/failure_text.h"
#include "data/feed.h"
#include "exec/engine.h"

namespace tenon::impl {
namespace {

using NextBatch = TicketRing::NextBatch;

constexpr int64_t kLook = 5'000'000;

int64_t left_of(const Deadline& deadline) noexcept {
  return deadline.is_never() ? -1 : std::max<int64_t>(deadline.left_ns(), 0);
}

}  // namespace

void Feed::use_device(tenon_device device, int32_t slots) {
  check_process();
  const bool is_host = device.type == TENON_CPU;
  if (!is_host && device.type != TENON_CUDA) {
    throw_error(Code::kValue, "a feed cannot deliver batches on ", device::text_of(device),
                ": use 'cpu' or 'cuda:N'");
  }
  if (!is_host && slots < 2) {
    throw_error(Code::kValue, "feed: ", slots,
                " device slots are too few: at least 2 are needed, one to copy ",
                "to while the consumer uses the other one");
  }
  if (workers_->queue().peek() == NextBatch::kStopped) throw_error(Code::kClosed, "the feed is closed");
  Ref<DeviceBatches> former;
  {
    const std::scoped_lock lock(staging_);
    if (is_host ? !device_ : device_ && device_->device().id == device.id && device_->ring().count() == slots)
      return;
    end_at_consumer();
    is_on_device_.store(false, std::memory_order_relaxed);
    former = std::move(device_);
  }
  former = {};  // waits for its copies
  if (is_host) return;
  Ref<DeviceBatches> made =
      Ref<DeviceBatches>::adopt(new DeviceBatches(schema_, workers_->slots(), device, slots));
  const std::scoped_lock lock(staging_);
  device_ = std::move(made);
  is_on_device_.store(true, std::memory_order_relaxed);
}

// Ends the epoch as if nothing had been taken ahead of the consumer. Requires staging_.
void Feed::end_at_consumer() {
  if (ahead_.empty()) return workers_->queue().end();
  FeedPosition delivered = std::move(ahead_.front().before);
  ahead_.clear();
  workers_->queue().end_at(std::move(delivered));
}

FeedPosition Feed::position_of_consumer() {
  if (process_.is_child()) {  // in which staging_ may be locked for ever
    if (is_on_device_.load(std::memory_order_relaxed)) check_process();
    return workers_->queue().position(false);
  }
  const std::scoped_lock lock(staging_);
  return ahead_.empty() ? workers_->queue().position() : ahead_.front().before;
}

Ref<DeviceBatches> Feed::device_batches() {
  if (!is_on_device_.load(std::memory_order_relaxed) || process_.is_child()) return {};
  const std::scoped_lock lock(staging_);
  return device_;
}

// Takes over the slot of the ticket, a filled batch.
void Feed::copy_to_device(DeviceBatches& device, DeviceBatches::Room room, Copied& copied) noexcept {
  try {
    Slots& slots = workers_->slots();
    slots.mark(copied.ticket.slot, trace::kRunning);
    const Ref<Batch> filled = Batch::make(*schema_, workers_->layout(), slots, copied.ticket);
    if (!room) room = device.make();
    if (room.is_beyond_ring) copied_.fetch_add(1, std::memory_order_relaxed);
    copied.batch = device.copy(*filled, std::move(room), &copied.copies);
  } catch (...) {
    copied.error = std::current_exception();
  }
}

// Requires taking_ and staging_. Waits for nothing. The end of the epoch and failures stay in the queue.
void Feed::copy_ahead(DeviceBatches& device) {
  if (device_.get() != &device) return;  // use_device() has replaced it meanwhile
  TicketRing& queue = workers_->queue();
  while (queue.peek() == NextBatch::kBatch) {
    DeviceBatches::Room room = device.take(0);
    if (!room) return;
    FeedPosition before = queue.position();
    Copied& copied = ahead_.emplace_back();
    copied.before = std::move(before);
    TicketRing::Delivery item;
    const NextBatch outcome = take_next(0, item);
    copied.ticket = item.ticket;
    if (outcome == NextBatch::kBatch) {
      copy_to_device(device, std::move(room), copied);
    } else if (outcome == NextBatch::kFailure) {  // another consumer has taken the batch before it
      copied.error = std::make_exception_ptr(
          Error(Code::kOp, failure_text(item.ticket, *item.failure, workers_->slots().control().head()),
                item.failure->code));
      return;
    } else {
      return ahead_.pop_back();  // the feed was closed meanwhile
    }
  }
}

// The oldest one of ahead_.
std::optional<Feed::Copied> Feed::take_copied(DeviceBatches& device) {
  const std::scoped_lock lock(staging_);
  if (ahead_.empty()) copy_ahead(device);
  if (ahead_.empty()) return std::nullopt;
  std::optional<Copied> oldest(std::move(ahead_.front()));
  ahead_.pop_front();
  return oldest;
}

// Before a wait for a batch. The end of the epoch and failures need no room: then it is empty. False: the
// time has passed.
bool Feed::wait_for_room(DeviceBatches& device, const Deadline& deadline, DeviceBatches::Room& room) {
  room = device.take(0);
  while (!room) {
    const NextBatch there = workers_->queue().peek();
    if (there != NextBatch::kBatch && there != NextBatch::kLate) return true;
    room = help_starved_device(device);
    if (room) return true;
    const bool has_run_op = Engine::instance().help();  // the end of a copy may free a device slot
    room = device.take(has_run_op ? 0 : std::clamp<int64_t>(deadline.left_ns(), 0, kLook));
    if (!room && deadline.has_passed()) return false;
  }
  return true;
}

// The consumer holds every device slot.
DeviceBatches::Room Feed::help_starved_device(DeviceBatches& device) {
  if (options_.on_starved == TENON_ON_STARVED_WAIT || !device.is_starved()) return {};
  if (DeviceBatches::Room room = device.take(0)) return room;  // its use ended between the two looks
  if (options_.on_starved == TENON_ON_STARVED_RAISE) throw_error(Code::kLeaseConflict, device.held_text());
  return device.make();
}

// Raises what has failed by now. A copy that fails later leaves no value in the arrays.
void Feed::check_copied(const Copied& copied) {
  Ref<Failure> first;
  for (const Ref<Op>& copy : copied.copies) {
    if (!copy->is_done() || !copy->failure()) continue;
    (void)copy->failure()->mark_seen();
    if (!first) first = copy->failure();
  }
  if (!first && !copied.error) return;
  end();
  if (copied.error) std::rethrow_exception(copied.error);
  const std::string text = concat("cannot deliver ", ticket_text(copied.ticket), ": ", first->text());
  const std::scoped_lock lock(failing_);
  failure_ = {};
  failure_.kind = TENON_NOT_COPIED;
  failure_.worker = -1;
  failure_.exit_code = -1;
  failure_.epoch = copied.ticket.epoch;
  failure_.index = copied.ticket.index;
  failure_.text[text.copy(failure_.text, sizeof failure_.text - 1)] = '\0';
  throw Error(Code::kOp, text, 0);
}

bool Feed::await_on_device(DeviceBatches& device, int64_t timeout_ns) {
  const Deadline deadline(timeout_ns);
  if (!taking_.lock_within(timeout_ns)) return false;
  const std::unique_lock taking(taking_, std::adopt_lock);
  {
    const std::scoped_lock lock(staging_);
    if (!ahead_.empty()) return true;
  }
  DeviceBatches::Room room;
  NextBatch outcome{};
  return wait_for_room(device, deadline, room) && wait(left_of(deadline), nullptr, outcome);
}

bool Feed::next_on_device(DeviceBatches& device, int64_t timeout_ns, Ref<Batch>& batch) {
  const Deadline deadline(timeout_ns);
  if (!taking_.lock_within(timeout_ns)) return false;
  const std::unique_lock taking(taking_, std::adopt_lock);
  std::optional<Copied> copied = take_copied(device);
  if (!copied) {
    DeviceBatches::Room room;
    TicketRing::Delivery item;
    NextBatch outcome{};
    if (!wait_for_room(device, deadline, room) || !wait(left_of(deadline), &item, outcome)) return false;
    if (!has_batch(outcome, item)) {
      batch = {};
      return true;
    }
    copied.emplace().ticket = item.ticket;
    copy_to_device(device, std::move(room), *copied);
  }
  check_copied(*copied);
  batch = std::move(copied->batch);
  note_delivery(*batch);
  try {
    const std::scoped_lock lock(staging_);
    copy_ahead(device);
  } catch (const std::exception&) {
    // The next call tries again.
  }
  return true;
}

}  // namespace tenon::impl
