// SPDX-License-Identifier: Apache-2.0
#include "device/completions.h"

#include <pthread.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/blocked_signals.h"
#include "base/clock.h"
#include "base/futex.h"
#include "base/one_per_process.h"
#include "device/submitted_work.h"

namespace tenon::impl::device {
namespace {

// So many are asked for at a time, the oldest first, and of one stream so many.
constexpr int kWindow = 64;
constexpr int kOfStream = 8;
constexpr int64_t kShortestNs = 20'000;
constexpr int64_t kLongestNs = 500'000;

}  // namespace

Completions& Completions::instance() noexcept { return one_per_process<Completions>(); }

bool Completions::add(Completion* completion) noexcept {
  {
    const std::scoped_lock lock(lock_);
    if (!is_started_ && !start()) return false;
    is_started_ = true;
    pending_.fetch_add(1, std::memory_order_relaxed);
    completion->next = std::exchange(new_, completion);
  }
  wake();
  return true;
}

bool Completions::prepare() noexcept {
  const std::scoped_lock lock(lock_);
  if (!is_started_) is_started_ = start();
  return is_started_;
}

void Completions::wake() noexcept {
  // pairs with: Completions::run, "there is something to look for"
  turns_.fetch_add(1, std::memory_order_seq_cst);
  // pairs with: Completions::run, "there is something to look for"
  if (is_asleep_.load(std::memory_order_seq_cst)) futex_wake_all(turns_);
}

bool Completions::start() noexcept {
  try {
    const BlockedSignals blocked;
    std::thread([this] { run(); }).detach();
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

void Completions::run() noexcept {
  pthread_setname_np(pthread_self(), "tenon-device");
  while (true) {
    // pairs with: Completions::wake, "there is something to look for"
    const uint32_t turn = turns_.load(std::memory_order_seq_cst);
    const bool has_new = take_new();
    {
      const BeforeExit before;
      if (!before) return;
      const bool has_begun = SubmittedWork::instance().begin();
      if (tell() || has_new || has_begun) continue;
    }
    if (first_ != nullptr) {
      const int64_t waited = now_ns() - came_ns_;
      (void)futex_wait_for(turns_, turn, std::clamp(waited / 8, kShortestNs, kLongestNs));
      continue;
    }
    if (const int64_t wait_ns = SubmittedWork::instance().again_in_ns()) {
      (void)futex_wait_for(turns_, turn, wait_ns);
      continue;
    }
    // pairs with: Completions::wake, "there is something to look for"
    is_asleep_.store(true, std::memory_order_seq_cst);
    (void)futex_wait(turns_, turn);
    is_asleep_.store(false, std::memory_order_relaxed);
  }
}

bool Completions::take_new() noexcept {
  Completion* taken = nullptr;
  {
    const std::scoped_lock lock(lock_);
    taken = std::exchange(new_, nullptr);
  }
  if (taken == nullptr) return false;
  // From the last to the first: each before those that it has come before.
  Completion* const newest = taken;
  Completion* behind = nullptr;
  while (true) {
    Completion* const before = taken->next;
    taken->next = behind;
    taken->previous = before;
    behind = taken;
    if (before == nullptr) break;
    taken = before;
  }
  taken->previous = last_;
  (last_ != nullptr ? last_->next : first_) = taken;
  last_ = newest;
  came_ns_ = now_ns();
  return true;
}

// Asks from the newest to the oldest: if one has come, those that its stream has waited for are found to have
// come, too, because they are asked for later.
bool Completions::tell() noexcept {
  Completion* all[kWindow];
  Status found[kWindow];
  int n = 0;
  for (Completion* c = first_; c != nullptr && n < kWindow; c = c->next) {
    const auto is_of_stream = [c](const Completion* other) {
      return other->event->stream() == c->event->stream() && &other->event->device() == &c->event->device();
    };
    if (std::count_if(all, all + n, is_of_stream) < kOfStream) all[n++] = c;
  }
  for (int i = n; i-- > 0;) found[i] = all[i]->event->query();
  bool has_told = false;
  for (int i = 0; i < n; ++i) {
    if (all[i]->event->device().driver().is_pending(found[i])) continue;
    // pairs with: Op::execute, "the body of an op on a stream has returned"
    if (!all[i]->is_armed.load(std::memory_order_acquire)) break;
    unlink(all[i]);
    is_telling_.store(true, std::memory_order_relaxed);
    all[i]->done(all[i], found[i]);  // may end it
    // pairs with: Completions::is_telling, "what the end of the work has released"
    is_telling_.store(false, std::memory_order_release);
    pending_.fetch_sub(1, std::memory_order_relaxed);
    has_told = true;
  }
  return has_told;
}

void Completions::unlink(Completion* completion) noexcept {
  (completion->previous != nullptr ? completion->previous->next : first_) = completion->next;
  (completion->next != nullptr ? completion->next->previous : last_) = completion->previous;
}

}  // namespace tenon::impl::device
