// SPDX-License-Identifier: Apache-2.0
//
// The executor without threads and without a queue: post() runs the task. Use it first when debugging.
#pragma once

#include "exec/executor.h"

namespace tenon::impl {

// A task that is posted from inside of a task waits until the chain of that task has ended, so that posting
// from task to task uses no stack. The waiting tasks belong to the thread, not to the executor: all inline
// executors of a thread share them.
class InlineExecutor final : public Executor {
 public:
  // Returns when the task and all tasks that it posted have run; from inside of a task, at once.
  void post(Task* task) noexcept override;
  // From inside of a task: runs the oldest task that waits on this thread. Outside there is none.
  bool try_run_one() noexcept override;
  bool has_own_threads() const noexcept override { return true; }  // post() needs no help
  void stop() noexcept override {}
};

}  // namespace tenon::impl
