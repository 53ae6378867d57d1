// SPDX-License-Identifier: Apache-2.0
#include "data/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

namespace tenon::impl {
namespace {

std::vector<uint64_t> order_of(uint64_t batches, uint64_t seed, uint64_t epoch) {
  const Order order = Order(batches).shuffled(seed);
  std::vector<uint64_t> indices;
  for (uint64_t place = 0; place < batches; ++place) indices.push_back(order.index_at(epoch, 0, place));
  return indices;
}

TEST(Order, IsThatOfTheIndexByDefault) {
  for (uint64_t place : {uint64_t{0}, uint64_t{1}, uint64_t{77}, UINT64_MAX}) {
    EXPECT_EQ(Order().index_at(3, 0, place), place);
  }
}

TEST(Order, HasEachBatchOnce) {
  for (uint64_t batches = 0; batches < 300; ++batches) {
    for (uint64_t epoch = 0; epoch < 5; ++epoch) {
      std::vector<bool> seen(batches);
      for (const uint64_t index : order_of(batches, 7, epoch)) {
        ASSERT_LT(index, batches);
        ASSERT_FALSE(seen[index]) << batches << " batches, epoch " << epoch;
        seen[index] = true;
      }
    }
  }
}

TEST(Order, OfManyBatchesStaysWithinThem) {
  for (const uint64_t batches : {uint64_t{1} << 32, (uint64_t{1} << 62) + 1, uint64_t{INT64_MAX}}) {
    const Order order = Order(batches).shuffled(7);
    for (uint64_t place = 0; place < 1000; ++place) ASSERT_LT(order.index_at(0, 0, place), batches);
    EXPECT_LT(order.index_at(0, 0, batches - 1), batches);
    EXPECT_EQ(order.index_at(0, 0, batches), batches);
  }
}

TEST(Order, DependsOnSeedAndEpochAlone) {
  EXPECT_EQ(order_of(100, 7, 3), order_of(100, 7, 3));
  EXPECT_NE(order_of(100, 7, 3), order_of(100, 7, 4));
  EXPECT_NE(order_of(100, 7, 3), order_of(100, 8, 3));
}

// Seeds are fixed, so the counts are too. Limits: six standard deviations.
TEST(Order, OfFewBatchesTakesEachPermutationEquallyOften) {
  constexpr int kEpochs = 60'000;
  std::map<std::vector<uint64_t>, int> counts;
  for (uint64_t epoch = 0; epoch < kEpochs; ++epoch) ++counts[order_of(3, 7, epoch)];
  EXPECT_EQ(counts.size(), 6u);
  for (const auto& [order, count] : counts) EXPECT_NEAR(count, kEpochs / 6, 550);
}

TEST(Order, TakesEachBatchEquallyOftenToEachPlace) {
  constexpr int kEpochs = 20'000;
  constexpr uint64_t kBatches = 10;
  std::map<std::pair<uint64_t, uint64_t>, int> counts;
  for (uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const std::vector<uint64_t> order = order_of(kBatches, 7, epoch);
    for (uint64_t place = 0; place < kBatches; ++place) ++counts[{place, order[place]}];
  }
  EXPECT_EQ(counts.size(), kBatches * kBatches);
  for (const auto& [pair, count] : counts) EXPECT_NEAR(count, kEpochs / 10, 255);
}

TEST(Order, OfTheRanksTogetherHasEachPlaceOnceAlsoFromAPlaceOn) {
  for (const uint64_t ranks : {1, 2, 3, 7}) {
    for (const uint64_t batches : {0, 1, 6, 7, 20}) {
      for (const uint64_t begin : {0, 1, 4, 6, 7, 25}) {
        const Order whole = Order(batches).shuffled(5);
        std::vector<int> seen(batches);
        for (uint64_t place = 0; place < std::min(begin, batches); ++place)
          ++seen[whole.index_at(1, 0, place)];
        uint64_t end_of_all = begin;
        for (uint64_t rank = 0; rank < ranks; ++rank) {
          const Order order = Order(batches, rank, ranks).shuffled(5);
          for (uint64_t place = begin; place < order.end(begin); ++place) {
            const uint64_t of_epoch = begin + rank + (place - begin) * ranks;
            EXPECT_EQ(order.index_at(1, begin, place), whole.index_at(1, 0, of_epoch));
            EXPECT_EQ(order.delivered_by_all(begin, place), of_epoch - rank);
            EXPECT_FALSE(order.is_end_of_all(begin, place));
            ++seen[order.index_at(1, begin, place)];
          }
          end_of_all = std::max(end_of_all, order.delivered_by_all(begin, order.end(begin)));
        }
        EXPECT_EQ(seen, std::vector<int>(batches, 1));
        EXPECT_EQ(end_of_all, std::max(begin, batches));
      }
    }
  }
  EXPECT_EQ(Order(Order::kNoEnd, 2, 3).end(5), Order::kNoEnd);
  EXPECT_EQ(Order(Order::kNoEnd, 2, 3).index_at(0, 0, 4), 14u);
  EXPECT_EQ(Order(Order::kNoEnd, 2, 3).index_at(0, 5, 6), 10u);
}

}  // namespace
}  // namespace tenon::impl
