// SPDX-License-Identifier: Apache-2.0
//
// Workers: threads that the generator has started, such as those of Python. They run loops by the functions
// here, in place of work().
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/blocked_signals.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/trace.h"
#include "data/generator_call.h"
#include "data/worker.h"
#include "data/workers.h"
#include "ipc/openings.h"

namespace tenon::impl {
namespace {

// The feeds that threads may join. No mutex: in a forked child, it could be locked for ever.
constinit ProcessSpinLock finding;
constinit Workers* first = nullptr;  // guarded by finding

}  // namespace

void Workers::set_findable(bool is_findable) noexcept {
  const std::scoped_lock lock(finding);
  Workers** at = &first;
  while (*at != nullptr && *at != this) at = &(*at)->next_;
  if (is_findable && *at == nullptr) *at = this;
  if (!is_findable && *at == this) *at = std::exchange(next_, nullptr);
}

// The feed holds a reference until it is not findable any more.
Ref<Workers> Workers::find(uint32_t number) noexcept {
  const std::scoped_lock lock(finding);
  for (Workers* at = first; at != nullptr; at = at->next_) {
    if (at->number_ == number) return Ref<Workers>::share(at);
  }
  return {};
}

FillLoop* Workers::join(int32_t number) noexcept {
  if (number < 0 || number >= loops()) return nullptr;
  const std::scoped_lock lock(mutex_);
  FillLoop& loop = loops_[static_cast<size_t>(number)];
  if (loop.started != Started::kAwaited) return nullptr;
  loop.started = Started::kJoined;
  return &loop;
}

void Workers::expect_thread(FillLoop& loop) noexcept {
  const std::scoped_lock lock(mutex_);
  loop.started = Started::kAwaited;
  loop.is_starting = true;
  loop.since_ns().store(FillLoop::outside(now_ns()), std::memory_order_relaxed);
}

// The generator's start has returned. False: there is no thread, and the caller decides what becomes of the
// loop. One that has joined runs the loop, whatever start says.
bool Workers::note_start(FillLoop& loop, bool has_failed) noexcept {
  {
    const std::scoped_lock lock(mutex_);
    loop.is_starting = false;
    if (loop.started == Started::kNo) return true;  // it has left, or dismiss() has left for it
    if (has_failed && loop.started != Started::kJoined) {
      loop.started = Started::kNo;
      return false;
    }
    if (loop.started != Started::kEnded) return true;
  }
  go_on(loop, Ref<Workers>::share(this));
  return true;
}

// Returns why there is no thread. In a thread of the feed, whose signals are blocked: threads that it starts
// have its signal mask, and a Ctrl-C does not interrupt it.
std::string Workers::call_start(const FillLoop& loop) noexcept try {
  char text[kMessageSize] = "";
  int64_t pid = 0;
  const std::string link = WorkerLink{os::this_process(), number_, -1, loop.number}.text();
  const int32_t code =
      generator_.start(generator_.context, loop.worker, link.c_str(), &pid, text, sizeof text);
  text[sizeof text - 1] = '\0';
  if (code != 0) return start_failure_text(loop.worker, false, code, text);
  if (pid == 0) return {};
  if (!may_be_worker(pid)) return no_worker_text(loop.worker, pid);
  int32_t status = 0;
  (void)kill(static_cast<pid_t>(pid), SIGKILL);
  if (generator_.reap != nullptr) {
    generator_.reap(generator_.context, loop.worker, pid, &status);
  } else {
    (void)waitpid(static_cast<pid_t>(pid), &status, 0);
  }
  return concat("worker ", loop.worker, " is no thread: it is process ", pid);
} catch (const std::exception& e) {
  return e.what();
}

// One of the first threads. Returns why there is none.
std::string Workers::start_thread(FillLoop& loop) {
  expect_thread(loop);
  std::string failure;
  try {
    const BlockedSignals blocked;
    std::thread([&] { failure = call_start(loop); }).join();
  } catch (const std::exception& e) {
    failure = concat("worker ", loop.worker, " cannot be started: ", e.what());
  }
  // One that has joined, and asks for no batch, may not exist: the feed is not made.
  if (note_start(loop, !failure.empty()) && loop.thread.load(std::memory_order_relaxed) != 0) failure.clear();
  return failure;
}

// In place of a thread that is abandoned. The caller is a consumer, which waits no longer than it wants to:
// the generator may take long to start a thread, or need what other threads have.
void Workers::start_beside(FillLoop& loop) noexcept {
  expect_thread(loop);
  const auto note = [this](FillLoop& l, const std::string& failure) {
    if (!note_start(l, !failure.empty())) lose(l, failure.c_str());
    {
      const std::scoped_lock lock(mutex_);
      --starting_;
    }
    leave();
  };
  {
    const std::scoped_lock lock(mutex_);
    ++running_;  // the generator is not dropped before its start has returned
    ++starting_;
  }
  try {
    const BlockedSignals blocked;
    std::thread([&loop, note, self = Ref<Workers>::share(this)] {
      note(loop, self->is_dismissed() ? std::string() : self->call_start(loop));
    }).detach();
  } catch (const std::exception& e) {
    note(loop, e.what());
  }
}

// Those that have not left are threads that the generator has started, and run code of their own: this one,
// or others, which leave when they ask for the next fill. One that waits for it leaves at once. Requires
// mutex_.
bool Workers::are_rest_started() const noexcept {
  const auto this_thread_id = static_cast<uint32_t>(syscall(SYS_gettid));
  const auto is_left_alone = [&](const FillLoop& loop) {
    return loop.started == Started::kJoined &&
           (loop.since_ns().load(std::memory_order_relaxed) != FillLoop::kIdle ||
            loop.thread.load(std::memory_order_relaxed) == this_thread_id);
  };
  return running_ > 0 && running_ == std::ranges::count_if(loops_, is_left_alone);
}

// In a thread that the generator has started, and may join when it is dropped.
void Workers::leave_started() noexcept {
  if (!note_left()) return;
  const BlockedSignals blocked;
  start_thread_surely(
      [&] { std::thread([self = Ref<Workers>::share(this)] { self->drop_generator(); }).detach(); });
}

Workers::JobTake Workers::next_fill(FillLoop& loop, const Deadline& deadline,
                                    tenon_fill_request& request) noexcept {
  JobTake taken = JobTake::kOver;
  // pairs with: Workers::abandon, "what a loop is busy with"
  if (loop.since_ns().exchange(FillLoop::kIdle, std::memory_order_acq_rel) == FillLoop::kAbandoned) {
    return_late(loop);
    leave_started();
    return taken;
  }
  const Workers* const outer = std::exchange(working_for_, this);  // prepare is the generator's
  try {
    taken = begin(loop, deadline);
  } catch (const std::exception&) {
    queue_.stop();  // no memory for a message: nothing more comes
  }
  if (taken == JobTake::kJob) {
    request = fill_request(loop.job, loop);
    return taken;
  }
  working_for_ = outer;
  if (taken == JobTake::kOver) {
    leave(loop);
  } else {
    note_outside(loop);
  }
  return taken;
}

void Workers::commit(FillLoop& loop, uint64_t nbytes) {
  const int32_t slot = loop.job.slot;
  commit_fields(layout_, slots_->data(slot), slots_->is_sparse(), nbytes,
                [&](uint64_t at, uint64_t n) { slots_->commit(slot, at, n); });
}

bool Workers::answer(FillLoop& loop, FillResult& result, const char* message) noexcept {
  working_for_ = nullptr;
  try {
    if (result.code != 0 && message != nullptr)
      result.message.assign(message, strnlen(message, kMessageSize - 1));
    loop.filling->check_fill(loop.job, result);
    if (trace::is_on()) note_fill(loop.worker, loop.job, result);
    if (end(loop, result)) {
      note_outside(loop);
      return true;
    }
    leave_started();
  } catch (const std::exception&) {
    queue_.stop();  // as in next_fill()
    // pairs with: Workers::abandon, "what a loop is busy with"
    if (loop.since_ns().exchange(FillLoop::kIdle, std::memory_order_acq_rel) == FillLoop::kAbandoned) {
      return_late(loop);
      leave_started();
    } else {
      leave(loop);
    }
  }
  return false;
}

// The thread runs code of its own until the next next_fill().
void Workers::note_outside(FillLoop& loop) noexcept {
  // pairs with: Workers::abandon, "what a loop is busy with"
  loop.since_ns().store(FillLoop::outside(now_ns()), std::memory_order_release);
}

// Its thread does nothing more.
void Workers::leave(FillLoop& loop) noexcept {
  drop_jobs(loop);
  {
    const std::scoped_lock lock(mutex_);
    loop.started = Started::kNo;
  }
  leave_started();
}

void Workers::end_thread(FillLoop& loop) noexcept {
  if (working_for_ == this) working_for_ = nullptr;
  // pairs with: Workers::abandon, "what a loop is busy with"
  if (loop.since_ns().exchange(FillLoop::kIdle, std::memory_order_acq_rel) == FillLoop::kAbandoned) {
    return_late(loop);
    return leave_started();
  }
  {
    std::unique_lock lock(mutex_);
    if (is_dismissed_) {
      lock.unlock();
      return leave(loop);
    }
    loop.started = Started::kEnded;
    if (loop.is_starting) return;  // note_start() goes on
  }
  go_on(loop, Ref<Workers>::share(this));
}

}  // namespace tenon::impl
