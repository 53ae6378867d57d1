// SPDX-License-Identifier: Apache-2.0
//
// What the openings of a channel in one process have in common. The channel's memory knows processes, so it
// has one end for all openings of a process, one bit for all of its items in a slot, and one cursor for all
// of its consumers.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "base/fork_mark.h"
#include "base/spin_lock.h"
#include "ipc/channel_state.h"

namespace tenon::impl {

// A lock for short sections, of the threads of one process. In a forked child, it is free. Threads: any.
class ProcessSpinLock {
 public:
  void lock() noexcept {
    const uint64_t self = ForkMark::current();
    pause_until([&] {
      uint64_t holder = holder_.load(std::memory_order_relaxed);
      // pairs with: ProcessSpinLock::unlock, "the section of another thread"
      return holder != self && holder_.compare_exchange_strong(holder, self, std::memory_order_acquire);
    });
  }
  // pairs with: ProcessSpinLock::lock, "the section of another thread"
  void unlock() noexcept { holder_.store(0, std::memory_order_release); }

 private:
  std::atomic<uint64_t> holder_{0};  // ForkMark::current() of the process whose thread has it; 0: none
};

// How far an opening that is a consumer has received.
struct Cursor {
  // The process that has it, as Channel::taker(); 0: it is free. In a forked child, those of its parent are.
  std::atomic<uint64_t> taker{0};
  // Guarded by Openings::lock().
  bool is_awaited = true;          // by producers; not that of a viewer
  uint64_t sequence = 0;           // of the last item
  std::vector<uint64_t> put_back;  // of items before it, which are received again; in order

  // All items up to this one have been received.
  uint64_t received_up_to() const noexcept { return put_back.empty() ? sequence : put_back.front() - 1; }
};

// One for each channel in each process. Threads: any. Functions require lock(), unless they say otherwise.
class Openings {
 public:
  explicit Openings(uint32_t slots) : held_(slots) {}

  ProcessSpinLock& lock() noexcept { return lock_; }

  // One opening more has the role, or one less. taker: as Channel::taker(). Returns the roles of the process.
  uint32_t add_role(uint64_t taker, ChannelRole role) noexcept;
  uint32_t remove_role(ChannelRole role) noexcept;

  // A cursor for an opening, which sets its taker to 0 at the end.
  Cursor& add_cursor(uint64_t taker, uint64_t sequence, bool is_awaited);
  // The least received_up_to() of the cursors of this process that are awaited; 0: there is none.
  uint64_t received_up_to(uint64_t taker) const noexcept;
  // Whether one of these has received the item.
  bool has_received(uint64_t taker, uint64_t sequence) const noexcept;

  // This process has not used the slot yet: it may have inherited items of its parent. Does not require
  // lock().
  bool is_new(uint32_t slot) const noexcept {
    // pairs with: Openings::note_used, "the first use of a slot"
    return held_[slot].process.load(std::memory_order_acquire) != ForkMark::current();
  }
  // From now on, it has none of them.
  void note_used(uint32_t slot) noexcept {
    held_[slot].items.store(0, std::memory_order_relaxed);
    // pairs with: Openings::is_new, "the first use of a slot"
    held_[slot].process.store(ForkMark::current(), std::memory_order_release);
  }

  // Adds an item to those that use the slot in this process. False: there is none.
  bool join_item(uint32_t slot) noexcept;
  // Adds the first one. Requires that is_new() is false.
  void add_item(uint32_t slot) noexcept;
  // Removes one. After the last one calls end(), before another one can be the first. Does not require
  // lock().
  template <class End>
  void remove_item(uint32_t slot, End end) noexcept {
    std::atomic<uint32_t>& items = held_[slot].items;
    uint32_t n = items.load(std::memory_order_relaxed);
    // pairs with: Openings::remove_item, "an item that has ended"
    while (!items.compare_exchange_weak(n, n == 1 ? kEnding : n - 1, std::memory_order_acq_rel)) {
    }
    if (n != 1) return;
    end();
    // pairs with: Openings::add_item, "an item that has ended"
    items.store(0, std::memory_order_release);
  }

 private:
  struct Held {
    std::atomic<uint32_t> items{0};
    std::atomic<uint64_t> process{0};  // that has used the slot last
  };
  static constexpr uint32_t kEnding = UINT32_MAX;

  uint32_t roles() const noexcept;

  ProcessSpinLock lock_;
  // Guarded by lock_.
  uint64_t taker_ = 0;          // the process of the counts; a forked child begins anew
  uint32_t counts_[4]{};        // openings by role, in the order of kRoles
  bool has_used_ = false;       // the process has been a producer or consumer, so it is no member any more
  std::deque<Cursor> cursors_;  // at constant addresses
  std::vector<Held> held_;      // by slot
};

}  // namespace tenon::impl
