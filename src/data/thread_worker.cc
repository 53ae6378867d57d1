// SPDX-License-Identifier: Apache-2.0
#include "data/thread_worker.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "base/clock.h"

namespace tenon::impl {

ThreadWorker::~ThreadWorker() {
  if (process_.is_child()) {
    (void)workers_.detach();  // other threads of the parent have locks of it
  } else if (!has_left_) {
    workers_->end_thread(loop_);
  }
}

Worker::Received ThreadWorker::next(int64_t timeout_ns) {
  if (is_over()) return Received::kOver;
  if (has_request_) return Received::kRequest;
  if (loop_.thread.load(std::memory_order_relaxed) == 0)
    loop_.thread.store(static_cast<uint32_t>(syscall(SYS_gettid)), std::memory_order_relaxed);
  const Workers::JobTake taken = workers_->next_fill(loop_, Deadline::from_first_look(timeout_ns), request_);
  has_request_ = taken == Workers::JobTake::kJob;
  has_left_ = taken == Workers::JobTake::kOver;
  if (!has_request_) return has_left_ ? Received::kOver : Received::kLate;
  since_ns_ = now_ns();
  return Received::kRequest;
}

void ThreadWorker::commit(uint64_t nbytes) {
  if (!has_request_ || is_over()) throw_no_request(nbytes);
  workers_->commit(loop_, nbytes);
}

void ThreadWorker::answer(int32_t code, const char* message) noexcept {
  if (!std::exchange(has_request_, false) || is_over()) return;
  FillResult result;
  result.code = code;
  result.began_ns = since_ns_;
  result.fill_ns = static_cast<uint64_t>(now_ns() - since_ns_);
  has_left_ = !workers_->answer(loop_, result, message);
}

}  // namespace tenon::impl
