// SPDX-License-Identifier: Apache-2.0
//
// The order of the batches of an epoch: a function of only the feed's seed, the epoch and the place, so that
// any thread finds the batch of a place, and a saved position is a number.
//
// Feeds of several ranks divide an epoch, or the rest of it behind a place where they begin: rank r of n has
// the batches at the places begin + r, begin + r + n, begin + r + 2n, ... of the epoch. It counts them
// itself, as its places begin, begin + 1, begin + 2, ...
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

  // By index. batches: of the epoch.
  explicit Order(uint64_t batches = kNoEnd, uint64_t rank = 0, uint64_t ranks = 1) noexcept
      : batches_(batches), rank_(rank), ranks_(ranks) {}

  // As it is, but shuffled. Needs a number of batches.
  Order shuffled(uint64_t seed) const noexcept {
    Order order = *this;
    order.seed_ = seed;
    order.half_bits_ = batches_ < 2 ? 0 : (std::bit_width(batches_ - 1) + 1) / 2;
    return order;
  }

  // The place behind the last one; kNoEnd: none.
  uint64_t end(uint64_t begin) const noexcept {
    if (batches_ == kNoEnd) return kNoEnd;
    const uint64_t left = batches_ > begin ? batches_ - begin : 0;
    return begin + (left > rank_ ? (left - rank_ - 1) / ranks_ + 1 : 0);
  }

  // The place of the epoch up to which all ranks have delivered, when each is at this place.
  uint64_t delivered_by_all(uint64_t begin, uint64_t place) const noexcept {
    return std::max(begin, std::min(begin + (place - begin) * ranks_, batches_));
  }

  // Whether all ranks are at their ends, when each is at this place.
  bool is_end_of_all(uint64_t begin, uint64_t place) const noexcept {
    return delivered_by_all(begin, place) >= batches_;
  }

  // The index of the batch at a place. Behind the last one it is the place of the epoch.
  uint64_t index_at(uint64_t epoch, uint64_t begin, uint64_t own_place) const noexcept {
    const uint64_t place = begin + rank_ + (own_place - begin) * ranks_;
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
