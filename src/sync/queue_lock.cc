// SPDX-License-Identifier: Apache-2.0
#include "sync/queue_lock.h"

#include <functional>
#include <mutex>
#include <type_traits>

#include "sync/queue.h"

namespace tenon::impl {

bool QueueLock::wait_if_listed() noexcept {
  while (!try_listed()) {
    if (state_.load(std::memory_order_relaxed) == State::kUnlisted) return false;
    pause_until([this] { return state_.load(std::memory_order_relaxed) != State::kLocked; });
  }
  return true;
}

void QueueLock::wait_or_list() noexcept {
  while (!lock_if_listed() && !list_locked()) {
  }
}

bool QueueLock::list_locked() noexcept {
  if (state_.load(std::memory_order_relaxed) != State::kUnlisted) return false;
  const std::scoped_lock hold(ListedQueues::list_lock);
  if (state_.load(std::memory_order_relaxed) != State::kUnlisted) return false;
  lock_with_list();
  ListedQueues::shorten(1);
  return true;
}

// Only threads without the lock of the list can have locked it, and those do not wait for that lock.
void QueueLock::lock_with_list() noexcept {
  if (lock_if_listed()) return;
  ListedQueues::append(this);
  state_.store(State::kLocked, std::memory_order_relaxed);
}

void QueueLock::unlist() noexcept {
  // pairs with: ListedQueues::remove, "a queue is not listed"
  if (state_.load(std::memory_order_acquire) == State::kUnlisted) return;
  const std::scoped_lock hold(ListedQueues::list_lock);
  if (state_.load(std::memory_order_relaxed) == State::kUnlisted) return;
  QueueLock* previous = nullptr;
  for (QueueLock* lock = ListedQueues::first; lock != this; lock = lock->next_) previous = lock;
  ListedQueues::remove(this, previous);
}

Queue& ListedQueues::queue_of(QueueLock& lock) noexcept {
  static_assert(std::is_standard_layout_v<QueueBase>, "its first member has the same address");
  return static_cast<Queue&>(reinterpret_cast<QueueBase&>(lock));
}

void ListedQueues::append(QueueLock* lock) noexcept {
  lock->next_ = nullptr;
  (last != nullptr ? last->next_ : first) = lock;
  last = lock;
  ++length;
}

void ListedQueues::remove(QueueLock* lock, QueueLock* previous) noexcept {
  (previous != nullptr ? previous->next_ : first) = lock->next_;
  if (last == lock) last = previous;
  --length;
  // pairs with: QueueLock::unlist, "a queue is not listed"
  lock->state_.store(QueueLock::State::kUnlisted, std::memory_order_release);
}

// After so many were listed.
void ListedQueues::shorten(size_t listed) noexcept {
  for (size_t i = 0; i < 2 * listed && length > kMany; ++i) {
    QueueLock* const oldest = first;
    if (oldest->try_listed()) {
      if (!queue_of(*oldest).must_be_listed()) {
        remove(oldest, nullptr);
        continue;
      }
      oldest->unlock();
    }
    first = oldest->next_;
    --length;
    append(oldest);
  }
}

template <class Visit>
void ListedQueues::walk(Visit visit) {
  QueueLock* previous = nullptr;
  for (QueueLock *lock = first, *next = nullptr; lock != nullptr; lock = next) {
    next = lock->next_;
    (void)lock->lock_if_listed();
    if (!queue_of(*lock).must_be_listed()) {
      remove(lock, previous);
      continue;
    }
    const std::unique_lock locked(*lock, std::adopt_lock);
    visit(queue_of(*lock));
    previous = lock;
  }
}

void ListedQueues::visit_each(void (*visit)(Queue& queue, void* context), void* context) {
  const std::scoped_lock hold(list_lock);
  walk([&](Queue& queue) { visit(queue, context); });
}

QueueLock* ListedQueues::merge(QueueLock* a, QueueLock* b) noexcept {
  QueueLock* merged = nullptr;
  QueueLock** end = &merged;
  while (a != nullptr && b != nullptr) {
    QueueLock*& least = std::less<>{}(a, b) ? a : b;
    *end = least;
    end = &least->next_;
    least = *end;
  }
  *end = a != nullptr ? a : b;
  return merged;
}

QueueLock* ListedQueues::sort(QueueLock* list, size_t n) noexcept {
  if (n < 2) {
    if (list != nullptr) list->next_ = nullptr;
    return list;
  }
  QueueLock* half = list;
  for (size_t i = 0; i < n / 2; ++i) half = half->next_;
  return merge(sort(list, n / 2), sort(half, n - n / 2));
}

void ListedQueues::lock_for_fork() noexcept {
  list_lock.lock();
  walk([](Queue&) {});
  first = sort(first, length);
  for (QueueLock* lock = first; lock != nullptr; lock = lock->next_) {
    (void)lock->lock_if_listed();
    last = lock;
  }
}

void ListedQueues::unlock_after_fork() noexcept {
  for (QueueLock* lock = first; lock != nullptr; lock = lock->next_) lock->unlock();
  list_lock.unlock();
}

size_t ListedQueues::count() noexcept {
  const std::scoped_lock hold(list_lock);
  return length;
}

}  // namespace tenon::impl
