// SPDX-License-Identifier: Apache-2.0
#include "share/pool.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace tenon::share {
namespace {

constexpr uint64_t kGranule = 64 * 1024;
constexpr uint64_t kAlignment = 64;
constexpr uint64_t kLarge = 1 << 20;  // from here on arrays begin on a page
constexpr uint64_t kKept = uint64_t{256} << 20;

uint64_t alignment_of(uint64_t nbytes) noexcept { return nbytes >= kLarge ? kPage : kAlignment; }

}  // namespace

Pool::Pool(Segment& segment) : segment_(segment) {
  add_free(0, segment.data_nbytes());
  is_committed_.resize((segment.data_nbytes() + kGranule - 1) / kGranule);
}

Pool::Place Pool::allocate(uint64_t nbytes) {
  const uint64_t wanted = round_up(std::max<uint64_t>(nbytes, 1), kAlignment);
  const uint64_t alignment = alignment_of(nbytes);
  const uint32_t block = free_block();
  if (block == Segment::kNone) return {};
  // The smallest stretch that is large enough: what was used before comes before what never was.
  auto best = free_sizes_.lower_bound({wanted, 0});
  while (best != free_sizes_.end() &&
         round_up(best->second, alignment) + wanted > best->second + best->first) {
    ++best;
  }
  if (best == free_sizes_.end()) return {};
  const auto [size, begin] = *best;
  Place place;
  place.begin = round_up(begin, alignment);
  place.is_fresh = commit(place.begin, place.begin + wanted);
  if (block == used_.size()) {
    used_.emplace_back();
  } else {
    free_blocks_.pop();
  }
  segment_.take_block(block, place.begin, nbytes);
  place.block = block;
  remove_free(free_.find(begin));
  if (place.begin > begin) add_free(begin, place.begin - begin);
  const uint64_t end = place.begin + wanted;
  if (end < begin + size) add_free(end, begin + size - end);
  used_[block] = {place.begin, wanted};
  used_nbytes_ += wanted;
  return place;
}

uint32_t Pool::free_block() const noexcept {
  if (!free_blocks_.empty()) return free_blocks_.top();
  return used_.size() < segment_.header().blocks ? static_cast<uint32_t>(used_.size()) : Segment::kNone;
}

void Pool::add_free(uint64_t begin, uint64_t nbytes) {
  free_.emplace(begin, nbytes);
  free_sizes_.emplace(nbytes, begin);
}

void Pool::remove_free(std::map<uint64_t, uint64_t>::iterator at) {
  free_sizes_.erase({at->second, at->first});
  free_.erase(at);
}

// True: all of it had no memory before.
bool Pool::commit(uint64_t begin, uint64_t end) {
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

void Pool::free_range(uint64_t begin, uint64_t nbytes) {
  const auto next = free_.lower_bound(begin);
  const auto previous = next != free_.begin() ? std::prev(next) : free_.end();
  if (next != free_.end() && next->first == begin + nbytes) {
    nbytes += next->second;
    remove_free(next);
  }
  if (previous != free_.end() && previous->first + previous->second == begin) {
    begin = previous->first;
    nbytes += previous->second;
    remove_free(previous);
  }
  add_free(begin, nbytes);
}

void Pool::note_left(uint32_t block) { left_.push_back(block); }

// True: the block is not one to be waited for.
bool Pool::try_free(uint32_t block) {
  Used& used = used_[block];
  if (used.nbytes == 0 || segment_.is_used_here(block)) return true;
  if (!segment_.free_if_unused(block)) return false;
  free_range(used.begin, used.nbytes);
  used_nbytes_ -= std::exchange(used.nbytes, 0);
  free_blocks_.push(block);
  return true;
}

bool Pool::reclaim(size_t most) {
  if (left_.empty() && awaited_.empty()) return false;
  reap_all(segment_.control());
  const uint64_t before = used_nbytes_;
  // Those that were awaited before: of a few at a time, in turn.
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
    if (used_[block].is_awaited || try_free(block)) continue;
    awaited_.push_back(block);
    used_[block].is_awaited = true;
  }
  left_.clear();
  if (used_nbytes_ != before) trim(kKept);
  return !awaited_.empty();
}

uint64_t Pool::idle_nbytes() const noexcept {
  return committed_nbytes_ - std::min(committed_nbytes_, used_nbytes_);
}

void Pool::trim(uint64_t kept_nbytes) {
  // From the end, where the next array is least likely to go.
  for (auto at = free_.rbegin(); at != free_.rend() && idle_nbytes() > kept_nbytes; ++at) {
    const uint64_t first = (at->first + kGranule - 1) / kGranule;
    uint64_t stop = (at->first + at->second) / kGranule;
    while (stop > first && idle_nbytes() > kept_nbytes) {
      --stop;
      if (!is_committed_[stop]) continue;
      os::discard(segment_.file(), segment_.header().data_at + stop * kGranule, kGranule);
      is_committed_[stop] = false;
      committed_nbytes_ -= kGranule;
    }
  }
}

}  // namespace tenon::share
