// SPDX-License-Identifier: Apache-2.0
#include "exec/inline_executor.h"

namespace tenon::impl {
namespace {

// The tasks that this thread has still to run, oldest first, and whether it runs one.
struct PostedTasks {
  Task* first = nullptr;
  Task* last = nullptr;
  bool is_running = false;
};

constinit thread_local PostedTasks waiting [[gnu::tls_model("initial-exec")]];

Task* pop_waiting() noexcept {
  Task* const task = waiting.first;
  if (task != nullptr) waiting.first = task->next_task;
  return task;
}

}  // namespace

void InlineExecutor::post(Task* task) noexcept {
  task->next_task = nullptr;
  if (waiting.is_running) {
    (waiting.first == nullptr ? waiting.first : waiting.last->next_task) = task;
    waiting.last = task;
    return;
  }
  waiting.is_running = true;
  for (; task != nullptr; task = pop_waiting()) run_chain(task);
  waiting.is_running = false;
}

bool InlineExecutor::try_run_one() noexcept {
  Task* const task = pop_waiting();
  run_chain(task);
  return task != nullptr;
}

}  // namespace tenon::impl
