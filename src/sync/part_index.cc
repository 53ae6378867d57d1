// SPDX-License-Identifier: Apache-2.0
#include "sync/part_index.h"

#include <new>

namespace tenon::impl {

PartIndex* PartIndex::make(size_t room) noexcept {
  try {
    return new PartIndex(room);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

PartIndex::PartIndex(size_t room)
    : nodes_(room), chains_(std::bit_ceil(room), kNone), shift_(64 - std::countr_zero(chains_.size())) {
  found_.reserve(room);
  for (size_t i = 0; i < room; ++i) nodes_[i].next = static_cast<uint32_t>(i + 1);
}

void PartIndex::insert(RequestPart* part) noexcept {
  const int level = level_of(part->extent);
  const Key key{part->extent.begin >> level, level};
  uint32_t& first = chains_[chain_of(key)];
  const uint32_t place = unused_;
  Node& node = nodes_[place];
  unused_ = node.next;
  node = {key, part, first, kNone};
  if (first != kNone) nodes_[first].previous = place;
  first = place;
  part->index_place = place;
  ++size_;
  ++n_parts_[static_cast<size_t>(level)];
  levels_ |= uint64_t{1} << level;
}

void PartIndex::erase(RequestPart* part) noexcept {
  Node& node = nodes_[part->index_place];
  (node.previous != kNone ? nodes_[node.previous].next : chains_[chain_of(node.key)]) = node.next;
  if (node.next != kNone) nodes_[node.next].previous = node.previous;
  --size_;
  if (--n_parts_[static_cast<size_t>(node.key.level)] == 0) levels_ &= ~(uint64_t{1} << node.key.level);
  node.next = unused_;
  unused_ = part->index_place;
}

}  // namespace tenon::impl
