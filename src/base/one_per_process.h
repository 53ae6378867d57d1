// SPDX-License-Identifier: Apache-2.0
//
// One object for each process, for classes that run threads: a forked child gets its own object, because the
// parent's has no threads there.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>

#include "base/fork_mark.h"

namespace tenon::impl {

// Created at the first use, without an allocation, so that functions that must not fail may use it. Never
// destroyed. In a forked child, a new object replaces that of the parent. Threads: any.
template <class T>
T& one_per_process() noexcept {
  static_assert(std::is_nothrow_default_constructible_v<T>);
  alignas(T) static std::byte place[sizeof(T)];
  // Twice the mark of the process that creates the object, plus 1 when it is complete. This is not a lock,
  // because another thread could hold a lock when this one forks.
  static std::atomic<uint64_t> state{0};
  const uint64_t made_here = 2 * ForkMark::current() + 1;
  while (true) {
    // pairs with: one_per_process, "what this process has one of"
    uint64_t seen = state.load(std::memory_order_acquire);
    if (seen == made_here) return *std::launder(reinterpret_cast<T*>(place));
    if (seen == made_here - 1) {
      (void)sched_yield();  // another thread creates it
    } else if (state.compare_exchange_strong(seen, made_here - 1, std::memory_order_relaxed)) {
      T* const made = new (place) T;
      // pairs with: one_per_process, "what this process has one of"
      state.store(made_here, std::memory_order_release);
      return *made;
    }
  }
}

}  // namespace tenon::impl
