// SPDX-License-Identifier: Apache-2.0
#include "base/spin_budget.h"

#include <gtest/gtest.h>

namespace tenon::impl {
namespace {

constexpr int64_t kLong = 100 * SpinBudget::kMostNs;

TEST(SpinBudget, IsLongerThanTheUsualWait) {
  constexpr int64_t kUsual = SpinBudget::kMostNs / 4;
  SpinBudget budget;
  for (int i = 0; i < 30; ++i) budget.note(kUsual);
  EXPECT_GT(budget.budget_ns(), kUsual);
  EXPECT_LT(budget.budget_ns(), 3 * kUsual);
}

TEST(SpinBudget, IsShortWhereWaitsAreLong) {
  SpinBudget budget(true);
  int64_t total = 0;
  constexpr int kWaits = 10'000;
  for (int i = 0; i < kWaits; ++i) {
    total += budget.budget_ns();
    budget.note(kLong);
  }
  EXPECT_LT(total / kWaits, 4 * SpinBudget::kLeastNs);
}

TEST(SpinBudget, GrowsAgainWhenWaitsBecomeShort) {
  SpinBudget budget;
  for (int i = 0; i < 10; ++i) budget.note(kLong);
  for (int i = 0; i < 30; ++i) budget.note(SpinBudget::kMostNs / 4);
  EXPECT_GT(budget.budget_ns(), SpinBudget::kMostNs / 4);
}

// A wait that is not caught takes as long as a wake-up, which is long here, and so says nothing.
TEST(SpinBudget, FindsOutThatWaitsThatSleepWouldBeShort) {
  constexpr int64_t kNeeded = SpinBudget::kMostNs / 4;
  SpinBudget budget(true);
  for (int i = 0; i < 20; ++i) budget.note(kLong);
  ASSERT_LT(budget.budget_ns(), kNeeded);
  int caught = 0;
  for (int i = 0; i < 200; ++i) {
    const bool is_caught = budget.budget_ns() >= kNeeded;
    budget.note(is_caught ? kNeeded : kLong);
    caught += is_caught ? 1 : 0;
  }
  EXPECT_GT(caught, 130);
}

TEST(SpinBudget, PollEndsWithTheConditionOrTheBudget) {
  int looks = 0;
  EXPECT_TRUE(SpinBudget::poll(INT64_MAX / 4, [&] { return ++looks == 1000; }));
  EXPECT_EQ(looks, 1000);
  looks = 0;
  EXPECT_FALSE(SpinBudget::poll(1, [&] { return ++looks < 0; }));
  EXPECT_GT(looks, 1);
  EXPECT_FALSE(SpinBudget::poll(0, [] { return true; })) << "not at all";
}

}  // namespace
}  // namespace tenon::impl
