// SPDX-License-Identifier: Apache-2.0
#include "share/pool.h"

#include <algorithm>

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
  free_[0] = segment.data_nbytes();
  is_committed_.resize((segment.data_nbytes() + kGranule - 1) / kGranule);
}

Pool::Place Pool::allocate(uint64_t nbytes) {
  const uint64_t wanted = round_up(std::max<uint64_t>(nbytes, 1), kAlignment);
  const uint64_t alignment = alignment_of(nbytes);
  // The smallest stretch that is large enough: what was used before comes before what never was.
  auto best = free_.end();
  for (auto at = free_.begin(); at != free_.end(); ++at) {
    const uint64_t begin = round_up(at->first, alignment);
    if (begin + wanted > at->first + at->second) continue;
    if (best == free_.end() || at->second < best->second) best = at;
  }
  if (best == free_.end()) return {};
  Place place;
  place.begin = round_up(best->first, alignment);
  place.is_fresh = commit(place.begin, place.begin + wanted);
  place.block = segment_.take_block(place.begin, nbytes);
  if (place.block == Segment::kNone) return {};
  const auto [begin, size] = *best;
  free_.erase(best);
  if (place.begin > begin) free_[begin] = place.begin - begin;
  const uint64_t end = place.begin + wanted;
  if (end < begin + size) free_[end] = begin + size - end;
  used_[place.block] = {place.begin, wanted};
  used_nbytes_ += wanted;
  return place;
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
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == begin + nbytes) {
    nbytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == begin) {
      previous->second += nbytes;
      return;
    }
  }
  free_.emplace_hint(next, begin, nbytes);
}

bool Pool::reclaim() {
  reap_all(segment_.control());
  bool is_awaited = false, has_freed = false;
  for (auto at = used_.begin(); at != used_.end();) {
    const auto [block, used] = *at;
    if (!segment_.free_if_unused(block)) {
      is_awaited |= !segment_.is_used_here(block);
      ++at;
      continue;
    }
    at = used_.erase(at);
    free_range(used.begin, used.nbytes);
    used_nbytes_ -= used.nbytes;
    has_freed = true;
  }
  if (has_freed) trim(kKept);
  return is_awaited;
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
