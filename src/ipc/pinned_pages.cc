// SPDX-License-Identifier: Apache-2.0
#include "ipc/pinned_pages.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/bytes.h"
#include "device/submitted_work.h"

namespace tenon::impl {

void PinnedPages::pin(uint64_t begin, uint64_t nbytes) {
  const uint64_t first = begin / unit_nbytes_ * unit_nbytes_;
  const uint64_t end = std::min(round_up(begin + std::max<uint64_t>(nbytes, 1), unit_nbytes_), nbytes_);
  device::SubmittedWork::instance().prepare();
  const std::scoped_lock locked(lock_);
  auto at = pinned_.upper_bound(first);
  if (at != pinned_.begin() && std::prev(at)->second.end > first) --at;
  if (at != pinned_.end() && at->first == first && at->second.end == end) return;
  while (at != pinned_.end() && at->first < end) at = pinned_.erase(at);
  auto registration = std::make_unique<device::Registration>(data_ + first, end - first, false);
  pinned_.insert_or_assign(first, Units{end, std::move(registration)});
  pinned_by_.store(ForkMark::current(), std::memory_order_relaxed);
}

// A thread that begins to use a block pins it afterwards: so either this sees the use, or that thread pins it
// again.
void PinnedPages::unpin(const std::function<bool()>& is_used) noexcept {
  const std::scoped_lock locked(lock_);
  if (is_used()) return;
  pinned_.clear();
  pinned_by_.store(0, std::memory_order_relaxed);
}

}  // namespace tenon::impl
