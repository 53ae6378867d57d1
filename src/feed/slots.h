// SPDX-License-Identifier: Apache-2.0
//
// The slots of a feed: one stretch of memory, mapped and touched once, and the list of those that are
// free. What lies in a slot is not known here.
#pragma once

#include <semaphore.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/ref.h"

namespace tenon {

// Counted: the feed holds one reference, each lent slot another, so that delivered batches outlive the
// feed. Threads: everything may be called by any thread. give() and end_loan() never block, allocate
// nothing and take no lock: they are what the release of a batch runs.
// Invariant: the semaphore never counts more than the slots in the list (until wake() ends its use).
class Slots {
 public:
  // Fails with kValue (overflow), kNoMemory (the message has the numbers).
  static Ref<Slots> create(int32_t count, size_t slot_nbytes);

  int32_t count() const noexcept { return static_cast<int32_t>(links_.size()); }
  size_t slot_nbytes() const noexcept { return slot_nbytes_; }
  std::byte* data(int32_t slot) const noexcept { return memory_ + static_cast<size_t>(slot) * slot_nbytes_; }

  // In place of a slot.
  static constexpr int32_t kNone = -1;  // none is free
  static constexpr int32_t kOver = -2;  // wake() has been called

  // A free slot, most recently used first; waits for one. kOver after wake().
  int32_t take() noexcept;
  // The same without waiting: also kNone.
  int32_t try_take() noexcept;
  void give(int32_t slot) noexcept;

  // Hands a taken slot out of the feed. The owner returned goes to end_loan(), exactly once, when nobody
  // uses the slot any more; it then is free.
  void* lend(int32_t slot) noexcept;
  static void end_loan(void* owner) noexcept;
  // How many slots are lent.
  int32_t lent() const noexcept { return lent_.load(std::memory_order_relaxed); }

  // Ends all waiting in take(), for ever. waiters: at least the number of threads that may wait.
  void wake(int32_t waiters) noexcept;

  void retain() noexcept { refs_.increment(); }
  void release() noexcept {
    if (refs_.decrement()) delete this;
  }

 private:
  struct Link {
    Slots* pool;
    std::atomic<uint32_t> next;
  };

  Slots(int32_t count, size_t slot_nbytes);
  ~Slots();
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  int32_t pop() noexcept;

  // Constant after construction.
  const size_t slot_nbytes_;
  const size_t nbytes_;
  std::byte* memory_ = nullptr;

  // Shared. The free list is a stack of slot numbers; the upper half of its head counts the slots given, so
  // that an exchange fails when the slot at the head has been taken and given back meanwhile.
  std::vector<Link> links_;
  std::atomic<uint64_t> head_;
  std::atomic<int32_t> lent_{0};
  std::atomic<bool> is_awake_{false};
  sem_t free_;
  RefCount refs_;
};

}  // namespace tenon
