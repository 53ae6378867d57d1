// SPDX-License-Identifier: Apache-2.0
#include "fork_guard.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "buffer_calls.h"
#include "waiting.h"

namespace tenon::python {
namespace {

// The number of threads with a guard; whether a fork holds back others.
constinit std::atomic<uint32_t> inside{0};
constinit std::atomic<bool> is_held_back{false};

thread_local bool is_inside_here = false;

void enter() noexcept {
  while (true) {
    // pairs with: fork_guard::hold_back, "inside or held back"
    inside.fetch_add(1, std::memory_order_seq_cst);
    // pairs with: fork_guard::hold_back, "inside or held back"
    if (!is_held_back.load(std::memory_order_seq_cst)) return;
    inside.fetch_sub(1, std::memory_order_relaxed);
    is_held_back.wait(true, std::memory_order_relaxed);
  }
}

void let_in() noexcept {
  is_held_back.store(false, std::memory_order_relaxed);
  is_held_back.notify_all();
}

// Without the GIL. Waits until no other thread is inside, up to a limit. A body that still runs then is cut
// off in the child.
void hold_back(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
  const uint32_t own = is_inside_here ? 1 : 0;
  // pairs with: fork_guard::enter, "inside or held back"
  is_held_back.store(true, std::memory_order_seq_cst);
  // pairs with: fork_guard::enter, "inside or held back"
  while (inside.load(std::memory_order_seq_cst) > own && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

}  // namespace

ForkGuard::ForkGuard(bool is_needed) noexcept : is_first_(is_needed && !is_inside_here) {
  if (!is_first_) return;
  enter();
  is_inside_here = true;
}

ForkGuard::~ForkGuard() {
  if (!is_first_) return;
  is_inside_here = false;
  inside.fetch_sub(1, std::memory_order_relaxed);
}

// A thread that Python knows may hold the GIL, and then no fork comes in between.
EngineThread::EngineThread() noexcept
    : guard_(PyGILState_GetThisThreadState() == nullptr), state_(PyGILState_Ensure()) {}

EngineThread::~EngineThread() { PyGILState_Release(state_); }

void add_fork_guard(nb::module_& module) {
  module.def(
      "before_fork",
      [](double seconds) {
        const nb::gil_scoped_release released;
        hold_back(seconds);
      },
      nb::arg("seconds"), "Holds back bodies of ops that would begin, and waits for those that run.");
  module.def("after_fork_in_parent", let_in);
  module.def("after_fork_in_child", [] {
    inside.store(is_inside_here ? 1 : 0, std::memory_order_relaxed);
    is_held_back.store(false, std::memory_order_relaxed);
    forget_other_waits();
    forget_other_visitors();
  });
}

}  // namespace tenon::python
