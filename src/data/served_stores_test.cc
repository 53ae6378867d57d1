// SPDX-License-Identifier: Apache-2.0
//
// A consumer of a served feed stops before each of its stores in turn, while it receives and gives back
// batches. Then it is killed. The others get each batch but those that it had received, in order, and the
// epoch ends. At the end no slot is lost.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <tuple>

#include "data/attached_feed.h"
#include "data/feed_peers_testing.h"
#include "data/served_feed_testing.h"
#include "ipc/layout.h"

namespace tenon::impl {
namespace {

using serving::Peer;
using serving::Served;
using serving::take_loop;
using serving::unique_name;

constexpr int64_t kBatches = 30;

// 99: it was never stopped.
int receive_some(const std::string& name, long store) {
  AttachedFeed feed(name);
  (void)stop_at_store(store);
  feed.begin();
  for (int i = 0; i < 3; ++i) {
    Ref<Batch> batch;
    if (!feed.next(60 * kSecond, batch)) return 1;
    if (!batch) break;
  }
  const bool is_whole = stop_at_store(0);
  feed.close();
  return is_whole ? 99 : 0;
}

// False: the consumer has fewer stores.
bool stop_at(long store, ServedMode mode, bool has_state) {
  const std::string name = unique_name();
  Peer victim([&] { return receive_some(name, store); });
  Peer other([&] {
    AttachedFeed feed(name);
    return take_loop(feed);
  });
  Served served(kBatches, -1, 0, name, has_state);
  served.feed->serve({.mode = mode, .consumers = 1});
  other.go();
  EXPECT_EQ(served.wait(), ServeWhat::kGathered);
  victim.go();
  // It takes part in the round, if it does not stop before.
  while (served.feed->serve_wait(1'000'000).consumers < 2 && !victim.is_stopped()) {
  }
  served.feed->serve_next();
  int code = Peer::kRuns;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  ServeReport report;
  while (report.what != ServeWhat::kEpochEnded && std::chrono::steady_clock::now() < end) {
    report = served.feed->serve_wait(1'000'000);
    if (code == Peer::kRuns) code = victim.ended();
    if (code == Peer::kRuns && victim.is_stopped()) {
      victim.kill();
      code = 0;
    }
  }
  EXPECT_EQ(report.what, ServeWhat::kEpochEnded);
  const int n = other.join();
  EXPECT_LE(n, kBatches);
  EXPECT_GE(n, mode == ServedMode::kBroadcast ? kBatches : kBatches - 3);
  (void)served.feed->serve_wait(0);
  served.feed->serve_end();
  while (code == Peer::kRuns) {
    code = victim.ended();
    if (code == Peer::kRuns && victim.is_stopped()) {
      victim.kill();
      code = 0;
    }
  }
  EXPECT_GE(code, 0) << "it was ended by a signal";
  EXPECT_EQ(served.feed->statistics().slots_held, 0);
  // Each slot is filled again.
  Ref<Batch> batch;
  served.feed->begin();
  for (int64_t i = 0; i < kBatches; ++i) {
    EXPECT_TRUE(served.feed->next(10 * kSecond, batch)) << served.feed->waiting_text();
    EXPECT_TRUE(batch && batch->ticket().index == static_cast<uint64_t>(i));
    batch = {};
  }
  return code != 99;
}

class ServedStores : public testing::TestWithParam<std::tuple<ServedMode, bool>> {};

TEST_P(ServedStores, AConsumerThatStopsAtAnyHoldsUpNobodyOnceItIsDead) {
  TENON_SKIP_UNDER_TSAN();
  const auto [mode, has_state] = GetParam();
  long n = 1;
  while (stop_at(n, mode, has_state) && !HasFailure()) ++n;
  EXPECT_FALSE(HasFailure()) << "at store " << n;
  EXPECT_GE(n, 12);
}

INSTANTIATE_TEST_SUITE_P(Feeds, ServedStores,
                         testing::Combine(testing::Values(ServedMode::kQueue, ServedMode::kBroadcast),
                                          testing::Bool()));

}  // namespace
}  // namespace tenon::impl
