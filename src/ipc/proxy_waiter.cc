// SPDX-License-Identifier: Apache-2.0
#include "ipc/proxy_waiter.h"

#include <pthread.h>

#include <algorithm>
#include <exception>
#include <thread>

#include "base/blocked_signals.h"
#include "base/error.h"
#include "base/one_per_process.h"
#include "ipc/awaited.h"

namespace tenon::impl {
namespace {

constexpr int64_t kSliceNs = 50'000'000;
constexpr int64_t kIdleNs = 3'600'000'000'000;

}  // namespace

ProxyWaiter& ProxyWaiter::instance() { return one_per_process<ProxyWaiter>(); }

bool ProxyWaiter::add(ProcessLock& lock, Request& request, RequestPart& part, GrantId grant) noexcept {
  try {
    const std::scoped_lock locked(lock_);
    waiting_.push_back({&lock, &request, &part, grant});
    if (!start()) {
      waiting_.pop_back();
      return false;
    }
    if (grant == kNoGrant) lock.segment().participant().begin_grant_wait();
  } catch (const std::bad_alloc&) {
    return false;
  }
  call();
  return true;
}

// Requires the lock. False: the thread cannot be created.
bool ProxyWaiter::start() noexcept {
  if (is_running_) return true;
  const BlockedSignals blocked;
  try {
    words_.reserve(os::kMostWords);
    std::thread([this] { run(); }).detach();
    is_running_ = true;
  } catch (const std::exception&) {  // of the system, or std::bad_alloc
  }
  return is_running_;
}

void ProxyWaiter::call_to_report() noexcept {
  {
    const std::scoped_lock locked(lock_);
    if (!start()) return;
  }
  // pairs with: ProxyWaiter::run, "something new to wait for"
  is_to_report_.store(true, std::memory_order_release);
  call();
}

bool ProxyWaiter::cancel(const RequestPart& part) noexcept {
  PendingPart found{};
  {
    const std::scoped_lock locked(lock_);
    const auto is_it = [&](const PendingPart& w) { return w.part == &part; };
    const auto at = std::find_if(waiting_.begin(), waiting_.end(), is_it);
    if (at == waiting_.end()) return false;
    found = *at;
    waiting_.erase(at);
  }
  if (found.grant == kNoGrant) {
    found.lock->segment().participant().end_grant_wait();
  } else {
    found.lock->free_grant(found.grant);
  }
  return true;
}

void ProxyWaiter::call() noexcept {
  // pairs with: ProxyWaiter::run, "something new to wait for"
  calls_.fetch_add(1, std::memory_order_release);
  os::wake_all(calls_);
}

void ProxyWaiter::run() noexcept {
  pthread_setname_np(pthread_self(), "tenon-proxy");
  while (true) {
    // pairs with: ProxyWaiter::call, "something new to wait for"
    const uint32_t calls = calls_.load(std::memory_order_acquire);
    if (is_to_report_.exchange(false, std::memory_order_relaxed)) report_awaited();
    words_.assign(1, {&calls_, calls});
    const bool is_idle = look_at_all();
    os::sleep_on(words_.data(), words_.size(), is_idle ? kIdleNs : kSliceNs);
  }
}

// Begins a request for which there was no free grant. False: no grant is free yet. Earlier requests are tried
// first.
bool ProxyWaiter::begin(PendingPart& waiting) noexcept {
  Participant& participant = waiting.lock->segment().participant();
  const os::Sleep given = participant.grants_given();
  waiting.grant = waiting.lock->begin(*waiting.request, *waiting.part);
  if (waiting.grant != kNoGrant) {
    participant.end_grant_wait();
    return true;
  }
  const auto is_same = [&](const os::Sleep& word) { return word.word == given.word; };
  if (words_.size() < os::kMostWords && std::ranges::none_of(words_, is_same)) words_.push_back(given);
  return false;
}

// Completes the requests that are granted, and collects the words to sleep on for the others. True: none
// waits.
bool ProxyWaiter::look_at_all() noexcept {
  using GrantResult = ProcessLock::GrantResult;
  ProcessLock::Blockers blockers;
  Conflict conflict;
  for (size_t i = 0;;) {
    std::unique_lock locked(lock_);
    if (i >= waiting_.size()) return waiting_.empty();
    if (waiting_[i].grant == kNoGrant && !begin(waiting_[i])) {
      ++i;
      continue;
    }
    const auto [lock, request, part, grant] = waiting_[i];
    const GrantResult seen = lock->try_grant(*request, *part, grant, &blockers, &conflict);
    if (seen == GrantResult::kBlocked) {
      if (lock->reap_dead(blockers)) continue;
      const size_t room = os::kMostWords - words_.size();
      const size_t n = std::min(room, blockers.word_count());
      words_.insert(words_.end(), blockers.words, blockers.words + n);
      ++i;
      continue;
    }
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    locked.unlock();
    if (seen == GrantResult::kGranted) part->grant = grant;
    arrive_at_gates(*request, seen == GrantResult::kGranted ? nullptr : &conflict);
  }
}

}  // namespace tenon::impl
