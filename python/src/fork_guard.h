// SPDX-License-Identifier: Apache-2.0
//
// A fork in the middle of a body leaves the child with memory that is half written. And threads of the engine
// run Python code: a fork must not meet one of them while CPython makes or ends its thread state, because
// that takes a lock which in the child stays locked for ever. So a guard lives while a body runs,
// and a fork waits for guards.
#pragma once

#include "python.h"

namespace tenon::python {

// A body runs while it lives. While a fork is under way, a thread waits here, so it must not have the GIL.
class ForkGuard {
 public:
  explicit ForkGuard(bool is_needed = true) noexcept;
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
  ~ForkGuard();

 private:
  const bool is_first_;  // of this thread
};

// The GIL, for a thread of which Python may know nothing.
class EngineThread {
 public:
  EngineThread() noexcept;
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;
  ~EngineThread();

 private:
  const ForkGuard guard_;
  PyGILState_STATE state_;
};

// before_fork, after_fork_in_parent, after_fork_in_child.
void add_fork_guard(nb::module_& module);

}  // namespace tenon::python
