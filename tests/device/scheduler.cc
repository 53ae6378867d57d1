// SPDX-License-Identifier: Apache-2.0
//
// The scheduler: one thread that runs the work of all streams in steps; with delay_calls, the threads that
// call the driver run it. Of the streams whose first work may run it takes the one with the highest priority.
// Priorities are drawn, and drawn again from time to time, so that one stream may run far ahead of another.
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "fake.h"

namespace tenon::fake {
namespace {

using std::chrono::microseconds;

constexpr size_t kLog = 65536;
constexpr uint64_t kNever = INT64_MAX;
constexpr uint64_t kMostSteps = 3;  // of one call

bool has_ended(int pid) {
  if (pid == 0 || pid == getpid()) return false;
  int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return true;
  pollfd ended = {fd, POLLIN, 0};
  bool is_ended = poll(&ended, 1, 0) == 1;
  close(fd);
  return is_ended;
}

// Whether the first work of the stream may run.
bool is_ready(const Stream& stream) {
  if (stream.queue.empty() || stream.is_held) return false;
  const Work& work = stream.queue.front();
  if (work.waits_for != nullptr && !work.waits_for->done()) return false;
  const Context& context = *stream.context;
  auto is_before = [&](const Stream& other) {
    return !other.queue.empty() && other.queue.front().sequence < work.sequence;
  };
  if (&stream == context.legacy) {
    const auto& streams = state().streams;
    return std::none_of(streams.begin(), streams.end(), [&](const auto& other) {
      return is_ordered_with_legacy(*other, context) && is_before(*other);
    });
  }
  return !stream.is_blocking || !is_before(*context.legacy);
}

// In calls of the driver, or in microseconds.
uint64_t now() {
  if (counts_calls()) return state().n_calls;
  auto since = std::chrono::duration_cast<microseconds>(Clock::now().time_since_epoch());
  return static_cast<uint64_t>(since.count());
}

uint64_t draw_delay() {
  State& s = state();
  uint64_t most = counts_calls() ? s.settings.delay_calls : s.settings.delay_us, kind = s.random() % 16;
  if (most == 0 || kind < 8) return 0;
  return s.random() % (kind == 15 ? 10 * most : most);
}

void erase_drained_streams() {
  std::erase_if(state().streams,
                [](const auto& stream) { return stream->is_destroyed && stream->queue.empty(); });
}

// The work of the stream that has come to its end.
void finish_first(Stream& stream) {
  State& s = state();
  Work& work = stream.queue.front();
  if (work.completes != nullptr) work.completes->complete();
  s.log.push_back({work.sequence, &stream, work.name});
  if (s.log.size() > kLog) s.log.pop_front();
  ++s.counts["executed"];
  stream.queue.pop_front();
}

void run_step(Stream& stream, std::unique_lock<std::mutex>& lock) {
  State& s = state();
  if (s.random() % 4 == 0) stream.priority = s.random();
  Work& work = stream.queue.front();
  CUresult result = CUDA_SUCCESS;
  if (work.step) {
    s.is_busy = true;  // nothing erases the stream
    result = work.step(lock);
    s.is_busy = false;
  }
  if (result == CUDA_SUCCESS)
    finish_first(stream);
  else if (result != kMore)
    fail_context(*stream.context, result);
  s.changed.notify_all();
}

// Runs a step of what is due. False: nothing is; next: when something will be.
bool run_due(std::unique_lock<std::mutex>& lock, uint64_t* next, bool* has_foreign = nullptr) {
  erase_drained_streams();
  const uint64_t time = now();
  Stream* chosen = nullptr;
  for (auto& stream : state().streams) {
    if (!is_ready(*stream)) {
      const bool waits = !stream->queue.empty() && stream->queue.front().waits_for != nullptr;
      if (waits && has_foreign != nullptr && stream->queue.front().waits_for->shared != nullptr)
        *has_foreign = true;
      continue;
    }
    Work& work = stream->queue.front();
    if (!work.due) work.due = time + draw_delay();
    if (*work.due > time)
      *next = std::min(*next, *work.due);
    else if (chosen == nullptr || stream->priority > chosen->priority)
      chosen = stream.get();
  }
  if (chosen == nullptr) return false;
  run_step(*chosen, lock);
  return true;
}

void schedule() {
  State& s = state();
  std::unique_lock lock(s.lock);
  for (;;) {
    uint64_t next = kNever;
    bool has_foreign = false;  // an event of another process is waited for
    if (counts_calls())
      s.work.wait(lock);  // the threads that call run the work
    else if (s.is_busy)
      s.changed.wait(lock);  // one of them still does
    else if (run_due(lock, &next, &has_foreign))
      continue;
    else if (has_foreign)
      s.work.wait_for(lock, std::min(kPollOtherProcesses, microseconds{next - now()}));
    else if (next != kNever)
      s.work.wait_for(lock, microseconds{next - now()});
    else
      s.work.wait(lock);
  }
}

void start_scheduler() {
  if (std::exchange(state().has_scheduler, true)) return;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(schedule).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

bool counts_calls() { return state().settings.delay_calls != 0; }

void note_call(std::unique_lock<std::mutex>& lock) {
  State& s = state();
  ++s.n_calls;
  if (!counts_calls()) return;
  uint64_t next = kNever;
  for (uint64_t left = s.random() % (kMostSteps + 1); left > 0 && !s.is_busy; --left) {
    if (!run_due(lock, &next)) return;
  }
}

bool go_on(std::unique_lock<std::mutex>& lock) {
  State& s = state();
  uint64_t next = kNever;
  if (!counts_calls() || s.is_busy) return false;
  if (run_due(lock, &next)) return true;
  if (next != kNever) s.n_calls = next;
  return next != kNever;
}

bool is_ordered_with_legacy(const Stream& stream, const Context& context) {
  return stream.context == &context && stream.is_blocking && &stream != context.legacy;
}

bool Record::done() const {
  if (std::any_of(parts.begin(), parts.end(), [](const auto& part) { return !part->done(); })) return false;
  if (shared == nullptr) return is_done;
  return shared->done.load() >= number || has_ended(shared->pid.load());
}

void Record::complete() {
  is_done = true;
  if (shared != nullptr && shared->done.load() < number) shared->done = number;
}

void fail_context(Context& context, CUresult error) {
  if (context.error == CUDA_SUCCESS) context.error = error;
  for (auto& stream : state().streams) {
    if (stream->context != &context) continue;
    for (Work& work : stream->queue) {
      if (work.completes != nullptr) work.completes->complete();
    }
    stream->queue.clear();
  }
  state().changed.notify_all();
}

CUresult submit(Stream& stream, Work work) {
  State& s = state();
  if (stream.context->error != CUDA_SUCCESS) return stream.context->error;
  if (stream.capture != nullptr) {
    if (!stream.capture->is_valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    ++stream.capture->n_captured;
    return CUDA_SUCCESS;
  }
  if (&stream == stream.context->legacy && spoil_capture_of(stream) != CUDA_SUCCESS) return kCaptureImplicit;
  work.sequence = ++s.n_sequences;
  stream.queue.push_back(std::move(work));
  start_scheduler();
  if (!counts_calls()) s.work.notify_one();
  return CUDA_SUCCESS;
}

}  // namespace tenon::fake
