// SPDX-License-Identifier: Apache-2.0
#include "data/one_call.h"

#include "base/error.h"

namespace tenon::impl {

struct OneCall::State {
  const ForkMark process;
  std::mutex mutex;
  std::atomic<std::thread::id> holder{};  // looked at only for being this thread
};

OneCall::OneCall() : state_(new State) {}

OneCall::~OneCall() {
  State* const state = state_.load(std::memory_order_relaxed);
  if (!state->process.is_child()) delete state;
}

// The parent's state stays as it is: its mutex may be locked for ever.
OneCall::State& OneCall::state() {
  // pairs with: OneCall::state, "a child's own state is complete"
  State* now = state_.load(std::memory_order_acquire);
  if (!now->process.is_child()) return *now;
  auto* const fresh = new State;
  // pairs with: OneCall::state, "a child's own state is complete"
  if (state_.compare_exchange_strong(now, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;
  return *now;
}

OneCall::CallTurn::CallTurn(OneCall& one_call, std::string_view function) : state_(one_call.state()) {
  if (state_.holder.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
    throw_error(Code::kValue, "'", function,
                "' is called from inside of itself, but runs one call at a time: load it as thread-safe "
                "(threadsafe=True) if that is meant");
  }
  state_.mutex.lock();
  state_.holder.store(std::this_thread::get_id(), std::memory_order_relaxed);
}

OneCall::CallTurn::~CallTurn() {
  state_.holder.store(std::thread::id(), std::memory_order_relaxed);
  state_.mutex.unlock();
}

}  // namespace tenon::impl
