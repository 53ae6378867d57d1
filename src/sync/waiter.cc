// SPDX-License-Identifier: Apache-2.0
#include "sync/waiter.h"

#include <atomic>

namespace tenon::impl {
namespace {

// Set once, when the binding is loaded.
WaitHooks installed;

// Each poll may take the lock of the language, so thousands of waiting threads poll less often. A signal
// wakes its thread at once.
std::atomic<int64_t> waiters{0};

}  // namespace

void set_wait_hooks(const WaitHooks& new_hooks) noexcept { installed = new_hooks; }

const WaitHooks& wait_hooks() noexcept { return installed; }

Waiter::Waiter(const Deadline* deadline) noexcept : deadline_(deadline), began_ns_(now_ns()) {
  waiters.fetch_add(1, std::memory_order_relaxed);
  if (installed.begin != nullptr) token_ = installed.begin();
}

Waiter::~Waiter() {
  if (installed.end != nullptr) installed.end(token_);
  waiters.fetch_sub(1, std::memory_order_relaxed);
}

void Waiter::forget_others_after_fork() noexcept { waiters.store(0, std::memory_order_relaxed); }

int64_t Waiter::slice_ns() noexcept {
  constexpr int64_t kWaitersPerSlice = 64;
  return kSliceNs * (1 + waiters.load(std::memory_order_relaxed) / kWaitersPerSlice);
}

bool Waiter::is_interrupted() const noexcept {
  return installed.poll != nullptr && installed.poll(token_) != 0;
}

}  // namespace tenon::impl
