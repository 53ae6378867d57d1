// SPDX-License-Identifier: Apache-2.0
#include "feed/crew.h"

#include <utility>

#include "base/clock.h"
#include "feed/seed.h"

namespace tenon {
namespace {

// The room for a generator's own words about its failure.
constexpr size_t kMessageSize = 256;

thread_local const Crew* working_for = nullptr;

}  // namespace

Ref<Crew> Crew::make(const tenon_generator& generator, Ref<Schema> schema, int32_t workers, int32_t slots,
                     int64_t batches, uint64_t seed) {
  Ref<Slots> memory = Slots::create(slots, schema->slot_nbytes());
  return Ref<Crew>::adopt(new Crew(generator, std::move(schema), std::move(memory), workers, batches, seed));
}

Crew::Crew(const tenon_generator& generator, Ref<Schema> schema, Ref<Slots> slots, int32_t workers,
           int64_t batches, uint64_t seed)
    : generator_(generator),
      name_(generator.name != nullptr ? generator.name : "generator"),
      schema_(std::move(schema)),
      slots_(std::move(slots)),
      workers_(workers),
      seed_(seed),
      queue_(slots_, workers, batches),
      fields_(static_cast<size_t>(workers), std::vector<void*>(schema_->fields().size())) {}

void Crew::take_over_generator() noexcept {
  const std::scoped_lock lock(mutex_);
  owns_generator_ = true;
}

int32_t Crew::take_slot(ShortWait& short_wait) noexcept {
  int32_t slot = slots_->try_take();
  if (slot != Slots::kNone) return slot;
  const int64_t start = now_ns();
  const bool is_found = ShortWait::poll(short_wait.budget_ns(), [&] {
    slot = slots_->try_take();
    return slot != Slots::kNone;
  });
  if (!is_found) slot = slots_->take();
  const int64_t waited = now_ns() - start;
  short_wait.note(waited);
  blocked_ns_.fetch_add(static_cast<uint64_t>(waited), std::memory_order_relaxed);
  return slot;
}

void Crew::work(int32_t worker) noexcept {
  working_for = this;
  ShortWait short_wait;
  while (true) {
    const int32_t slot = take_slot(short_wait);
    if (slot == Slots::kOver) break;
    Ticket ticket;
    if (!queue_.take(worker, ticket)) {
      slots_->give(slot);
      break;
    }
    fill(worker, ticket, slot);
  }
  leave();
}

void Crew::fill(int32_t worker, const Ticket& ticket, int32_t slot) noexcept {
  std::vector<void*>& fields = fields_[static_cast<size_t>(worker)];
  for (size_t i = 0; i < fields.size(); ++i) fields[i] = slots_->data(slot) + schema_->fields()[i].offset;
  tenon_fill_request request{};
  request.struct_size = sizeof request;
  request.worker = worker;
  request.fields = fields.data();
  request.n = schema_->rows();
  request.index = ticket.index;
  request.epoch = ticket.epoch;
  request.seed = batch_seed(seed_, ticket.epoch, ticket.index);
  char message[kMessageSize] = "";
  int32_t code = 0;
  try {
    code = generator_.fill(generator_.context, &request, message, sizeof message);
  } catch (...) {
    return queue_.fail(worker, ticket, slot, -1,
                       "a C++ exception left it, which no generator may let happen");
  }
  if (code == 0) return queue_.publish(worker, ticket, slot);
  message[sizeof message - 1] = '\0';
  queue_.fail(worker, ticket, slot, code, message);
}

void Crew::leave() noexcept {
  std::unique_lock lock(mutex_);
  if (--running_ > 0) return;
  if (owns_generator_ && generator_.drop != nullptr) {
    lock.unlock();
    generator_.drop(generator_.context);
    lock.lock();
  }
  have_left_ = true;
  left_.notify_all();
}

void Crew::dismiss() noexcept {
  queue_.stop();
  slots_->wake(workers_);
}

bool Crew::wait_until_left(int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  const auto left = [this] { return have_left_; };
  const Deadline deadline(timeout_ns);
  if (!deadline.is_never()) return left_.wait_until(lock, deadline.time_point(), left);
  left_.wait(lock, left);
  return true;
}

bool Crew::is_called_by_worker() const noexcept { return working_for == this; }

}  // namespace tenon
