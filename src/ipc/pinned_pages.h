// SPDX-License-Identifier: Apache-2.0
//
// The pages of a tensor pool that this process has pinned for its GPUs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "base/fork_mark.h"
#include "device/device.h"

namespace tenon::impl {

// Pins whole units: a copy may not cross two registrations, and no block crosses two units. A block of more
// than a unit has whole units of its own, which are pinned together. A unit stays pinned when its blocks are
// free, because pinning takes as long as a copy: so the memory of the units is not returned to the system
// while the creator of the pool lives.
//
// Threads: any.
class PinnedPages {
 public:
  // unit_nbytes: a power of 2, at least a page.
  PinnedPages(std::byte* data, uint64_t nbytes, uint64_t unit_nbytes) noexcept
      : data_(data), nbytes_(nbytes), unit_nbytes_(unit_nbytes) {}
  PinnedPages(const PinnedPages&) = delete;
  PinnedPages& operator=(const PinnedPages&) = delete;

  uint64_t unit_nbytes() const noexcept { return unit_nbytes_; }
  // Pins the units around the bytes of a block that this process uses. Ends what is pinned across their
  // limits: that was for blocks that are free. Calls the driver, and fails, as device::Registration.
  void pin(uint64_t begin, uint64_t nbytes);
  // This process has pinned something. False in a forked child, to which the pages of its parent are not
  // pinned.
  bool is_any() const noexcept { return pinned_by_.load(std::memory_order_relaxed) == ForkMark::current(); }
  // Calls the driver. is_used: this process uses a block: then nothing happens.
  void unpin(const std::function<bool()>& is_used) noexcept;

 private:
  struct Units {
    uint64_t end;
    std::unique_ptr<device::Registration> registration;
  };

  std::byte* const data_;
  const uint64_t nbytes_;
  const uint64_t unit_nbytes_;
  std::mutex lock_;
  std::map<uint64_t, Units> pinned_;    // by the first byte; disjoint; guarded by lock_
  std::atomic<uint64_t> pinned_by_{0};  // ForkMark::current() of the process; 0: nothing is pinned
};

}  // namespace tenon::impl
