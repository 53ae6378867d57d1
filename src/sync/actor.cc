// SPDX-License-Identifier: Apache-2.0
#include "sync/actor.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "base/spin_lock.h"

namespace tenon::impl {
namespace {

// The threads that have an id, for callers that name a thread by its kernel number. Never destroyed, because
// threads may end after static destructors.
struct Threads {
  SpinLock lock;
  std::vector<std::pair<uint32_t, uint32_t>> numbers_and_ids;  // guarded by lock
};
Threads& threads() {
  // Not from malloc: a thread may begin without memory.
  alignas(Threads) static std::byte place[sizeof(Threads)];
  static auto* const all = new (place) Threads;
  return *all;
}

constinit std::atomic<uint32_t> last_id{0};

void forget_this_thread() noexcept {
  Threads& all = threads();
  const std::scoped_lock locked(all.lock);
  std::erase_if(all.numbers_and_ids, [](const auto& part) { return part.second == this_thread.id; });
}

// Destroyed at the end of the thread.
struct KnownThread {
  ~KnownThread() {
    forget_this_thread();
    this_thread.keeps_room = false;
    ::operator delete(std::exchange(this_thread.room, nullptr));
  }
};

}  // namespace

uint32_t begin_thread() noexcept {
  this_thread.id = last_id.fetch_add(1, std::memory_order_relaxed) + 1;
  this_thread.number = static_cast<uint32_t>(syscall(SYS_gettid));
  Threads& all = threads();
  try {
    const std::scoped_lock locked(all.lock);
    all.numbers_and_ids.emplace_back(this_thread.number, this_thread.id);
  } catch (const std::bad_alloc&) {
    return this_thread.id;  // no caller can name it
  }
  static thread_local KnownThread known;
  (void)known;
  this_thread.keeps_room = true;
  return this_thread.id;
}

uint32_t thread_id_of(uint32_t number) noexcept {
  (void)this_thread_id();
  Threads& all = threads();
  const std::scoped_lock locked(all.lock);
  for (const auto& [known, id] : all.numbers_and_ids) {
    if (known == number) return id;
  }
  return 0;
}

void lock_threads_for_fork() noexcept {
  (void)this_thread_id();  // the child needs it while it holds the lock
  threads().lock.lock();
}

void unlock_threads_after_fork(bool is_child) noexcept {
  Threads& all = threads();
  if (is_child) {
    std::erase_if(all.numbers_and_ids, [](const auto& part) { return part.second != this_thread.id; });
    if (this_thread.id != 0) this_thread.number = static_cast<uint32_t>(syscall(SYS_gettid));
    for (auto& part : all.numbers_and_ids) part.first = this_thread.number;
  }
  all.lock.unlock();
}

}  // namespace tenon::impl
