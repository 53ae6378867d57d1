// SPDX-License-Identifier: Apache-2.0
//
// One call at a time: a mutex that fails if its own thread locks it again, and that is free in a forked
// child, where the thread that held it does not exist.
#pragma once

#include <atomic>
#include <mutex>
#include <string_view>
#include <thread>

#include "base/fork_mark.h"

namespace tenon::impl {

// Threads: any.
class OneCall {
  struct State;

 public:
  OneCall();
  OneCall(const OneCall&) = delete;
  OneCall& operator=(const OneCall&) = delete;
  ~OneCall();

  // Held as long as this object. Fails with kValue if this thread holds it already: function calls itself.
  class CallTurn {
   public:
    CallTurn(OneCall& one_call, std::string_view function);
    CallTurn(const CallTurn&) = delete;
    CallTurn& operator=(const CallTurn&) = delete;
    ~CallTurn();

   private:
    State& state_;
  };

 private:
  State& state();

  std::atomic<State*> state_;
};

}  // namespace tenon::impl
