// SPDX-License-Identifier: Apache-2.0
//
// Workers: what the feed's process does for worker processes, which take batches and settle them themselves.
#include <thread>
#include <utility>

#include "base/blocked_signals.h"
#include "base/error.h"
#include "base/foreign_call.h"
#include "base/os.h"
#include "base/trace.h"
#include "data/workers.h"
#include "sync/actor.h"

namespace tenon::impl {

// A generator may start threads in their place.
void Workers::start_processes() {
  const bool may_be_threads = generator_.start != nullptr;
  for (int32_t i = 0; may_be_threads && i < count_; ++i) expect_thread(loops_[static_cast<size_t>(i)]);
  supervised_ = Ref<Workers>::share(this);
  processes_->start();
  int32_t threads = 0;
  for (int32_t i = 0; may_be_threads && i < count_; ++i) {
    FillLoop& loop = loops_[static_cast<size_t>(i)];
    if (!processes_->has_process(i)) {
      are_started_ = true;
      ++threads;
      (void)note_start(loop, false);
      continue;
    }
    const std::scoped_lock lock(mutex_);
    --running_;
    loop.started = Started::kNo;
    loop.is_starting = false;
  }
  has_processes_ = threads < count_;
}

// The last call of the thread of processes_, which another thread joins.
void Workers::leave_processes() noexcept {
  const BlockedSignals blocked;
  Workers* const self = supervised_.detach();
  start_thread_surely([&] { std::thread([self] { Ref<Workers>::adopt(self)->leave(); }).detach(); });
}

// A ticket that a process had begun when it ended; or the next one, if it had begun none.
void Workers::settle_dead(int32_t worker, const WorkerProcesses::End& end, const Ticket& ticket) {
  FillLoop& loop = loops_[static_cast<size_t>(worker)];
  SlotRecord& record = slots_->control().record(static_cast<uint32_t>(ticket.slot));
  Job job{ticket, look(record.attempt), {}};
  const TicketFailure failure = end.as_failure(worker);
  FillResult result;
  result.code = failure.code;
  result.kind = failure.kind;
  result.pid = failure.pid;
  result.exit_signal = failure.exit_signal;
  result.exit_code = failure.exit_code;
  result.message = failure.message;
  // Then there is no successor.
  if (result.message.empty() && generator_.start != nullptr && slots_->file().is_lost())
    result.message = concat("worker ", worker, " cannot be started: ", os::kLostText);
  result.began_ns = look(record.since_ns);
  result.fill_ns = static_cast<uint64_t>(now_ns() - result.began_ns);
  std::string reason;
  if (!loop.filling->has_attempts_left(job) || !take_memory(job.slot, reason))
    return loop.filling->settle(job, result);
  if (!prepared_.empty()) job.attachment = prepared_[static_cast<size_t>(job.slot)];
  loop.filling->retry(job);
  publish(record.attempt, job.retries);
  (void)queue_.ask(job, worker);
}

// True: a batch tells of it.
bool Workers::end_process(int32_t worker, const WorkerProcesses::End& end) noexcept try {
  return queue_.reclaim(worker, [&](const Ticket& ticket) { settle_dead(worker, end, ticket); });
} catch (const std::exception&) {
  queue_.stop();  // no memory for a message: nothing more comes
  return true;
}

bool Workers::tell_owed(int32_t worker, const WorkerProcesses::End& end) noexcept try {
  if (queue_.await_turn(worker, Deadline::from_first_look(0)) != Tickets::TicketTake::kTicket) return false;
  Ticket ticket;
  if (!queue_.take_asked(worker, ticket)) {
    ticket.slot = slots_->try_take(holder_of(loops_[static_cast<size_t>(worker)]));
    if (ticket.slot < 0) return false;
    if (queue_.take(worker, ticket) != Tickets::TicketTake::kTicket) {
      slots_->give(ticket.slot);
      return false;
    }
  }
  settle_dead(worker, end, ticket);
  return true;
} catch (const std::exception&) {
  queue_.stop();  // as above
  return true;
}

std::string Workers::take_report(bool is_child) {
  std::string text = reports_.take();
  for (int32_t i = 0; !is_child && text.empty() && has_processes_ && i < count_; ++i) {
    for (LoopRecord::Report& report : loops_[static_cast<size_t>(i)].record->reports) {
      // pairs with: Filling::report, "a report"
      if (report.state.load(std::memory_order_acquire) != LoopRecord::Report::kComplete) continue;
      std::string found(report.text, strnlen(report.text, sizeof report.text));
      uint32_t seen = LoopRecord::Report::kComplete;
      if (!exchange(report.state, seen, uint32_t{LoopRecord::Report::kFree})) continue;
      text = std::move(found);
      break;
    }
  }
  return text;
}

// Of a process: what it has done is known now.
void Workers::note_delivery(const Ticket& ticket) noexcept {
  if (!has_processes_) return;
  slots_->note_memory_of_workers();
  if (!trace::is_on()) return;
  const SlotRecord& record = slots_->control().record(static_cast<uint32_t>(ticket.slot));
  FillResult result;
  result.pid = look(record.pid);
  if (result.pid == 0) return;
  result.began_ns = look(record.began_ns);
  result.fill_ns = look(record.fill_ns);
  Job job{ticket, 0, {}};
  slots_->note_span(ticket.slot, number_, ticket.epoch, ticket.index, result.began_ns,
                    result.began_ns + static_cast<int64_t>(result.fill_ns));
  note_fill(look(record.loop), job, result);
}

}  // namespace tenon::impl
