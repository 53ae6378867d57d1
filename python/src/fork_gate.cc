// SPDX-License-Identifier: Apache-2.0
#include "fork_gate.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "buffer_calls.h"
#include "waiting.h"

namespace tenon::python {
namespace {

// The number of threads that have passed the gate and not left; whether it is closed.
constinit std::atomic<uint32_t> inside{0};
constinit std::atomic<bool> is_closed{false};

thread_local bool is_inside_here = false;

void pass_gate() noexcept {
  while (true) {
    // pairs with: fork_gate::close_gate, "inside or held back"
    inside.fetch_add(1, std::memory_order_seq_cst);
    // pairs with: fork_gate::close_gate, "inside or held back"
    if (!is_closed.load(std::memory_order_seq_cst)) return;
    inside.fetch_sub(1, std::memory_order_relaxed);
    is_closed.wait(true, std::memory_order_relaxed);
  }
}

void open_gate() noexcept {
  is_closed.store(false, std::memory_order_relaxed);
  is_closed.notify_all();
}

// Without the GIL. Waits until no other thread is inside, up to a limit. A body that still runs then is cut
// off in the child.
void close_gate(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
  const uint32_t own = is_inside_here ? 1 : 0;
  // pairs with: fork_gate::pass_gate, "inside or held back"
  is_closed.store(true, std::memory_order_seq_cst);
  // pairs with: fork_gate::pass_gate, "inside or held back"
  while (inside.load(std::memory_order_seq_cst) > own && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

}  // namespace

GatePass::GatePass(bool is_needed) noexcept : is_first_(is_needed && !is_inside_here) {
  if (!is_first_) return;
  pass_gate();
  is_inside_here = true;
}

GatePass::~GatePass() {
  if (!is_first_) return;
  is_inside_here = false;
  inside.fetch_sub(1, std::memory_order_relaxed);
}

// A thread that Python knows may hold the GIL, and then no fork comes in between.
EngineThread::EngineThread() noexcept
    : pass_(PyGILState_GetThisThreadState() == nullptr), state_(PyGILState_Ensure()) {}

EngineThread::~EngineThread() { PyGILState_Release(state_); }

void add_fork_gate(nb::module_& module) {
  module.def(
      "before_fork",
      [](double seconds) {
        const nb::gil_scoped_release released;
        close_gate(seconds);
      },
      nb::arg("seconds"), "Holds back bodies of ops that would begin, and waits for those that run.");
  module.def("after_fork_in_parent", open_gate);
  module.def("after_fork_in_child", [] {
    inside.store(is_inside_here ? 1 : 0, std::memory_order_relaxed);
    is_closed.store(false, std::memory_order_relaxed);
    forget_other_waits();
    forget_other_visitors();
  });
}

}  // namespace tenon::python
