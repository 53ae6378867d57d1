// SPDX-License-Identifier: Apache-2.0
//
// How the serving of a feed ends, and what consumers know that come in the middle of it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "data/attached_feed.h"
#include "data/feed_peers_testing.h"
#include "data/served_feed_testing.h"
#include "ipc/layout.h"

namespace tenon::impl {
namespace {

using serving::begin_first;
using serving::Peer;
using serving::Served;
using serving::take;
using serving::unique_name;

// --------------------------------------------------------------------- where consumers stop receiving

// A broadcast is closed while two consumers have two batches each, and the third one becomes ready. The first
// consumer takes it as soon as it may, the second one once the serving has ended.
class ClosingBroadcast : public testing::Test {
 protected:
  void SetUp() override {
    TENON_SKIP_UNDER_TSAN();
    ASSERT_EQ(pipe(gate_), 0);
    serving::gate = gate_[0];
  }
  void TearDown() override {
    serving::gate = -1;
    for (const int fd : gate_) close(fd);
  }

  // Which process reaches its store first, and goes on first. kServerFirstAndOn: the server in both.
  enum class Order { kServerFirst, kConsumerFirst, kServerFirstAndOn };
  // The server stops before store number `of_server` of the end, the first consumer before store number
  // `of_consumer` of the third batch; 0: never. Then they go on, one after the other.
  void close_at(long of_server, long of_consumer, Order order) {
    const std::string name = unique_name();
    const auto receive = [&](bool stops) {
      AttachedFeed feed(name);
      feed.begin();
      for (int n = 0;; ++n) {
        if (stops && n == 2) (void)stop_at_store(of_consumer);
        if (!take(feed)) {
          (void)stop_at_store(0);
          return n;
        }
        Peer::say();
      }
    };
    Peer first([&] { return receive(true); }), second([&] { return receive(false); });
    // Its workers are processes: they go on while it is stopped.
    Peer server([&] {
      Served served(20, -1, TENON_PROCESSES, name);
      served.feed->serve({.mode = ServedMode::kBroadcast, .consumers = 2});
      Peer::say();
      if (served.wait() != ServeWhat::kGathered) return 1;
      served.feed->serve_next();
      if (!Peer::await()) return 2;
      (void)stop_at_store(of_server);
      served.feed->serve_end();
      (void)stop_at_store(0);
      Peer::say();
      return Peer::await() ? 0 : 3;
    });
    server.go();
    server.hear();
    first.go();
    second.go();
    for (Peer* const consumer : {&first, &second}) {
      consumer->hear();
      consumer->hear();
    }
    second.stop();
    while (!second.is_stopped()) std::this_thread::yield();
    const auto begin_to_end = [&] {
      server.go();
      has_ended_ = false;
      while (!server.is_stopped() && !(has_ended_ = server.hears(1))) {
      }
    };
    const auto fill_third = [&] {
      EXPECT_EQ(write(gate_[1], "x", 1), 1);
      is_taken_ = false;
      for (int i = 0; i < 10 && !first.is_stopped() && !(is_taken_ = first.hears(2)); ++i) {
      }
    };
    if (order != Order::kConsumerFirst) {
      begin_to_end();
      fill_third();
    } else {
      fill_third();
      begin_to_end();
    }
    const auto end_serving = [&] {
      if (has_ended_) return;
      server.go_on();
      server.hear();
    };
    if (order == Order::kServerFirstAndOn) end_serving();
    if (first.is_stopped()) {
      first.go_on();
      is_taken_ = is_taken_ || first.hears(20);
    }
    if (order != Order::kServerFirstAndOn) end_serving();
    second.go_on();
    int of_first = Peer::kRuns;
    while ((of_first = first.ended()) == Peer::kRuns) {
      if (first.is_stopped()) first.go_on();  // in a store that comes later
    }
    const int of_second = second.join();
    EXPECT_EQ(of_first, of_second);
    EXPECT_GE(of_first, is_taken_ ? 3 : 2);
    EXPECT_LE(of_first, 3);
    EXPECT_EQ(write(gate_[1], std::string(64, 'x').data(), 64), 64);
    server.go();
    EXPECT_EQ(server.join(), 0);
    char left = 0;
    (void)fcntl(gate_[0], F_SETFL, O_NONBLOCK);
    while (read(gate_[0], &left, 1) == 1) {
    }
    (void)fcntl(gate_[0], F_SETFL, 0);
  }

