// SPDX-License-Identifier: Apache-2.0
//
// Counts the failed batches that a feed skips. A generator that fails each time, in an epoch without an end,
// would run for ever without a word.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/error.h"

namespace tenon::impl {

// Threads: any.
class Skips {
 public:
  // The counters are zeros at first, and outlive it.
  Skips(std::atomic<uint64_t>& in_a_row, std::atomic<uint64_t>& count) noexcept
      : in_a_row_(in_a_row), count_(count) {}

  // Stores nothing mostly: its line of the cache is one that all workers read.
  void note_batch() noexcept {
    if (in_a_row_.load(std::memory_order_relaxed) != 0) in_a_row_.store(0, std::memory_order_relaxed);
  }

  // A batch has failed. False: too many in a row have, and it is not to be skipped.
  bool note_failure() noexcept {
    if (in_a_row_.fetch_add(1, std::memory_order_relaxed) + 1 < kMostInARow) return true;
    in_a_row_.store(0, std::memory_order_relaxed);
    return false;
  }
  static std::string limit_text() {
    return concat("it has failed at ", kMostInARow, " batches in a row, so this one is not skipped\n");
  }

  // A batch is skipped. Returns their number if it is one to be reported: 10, 100, ...; else 0.
  uint64_t note_skip() noexcept {
    const uint64_t count = count_.fetch_add(1, std::memory_order_relaxed) + 1;
    uint64_t power = 10;
    while (power < count) power *= 10;
    return power == count ? count : 0;
  }

 private:
  static constexpr uint64_t kMostInARow = 1000;

  std::atomic<uint64_t>&in_a_row_, &count_;
};

}  // namespace tenon::impl
