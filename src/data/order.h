// SPDX-License-Identifier: Apache-2.0
//
// The order of the batches of an epoch: a function of only the feed's seed, the epoch and the place, so that
// any thread finds the batch of a place, and a saved position is a number.
//
// Feeds of several ranks share an epoch: rank r of n has the places r, r + n, r + 2n, ... of it, which are
// its own places 0, 1, 2, ...
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "data/seed.h"

namespace tenon::impl {

// Places are those of a rank, unless "of the epoch" is said. A value; any threads.
class Order {
 public:
  static constexpr uint64_t kNoEnd = UINT64_MAX;

  // By index.
  explicit Order(uint64_t batches = kNoEnd, uint64_t rank = 0, uint64_t ranks = 1) noexcept
      : batches_(batches), rank_(rank), ranks_(ranks) {}

  // As it is, but shuffled. Needs a number of batches.
  Order shuffled(uint64_t seed) const noexcept {
    Order order = *this;
    order.seed_ = seed;
    order.half_bits_ = batches_ < 2 ? 0 : (std::bit_width(batches_ - 1) + 1) / 2;
    return order;
  }

  // Of an epoch, for this rank; kNoEnd: no end.
  uint64_t batches() const noexcept { return batches_ == kNoEnd ? kNoEnd : first_from(batches_); }

  // The first place that does not lie before a place of the epoch.
  uint64_t first_from(uint64_t of_epoch) const noexcept {
    return of_epoch <= rank_ ? 0 : (of_epoch - rank_ - 1) / ranks_ + 1;
  }

  // The place of the epoch up to which all ranks have delivered, when each is at this place.
  uint64_t delivered_by_all(uint64_t place) const noexcept { return std::min(place * ranks_, batches_); }

  // Whether all ranks have delivered all, when each is at this place.
  bool is_end_of_all(uint64_t place) const noexcept { return delivered_by_all(place) == batches_; }

  // The index of the batch at a place. Places behind the last one are indices.
  uint64_t index_at(uint64_t epoch, uint64_t own_place) const noexcept {
    const uint64_t place = own_place * ranks_ + rank_;
    if (half_bits_ == 0 || place >= batches_) return place;
    const uint64_t key = split_mix(split_mix(seed_ ^ kShuffle) ^ epoch);
    uint64_t index = place;
    // A permutation of the power of 4 that is followed until it comes back to the batches permutes these:
    // Black and Rogaway, "Ciphers with arbitrary finite domains", 2002. It takes less than four steps on
    // average.
    do {
      index = permute(index, key);
    } while (index >= batches_);
    return index;
  }

 private:
  static constexpr uint64_t kShuffle = 0x73687566666c65;  // so that these numbers are not the batches' seeds
  static constexpr uint64_t kRounds = 8;

  // A Feistel network: a permutation of 0 .. 4 ** half_bits - 1.
  uint64_t permute(uint64_t number, uint64_t key) const noexcept {
    const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
    uint64_t left = number >> half_bits_, right = number & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t next = left ^ (split_mix(split_mix(key + round) ^ right) & mask);
      left = right;
      right = next;
    }
    return left << half_bits_ | right;
  }

  uint64_t batches_;  // of the epoch
  uint64_t rank_, ranks_;
  uint64_t seed_ = 0;
  int half_bits_ = 0;  // of the smallest power of 4 that is not below batches; 0: the order of the index
};

}  // namespace tenon::impl
