// SPDX-License-Identifier: Apache-2.0
//
// The failed ranges of a queue, and what it takes over at a merge.
#include <algorithm>
#include <utility>

#include "sync/queue.h"

namespace tenon::impl {

void Queue::add_failure(FailedRange* node) noexcept {
  node->next = std::exchange(failed_, node);
  has_failures.store(true, std::memory_order_relaxed);
}

void Queue::add_failure_without_node(const Extent& extent) noexcept {
  unnoted_ = unnoted_.end == 0
                 ? extent
                 : Extent{std::min(unnoted_.begin, extent.begin), std::max(unnoted_.end, extent.end)};
  has_failures.store(true, std::memory_order_relaxed);
}

FailedRange* Queue::heal(const Extent& extent, FailedRange** spare) noexcept {
  FailedRange* healed = nullptr;
  FailedRange** place = &failed_;
  while (FailedRange* const node = *place) {
    Extent& bytes = node->extent;
    if (extent.contains(bytes)) {
      *place = node->next;
      node->next = std::exchange(healed, node);
      continue;
    }
    place = &node->next;
    if (!extent.overlaps(bytes)) continue;
    if (extent.begin <= bytes.begin) {
      bytes.begin = extent.end;
    } else if (extent.end >= bytes.end) {
      bytes.end = extent.begin;
    } else if (spare != nullptr && *spare != nullptr) {
      FailedRange* const behind = std::exchange(*spare, nullptr);
      behind->extent = {extent.end, bytes.end};
      behind->failure = node->failure;
      behind->sequence = node->sequence;
      behind->next = std::exchange(node->next, behind);
      bytes.end = extent.begin;
      place = &behind->next;
    }
  }
  if (extent.contains(unnoted_)) unnoted_ = {0, 0};
  has_failures.store(failed_ != nullptr || unnoted_.end != 0, std::memory_order_relaxed);
  return healed;
}

Ref<Failure> Queue::failure_in(const Extent& extent, uint64_t before) const noexcept {
  Ref<Failure> first;  // the list is in reverse order
  for (const FailedRange* node = failed_; node != nullptr; node = node->next) {
    if (node->extent.overlaps(extent) && node->sequence < before) first = node->failure;
  }
  return first || !has_failed(extent) ? first : Failure::without_memory();
}

void Queue::take_over(Queue& other) noexcept {
  version_ += other.version_;
  inherited_views_ += std::exchange(other.inherited_views_, 0);
  while (FailedRange* const node = other.failed_) {
    other.failed_ = node->next;
    add_failure(node);
  }
  if (other.unnoted_.end != 0) add_failure_without_node(std::exchange(other.unnoted_, {0, 0}));
  other.has_failures.store(false, std::memory_order_relaxed);
}

}  // namespace tenon::impl
