// SPDX-License-Identifier: Apache-2.0
//
// The free slots of a feed, as its control part says them: they are taken, given back and waited for by
// consumers, threads of the feed and worker processes. Knows nothing of their memory (slots.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "data/feed_control.h"

namespace tenon::impl {

// Refers to the control part, which outlives it. Threads: any. Nothing takes a lock, allocates or throws.
class FreeSlots {
 public:
  // In place of a slot.
  static constexpr int32_t kNone = -1;  // none is free
  static constexpr int32_t kOver = -2;  // wake() has been called

  // The holders in the words of taken slots: processes that consume, by their place, and fill loop number n.
  static constexpr uint32_t kFirstLoop = kParticipants;
  static constexpr int32_t kMostLoops = 4096 - kFirstLoop;

  // Called for each slot before it is free.
  struct OnGive {
    void (*call)(void* self, int32_t slot) noexcept;
    void* self;
  };

  FreeSlots() = default;
  // self: the place of this process, as a consumer.
  explicit FreeSlots(const FeedControl& control, OnGive on_give = {nullptr, nullptr},
                     uint32_t self = 0) noexcept
      : control_(control), table_(control.table()), on_give_(on_give), self_(self) {}

  const FeedControl& control() const noexcept { return control_; }
  // Its words, for the order of what lies in the slots. It has an entry for each slot that there may be.
  const SlotTable& table() const noexcept { return table_; }
  // The numbers of all slots are smaller than this.
  int32_t made() const noexcept {
    const auto most = static_cast<uint32_t>(control_.head().most);
    return static_cast<int32_t>(std::min(observe(control_.shared().made), most));
  }

  // A free slot, if possible the one that was given last; waits for one. kNone: there was none in this time.
  // kOver after wake().
  int32_t take(uint32_t holder, const Deadline& deadline = Deadline(-1)) const noexcept;
  // The same without waiting.
  int32_t try_take(uint32_t holder) const noexcept;
  // The same, of this process as a consumer.
  int32_t take() const noexcept { return take(self_); }
  int32_t try_take() const noexcept { return try_take(self_); }
  uint32_t self() const noexcept { return self_; }
  // Whether try_take() would find one now.
  bool has_free() const noexcept;
  // Waits so long (>= 0) until one is free, or wake() was called.
  void await_free(int64_t timeout_ns) const noexcept;
  // Of any slot that is not free.
  void give(int32_t slot) const noexcept;
  // Of a broadcast: the last number that all consumers have received. The slots up to it are free, but for
  // those that are read.
  uint64_t floor() const noexcept;
  // Ends all waits in take(), also later ones.
  void wake() const noexcept;

 private:
  int32_t try_take_spare(uint32_t holder) const noexcept;
  bool is_over() const noexcept { return observe(control_.shared().is_over) != 0; }

  FeedControl control_;
  SlotTable table_;
  OnGive on_give_{nullptr, nullptr};
  uint32_t self_ = 0;
};

}  // namespace tenon::impl
