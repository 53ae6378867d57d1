// SPDX-License-Identifier: Apache-2.0
//
// Viewers of a broadcast: they receive the newest item, and no producer waits for them.
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/repeats_testing.h"
#include "ipc/channel.h"

namespace tenon::impl {
namespace {

constexpr int64_t kPatienceNs = 600'000'000'000;

Ref<Channel> make(uint32_t slots, WhenFull when_full = WhenFull::kWait,
                  ChannelMode mode = ChannelMode::kBroadcast) {
  const tenon_field field{"k", {TENON_INT, 64, 1}, 0, nullptr};
  return Channel::create({&field, 1}, {slots, mode, when_full}, {});
}
Ref<Channel> open(Channel& channel, bool is_viewer) {
  return Channel::of(Ref<Array>::share(&channel.memory()), {.receives_latest = is_viewer});
}
bool put(Channel& channel, int64_t value, int64_t patience_ns = 0) {
  const Ref<Item> item = channel.loan(Deadline(patience_ns), nullptr);
  if (!item) return false;
  *reinterpret_cast<int64_t*>(item->array(0)->data()) = value;
  channel.send(*item);
  return true;
}
int64_t value_of(Item& item) { return *reinterpret_cast<const int64_t*>(item.array(0)->data()); }
// -1: there is none.
int64_t take(Channel& channel, int64_t patience_ns = 0) {
  const Ref<Item> item = channel.receive(Deadline(patience_ns), nullptr);
  return item ? value_of(*item) : -1;
}

TEST(ChannelViewer, ReceivesTheNewestItemOnce) {
  const Ref<Channel> channel = make(4);
  const Ref<Channel> viewer = open(*channel, true);
  EXPECT_EQ(take(*viewer), -1);
  for (int64_t k = 1; k <= 3; ++k) ASSERT_TRUE(put(*channel, k));
  EXPECT_EQ(take(*viewer), 3);
  EXPECT_EQ(take(*viewer), -1);
  ASSERT_TRUE(put(*channel, 4));
  EXPECT_EQ(take(*viewer), 4);
}

TEST(ChannelViewer, ThatNeverReceivesAgainHoldsNoProducer) {
  const Ref<Channel> channel = make(2);
  const Ref<Channel> consumer = open(*channel, false), viewer = open(*channel, true);
  EXPECT_EQ(take(*consumer), -1);
  EXPECT_EQ(take(*viewer), -1);
  EXPECT_EQ(channel->statistics().consumers, 1U) << "both are of one process";
  for (int64_t k = 1; k <= 10'000; ++k) {
    ASSERT_TRUE(put(*channel, k)) << k;
    ASSERT_EQ(take(*consumer), k);
  }
  EXPECT_EQ(take(*viewer), 10'000);
}

TEST(ChannelViewer, BlocksTheSlotAloneThatItReads) {
  const Ref<Channel> channel = make(2);
  const Ref<Channel> consumer = open(*channel, false), viewer = open(*channel, true);
  EXPECT_EQ(take(*consumer), -1);
  ASSERT_TRUE(put(*channel, 1));
  const Ref<Item> shown = viewer->receive(Deadline(0), nullptr);
  EXPECT_EQ(take(*consumer), 1);
  for (int64_t k = 2; k <= 100; ++k) {
    ASSERT_TRUE(put(*channel, k)) << k;
    ASSERT_EQ(take(*consumer), k);
  }
  EXPECT_EQ(value_of(*shown), 1);
}

// The cursor of a process is that of its consumers. Its viewers may be ahead of them.
TEST(ChannelViewer, DoesNotReceiveForTheConsumersOfItsProcess) {
  const Ref<Channel> channel = make(2);
  const Ref<Channel> consumer = open(*channel, false), viewer = open(*channel, true);
  EXPECT_EQ(take(*consumer), -1);
  ASSERT_TRUE(put(*channel, 1));
  ASSERT_TRUE(put(*channel, 2));
  EXPECT_EQ(take(*viewer), 2);
  EXPECT_FALSE(put(*channel, 3)) << "the consumer has received nothing";
  EXPECT_EQ(take(*consumer), 1);
  ASSERT_TRUE(put(*channel, 3));
  viewer->close();
  EXPECT_EQ(take(*consumer), 2);
  EXPECT_EQ(take(*consumer), 3);
}

TEST(ChannelViewer, IsNoConsumerForWhichItemsAreKept) {
  for (const WhenFull policy : {WhenFull::kWait, WhenFull::kKeep}) {
    const Ref<Channel> channel = make(2, policy);
    const Ref<Channel> viewer = open(*channel, true);
    EXPECT_EQ(take(*viewer), -1);
    ASSERT_TRUE(put(*channel, 1));
    ASSERT_TRUE(put(*channel, 2));
    EXPECT_EQ(take(*viewer), 2);
    EXPECT_EQ(put(*channel, 3), policy == WhenFull::kWait);
    const Ref<Channel> late = open(*channel, false);
    EXPECT_EQ(take(*late), policy == WhenFull::kWait ? 2 : 1) << "what no consumer has received";
  }
}

TEST(ChannelViewer, ThatComesLateGetsTheNewestItem) {
  const Ref<Channel> channel = make(3);
  const Ref<Channel> consumer = open(*channel, false);
  EXPECT_EQ(take(*consumer), -1);
  for (int64_t k = 1; k <= 3; ++k) {
    ASSERT_TRUE(put(*channel, k));
    EXPECT_EQ(take(*consumer), k);
  }
  const Ref<Channel> viewer = open(*channel, true);
  EXPECT_EQ(take(*viewer), 3);
}

TEST(ChannelViewer, ReceivesAnItemAgainThatItHasPutBack) {
  const Ref<Channel> channel = make(3);
  const Ref<Channel> viewer = open(*channel, true);
  ASSERT_TRUE(put(*channel, 1));
  const Ref<Item> item = viewer->receive(Deadline(0), nullptr);
  viewer->put_back(*item);
  EXPECT_EQ(take(*viewer), 1);
}

TEST(ChannelViewer, OfAQueueIsRefused) {
  const Ref<Channel> channel = make(3, WhenFull::kWait, ChannelMode::kQueue);
  try {
    (void)open(*channel, true);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kValue);
  }
}

TEST(ChannelViewer, IsToldOfTheEndAfterTheLastItem) {
  const Ref<Channel> channel = make(3);
  const Ref<Channel> producer = open(*channel, false), viewer = open(*channel, true);
  ASSERT_TRUE(put(*producer, 1));
  producer->close();
  EXPECT_EQ(take(*viewer), 1);
  EXPECT_THROW((void)take(*viewer), Error);
}

// Oracle: the consumer gets each item in order; what a viewer gets grows, and the last item is among it.
TEST(ChannelViewer, SeesTheLastItemBesideConsumersThatSeeAll) {
  const int64_t n = repeats(100'000, 10'000);
  const Ref<Channel> channel = make(3);
  const Ref<Channel> consumer = open(*channel, false);
  EXPECT_EQ(take(*consumer), -1);
  std::atomic<int> ready{0};
  std::vector<std::thread> viewers;
  for (int i = 0; i < 2; ++i) {
    viewers.emplace_back([&] {
      const Ref<Channel> viewer = open(*channel, true);
      int64_t last = take(*viewer);
      ++ready;
      while (last != n) {
        const int64_t now = take(*viewer, kPatienceNs);
        EXPECT_GT(now, last);
        last = now;
      }
    });
  }
  while (ready.load() != 2) std::this_thread::yield();
  std::thread producer([&] {
    for (int64_t k = 1; k <= n; ++k) ASSERT_TRUE(put(*channel, k, kPatienceNs));
  });
  for (int64_t k = 1; k <= n; ++k) EXPECT_EQ(take(*consumer, kPatienceNs), k);
  producer.join();
  for (std::thread& viewer : viewers) viewer.join();
}

}  // namespace
}  // namespace tenon::impl
