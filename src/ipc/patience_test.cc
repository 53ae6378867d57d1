// SPDX-License-Identifier: Apache-2.0
#include "ipc/patience.h"

#include <gtest/gtest.h>

namespace tenon::impl {
namespace {

TEST(Patience, LooksLongAtFirst) { EXPECT_EQ(Patience().spins(), Patience::kMost); }

TEST(Patience, LooksLessWhereThatIsInVain) {
  Patience patience;
  uint32_t total = 0;
  for (int i = 0; i < 30; ++i) {
    total += patience.spins();
    patience.note(patience.spins(), false);
  }
  EXPECT_EQ(patience.spins(), Patience::kLeast);
  EXPECT_LT(total, 2 * Patience::kMost + 30 * Patience::kLeast);
}

TEST(Patience, LooksLongerWhereThatIsWorthIt) {
  Patience patience;
  for (int i = 0; i < 20; ++i) patience.note(patience.spins(), false);
  for (int i = 0; i < 10; ++i) patience.note(patience.spins(), true);
  EXPECT_EQ(patience.spins(), Patience::kMost);
}

// Waits that looking long would catch: they are found again, and from then on caught.
TEST(Patience, FindsOutThatWaitsHaveBecomeShorter) {
  constexpr uint32_t kNeeded = Patience::kMost / 4;
  Patience patience;
  for (int i = 0; i < 20; ++i) patience.note(patience.spins(), false);
  ASSERT_LT(patience.spins(), kNeeded);
  int caught = 0;
  for (int i = 0; i < 200; ++i) {
    const uint32_t spins = patience.spins();
    patience.note(spins, spins >= kNeeded);
    caught += spins >= kNeeded;
  }
  EXPECT_GT(caught, 130);
  EXPECT_EQ(patience.spins(), Patience::kMost);
}

// Waits that no looking would catch cost little.
TEST(Patience, TrialsAreRare) {
  Patience patience;
  uint64_t total = 0;
  constexpr int kWaits = 10'000;
  for (int i = 0; i < kWaits; ++i) {
    total += patience.spins();
    patience.note(patience.spins(), false);
  }
  EXPECT_LT(total / kWaits, 4 * Patience::kLeast);
}

}  // namespace
}  // namespace tenon::impl
