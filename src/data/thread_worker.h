// SPDX-License-Identifier: Apache-2.0
//
// The end of a feed for a thread that a generator has started in the process of the feed. It takes slots and
// tickets and settles them as a thread of the feed does, by the functions of Workers.
#pragma once

#include "base/fork_mark.h"
#include "base/ref.h"
#include "data/worker.h"
#include "data/workers.h"

namespace tenon::impl {

class ThreadWorker final : public Worker {
 public:
  // The loop is one that Workers::join() has returned.
  ThreadWorker(Ref<Workers> workers, FillLoop& loop) noexcept : workers_(std::move(workers)), loop_(loop) {}
  // If the feed is not closed, its batches fail from now on.
  ~ThreadWorker() override;

  // After kOver the thread has left.
  Received next(int64_t timeout_ns) override;
  void commit(uint64_t nbytes) override;
  void answer(int32_t code, const char* message) noexcept override;

 private:
  bool is_over() const noexcept { return has_left_ || process_.is_child(); }

  const ForkMark process_;
  Ref<Workers> workers_;
  FillLoop& loop_;
};

}  // namespace tenon::impl
