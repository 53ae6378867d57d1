// SPDX-License-Identifier: Apache-2.0
//
// Workers: what the thread of a loop does that has a worker process.
#include <algorithm>

#include "base/trace.h"
#include "data/request_ring.h"
#include "data/workers.h"

namespace tenon::impl {

void Workers::ask_process(FillLoop& loop) {
  // Requests that are open at a time. One, if the next one depends on what becomes of it.
  const uint32_t most = has_state() ? 1 : kRingEntries;
  const auto ask = [&](Job& job) {
    loop.filling->put_state(job);
    processes_->ask(loop.number, job);
    ++loop.begun;
  };
  const auto next = [&]() -> Job& { return loop.jobs[loop.begun % kRingEntries]; };
  bool is_over = false;
  while (true) {
    // Only one before the first one ends: else the first batch would wait for the memory of a second slot.
    while (!is_over && loop.begun - loop.settled < (loop.settled == 0 ? 1 : most)) {
      const JobTake taken =
          loop.filling->take_job(Deadline::from_first_look(loop.has_job() ? 0 : -1), next());
      is_over = taken == JobTake::kOver;
      if (taken != JobTake::kJob) break;
      ask(next());
    }
    if (!loop.has_job()) return;
    Job& job = loop.job();
    FillResult result;
    if (!await_answer(loop, job, result)) return drop_jobs(loop);
    const bool is_again = loop.filling->is_retried(job, result);
    if (result.kind != TENON_FAILED || is_again) restart_process(loop, result);
    ++loop.settled;
    if (!is_again) {
      settle(loop, job, result);
      continue;
    }
    loop.filling->retry(job);
    // Behind those that have begun meanwhile.
    if (&next() != &job) next() = std::move(job);
    ask(next());
  }
}

// Of the fill that was begun first. False: the feed ends.
bool Workers::await_answer(FillLoop& loop, const Job& job, FillResult& result) {
  if (!processes_->await(loop.number, job.slot, options_.fill_timeout_ns, result)) return false;
  loop.filling->check_fill(job, result);
  if (trace::is_on()) note_fill(loop.worker, job, result);
  return true;
}

// After a fill that the process has not ended, or that is done again.
void Workers::restart_process(FillLoop& loop, FillResult& result) {
  processes_->stop(loop.number);
  // The other fills that it had begun begin again.
  for (uint32_t n = loop.settled + 1; n != loop.begun; ++n) {
    if (static_cast<int32_t>(n - processes_->answered(loop.number)) >= 0)
      loop.filling->put_back(loop.jobs[n % kRingEntries]);
  }
  loop.filling->lose_state();
  const std::string failure = processes_->start(loop.number);
  if (!failure.empty() && result.message.empty()) result.message = failure;
}

}  // namespace tenon::impl
