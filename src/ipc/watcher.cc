// SPDX-License-Identifier: Apache-2.0
#include "ipc/watcher.h"

#include <pthread.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <thread>

#include "base/blocked_signals.h"
#include "base/error.h"
#include "base/one_per_process.h"
#include "ipc/channel.h"

namespace tenon::impl {
namespace {

constexpr int64_t kDeathSliceNs = 250'000'000;
constexpr int64_t kShortSliceNs = 20'000'000;  // if there are more lives than words to sleep on

// All watchers of this process.
struct Watchers {
  std::mutex lock;
  std::vector<std::unique_ptr<Watcher>> all;  // guarded by lock; none is removed
};

}  // namespace

Watch::Watch(const Channel& channel, SharedEvent& event)
    : channel_(channel), shared_event_(event), event_(os::create_event()), seen_(look(event.signals)) {
  channel_.begin_wait(shared_event_);
  try {
    Watcher::add_to_any(*this);
  } catch (...) {
    channel_.end_wait(shared_event_);
    throw;
  }
  is_watched_.store(true, std::memory_order_relaxed);
  signal();  // there may be something to do already
}

Watch::~Watch() { end(); }

void Watch::signal() noexcept { os::signal_event(event_); }
void Watch::clear() noexcept { os::clear_event(event_); }

void Watch::end() noexcept {
  if (mark_.is_child() || !is_watched_.exchange(false, std::memory_order_relaxed)) return;
  Watcher::remove_from_all(*this);
  channel_.end_wait(shared_event_);
}

void Watcher::add_to_any(Watch& watch) {
  Watchers& watchers = one_per_process<Watchers>();
  const std::scoped_lock locked(watchers.lock);
  for (const auto& watcher : watchers.all) {
    if (watcher->add(watch)) return;
  }
  auto fresh = std::make_unique<Watcher>();
  watchers.all.reserve(watchers.all.size() + 1);
  (void)fresh->add(watch);
  watchers.all.push_back(std::move(fresh));
}

void Watcher::remove_from_all(Watch& watch) noexcept {
  Watchers& watchers = one_per_process<Watchers>();
  const std::scoped_lock locked(watchers.lock);
  for (const auto& watcher : watchers.all) {
    if (watcher->remove(watch)) return;
  }
}

bool Watcher::add(Watch& watch) {
  {
    const std::scoped_lock locked(lock_);
    if (watches_.size() == kMostEvents) return false;
    watches_.push_back(&watch);
    if (!is_running_) {
      const BlockedSignals blocked;
      try {
        std::thread([this] { run(); }).detach();
      } catch (const std::exception& e) {  // of the system, or std::bad_alloc
        watches_.pop_back();
        throw_error(Code::kSystem,
                    "the descriptor of a channel needs a thread, which cannot be created: ", e.what());
      }
      is_running_ = true;
      return true;
    }
    changes_.fetch_add(1, std::memory_order_relaxed);
  }
  os::wake_all(changes_);
  return true;
}

bool Watcher::remove(Watch& watch) noexcept {
  {
    const std::scoped_lock locked(lock_);
    const auto at = std::ranges::find(watches_, &watch);
    if (at == watches_.end()) return false;
    watches_.erase(at);
    changes_.fetch_add(1, std::memory_order_relaxed);
  }
  // The sleeping thread may use addresses of words that are unmapped next. That is safe: the kernel refuses
  // them, and the change of changes_ ends the sleep.
  os::wake_all(changes_);
  return true;
}

// Signals the watches whose events have changed. Sets the words on which to sleep next, and for how long.
// Returns the number of words. Requires the lock.
size_t Watcher::look(os::Sleep* words, int64_t* timeout_ns) noexcept {
  size_t n = 0;
  words[n++] = {&changes_, changes_.load(std::memory_order_relaxed)};
  for (Watch* const watch : watches_) {
    const uint32_t signals = impl::look(watch->shared_event_.signals);
    if (signals != watch->seen_) {
      watch->seen_ = signals;
      watch->signal();
    }
    words[n++] = {&watch->shared_event_.signals, signals};
  }
  *timeout_ns = kDeathSliceNs;
  for (Watch* const watch : watches_) {
    const Channel& channel = watch->channel_;
    const SharedEvent& event = watch->shared_event_;
    if (!channel.add_lives(event, words, &n)) *timeout_ns = kShortSliceNs;
    // A process may have ended, or been stopped, after it had changed something and before it signaled this.
    if (channel.has_free_slot(event) || channel.has_news(event)) watch->signal();
  }
  return n;
}

void Watcher::run() noexcept {
  pthread_setname_np(pthread_self(), "tenon-watcher");
  std::unique_lock lock(lock_);
  while (!watches_.empty()) {
    os::Sleep words[os::kMostWords];
    int64_t timeout_ns = 0;
    const size_t n = look(words, &timeout_ns);
    lock.unlock();
    os::sleep_on(words, n, timeout_ns);
    lock.lock();
  }
  is_running_ = false;
}

}  // namespace tenon::impl
