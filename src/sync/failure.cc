// SPDX-License-Identifier: Apache-2.0
#include "sync/failure.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace tenon::impl {
namespace {

constexpr size_t kMostListed = 1000;

std::atomic<FailureHook> hook{nullptr};

void report(Ref<Failure> failure) noexcept {
  // pairs with: set_failure_hook, "the hook of failures"
  const FailureHook wanted = hook.load(std::memory_order_acquire);
  if (wanted != nullptr) wanted(failure.detach());
}

}  // namespace

void set_failure_hook(FailureHook wanted) noexcept {
  // pairs with: report, "the hook of failures"
  hook.store(wanted, std::memory_order_release);
}

void Failure::release() noexcept {
  const bool is_listed = is_listed_.load(std::memory_order_relaxed);
  const uint64_t left = refs_.decrement_to();
  if (left == 1 && is_listed) return Failures::instance().note_released(this);
  if (left != 0) return;
  if (mark_seen() && !process_.is_child()) {
    refs_.reset();
    return report(Ref<Failure>::adopt(this));
  }
  if (drop_ != nullptr) drop_(payload_);
  delete this;
}

Failures& Failures::instance() noexcept {
  static auto* const failures = new Failures;
  return *failures;
}

void Failures::note(const Ref<Failure>& failure) noexcept {
  Ref<Failure> oldest;  // released without the lock
  const std::scoped_lock lock(lock_);
  if (failure.get() == Failure::without_memory().get()) return;
  failure->is_seen_.store(false, std::memory_order_relaxed);
  if (entries_.size() == kMostListed) oldest = remove_first();
  try {
    entries_.push_back({failure, false});
    failure->is_listed_.store(true, std::memory_order_relaxed);
  } catch (const std::bad_alloc&) {
    // It is not listed. Waits for the op or its memory still raise it.
  }
}

Ref<Failure> Failures::remove_first() noexcept {
  Ref<Failure> first = std::move(entries_.front().failure);
  entries_.pop_front();
  first->is_listed_.store(false, std::memory_order_relaxed);
  return first;
}

Ref<Failure> Failures::take() noexcept {
  while (true) {
    Ref<Failure> oldest;  // released without the lock
    {
      const std::scoped_lock lock(lock_);
      if (entries_.empty()) return {};
      oldest = remove_first();
    }
    oldest->mark_seen();
    if (!oldest->process_.is_child()) return oldest;  // else it belongs to the parent
  }
}

void Failures::begin_wait() noexcept {
  const std::scoped_lock lock(lock_);
  ++waiters_;
}

void Failures::end_wait() noexcept {
  const std::scoped_lock lock(lock_);
  --waiters_;
  for (Entry& entry : entries_) entry.is_left_to_taker = true;
}

void Failures::note_released(const Failure* failure) noexcept {
  Ref<Failure> unseen;
  {
    const std::scoped_lock lock(lock_);
    const auto entry = std::ranges::find(entries_, failure, [](const Entry& e) { return e.failure.get(); });
    // If the list has the only reference, then only take() can add one.
    if (entry == entries_.end() || waiters_ != 0 || entry->is_left_to_taker || failure->refs_.count() != 1)
      return;
    if (failure->process_.is_child() || !failure->mark_seen()) return;
    unseen = entry->failure;
  }
  report(std::move(unseen));
}

void Failures::report_rest() noexcept {
  while (true) {
    Ref<Failure> unseen;
    {
      const std::scoped_lock lock(lock_);
      const auto is_to_report = [](const Entry& e) {
        return !e.failure->process_.is_child() && e.failure->mark_seen();
      };
      const auto entry = std::ranges::find_if(entries_, is_to_report);
      if (entry == entries_.end()) return;
      unseen = entry->failure;
    }
    report(std::move(unseen));
  }
}

}  // namespace tenon::impl
