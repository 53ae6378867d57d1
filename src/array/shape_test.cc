// SPDX-License-Identifier: Apache-2.0
#include "array/shape.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"

namespace tenon::impl {
namespace {

using Vector = std::vector<int64_t>;

TEST(Shape, SizeOfNoAxesIsOne) { EXPECT_EQ(element_count(Vector{}, 32), 1); }

TEST(Shape, AnAxisOfLengthZeroEmptiesEvenHugeShapes) {
  EXPECT_EQ(element_count(Vector{int64_t{1} << 40, int64_t{1} << 40, 0}, 32), 0);
}

TEST(Shape, OverflowOfElementsOrBytesIsAnError) {
  EXPECT_THROW(element_count(Vector{int64_t{1} << 40, int64_t{1} << 40}, 8), Error);
  EXPECT_THROW(element_count(Vector{int64_t{1} << 60}, 64), Error);
  EXPECT_EQ(element_count(Vector{int64_t{1} << 56}, 64), int64_t{1} << 56);
}

TEST(Shape, NegativeEntriesAndTooManyAxesAreErrors) {
  const Vector negative{2, -1};
  EXPECT_THROW(checked_shape(2, negative.data()), Error);
  EXPECT_THROW(checked_shape(TENON_MAX_NDIM + 1, negative.data()), Error);
  EXPECT_THROW(checked_shape(-1, negative.data()), Error);
  EXPECT_THROW(checked_shape(1, nullptr), Error);
  EXPECT_EQ(checked_shape(0, nullptr).size(), 0U);
}

TEST(Shape, ContiguityIgnoresStridesThatMeanNothing) {
  EXPECT_TRUE(is_c_contiguous(Vector{2, 3}, Vector{3, 1}));
  EXPECT_TRUE(is_c_contiguous(Vector{1, 3}, Vector{999, 1}));
  EXPECT_TRUE(is_c_contiguous(Vector{0, 3}, Vector{7, -7}));
  EXPECT_TRUE(is_c_contiguous(Vector{}, Vector{}));
  EXPECT_FALSE(is_c_contiguous(Vector{2, 3}, Vector{1, 2}));
  EXPECT_FALSE(is_c_contiguous(Vector{3}, Vector{-1}));
  EXPECT_FALSE(is_c_contiguous(Vector{3}, Vector{0}));
}

TEST(Shape, ReachFollowsNegativeStrides) {
  const std::optional<Reach> r = reach(Vector{2, 3}, Vector{-3, 1}, 4, 4);
  ASSERT_TRUE(r);
  EXPECT_EQ(r->low, -12);
  EXPECT_EQ(r->high, 12);
  const std::optional<Reach> empty = reach(Vector{3, 0}, Vector{1, 5}, 4, 4);
  ASSERT_TRUE(empty);
  EXPECT_EQ(empty->low, 0);
  EXPECT_EQ(empty->high, 0);
  EXPECT_FALSE(reach(Vector{3}, Vector{INT64_MAX}, 1, 1)) << "the product";
  EXPECT_FALSE(reach(Vector{3}, Vector{INT64_MAX / 4}, 1, 4)) << "the product with the unit";
  EXPECT_FALSE(reach(Vector{2, 2}, Vector{INT64_MAX / 2, INT64_MAX / 2}, 4, 1)) << "the sum";
}

}  // namespace
}  // namespace tenon::impl
