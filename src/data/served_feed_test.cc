// SPDX-License-Identifier: Apache-2.0
//
// The server's side of a served feed. The consumers are threads of this process, each in its turn at the
// place of the process: attached_feed_test has those in other processes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "array/dtype.h"
#include "base/error.h"
#include "data/feed.h"
#include "data/served_feed_testing.h"
#include "ipc/segments.h"
#include "ipc/served_ends.h"

namespace tenon::impl {
namespace {

using serving::Served;
using serving::unique_name;

// As an attached feed does.
class Consumer {
 public:
  explicit Consumer(const std::string& name)
      : array_(Segments::instance().attach(name, true)),
        segment_(Segments::feed_segment_of(*array_)),
        ends_(segment_.control()),
        p_(segment_.participant().index()),
        control_(reinterpret_cast<std::byte*>(&ends_.state()), read_head()),
        tickets_(FreeSlots(control_, {nullptr, nullptr}, p_)) {}

  void join() {
    ends_.begin_join(p_, false);
    Tickets::Round round;
    while (!tickets_.read_round(round)) std::this_thread::yield();
    const bool is_gathering = look(ends_.state().phase) == ServedPhase::kGathering;
    const bool is_told = observe(ends_.state().told) == round.base;
    last_ = is_gathering || is_told ? round.base : 0;
    ends_.end_join(p_, last_);
  }
  void leave() { ends_.leave(p_); }
  // The indices of the batches after which the workers had them.
  std::string noted() const {
    std::vector<KnownState> states;
    uint64_t number = 0;
    EXPECT_TRUE(tickets_.read_noted(states, number));
    EXPECT_EQ(number, ends_.table().passed());
    std::string text;
    for (const KnownState& state : states) {
      uint64_t content = 0;
      if (state.number != 0) std::memcpy(&content, state.bytes.data(), sizeof content);
      text += concat(text.empty() ? "" : " ", state.number == 0 ? "start" : concat(content));
    }
    return text;
  }
  // The indices of a round, and why it ended.
  std::vector<uint64_t> take_round(std::string* failure = nullptr, size_t most = SIZE_MAX) {
    std::vector<uint64_t> indices;
    Tickets::Round round;
    while (!tickets_.read_round(round) || round.base <= last_) std::this_thread::yield();
    while (indices.size() < most) {
      ends_.help();
      const uint64_t n = ends_.table().passed() + 1;
      if (const uint64_t closing = observe(ends_.state().closing); closing != 0 && n >= closing) break;
      const Tickets::Look front = n == round.limit ? Tickets::Look{Tickets::Look::kEnd} : tickets_.look_at(n);
      if (front.kind == Tickets::Look::kPending) {
        std::this_thread::yield();
        continue;
      }
      if (front.kind == Tickets::Look::kBatch) {
        if (!ends_.take(p_, front.slot, n)) continue;
        tickets_.note_passed(n, round.limit);
        const Ticket ticket = tickets_.read_record(front.slot);
        uint64_t content = 0;
        std::memcpy(&content,
                    segment_.bytes_of(1).data() + front.slot * control_.head().layout.slot_nbytes +
                        serving::schema()->fields()[0].offset,
                    sizeof content);
        EXPECT_EQ(content, ticket.epoch << 32 | ticket.index);
        indices.push_back(ticket.index);
        ends_.release(p_, front.slot, n);
        continue;
      }
      if (front.kind == Tickets::Look::kFailure && failure != nullptr)
        *failure = tickets_.failure_at(front, n).message;
      last_ = round.base;
      ends_.end_round(p_, round.base);
      break;
    }
    return indices;
  }

 private:
  FeedHead read_head() const {
    FeedHead head{};
    const auto* const base = reinterpret_cast<const std::byte*>(&ends_.state());
    std::memcpy(&head, base + ServedState::end_at(segment_.control().feed_slots), sizeof head);
    check_head(head, segment_.data_nbytes());
    return head;
  }

