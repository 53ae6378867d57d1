// SPDX-License-Identifier: Apache-2.0
//
// The laws of block allocators, and of the thread that sweeps them.
#include "ipc/block_allocator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <utility>
#include <vector>

#include "ipc/mutex_owner.h"
#include "ipc/stand_in_testing.h"

namespace tenon::impl {
namespace {

class BlockAllocators : public testing::Test {
 protected:
  static constexpr uint64_t kData = uint64_t{512} << 20;
  static constexpr uint64_t kLarge = uint64_t{96} << 20;
  StandIn owner_{64, kData};
  BlockAllocator allocator_{owner_.segment()};

  void drop(const AllocatedBlock& allocation) {
    (void)owner_.segment().leave(allocation.block);
    allocator_.note_left(allocation.block);
  }
};

TEST_F(BlockAllocators, MemoryThatWasUsedIsUsedAgain) {
  const AllocatedBlock first = allocator_.allocate(1 << 20);
  ASSERT_NE(first.block, Segment::kNone);
  EXPECT_TRUE(first.is_fresh);
  EXPECT_EQ(first.begin % kPage, 0U);
  owner_.segment().data()[first.begin] = std::byte{1};
  drop(first);
  EXPECT_FALSE(allocator_.reclaim());
  const AllocatedBlock again = allocator_.allocate(1 << 20);
  EXPECT_EQ(again.begin, first.begin);
  EXPECT_FALSE(again.is_fresh);
  drop(again);
}

TEST_F(BlockAllocators, WhatIsMoreThanIsKeptGoesBackAndReadsAsZero) {
  std::vector<AllocatedBlock> allocations;
  for (int i = 0; i < 4; ++i) {
    allocations.push_back(allocator_.allocate(kLarge));
    ASSERT_NE(allocations.back().block, Segment::kNone);
    owner_.segment().data()[allocations.back().begin] = std::byte{1};
  }
  for (const AllocatedBlock& allocation : allocations) drop(allocation);
  EXPECT_FALSE(allocator_.reclaim());
  EXPECT_LE(allocator_.idle_nbytes(), uint64_t{256} << 20);
  EXPECT_GT(allocator_.idle_nbytes(), 0U);
  for (int i = 0; i < 4; ++i) {
    const AllocatedBlock allocation = allocator_.allocate(kLarge);
    ASSERT_NE(allocation.block, Segment::kNone);
    const bool is_zero = owner_.segment().data()[allocation.begin] == std::byte{0};
    EXPECT_TRUE(is_zero || !allocation.is_fresh);
    drop(allocation);
  }
  EXPECT_FALSE(allocator_.reclaim());
}

TEST_F(BlockAllocators, StretchesNeverOverlapAndAllComesBack) {
  std::mt19937_64 random(20260101);
  struct Live {
    AllocatedBlock allocation;
    uint64_t nbytes;
    std::byte mark;
  };
  std::vector<Live> live;
  const auto bytes = [&](const Live& l) { return owner_.segment().data() + l.allocation.begin; };
  for (int step = 0; step < 4000; ++step) {
    if (live.size() < 64 && random() % 2 == 0) {
      Live next{
          {}, random() % 3 == 0 ? random() % (3 << 20) : random() % 5000, std::byte(random() % 255 + 1)};
      next.allocation = allocator_.allocate(next.nbytes);
      ASSERT_NE(next.allocation.block, Segment::kNone);
      if (next.nbytes != 0) bytes(next)[0] = bytes(next)[next.nbytes - 1] = next.mark;
      live.push_back(next);
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      const Live& last = live.back();
      if (last.nbytes != 0) {
        ASSERT_EQ(bytes(last)[0], last.mark);
        ASSERT_EQ(bytes(last)[last.nbytes - 1], last.mark);
      }
      drop(last.allocation);
      live.pop_back();
      (void)allocator_.reclaim();
    }
  }
  for (const Live& l : live) drop(l.allocation);
  EXPECT_FALSE(allocator_.reclaim());
  const AllocatedBlock all = allocator_.allocate(kData - kPage);
  EXPECT_NE(all.block, Segment::kNone) << "the free stretches have grown together";
  drop(all);
}

TEST_F(BlockAllocators, MoreBlocksThanThereAreIsNoRoom) {
  std::vector<AllocatedBlock> allocations;
  for (uint32_t i = 0; i < 64; ++i) allocations.push_back(allocator_.allocate(8));
  EXPECT_EQ(allocator_.allocate(8).block, Segment::kNone);
  drop(allocations[17]);
  EXPECT_FALSE(allocator_.reclaim());
  EXPECT_EQ(allocator_.allocate(8).block, allocations[17].block);
}

TEST(MutexOwnerChores, AnUnfinishedOneRunsAgainWhateverElseIsAskedFor) {
  static std::atomic<int> runs{0};
  runs = 0;
  MutexOwner mutex_owner;
  mutex_owner.call([] {});
  mutex_owner.nudge([]() noexcept { return std::chrono::milliseconds{runs.fetch_add(1) < 1 ? 100 : 0}; });
  ASSERT_TRUE(comes_true([] { return runs >= 1; }));
  mutex_owner.call([] {});
  EXPECT_TRUE(comes_true([] { return runs >= 2; })) << "the call made it forget the chore";
}

}  // namespace
}  // namespace tenon::impl
