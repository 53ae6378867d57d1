// SPDX-License-Identifier: Apache-2.0
//
// The seed of a batch: a function of only the feed's seed, the epoch and the index, so that a batch does
// not depend on the worker and can be made again. That of an epoch: the same without the index.
#pragma once

#include <cstdint>

namespace tenon::impl {

// The step of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
constexpr uint64_t split_mix(uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

constexpr uint64_t epoch_seed(uint64_t feed_seed, uint64_t epoch) noexcept {
  return split_mix(split_mix(feed_seed) ^ epoch);
}

constexpr uint64_t batch_seed(uint64_t feed_seed, uint64_t epoch, uint64_t index) noexcept {
  return split_mix(epoch_seed(feed_seed, epoch) ^ index);
}

}  // namespace tenon::impl
