// SPDX-License-Identifier: Apache-2.0
#include "ipc/open_segments.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/clock.h"
#include "base/error.h"

namespace tenon::impl {
namespace {

// Addresses, not memory: a pool grows into them.
constexpr uint64_t kPoolNbytes = uint64_t{4} << 30;
constexpr uint64_t kSmallPoolNbytes = uint64_t{256} << 20;  // where addresses are short

constexpr int64_t kSweepNs = 100'000'000;
constexpr size_t kSomeBlocks = 64;  // that a new array makes this process look at
constexpr size_t kSomeSegments = 8;

}  // namespace

Segment& OpenSegments::add(std::unique_ptr<Segment> segment) {
  const SegmentId id = segment->header().id;
  std::set<SegmentId> leaving{id};  // first: what is open is in one of the sets
  const auto [at, is_new] = open_.try_emplace(id, std::move(segment));
  if (!is_new) throw_error(Code::kValue, "two memory files say that they are the segment ", text_of(id));
  leaving_.merge(leaving);  // until it is used
  added_ = id;
  return *at->second;
}

Segment* OpenSegments::find(const SegmentId& id) noexcept {
  const auto at = open_.find(id);
  return at == open_.end() ? nullptr : at->second.get();
}

OpenSegments::Opening::~Opening() {
  if (!segments_.added_) return;
  const auto at = segments_.open_.find(*segments_.added_);
  if (at == segments_.open_.end() || at->second->users() != 0) return;
  if (!at->second->participant().can_leave()) return;
  segments_.leaving_.erase(at->first);
  segments_.open_.erase(at);
}

OpenSegments::InPool OpenSegments::allocate(uint64_t nbytes) {
  for (const auto& pool : pools_) {
    const Pool::Allocation allocation = pool->allocate(nbytes);
    if (allocation.block != Segment::kNone) return {&pool->segment(), allocation};
  }
  Pool& pool = new_pool(nbytes);
  return {&pool.segment(), pool.allocate(nbytes)};
}

Pool& OpenSegments::new_pool(uint64_t nbytes) {
  const auto make = [&](uint64_t data_nbytes) {
    SegmentPlan plan;
    plan.data_nbytes = data_nbytes;
    plan.blocks = kMostBlocks;
    return Segment::create(plan, MutexOwner::instance());
  };
  std::unique_ptr<Segment> segment;
  try {
    segment = make(kPoolNbytes);
  } catch (const Error& e) {
    if (e.code() != Code::kNoMemory) throw;
    segment = make(std::max(kSmallPoolNbytes, round_up(nbytes, kSmallPoolNbytes)));
  }
  // First what may fail: a segment of this process that has no pool would be of no use.
  pools_.reserve(pools_.size() + 1);
  auto pool = std::make_unique<Pool>(*segment);
  (void)add(std::move(segment));
  return *pools_.emplace_back(std::move(pool));
}

bool OpenSegments::trim_pools() noexcept {
  uint64_t idle_nbytes = 0;
  for (const auto& pool : pools_) {
    (void)pool->reclaim();
    idle_nbytes += pool->idle_nbytes();
    pool->trim(0);
  }
  return idle_nbytes != 0;
}

Pool* OpenSegments::pool_of(const SegmentId& id) noexcept {
  const auto is_it = [&](const auto& pool) { return pool->segment().header().id == id; };
  const auto at = std::find_if(pools_.begin(), pools_.end(), is_it);
  return at != pools_.end() ? at->get() : nullptr;
}

void OpenSegments::note_left(const SegmentId& id, uint32_t block) noexcept {
  if (Pool* const pool = pool_of(id)) {
    pool->note_left(block);
  } else if (auto node = staying_.extract(id)) {
    leaving_.insert(std::move(node));
  }
}

void OpenSegments::sweep_some() {
  for (size_t n = std::min(kSomeSegments, leaving_.size()); n != 0; --n) {
    auto at = leaving_.upper_bound(last_looked_at_);
    if (at == leaving_.end()) at = leaving_.begin();
    last_looked_at_ = *at;
    (void)try_close(at);
  }
  if (pools_.empty()) return;
  next_pool_ = (next_pool_ + 1) % pools_.size();
  for (size_t i = 0; i < pools_.size(); ++i) {
    if (i == next_pool_ || pools_[i]->is_any_new()) (void)pools_[i]->reclaim(kSomeBlocks);
  }
}

bool OpenSegments::sweep_all() {
  const int64_t now = now_ns();
  if (now - swept_at_ns_ < kSweepNs) return true;
  swept_at_ns_ = now;
  bool is_unfinished = false;
  for (const auto& [id, segment] : open_) {
    if (segment->has_limited()) is_unfinished |= segment->end_limited();
  }
  for (const auto& pool : pools_) is_unfinished |= pool->reclaim();
  for (auto at = leaving_.begin(); at != leaving_.end();) {
    const auto next = std::next(at);
    is_unfinished |= !try_close(at);
    at = next;
  }
  return is_unfinished;
}

// Of leaving_. True: the segment is closed, or in use, so that it is not to be looked at any more.
bool OpenSegments::try_close(std::set<SegmentId>::iterator leaving) noexcept {
  const auto at = open_.find(*leaving);
  Segment& segment = *at->second;
  if (pool_of(*leaving) != nullptr || segment.users() != 0) {
    staying_.insert(leaving_.extract(leaving));
    return true;
  }
  if (!segment.participant().can_leave()) return false;
  // What comes by a handle from a process that lives, comes again.
  const bool comes_again = segment.header().has_named_array == 0 && segment.is_creator_alive();
  if (comes_again || segment.has_sent()) return false;
  leaving_.erase(leaving);
  open_.erase(at);
  return true;
}

void OpenSegments::become_child() noexcept {
  pools_.clear();
  for (const auto& [id, segment] : open_) segment->become_child();
  leaving_.merge(staying_);
}

}  // namespace tenon::impl
