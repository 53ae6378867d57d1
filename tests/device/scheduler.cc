// SPDX-License-Identifier: Apache-2.0
//
// The scheduler: one thread that runs the work of all streams in steps. Of the streams whose first work may
// run it takes the one with the highest priority. Priorities are drawn, and drawn again from time to time,
// so that one stream may run far ahead of another.
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

microseconds draw_delay() {
  State& s = state();
  uint64_t most = s.settings.delay_us, kind = s.random() % 16;
  if (most == 0 || kind < 8) return microseconds{0};
  return microseconds{s.random() % (kind == 15 ? 10 * most : most)};
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

void schedule() {
  State& s = state();
  std::unique_lock lock(s.lock);
  for (;;) {
    erase_drained_streams();
    auto now = Clock::now(), next = Clock::time_point::max();
    Stream* chosen = nullptr;
    for (auto& stream : s.streams) {
      if (!is_ready(*stream)) {
        bool polls = !stream->queue.empty() && stream->queue.front().waits_for != nullptr &&
                     stream->queue.front().waits_for->shared != nullptr;
        if (polls) next = std::min(next, now + kPollOtherProcesses);
        continue;
      }
      Work& work = stream->queue.front();
      if (!work.due) work.due = now + draw_delay();
      if (*work.due > now)
        next = std::min(next, *work.due);
      else if (chosen == nullptr || stream->priority > chosen->priority)
        chosen = stream.get();
    }
    if (chosen != nullptr)
      run_step(*chosen, lock);
    else if (next == Clock::time_point::max())
      s.work.wait(lock);
    else
      s.work.wait_until(lock, next);
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

bool is_ordered_with_legacy(const Stream& stream, const Context& context) {
  return stream.context == &context && stream.is_blocking && &stream != context.legacy;
}

bool Record::done() const {
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
  s.work.notify_one();
  return CUDA_SUCCESS;
}

}  // namespace tenon::fake
