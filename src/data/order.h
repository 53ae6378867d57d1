// SPDX-License-Identifier: Apache-2.0
//
// The order of the batches of an epoch: a function of only the feed's seed, the epoch and the place, so that
// any thread finds the batch of a place, and a saved position is a number.
#pragma once

#include <bit>
#include <cstdint>

#include "data/seed.h"

namespace tenon::impl {

// Places and indices are 0 .. batches - 1. A value; any threads.
class Order {
 public:
  // By index.
  Order() = default;
  // Shuffled.
  Order(uint64_t batches, uint64_t seed) noexcept
      : batches_(batches), seed_(seed), half_bits_(batches < 2 ? 0 : (std::bit_width(batches - 1) + 1) / 2) {}

  // The index of the batch at a place. Places behind the last one are indices.
  uint64_t index_at(uint64_t epoch, uint64_t place) const noexcept {
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

  uint64_t batches_ = 0;
  uint64_t seed_ = 0;
  int half_bits_ = 0;  // of the smallest power of 4 that is not below batches; 0: the order of the index
};

}  // namespace tenon::impl
