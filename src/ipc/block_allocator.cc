// SPDX-License-Identifier: Apache-2.0
#include "ipc/block_allocator.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"

namespace tenon::impl {
namespace {

constexpr uint64_t kGranule = 64 * 1024;
constexpr uint64_t kLarge = 1 << 20;  // arrays of at least this size begin on a page
constexpr uint64_t kKeptNbytes = uint64_t{256} << 20;
constexpr uint64_t kNowhere = UINT64_MAX;

}  // namespace

BlockAllocator::BlockAllocator(Segment& segment)
    : segment_(segment),
      unit_(segment.pinned_pages() != nullptr ? segment.pinned_pages()->unit_nbytes() : 0) {
  const uint32_t blocks = segment.header().blocks;
  free_blocks_.reserve(blocks);
  left_.reserve(blocks);
  awaited_.reserve(blocks);
  add_free(make_nodes(), 0, segment.data_nbytes());
  is_committed_.resize((segment.data_nbytes() + kGranule - 1) / kGranule);
}

AllocatedBlock BlockAllocator::allocate(uint64_t nbytes) {
  const uint64_t wanted = footprint(nbytes);
  const uint64_t alignment = segment_.is_tensor_pool() || nbytes >= kLarge ? kPage : kAlignment;
  const uint32_t block = free_block();
  if (block == Segment::kNone) return {};
  // The smallest range that is large enough. So used memory is taken before memory that was never used.
  auto best = free_sizes_.lower_bound({wanted, 0});
  const auto has_room = [&] { return place(best->second, best->first, wanted, alignment) != kNowhere; };
  while (best != free_sizes_.end() && !has_room()) ++best;
  if (best == free_sizes_.end()) return {};
  const auto [size, begin] = *best;
  AllocatedBlock allocation;
  allocation.begin = place(begin, size, wanted, alignment);
  const uint64_t end = allocation.begin + wanted;
  const bool has_before = allocation.begin != begin, has_after = end != begin + size;
  Nodes nodes, rest;
  if (has_before || has_after) nodes = make_nodes();
  if (has_before && has_after) rest = make_nodes();
  segment_.commit_block(block);
  if (unit_ != 0) {  // which will be pinned
    (void)commit(allocation.begin / unit_ * unit_, std::min(round_up(end, unit_), segment_.data_nbytes()));
  } else {
    allocation.is_fresh = commit(allocation.begin, end);
  }
  if (block == used_.size()) {
    used_.emplace_back();
  } else {
    std::ranges::pop_heap(free_blocks_, std::greater());
    free_blocks_.pop_back();
  }
  // Nothing after this may fail: no code would free the block.
  segment_.take_block(block, allocation.begin, nbytes);
  allocation.segment = &segment_;
  allocation.block = block;
  Nodes found = remove_free(free_.find(begin));
  if (!has_before && !has_after) {
    nodes = std::move(found);
  } else if (!has_before) {
    add_free(std::move(found), end, begin + size - end);
  } else {
    add_free(std::move(found), begin, allocation.begin - begin);
    if (has_after) add_free(std::move(rest), end, begin + size - end);
  }
  used_[block] = {allocation.begin, wanted, used_[block].is_left, used_[block].is_awaited, std::move(nodes)};
  used_nbytes_ += wanted;
  return allocation;
}

// Where a block begins in a range of free bytes, if it has room there.
uint64_t BlockAllocator::place(uint64_t begin, uint64_t nbytes, uint64_t wanted,
                               uint64_t alignment) const noexcept {
  uint64_t at = round_up(begin, alignment);
  if (unit_ != 0 && at / unit_ != (at + wanted - 1) / unit_) at = round_up(at, unit_);
  return at + wanted <= begin + nbytes ? at : kNowhere;
}

uint32_t BlockAllocator::free_block() const noexcept {
  if (!free_blocks_.empty()) return free_blocks_.front();
  return used_.size() < segment_.header().blocks ? static_cast<uint32_t>(used_.size()) : Segment::kNone;
}

BlockAllocator::Nodes BlockAllocator::make_nodes() {
  ByBegin by_begin{{0, 0}};
  BySize by_size{{0, 0}};
  return {by_begin.extract(by_begin.begin()), by_size.extract(by_size.begin())};
}

void BlockAllocator::add_free(Nodes nodes, uint64_t begin, uint64_t nbytes) noexcept {
  nodes.by_begin.key() = begin;
  nodes.by_begin.mapped() = nbytes;
  nodes.by_size.value() = {nbytes, begin};
  free_.insert(std::move(nodes.by_begin));
  free_sizes_.insert(std::move(nodes.by_size));
}

BlockAllocator::Nodes BlockAllocator::remove_free(ByBegin::iterator at) noexcept {
  auto by_size = free_sizes_.extract({at->second, at->first});
  return {free_.extract(at), std::move(by_size)};
}

// Allocates memory for the bytes. True: none of them had memory before.
bool BlockAllocator::commit(uint64_t begin, uint64_t end) {
  bool is_fresh = true;
  const uint64_t last = (end - 1) / kGranule;
  for (uint64_t first = begin / kGranule; first <= last;) {
    if (is_committed_[first]) {
      is_fresh = false;
      ++first;
      continue;
    }
    uint64_t stop = first;
    while (stop <= last && !is_committed_[stop]) ++stop;
    const uint64_t from = first * kGranule, to = std::min(stop * kGranule, segment_.data_nbytes());
    os::commit(segment_.file(), segment_.header().data_at + from, to - from,
               concat("a shared array of ", end - begin, " bytes"));
    for (; first < stop; ++first) is_committed_[first] = true;
    committed_nbytes_ += to - from;
  }
  return is_fresh;
}

void BlockAllocator::free_range(Nodes nodes, uint64_t begin, uint64_t nbytes) noexcept {
  const auto next = free_.lower_bound(begin);
  const auto previous = next != free_.begin() ? std::prev(next) : free_.end();
  if (next != free_.end() && next->first == begin + nbytes) {
    nbytes += next->second;
    (void)remove_free(next);
  }
  if (previous != free_.end() && previous->first + previous->second == begin) {
    begin = previous->first;
    nbytes += previous->second;
    (void)remove_free(previous);
  }
  add_free(std::move(nodes), begin, nbytes);
}

void BlockAllocator::note_left(uint32_t block) noexcept {
  if (!std::exchange(used_[block].is_left, true)) left_.push_back(block);
}

// Frees the block if no process uses it. False: another process uses it.
bool BlockAllocator::try_free(uint32_t block) noexcept {
  Used& used = used_[block];
  if (used.nbytes == 0 || segment_.is_used_here(block)) return true;
  if (!segment_.free_if_unused(block)) return false;
  free_range(std::move(used.nodes), used.begin, used.nbytes);
  used_nbytes_ -= std::exchange(used.nbytes, 0);
  free_blocks_.push_back(block);
  std::ranges::push_heap(free_blocks_, std::greater());
  return true;
}

bool BlockAllocator::reclaim(size_t most) noexcept {
  if (left_.empty() && awaited_.empty()) return false;
  reap_all(segment_.control());
  const uint64_t before = used_nbytes_;
  const bool is_any_awaited = free_unused(most);
  if (used_nbytes_ != before && !segment_.is_tensor_pool()) trim(kKeptNbytes);
  return is_any_awaited;
}

bool BlockAllocator::free_unused(size_t most) noexcept {
  for (size_t n = std::min(most, awaited_.size()); n != 0 && !awaited_.empty(); --n) {
    if (next_awaited_ >= awaited_.size()) next_awaited_ = 0;
    const uint32_t block = awaited_[next_awaited_];
    if (!try_free(block)) {
      ++next_awaited_;
      continue;
    }
    used_[block].is_awaited = false;
    awaited_[next_awaited_] = awaited_.back();
    awaited_.pop_back();
  }
  for (const uint32_t block : left_) {
    used_[block].is_left = false;
    if (used_[block].is_awaited || try_free(block)) continue;
    awaited_.push_back(block);
    used_[block].is_awaited = true;
  }
  left_.clear();
  return !awaited_.empty();
}

uint64_t BlockAllocator::footprint(uint64_t nbytes) const noexcept {
  if (unit_ != 0 && nbytes > unit_) return round_up(nbytes, unit_);
  return round_up(std::max<uint64_t>(nbytes, 1), segment_.is_tensor_pool() ? kPage : kAlignment);
}

uint64_t BlockAllocator::idle_nbytes() const noexcept {
  return committed_nbytes_ - std::min(committed_nbytes_, used_nbytes_);
}

void BlockAllocator::trim(uint64_t kept_nbytes) noexcept {
  if (unit_ != 0) return;
  // From the end, as the next arrays are least likely placed there.
  for (auto at = free_.rbegin(); at != free_.rend() && idle_nbytes() > kept_nbytes; ++at) {
    const uint64_t first = (at->first + kGranule - 1) / kGranule;
    uint64_t stop = (at->first + at->second) / kGranule;
    while (stop > first && idle_nbytes() > kept_nbytes) {
      --stop;
      if (!is_committed_[stop]) continue;
      if (!os::discard(segment_.data() + stop * kGranule, kGranule)) return;
      is_committed_[stop] = false;
      committed_nbytes_ -= kGranule;
    }
  }
}

}  // namespace tenon::impl
