// SPDX-License-Identifier: Apache-2.0
#include "ipc/mutex_owner.h"

#include <errno.h>
#include <pthread.h>

#include <atomic>
#include <system_error>
#include <utility>

#include "base/blocked_signals.h"
#include "base/error.h"
#include "base/one_per_process.h"

namespace tenon::impl {
namespace {

// The C library does not report whether robust mutexes work. So this checks it with a thread that ends while
// it holds one. Fails with kSystem, std::system_error.
void check_robust_mutexes() {
  static std::atomic<bool> are_known{false};
  if (are_known.load(std::memory_order_relaxed)) return;
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_t mutex;
  pthread_mutex_init(&mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  std::thread([&mutex] { (void)pthread_mutex_lock(&mutex); }).join();
  if (pthread_mutex_trylock(&mutex) != EOWNERDEAD) {
    throw_error(
        Code::kSystem,
        "shared memory needs the system call set_robust_list, which fails in this process: without it, other "
        "processes would hang if this one died; allow it (does a seccomp filter of the container or sandbox "
        "deny it?)");
  }
  pthread_mutex_consistent(&mutex);
  pthread_mutex_unlock(&mutex);
  pthread_mutex_destroy(&mutex);
  are_known.store(true, std::memory_order_relaxed);
}

}  // namespace

MutexOwner& MutexOwner::instance() { return one_per_process<MutexOwner>(); }

MutexOwner::~MutexOwner() {
  {
    const std::scoped_lock lock(lock_);
    is_ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void MutexOwner::call(const std::function<void()>& work) {
  if (thread_.get_id() == std::this_thread::get_id()) return work();
  std::unique_lock lock(lock_);
  if (!thread_.joinable()) {
    const BlockedSignals blocked;
    try {
      check_robust_mutexes();
      thread_ = std::thread([this] { run(); });
    } catch (const std::system_error& e) {
      throw_error(Code::kSystem, "shared memory needs a thread, which cannot be created: ", e.what());
    }
  }
  OwnerCall call{work, nullptr};
  calls_.push_back(&call);
  changed_.notify_all();
  changed_.wait(lock, [&] { return call.is_done; });
  if (call.failure) std::rethrow_exception(call.failure);
}

void MutexOwner::begin() {
  {
    const std::scoped_lock lock(lock_);
    if (thread_.joinable()) return;
  }
  call([] {});
}

void MutexOwner::nudge(Chore chore) noexcept {
  {
    const std::scoped_lock lock(lock_);
    chore_ = chore;
  }
  changed_.notify_all();
}

void MutexOwner::run() noexcept {
  pthread_setname_np(pthread_self(), "tenon-mutexes");
  using Clock = std::chrono::steady_clock;
  Chore later = nullptr;  // the chore that is to run again,
  Clock::time_point due;  // at this time
  std::unique_lock lock(lock_);
  while (true) {
    const auto has_work = [this] { return !calls_.empty() || chore_ != nullptr || is_ending_; };
    if (later == nullptr) {
      changed_.wait(lock, has_work);
    } else if (!changed_.wait_until(lock, due, has_work)) {
      chore_ = std::exchange(later, nullptr);
    }
    if (calls_.empty() && is_ending_) return;
    if (calls_.empty()) {
      const Chore chore = std::exchange(chore_, nullptr);
      lock.unlock();
      const std::chrono::milliseconds again = chore();
      lock.lock();
      later = again.count() != 0 ? chore : nullptr;
      due = Clock::now() + again;
      continue;
    }
    OwnerCall& call = *calls_.front();
    calls_.erase(calls_.begin());
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

}  // namespace tenon::impl
