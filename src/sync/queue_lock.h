// SPDX-License-Identifier: Apache-2.0
//
// The lock of a queue, and the list of the queues that may be locked or in use. Forks, waits for all ops and
// reports visit the list, so that their cost does not depend on the number of arrays.
//
// Only a listed queue can be locked: lock() lists it first. It remains listed after its last use, so that the
// next lock() costs nothing more. It is unlisted by the next walk over the list, or when the list is long.
//
// Order of locks: the lock of the list is taken before the lock of a queue. A thread locks several queues
// with lock_together().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "base/spin_lock.h"

namespace tenon::impl {

// The base of a queue. Threads: any.
// Invariant: while a thread holds the lock of the list, no unlisted queue is or becomes locked.
class QueueLock {
 public:
  QueueLock() = default;
  QueueLock(const QueueLock&) = delete;
  QueueLock& operator=(const QueueLock&) = delete;
  ~QueueLock() { unlist(); }

  // Requires that this thread has locked no queue.
  void lock() noexcept {
    if (!try_listed()) [[unlikely]]
      wait_or_list();
  }
  bool try_lock() noexcept { return try_listed() || list_locked(); }
  // For a thread that locks several queues in the order of their addresses. False: it is not listed, and not
  // locked.
  bool lock_if_listed() noexcept { return try_listed() || wait_if_listed(); }
  // pairs with: QueueLock::try_listed, "the section of a queue"
  void unlock() noexcept { state_.store(State::kFree, std::memory_order_release); }

 private:
  friend class ListedQueues;
  template <class LockAt>
  friend void lock_together(size_t n, LockAt lock_at) noexcept;

  enum class State : uint8_t { kUnlisted, kFree, kLocked };

  // False: it is locked or not listed.
  bool try_listed() noexcept {
    State expected = State::kFree;
    // pairs with: QueueLock::unlock, "the section of a queue"
    return state_.compare_exchange_strong(expected, State::kLocked, std::memory_order_acquire,
                                          std::memory_order_relaxed);
  }
  bool wait_if_listed() noexcept;
  // Lists and locks it. False: it is listed already.
  bool list_locked() noexcept;
  void wait_or_list() noexcept;
  // Lists it if it is not listed, and locks it. Requires the lock of the list.
  void lock_with_list() noexcept;
  void unlist() noexcept;

  // Guarded by the lock of the list.
  QueueLock* next_ = nullptr;

  // Shared. From and to kUnlisted only with the lock of the list.
  std::atomic<State> state_{State::kUnlisted};
};

// Locks *lock_at(0) to *lock_at(n - 1), which must be in the order of their addresses; null is skipped.
template <class LockAt>
void lock_together(size_t n, LockAt lock_at) noexcept;

class Queue;

// Threads: any that has locked no queue.
class ListedQueues {
 public:
  // Calls visit with each queue that must be listed (Queue::must_be_listed), and unlists the others. The list
  // and the queue are locked meanwhile: visit must not lock a queue.
  template <class Visit>
  static void visit(Visit visit) {
    visit_each([](Queue& queue, void* context) { (*static_cast<Visit*>(context))(queue); }, &visit);
  }

  // Unlists the queues that need not be listed, and locks the list and the other queues. So no other thread
  // has locked a queue. Needs no memory.
  static void lock_for_fork() noexcept;
  // Calls visit with each of the locked queues.
  template <class Visit>
  static void visit_locked(Visit visit) {
    for (QueueLock* lock = first; lock != nullptr; lock = lock->next_) visit(queue_of(*lock));
  }
  static void unlock_after_fork() noexcept;

  // While the list is longer, each further listing unlists two of the oldest, if they need not be listed.
  static constexpr size_t kMany = 65'536;
  static size_t count() noexcept;

 private:
  friend class QueueLock;
  template <class LockAt>
  friend void lock_together(size_t n, LockAt lock_at) noexcept;
  static Queue& queue_of(QueueLock& lock) noexcept;
  static void visit_each(void (*visit)(Queue& queue, void* context), void* context);

  // All of these require the lock of the list.
  template <class Visit>
  static void walk(Visit visit);
  static void append(QueueLock* lock) noexcept;
  static void remove(QueueLock* lock, QueueLock* previous) noexcept;
  static void shorten(size_t listed) noexcept;
  static QueueLock* merge(QueueLock* a, QueueLock* b) noexcept;
  static QueueLock* sort(QueueLock* list, size_t n) noexcept;

  static constinit inline SpinLock list_lock;
  // Guarded by list_lock.
  static constinit inline QueueLock* first = nullptr;
  static constinit inline QueueLock* last = nullptr;
  static constinit inline size_t length = 0;
};

template <class LockAt>
void lock_together(size_t n, LockAt lock_at) noexcept {
  for (size_t i = 0; i < n; ++i) {
    QueueLock* const next = lock_at(i);
    if (next == nullptr || next->lock_if_listed()) [[likely]]
      continue;
    while (i-- > 0) {
      if (QueueLock* const locked = lock_at(i)) locked->unlock();
    }
    const std::scoped_lock hold(ListedQueues::list_lock);
    const size_t length = ListedQueues::length;
    for (i = 0; i < n; ++i) {
      if (QueueLock* const each = lock_at(i)) each->lock_with_list();
    }
    return ListedQueues::shorten(ListedQueues::length - length);
  }
}

}  // namespace tenon::impl
