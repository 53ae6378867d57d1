// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <gtest/gtest.h>

namespace tenon::impl {
namespace {

// A caller that does not wait must not be found by others in a cycle of waits.
TEST(Deadline, WithoutTimeHasPassedAtTheFirstLook) {
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(Deadline::from_first_look(0).has_passed());
    EXPECT_TRUE(Deadline(0).has_passed());
  }
  EXPECT_TRUE(Deadline::from_first_look(0).leaves_no_time());
}

TEST(Deadline, StartsAtTheFirstLook) {
  const Deadline deadline = Deadline::from_first_look(10 * kSecond);
  EXPECT_FALSE(deadline.has_passed());
  EXPECT_GT(deadline.left_ns(), 9 * kSecond);
  EXPECT_LE(deadline.left_ns(), 10 * kSecond);
  EXPECT_FALSE(Deadline::from_first_look(-1).has_passed());
  EXPECT_EQ(Deadline(-1).left_ns(), INT64_MAX);
}

}  // namespace
}  // namespace tenon::impl
