// SPDX-License-Identifier: Apache-2.0
//
// An object that each process has one of, for what runs threads: a forked child gets its own, because the
// parent's has no threads there.
#pragma once

#include <atomic>

#include "base/fork_mark.h"

namespace tenon::impl {

// Made when it is first asked for; never destroyed. Threads: any.
template <class T>
T& one_per_process() {
  struct Known {
    ForkMark mark;
    T object;
  };
  // Without a lock, which another thread could hold when this one forks.
  static std::atomic<Known*> known{nullptr};
  // pairs with: one_per_process, "what this process has one of"
  Known* seen = known.load(std::memory_order_acquire);
  while (seen == nullptr || seen->mark.is_child()) {  // the parent's is left as it is
    auto* const fresh = new Known;
    // pairs with: one_per_process, "what this process has one of"
    if (known.compare_exchange_strong(seen, fresh, std::memory_order_acq_rel)) return fresh->object;
    delete fresh;
  }
  return seen->object;
}

}  // namespace tenon::impl
