// SPDX-License-Identifier: Apache-2.0
//
// Workers: threads whose generator does not return.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "data/workers.h"

namespace tenon::impl {
namespace {

constexpr char kWayOut[] = "with processes=True a worker that takes too long is killed";

// worker: -1, it is not known.
TicketFailure hung(int32_t worker, const char* message) noexcept {
  TicketFailure failure;
  failure.kind = TENON_HUNG;
  failure.code = -1;
  failure.worker = worker;
  failure.set_message(message);
  return failure;
}

}  // namespace

// An abandoned loop: its worker goes on in another one.
void Workers::return_late(FillLoop& loop) noexcept {
  if (loop.has_job) slots_->give_spare(loop.job.slot);
  {
    const std::scoped_lock lock(mutex_);
    loop.started = Started::kNo;
  }
  // pairs with: Workers::find_free_loop, "a free loop"
  loop.since_ns().store(FillLoop::kFree, std::memory_order_release);
}

// Whether the generator may be called while another call hangs. It may if it starts threads itself or is
// thread-safe, unless it has a state, which the call that hangs may change.
bool Workers::may_replace() const noexcept {
  if (has_state()) return false;
  return are_started_ || (generator_.flags & TENON_THREADSAFE) != 0;
}

bool Workers::give_up_hung(bool has_waited,
                           const std::function<void(int32_t abandoned, int32_t other)>& replace) {
  const auto is_late = [&](int64_t since) {
    return since > FillLoop::kIdle && now_ns() - since >= options_.fill_timeout_ns;
  };
  // Those that were not begun by this call. Only the worker in turn may take the consumer's next batch.
  const std::optional<int32_t> turn = queue_.worker_in_turn();
  const bool is_any_in_time = std::ranges::any_of(loops_, [&](const FillLoop& loop) {
    const int64_t since = loop.since_ns().load(std::memory_order_relaxed);
    return !has_process(loop) && !is_preparer(loop) && since >= FillLoop::kIdle && !is_late(since) &&
           (!turn || loop.worker == *turn);
  });
  bool has_given_up = false, is_any_stuck = !lost_text().empty();
  for (FillLoop& loop : loops_) {
    if (has_process(loop)) continue;  // which is watched elsewhere
    // pairs with: Workers::begin, "what a loop is busy with"
    const int64_t since = loop.since_ns().load(std::memory_order_acquire);
    if (!is_late(since) || (!has_waited && FillLoop::is_outside(since))) continue;
    if (may_replace() && abandon(loop, since, replace, is_any_in_time)) {
      has_given_up = true;
    } else {
      is_any_stuck = true;
    }
  }
  return has_given_up || (is_any_stuck && give_up_stuck(is_any_in_time));
}

std::string Workers::lost_text() {
  const std::scoped_lock lock(mutex_);
  return lost_;
}

FillLoop* Workers::find_free_loop() noexcept {
  const std::scoped_lock lock(mutex_);
  const auto found = std::ranges::find_if(loops_, [](const FillLoop& l) {
    // pairs with: Workers::return_late, "a free loop"
    return !l.is_starting && l.since_ns().load(std::memory_order_acquire) == FillLoop::kFree;
  });
  return found == loops_.end() ? nullptr : &*found;
}

// False: there is no loop or slot for another thread. is_any_in_time: another one does not hang.
bool Workers::abandon(FillLoop& loop, int64_t since_ns,
                      const std::function<void(int32_t abandoned, int32_t other)>& replace,
                      bool is_any_in_time) {
  FillLoop* const other = find_free_loop();
  if (other == nullptr) return false;
  int32_t spare = Slots::kNone;
  try {
    spare = slots_->take_spare();
  } catch (const Error&) {  // no memory
  }
  if (spare == Slots::kNone) return false;
  {
    const std::scoped_lock lock(mutex_);
    ++running_;  // before the loop can end
  }
  // pairs with: Workers::begin and Workers::end, "what a loop is busy with"
  if (!loop.since_ns().compare_exchange_strong(since_ns, FillLoop::kAbandoned, std::memory_order_acq_rel)) {
    slots_->give_spare(spare);
    leave();
    return true;
  }
  hand_over(loop, *other, spare);
  if (!loop.has_job && !is_any_in_time && options_.on_error == TENON_ON_ERROR_RAISE) {
    // The batch that no worker has begun would have been one of this thread. Before another one begins it.
    TicketFailure failure = hung(loop.worker, "its thread has not asked for a batch, and is left behind");
    failure.was_begun = 0;
    (void)queue_.fail_wanted(failure);
  }
  abandoned_.fetch_add(1, std::memory_order_relaxed);
  report(loop, since_ns);
  other->since_ns().store(FillLoop::kIdle, std::memory_order_relaxed);
  if (are_started_) {
    start_beside(*other);
    return true;
  }
  try {
    replace(loop.number, other->number);
  } catch (const std::exception& e) {  // of the system, or std::bad_alloc
    lose(*other, e.what());
  }
  return true;
}

// Its thread cannot be started.
void Workers::lose(FillLoop& loop, const char* reason) noexcept {
  // pairs with: Workers::abandon, "what a loop is busy with"
  if (loop.since_ns().exchange(FillLoop::kIdle, std::memory_order_acq_rel) == FillLoop::kAbandoned) {
    return_late(loop);  // its start has taken too long, too, and there is another one
    return leave();
  }
  {
    const std::scoped_lock lock(mutex_);
    lost_ = reason;
  }
  const TicketFailure failure = hung(loop.worker, reason);
  if (std::exchange(loop.has_job, false)) queue_.fail(loop.job, loop.number, failure);
  // pairs with: Workers::find_free_loop, "a free loop"
  loop.since_ns().store(FillLoop::kFree, std::memory_order_release);
  leave();
}

// Moves the job of an abandoned loop to one whose thread does not run yet.
void Workers::hand_over(FillLoop& loop, FillLoop& other, int32_t spare) noexcept {
  other.is_replaced = false;
  other.worker = loop.worker;
  other.filling->set_worker(loop.worker);
  other.has_job = false;
  other.thread.store(0, std::memory_order_relaxed);
  if (!loop.has_job) return slots_->give_spare(spare);
  times_of(loop.worker).note_failure();
  Job& old = loop.job;  // whose slot the loop reads when it returns
  Job job{old, old.retries, std::move(old.attachment)};
  job.flags &= TENON_RESUMED;  // nothing is restored
  job.restore_nbytes = 0;
  job.slot = spare;
  if (!queue_.abandon(old, job, holder_of(other))) return slots_->give(job.slot);
  slots_->begin_span(job.slot, number_, job.epoch, job.index);
  if (options_.on_error == TENON_ON_ERROR_SKIP) return queue_.skip(job);
  if (!other.filling->has_attempts_left(job))
    return queue_.fail(job, other.number, hung(loop.worker, "its thread is left behind"));
  ++job.retries;
  shared().retried.fetch_add(1, std::memory_order_relaxed);
  other.filling->put_back(job);
  other.job = std::move(job);
  other.has_job = true;
}

// A fill has taken too long in a thread that cannot be replaced.
bool Workers::give_up_stuck(bool is_any_at_work) {
  const std::string lost = lost_text();
  const std::string reason =
      !lost.empty()   ? concat("no thread can be started in place of one that is left behind: ", lost)
      : may_replace() ? concat("as many of its threads are left behind as may be (", kMostAbandoned,
                               "), or there is no memory for another slot")
                      : concat(has_state() ? "it has a state" : "it is not thread-safe",
                               ", so it is not called again before it returns");
  TicketFailure failure = hung(-1, concat(reason, "; ", kWayOut).c_str());
  if (queue_.give_up(options_.fill_timeout_ns, options_.on_error == TENON_ON_ERROR_SKIP, failure))
    return true;
  if (is_any_at_work) return false;
  failure.was_begun = 0;
  return queue_.fail_wanted(failure);
}

void Workers::report(FillLoop& loop, int64_t since_ns) noexcept try {
  const uint32_t thread = loop.thread.load(std::memory_order_relaxed);
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f s", static_cast<double>(now_ns() - since_ns) * 1e-9);
  if (loop.has_job) {
    reports_.add(concat("generator '", name_, "' has not returned from ", ticket_text(loop.job), " for ",
                        seconds, ": its thread ", thread, " (worker ", loop.worker,
                        ") is left behind with its slot, and the worker goes on in another thread"));
  } else {
    reports_.add(concat("generator '", name_, "' has not asked for a batch for ", seconds, ": its thread",
                        thread == 0 ? "" : concat(" ", thread), " (worker ", loop.worker,
                        ") is left behind, and the worker goes on in another thread"));
  }
} catch (const std::exception&) {  // no memory: abandoned_ counts it
}

}  // namespace tenon::impl
