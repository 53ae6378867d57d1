// SPDX-License-Identifier: Apache-2.0
//
// A histogram of the durations of a worker's fills: eight bins for each power of two.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace tenon::impl {

// Threads: one writes, any read.
class FillTimes {
 public:
  void note(uint64_t ns) noexcept {
    add(counts_[place_of(ns)], 1);
    add(sum_ns_, ns);
    add(count_, 1);
  }
  void note_failure() noexcept { add(failures_, 1); }

  uint64_t count() const noexcept { return count_.load(std::memory_order_relaxed); }
  uint64_t sum_ns() const noexcept { return sum_ns_.load(std::memory_order_relaxed); }
  uint64_t failures() const noexcept { return failures_.load(std::memory_order_relaxed); }

  // The quantile for this share of the fills, with a precision of 1/8; 0: there are none.
  uint64_t quantile_ns(double share) const noexcept {
    uint64_t n = 0;
    for (const auto& count : counts_) n += count.load(std::memory_order_relaxed);
    auto left = static_cast<uint64_t>(share * static_cast<double>(n));
    for (size_t i = 0; i < counts_.size(); ++i) {
      const uint64_t here = counts_[i].load(std::memory_order_relaxed);
      if (left < here) return middle_of(i);
      left -= here;
    }
    return 0;
  }

 private:
  static constexpr size_t kEighths = 8;

  static void add(std::atomic<uint64_t>& counter, uint64_t n) noexcept {
    counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  static size_t place_of(uint64_t ns) noexcept {
    if (ns < kEighths) return ns;
    const auto octave = static_cast<size_t>(std::bit_width(ns)) - 4;  // 8..15 ns are octave 0
    return (octave + 1) * kEighths + (ns >> octave) - kEighths;
  }
  static uint64_t middle_of(size_t place) noexcept {
    if (place < kEighths) return place;
    const size_t octave = place / kEighths - 1;
    return ((2 * (place % kEighths + kEighths) + 1) << octave) / 2;
  }

  std::array<std::atomic<uint64_t>, 62 * kEighths> counts_{};
  std::atomic<uint64_t> sum_ns_{0}, count_{0}, failures_{0};
};

}  // namespace tenon::impl