  int gate_[2] = {-1, -1};
  bool has_ended_ = false, is_taken_ = false;
};

TEST_F(ClosingBroadcast, AllConsumersStopAtTheSameBatchWhereverTheServerStops) {
  for (long of_server = 0; of_server <= 8 && !HasFailure(); ++of_server) {
    SCOPED_TRACE(of_server);
    close_at(of_server, 0, Order::kServerFirst);
  }
}

TEST_F(ClosingBroadcast, AllConsumersStopAtTheSameBatchWhereverOneStops) {
  for (long of_consumer = 1; of_consumer <= 10 && !HasFailure(); ++of_consumer) {
    SCOPED_TRACE(of_consumer);
    close_at(0, of_consumer, Order::kConsumerFirst);
    close_at(1 + of_consumer % 6, of_consumer, Order::kConsumerFirst);
    for (const long of_server : {1, 2, 3}) close_at(of_server, of_consumer, Order::kServerFirstAndOn);
  }
}

// ------------------------------------------------------------------------------------------- the name

TEST(ServedName, GoesWithTheLastBatch) {
  TENON_SKIP_UNDER_TSAN();
  const std::string name = unique_name();
  Peer consumer([&] {
    Ref<Batch> one, two;
    {
      AttachedFeed feed(name);
      feed.begin();
      one = take(feed);
      two = take(feed);
    }
    Peer::say();
    if (!Peer::await()) return 1;
    one = {};
    Peer::say();
    if (!Peer::await()) return 2;
    const Ref<Array> array = two->array(0);
    two = {};  // the array holds its memory
    Peer::say();
    if (!Peer::await()) return 3;
    return *reinterpret_cast<const uint64_t*>(array->data()) == 1 ? 0 : 4;
  });
  {
    Served served(20, -1, 0, name);
    served.feed->serve({.consumers = 1});
    consumer.go();
    begin_first(served);
    consumer.hear();
  }
  Served again(20, -1, 0, name);
  EXPECT_THROW(again.feed->serve({}), Error) << "two batches";
  for (const char* const left : {"one batch", "one array"}) {
    consumer.go();
    consumer.hear();
    EXPECT_THROW(again.feed->serve({}), Error) << left;
  }
  consumer.go();
  EXPECT_EQ(consumer.join(), 0);
  EXPECT_NO_THROW(again.feed->serve({}));
}

TEST(ServedName, IsFreeAgainOnceTheBatchesOfADeadServerAreGone) {
  TENON_SKIP_UNDER_TSAN();
  const std::string name = unique_name();
  Peer server([&] {
    Served served(20, -1, 0, name);
    served.feed->serve({.consumers = 1});
    Peer::say();
    if (served.wait() != ServeWhat::kGathered) return 1;
    served.feed->serve_next();
    return Peer::await() ? 0 : 2;
  });
  server.go();
  server.hear();
  Served again(20, -1, 0, name);
  Ref<Batch> kept;
  {
    AttachedFeed feed(name);
    feed.begin();
    kept = take(feed);
    server.kill();
  }
  EXPECT_THROW(again.feed->serve({}), Error);
  EXPECT_EQ(*reinterpret_cast<const uint64_t*>(kept->array(0)->data()), 0U);
  kept = {};
  EXPECT_NO_THROW(again.feed->serve({}));
}

// ------------------------------------------------------------------- states of a consumer that comes late

// The indices of the batches after which the workers have their states.
std::string states_of(const AttachedFeed& feed) {
  bool is_gap = false;
  const FeedPosition position = feed.state(&is_gap);
  std::string text =
      concat("epoch ", position.epoch, " batch ", position.place, " worker ", position.worker, ":");
  for (const WorkerState& state : position.states) {
    uint64_t content = 0;
    if (state.bytes) std::memcpy(&content, state.bytes->data(), sizeof content);
    text += state.bytes ? concat(" ", content >> 32, "/", content & UINT32_MAX) : " start";
  }
  return text;
}

struct LateCase {
  ServedMode mode;
  bool notes;  // the server notes what was received meanwhile
};

class LateConsumer : public testing::TestWithParam<LateCase> {
 protected:
  void SetUp() override { TENON_SKIP_UNDER_TSAN(); }

  // The states that a consumer says after one batch, which comes when another one has received this many of
  // the second epoch, of which it keeps two.
  void expect_states(int received, const std::string& expected) {
    const std::string name = unique_name();
    Peer early([&] {
      AttachedFeed feed(name);
      if (serving::take_loop(feed) != 6) return 1;
      feed.begin();
      std::vector<Ref<Batch>> kept;
      for (int i = 0; i < received; ++i) {
        kept.push_back(take(feed));
        if (kept.size() > 2) kept.erase(kept.begin());
      }
      Peer::say();
      return Peer::await() ? 0 : 2;
    });
    Peer late([&] {
      AttachedFeed feed(name);
      feed.begin();
      (void)take(feed);
      const std::string said = states_of(feed);
      if (said == expected) return 0;
      (void)std::fprintf(stderr, "%s\nand not\n%s\n", said.c_str(), expected.c_str());
      return 1;
    });
    Served served(6, -1, 0, name, true);
    served.feed->serve({.mode = GetParam().mode, .consumers = 1});
    early.go();
    begin_first(served);
    ASSERT_EQ(served.wait(), ServeWhat::kEpochEnded);
    served.feed->serve_next();
    early.hear();
    if (GetParam().notes) (void)served.feed->serve_wait(0);
    late.go();
    EXPECT_EQ(late.join(), 0) << received;
    early.go();
    EXPECT_EQ(early.join(), 0);
  }
};

TEST_P(LateConsumer, KnowsTheStatesAfterWhatOthersHaveReceived) {
  expect_states(0, "epoch 1 batch 1 worker 1: 1/0 0/5");
  expect_states(1, "epoch 1 batch 2 worker 0: 1/0 1/1");
  expect_states(2, "epoch 1 batch 3 worker 1: 1/2 1/1");
  // All slots but those that are kept are free again only if the server notes their states.
  if (GetParam().notes) expect_states(4, "epoch 1 batch 5 worker 1: 1/4 1/3");
}

INSTANTIATE_TEST_SUITE_P(Feeds, LateConsumer,
                         testing::Values(LateCase{ServedMode::kQueue, false},
                                         LateCase{ServedMode::kQueue, true},
                                         LateCase{ServedMode::kBroadcast, false},
                                         LateCase{ServedMode::kBroadcast, true}));

}  // namespace
}  // namespace tenon::impl
