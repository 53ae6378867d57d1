// SPDX-License-Identifier: Apache-2.0
#include "ipc/open_segments.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"

namespace tenon::impl {
namespace {

// The address space of an allocator. Its memory is allocated when it is used.
constexpr uint64_t kManyBlocksNbytes = uint64_t{4} << 30;
constexpr uint64_t kFewBlocksNbytes = uint64_t{256} << 20;  // if there is little address space

constexpr int64_t kSweepNs = 100'000'000;
constexpr size_t kSomeBlocks = 64;  // blocks of one allocator that sweep_some() looks at
constexpr size_t kSomeSegments = 8;

}  // namespace

Segment& OpenSegments::add(std::unique_ptr<Segment> segment) {
  const SegmentId id = segment->header().id;
  Set leaving{id};  // first, as it may fail: each open segment is in one of the sets
  const auto [at, is_new] = open_.try_emplace(id, std::move(segment));
  if (!is_new) throw_error(Code::kValue, "two memory files say that they are the segment ", text_of(id));
  leaving_.merge(leaving);  // until it is used
  return *at->second;
}

Segment& OpenSegments::CloseUnused::add(std::unique_ptr<Segment> segment) {
  Segment& added = segments_.add(std::move(segment));
  added_ = added.header().id;
  return added;
}

Segment* OpenSegments::find(const SegmentId& id) noexcept {
  const auto at = open_.find(id);
  return at == open_.end() ? nullptr : at->second.get();
}

OpenSegments::CloseUnused::~CloseUnused() {
  if (!added_) return;
  if (auto node = segments_.staying_.extract(*added_)) segments_.leaving_.insert(std::move(node));
  const auto leaving = segments_.leaving_.find(*added_);
  if (leaving == segments_.leaving_.end()) return;
  Segment& segment = *segments_.open_.find(*added_)->second;
  if (segment.users() == 0 && segment.participant().can_leave()) (void)segments_.close(leaving);
}

AllocatedBlock OpenSegments::allocate(uint64_t nbytes) {
  for (const auto& allocator : allocators_) {
    const Segment& segment = allocator->segment();
    // Other processes could not open an array on a lost one.
    if (segment.is_tensor_pool() || segment.file().is_lost()) continue;
    const AllocatedBlock found = allocator->allocate(nbytes);
    if (found.block != Segment::kNone) return found;
  }
  return new_allocator(nbytes).allocate(nbytes);
}

BlockAllocator& OpenSegments::new_allocator(uint64_t nbytes) {
  const auto make = [&](uint64_t data_nbytes) {
    SegmentPlan plan;
    plan.data_nbytes = data_nbytes;
    plan.blocks = kMostBlocks;
    return Segment::create(plan, MutexOwner::instance());
  };
  std::unique_ptr<Segment> segment;
  try {
    segment = make(kManyBlocksNbytes);
  } catch (const Error& e) {
    if (e.code() != Code::kNoMemory) throw;
    segment = make(std::max(kFewBlocksNbytes, round_up(nbytes, kFewBlocksNbytes)));
  }
  return add_allocator(std::move(segment));
}

BlockAllocator& OpenSegments::add_allocator(std::unique_ptr<Segment> segment) {
  // First the calls that may fail: a segment without its allocator would be useless.
  allocators_.reserve(allocators_.size() + 1);
  auto allocator = std::make_unique<BlockAllocator>(*segment);
  (void)add(std::move(segment));
  return *allocators_.emplace_back(std::move(allocator));
}

void OpenSegments::remove_allocator(const SegmentId& id) noexcept {
  std::erase_if(allocators_, [&](const auto& allocator) { return allocator->segment().header().id == id; });
  if (auto node = staying_.extract(id)) leaving_.insert(std::move(node));
}

bool OpenSegments::trim_blocks() noexcept {
  uint64_t idle_nbytes = 0;
  for (const auto& allocator : allocators_) {
    (void)allocator->reclaim();
    idle_nbytes += allocator->idle_nbytes();
    allocator->trim(0);
  }
  return idle_nbytes != 0;
}

BlockAllocator* OpenSegments::allocator_of(const SegmentId& id) noexcept {
  const auto is_it = [&](const auto& allocator) { return allocator->segment().header().id == id; };
  const auto at = std::find_if(allocators_.begin(), allocators_.end(), is_it);
  return at != allocators_.end() ? at->get() : nullptr;
}

void OpenSegments::note_left(const SegmentId& id, uint32_t block) noexcept {
  if (BlockAllocator* const allocator = allocator_of(id)) {
    allocator->note_left(block);
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
  if (allocators_.empty()) return;
  next_allocator_ = (next_allocator_ + 1) % allocators_.size();
  for (size_t i = 0; i < allocators_.size(); ++i) {
    if (i == next_allocator_ || allocators_[i]->is_any_new()) (void)allocators_[i]->reclaim(kSomeBlocks);
  }
}

bool OpenSegments::sweep_all() {
  const int64_t now = now_ns();
  if (now - swept_at_ns_ < kSweepNs) return true;
  swept_at_ns_ = now;
  bool is_unfinished = false;
  for (const auto& [id, segment] : open_) is_unfinished |= segment->end_limited();
  for (const auto& allocator : allocators_) is_unfinished |= allocator->reclaim();
  return close_left() || is_unfinished;
}

bool OpenSegments::close_left() noexcept {
  bool is_unfinished = false;
  for (auto at = leaving_.begin(); at != leaving_.end();) {
    const auto next = std::next(at);
    is_unfinished |= !try_close(at);
    at = next;
  }
  return is_unfinished;
}

std::chrono::milliseconds OpenSegments::clean() noexcept {
  constexpr std::chrono::milliseconds kSoonest{kSweepNs / 1'000'000};
  const int64_t now = now_ns();
  if (clean_again_ >= kSoonest && now - cleaned_at_ns_ < kSweepNs) return kSoonest;
  cleaned_at_ns_ = now;
  clean_again_ = {};
  for (const auto& [id, segment] : open_) {
    const std::chrono::milliseconds again = segment->cleaner().look(*segment);
    if (clean_again_.count() == 0 || (again.count() != 0 && again < clean_again_)) clean_again_ = again;
  }
  return clean_again_;
}

// Closes a segment of leaving_ if nothing uses it. False: it must be tried again later.
bool OpenSegments::try_close(Set::iterator leaving) noexcept {
  const auto at = open_.find(*leaving);
  Segment& segment = *at->second;
  if (allocator_of(*leaving) != nullptr || segment.users() != 0) {
    staying_.insert(leaving_.extract(leaving));
    return true;
  }
  if (!segment.participant().can_leave()) return false;
  // A living creator of an unnamed segment may send further handles on it.
  const bool is_over = segment.is_tensor_pool() && look(segment.pool_head().is_over) != 0;
  const bool comes_again = segment.header().has_named_array == 0 && segment.is_creator_alive() && !is_over;
  const bool may_be_opened = segment.has_sent() && !segment.has_lost_memory();
  if (comes_again || may_be_opened || !segment.may_end_memory()) return false;
  return close(leaving);
}

// False: its memory must end first.
bool OpenSegments::close(Set::iterator leaving) noexcept {
  const auto at = open_.find(*leaving);
  if (at->second->must_end_memory()) {
    ending_.insert(leaving_.extract(leaving));
    return false;
  }
  leaving_.erase(leaving);
  open_.erase(at);
  return true;
}

Segment* OpenSegments::next_ending() noexcept {
  while (!ending_.empty()) {
    auto node = ending_.extract(ending_.begin());
    Segment& segment = *open_.find(node.value())->second;
    const bool is_used = segment.users() != 0;  // again
    (is_used ? leaving_ : ended_).insert(std::move(node));
    if (!is_used) return &segment;
  }
  return nullptr;
}

void OpenSegments::note_ended(const SegmentId& id) noexcept {
  if (auto node = ended_.extract(id)) (void)try_close(leaving_.insert(std::move(node)).position);
}

bool OpenSegments::is_freeing(tenon_device device) const noexcept {
  const auto is_left = [&](const SegmentId& id) { return open_.find(id)->second->is_left_to_others(device); };
  return !ended_.empty() || std::ranges::any_of(leaving_, is_left);
}

void OpenSegments::become_child() noexcept {
  allocators_.clear();
  for (const auto& [id, segment] : open_) segment->become_child();
  for (Set* const others : {&staying_, &ending_, &ended_}) leaving_.merge(*others);
}

}  // namespace tenon::impl
