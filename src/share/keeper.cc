// SPDX-License-Identifier: Apache-2.0
#include "share/keeper.h"

#include <pthread.h>

#include <chrono>
#include <optional>
#include <system_error>
#include <utility>

#include "base/blocked_signals.h"
#include "base/error.h"
#include "base/fork_mark.h"

namespace tenon::share {
namespace {

constexpr std::chrono::seconds kChoreInterval{1};

}  // namespace

Keeper& Keeper::instance() {
  struct Known {
    ForkMark mark;
    Keeper* keeper = new Keeper;
  };
  static std::mutex lock;
  static std::optional<Known> known;
  static const bool is_registered = [] {
    pthread_atfork([] { lock.lock(); }, [] { lock.unlock(); }, [] { lock.unlock(); });
    return true;
  }();
  (void)is_registered;
  const std::scoped_lock locked(lock);
  if (!known || known->mark.is_child()) known.emplace();  // the parent's has no thread here, and is left
  return *known->keeper;
}

Keeper::~Keeper() {
  {
    const std::scoped_lock lock(lock_);
    is_ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Keeper::call(const std::function<void()>& work) {
  if (thread_.get_id() == std::this_thread::get_id()) return work();
  std::unique_lock lock(lock_);
  if (!thread_.joinable()) {
    const BlockedSignals blocked;
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::system_error& e) {
      throw_error(Code::kSystem, "shared memory needs a thread, which cannot be made: ", e.what());
    }
  }
  Call call{work, nullptr};
  calls_.push_back(&call);
  changed_.notify_all();
  changed_.wait(lock, [&] { return call.is_done; });
  if (call.failure) std::rethrow_exception(call.failure);
}

void Keeper::nudge(bool (*chore)() noexcept) noexcept {
  {
    const std::scoped_lock lock(lock_);
    chore_ = chore;
  }
  changed_.notify_all();
}

void Keeper::run() noexcept {
  pthread_setname_np(pthread_self(), "tenon-keeper");
  std::unique_lock lock(lock_);
  while (true) {
    changed_.wait(lock, [this] { return !calls_.empty() || chore_ != nullptr || is_ending_; });
    if (calls_.empty() && is_ending_) return;
    if (calls_.empty()) {
      bool (*const chore)() noexcept = std::exchange(chore_, nullptr);
      lock.unlock();
      const bool is_unfinished = chore();
      lock.lock();
      const auto has_work = [this] { return !calls_.empty() || chore_ != nullptr || is_ending_; };
      if (is_unfinished && !changed_.wait_for(lock, kChoreInterval, has_work)) chore_ = chore;
      continue;
    }
    Call& call = *calls_.front();
    calls_.pop_front();
    lock.unlock();
    try {
      call.work();
    } catch (...) {
      call.failure = std::current_exception();
    }
    lock.lock();
    call.is_done = true;
    changed_.notify_all();
  }
}

}  // namespace tenon::share