  Ref<Array> array_;
  Segment& segment_;
  ServedEnds ends_;
  uint32_t p_;
  FeedControl control_;
  Tickets tickets_;
  uint64_t last_ = 0;
};

std::vector<uint64_t> all(uint64_t n) {
  std::vector<uint64_t> indices;
  for (uint64_t i = 0; i < n; ++i) indices.push_back(i);
  return indices;
}

TEST(ServedFeed, AConsumerGetsEachBatchOfEachEpoch) {
  Served served(20);
  served.feed->serve({.mode = ServedMode::kQueue, .consumers = 1, .note = "a note"});
  EXPECT_EQ(served.feed->serve_wait(0).what, ServeWhat::kNothing) << "no consumer is there";
  std::thread consumer([&] {
    Consumer self(served.name);
    self.join();
    for (int epoch = 0; epoch < 3; ++epoch) EXPECT_EQ(self.take_round(), all(20));
    self.leave();
  });
  EXPECT_EQ(served.wait(), ServeWhat::kGathered);
  for (int epoch = 0; epoch < 3; ++epoch) {
    served.feed->serve_next();
    EXPECT_EQ(served.wait(), ServeWhat::kEpochEnded);
  }
  consumer.join();
  served.feed->serve_end();
  EXPECT_EQ(served.wait(), ServeWhat::kOver);
}

TEST(ServedFeed, AFailureEndsItsEpoch) {
  Served served(20, 7);
  served.feed->serve({.consumers = 1});
  std::thread consumer([&] {
    Consumer self(served.name);
    self.join();
    std::string failure;
    EXPECT_EQ(self.take_round(&failure), all(7));
    EXPECT_EQ(failure, "no batch 7");
    self.leave();
  });
  EXPECT_EQ(served.wait(), ServeWhat::kGathered);
  served.feed->serve_next();
  const ServeReport report = served.feed->serve_wait(10 * kSecond);
  EXPECT_EQ(report.what, ServeWhat::kEpochEnded);
  EXPECT_TRUE(report.has_failure);
  EXPECT_EQ(served.feed->failure().index, 7U);
  EXPECT_STREQ(served.feed->failure().text, "no batch 7");
  consumer.join();
}

TEST(ServedFeed, WhatIsReadyComesBeforeTheEnd) {
  Served served(20);
  served.feed->serve({.consumers = 1});
  Consumer self(served.name);
  self.join();
  EXPECT_EQ(served.wait(), ServeWhat::kGathered);
  served.feed->serve_next();
  EXPECT_EQ(self.take_round(nullptr, 2), all(2));
  while (served.feed->serve_wait(0).unread < 3) std::this_thread::yield();
  const uint64_t batches = 2 + 3;
  served.feed->serve_end();
  EXPECT_EQ(self.take_round(), (std::vector<uint64_t>{2, 3, 4})) << batches;
  served.feed->close(kSecond);
}

TEST(ServedFeed, ItsOwnConsumersAreRefused) {
  Served served(20);
  Ref<Batch> batch;
  served.feed->begin();
  ASSERT_TRUE(served.feed->next(-1, batch));
  EXPECT_EQ(batch->ticket().index, 0U);
  EXPECT_EQ(served.feed->statistics().slots_held, 1);
  batch = {};
  EXPECT_EQ(served.feed->statistics().slots_held, 0);
  served.feed->serve({});
  EXPECT_THROW(served.feed->begin(), Error);
  EXPECT_THROW(served.feed->next(0, batch), Error);
  EXPECT_THROW(served.feed->serve({}), Error);
  served.feed->serve_end();
  EXPECT_THROW(served.feed->serve({.mode = ServedMode::kBroadcast}), Error) << "another mode than before";
  served.feed->begin();
  ASSERT_TRUE(served.feed->next(-1, batch));
  EXPECT_EQ(batch->ticket().index, 0U);
}

// Consumers go on from there.
TEST(ServedFeed, TheNotedStatesAreThoseAfterTheNotedBatches) {
  Served served(20, -1, 0, unique_name(), true);
  served.feed->serve({.consumers = 1});
  Consumer self(served.name);
  self.join();
  EXPECT_EQ(served.wait(), ServeWhat::kGathered);
  served.feed->serve_next();
  EXPECT_EQ(self.noted(), "start start");
  EXPECT_EQ(self.take_round(nullptr, 5), all(5));
  (void)served.feed->serve_wait(0);
  EXPECT_EQ(self.noted(), "4 3");
  EXPECT_EQ(self.take_round(nullptr, 1), std::vector<uint64_t>{5});
  (void)served.feed->serve_wait(0);
  EXPECT_EQ(self.noted(), "4 5");
}

TEST(ServedFeed, AServerWithoutWorkersFillsItself) {
  Served served(20, -1, 0, unique_name(), false, 0);
  served.feed->serve({.consumers = 1});
  std::thread consumer([&] {
    Consumer self(served.name);
    self.join();
    for (int epoch = 0; epoch < 2; ++epoch) EXPECT_EQ(self.take_round(), all(20));
    self.leave();
  });
  EXPECT_EQ(served.wait(), ServeWhat::kGathered);
  for (int epoch = 0; epoch < 2; ++epoch) {
    served.feed->serve_next();
    EXPECT_EQ(served.wait(), ServeWhat::kEpochEnded);
  }
  consumer.join();
}

TEST(ServedFeed, TheNameIsFreeOnceItIsClosed) {
  Served served(20);
  EXPECT_THROW((void)Segments::instance().attach(served.name, true), Error) << "nobody serves it";
  served.feed->serve({});
  EXPECT_NO_THROW((void)Segments::instance().attach(served.name, true));
  served.feed->close(kSecond);
  EXPECT_THROW((void)Segments::instance().attach(served.name, true), Error);
}

TEST(ServedFeed, AFeedWithoutANameIsNotServed) {
  tenon_generator g{};
  g.struct_size = sizeof g;
  g.fill = serving::fill;
  tenon_feed_options o{};
  o.struct_size = sizeof o;
  o.workers = 1;
  o.slots = 3;
  Feed feed(g, serving::schema(), o);
  EXPECT_THROW(feed.serve({}), Error);
}

TEST(ServedFeed, WorkerProcessesFillTheSlotsOfASegment) {
  Served served(40, -1, TENON_PROCESSES);
  served.feed->begin();
  for (uint64_t i = 0; i < 40; ++i) {
    Ref<Batch> batch;
    ASSERT_TRUE(served.feed->next(-1, batch));
    ASSERT_TRUE(batch);
    EXPECT_EQ(batch->ticket().index, i);
    EXPECT_EQ(*reinterpret_cast<const uint64_t*>(batch->array(0)->data()), i);
  }
}

}  // namespace
}  // namespace tenon::impl
