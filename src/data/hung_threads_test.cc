// SPDX-License-Identifier: Apache-2.0
//
// Threads whose generator does not return. Oracle: a batch's words follow from (epoch, index) alone, also
// after a thread that was abandoned has written other ones to its slot; each batch is delivered once, or told
// as a failure, or counted as skipped; a thread that returns gives back what it had.
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "data/feed.h"

namespace tenon::impl {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kWatchdogNs = 600'000'000'000;
constexpr int64_t kFillNs = 1'000'000'000;  // for a batch of 1 KiB, also on a loaded machine
constexpr int kMostAbandoned = 8;
const std::vector<int64_t> kWords{128};

Ref<Schema> schema() {
  const tenon_field fields[]{{"words", DType(TENON_UINT, 64), 1, kWords.data()}};
  return Schema::make(fields);
}

// Outlives its feeds: abandoned threads use it.
struct Source {
  std::atomic<uint64_t> at_epoch{UINT64_MAX}, at_index{UINT64_MAX};
  std::atomic<uint64_t> width{1};  // so many batches from there on
  std::atomic<int> hangs_left{0};
  std::atomic<int> hanging{0}, released{0}, drops{0};
  bool ends_late = false;  // those that return end their threads instead
  uint32_t flags = TENON_THREADSAFE;

  void hang_at(uint64_t epoch, uint64_t index, int times = 1) {
    at_epoch = epoch;
    at_index = index;
    hangs_left = times;
  }
  // Those that hang return now, and write over their slots first.
  void release() { released = hanging.load(); }

  int32_t fill(const tenon_fill_request& request) {
    auto* const words = static_cast<uint64_t*>(request.fields[0]);
    for (uint64_t i = 0; i < 128; ++i) words[i] = request.epoch << 40 | request.index << 20 | i;
    if (request.epoch != at_epoch || request.index - at_index >= width || hangs_left.fetch_sub(1) <= 0)
      return 0;
    const int number = ++hanging;
    while (released < number) std::this_thread::sleep_for(1ms);
    std::fill_n(words, 128, UINT64_MAX);
    if (ends_late) pthread_exit(nullptr);
    return 0;
  }

  tenon_generator generator() {
    tenon_generator g{};
    g.struct_size = sizeof g;
    g.flags = flags;
    g.context = this;
    g.fill = [](void* context, const tenon_fill_request* request, char*, size_t) {
      return static_cast<Source*>(context)->fill(*request);
    };
    g.drop = [](void* context) { ++static_cast<Source*>(context)->drops; };
    g.name = "source";
    return g;
  }
};

tenon_feed_options options(int32_t workers, int64_t batches, int32_t on_error = TENON_ON_ERROR_RAISE) {
  tenon_feed_options o{};
  o.struct_size = sizeof o;
  o.workers = workers;
  o.slots = workers + 2;
  o.batches = batches;
  o.on_error = on_error;
  o.retries = 1000;
  o.fill_timeout_ns = kFillNs;
  return o;
}

bool is_intact(const Batch& batch, uint64_t epoch, uint64_t index) {
  const auto* const words = reinterpret_cast<const uint64_t*>(batch.array(0)->data());
  bool is = batch.ticket().index == index && batch.ticket().epoch == epoch;
  for (uint64_t i = 0; i < 128; ++i) is &= words[i] == (epoch << 40 | index << 20 | i);
  return is;
}

class HungThreads : public testing::Test {
 protected:
  void TearDown() override { source_.release(); }

  Ref<Batch> next(Feed& feed) {
    Ref<Batch> batch;
    EXPECT_TRUE(feed.next(kWatchdogNs, batch)) << feed.waiting_text();
    return batch;
  }
  void expect_batches(Feed& feed, uint64_t epoch, uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) ASSERT_TRUE(is_intact(*next(feed), epoch, i)) << i;
  }
  std::string failure_of(Feed& feed) {
    Ref<Batch> batch;
    try {
      (void)feed.next(kWatchdogNs, batch);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kOp);
      EXPECT_EQ(feed.failure().kind, TENON_HUNG);
      return e.what();
    }
    return batch ? concat("batch ", batch->ticket().index) : "the end";
  }
  void wait_for(const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(kWatchdogNs);
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now(), end);
      std::this_thread::sleep_for(1ms);
    }
  }

  // An abandoned thread may use it when the test is over.
  static Source& new_source() {
    static auto& all = *new std::deque<Source>;
    return all.emplace_back();
  }
  Source& source_ = new_source();
};

TEST_F(HungThreads, TheNextEpochHasAnotherThreadAndIsWhole) {
  source_.hang_at(0, 2);
  Feed feed(source_.generator(), schema(), options(1, 20));
  feed.begin();
  expect_batches(feed, 0, 0, 2);
  EXPECT_NE(failure_of(feed).find("took longer than 1.0 s for batch 2 of epoch 0: its thread is left behind"),
            std::string::npos);
  EXPECT_EQ(feed.failure().worker, 0);
  const std::string report = feed.take_report();
  EXPECT_NE(report.find("generator 'source' has not returned from batch 2 of epoch 0 for 1."),
            std::string::npos)
      << report;
  EXPECT_NE(report.find("(worker 0)"), std::string::npos) << report;
  EXPECT_EQ(feed.take_report(), "") << "it is told once";
  for (uint64_t epoch = 1; epoch < 3; ++epoch) {
    feed.begin();
    expect_batches(feed, epoch, 0, 20);
    EXPECT_FALSE(next(feed));
  }
  EXPECT_EQ(feed.statistics().abandoned, 1u);
  EXPECT_EQ(feed.statistics().slots, 3);
}

TEST_F(HungThreads, TheSlotOfOneThatWritesLateIsNobodyElses) {
  source_.hang_at(0, 5);
  Feed feed(source_.generator(), schema(), options(1, 200, TENON_ON_ERROR_RETRY));
  feed.begin();
  std::vector<Ref<Batch>> held;
  for (uint64_t i = 0; i < 200; ++i) {
    held.push_back(next(feed));
    if (i == 100) source_.release();
    if (held.size() == 2) {
      for (size_t k = 0; k < 2; ++k) ASSERT_TRUE(is_intact(*held[k], 0, i - 1 + k));
      held.erase(held.begin());
    }
  }
  held.clear();
  EXPECT_FALSE(next(feed));
  EXPECT_GE(feed.statistics().retried, 1u);
  EXPECT_EQ(feed.statistics().skipped, 0u);
}

TEST_F(HungThreads, OneThatIsLeftBehindMayEnd) {
  source_.ends_late = true;
  source_.hang_at(0, 5);
  {
    Feed feed(source_.generator(), schema(), options(1, 20, TENON_ON_ERROR_RETRY));
    feed.begin();
    expect_batches(feed, 0, 0, 20);
    source_.release();
    for (uint64_t epoch = 1; epoch < 4; ++epoch) {
      source_.hang_at(epoch, 5, 2);  // it may be given the loop of the ended thread
      feed.begin();
      expect_batches(feed, epoch, 0, 20);
      source_.release();
    }
    EXPECT_FALSE(next(feed));
  }
  wait_for([&] { return source_.drops == 1; });
}

TEST_F(HungThreads, OneBatchIsSkippedAndNoOtherIsLost) {
  for (const int32_t workers : {1, 3}) {
    source_.hang_at(0, 4);
    Feed feed(source_.generator(), schema(), options(workers, 30, TENON_ON_ERROR_SKIP));
    feed.begin();
    expect_batches(feed, 0, 0, 4);
    expect_batches(feed, 0, 5, 30);
    EXPECT_FALSE(next(feed));
    EXPECT_EQ(feed.statistics().skipped, 1u);
    EXPECT_EQ(feed.statistics().abandoned, 1u);
    source_.release();
  }
}

TEST_F(HungThreads, ABatchIsFilledAgainWhileOthersHaveAllSlots) {
  source_.hang_at(0, 0, 2);
  tenon_feed_options o = options(2, 50, TENON_ON_ERROR_RETRY);
  o.slots = 3;
  Feed feed(source_.generator(), schema(), o);
  feed.begin();
  expect_batches(feed, 0, 0, 50);
  EXPECT_FALSE(next(feed));
  EXPECT_GE(feed.statistics().retried, 2u);
}

TEST_F(HungThreads, AnEpochThatWasLeftDoesNotHoldUpTheNext) {
  source_.hang_at(0, 1);
  Feed feed(source_.generator(), schema(), options(1, 20));
  feed.begin();
  expect_batches(feed, 0, 0, 1);
  wait_for([&] { return source_.hanging == 1; });
  feed.begin();
  expect_batches(feed, 1, 0, 20);
  EXPECT_FALSE(next(feed));
  EXPECT_EQ(feed.statistics().abandoned, 1u);
}

TEST_F(HungThreads, AFunctionThatIsNotThreadSafeIsNotCalledBesideItself) {
  source_.flags = 0;
  source_.hang_at(0, 1);
  Feed feed(source_.generator(), schema(), options(1, 20));
  feed.begin();
  expect_batches(feed, 0, 0, 1);
  const std::string text = failure_of(feed);
  EXPECT_NE(text.find("it is not thread-safe"), std::string::npos) << text;
  EXPECT_NE(text.find("processes=True"), std::string::npos) << text;
  feed.begin();
  const std::string later = failure_of(feed);
  EXPECT_NE(later.find("was not called for batch 0 of epoch 1"), std::string::npos) << later;
  EXPECT_NE(later.find("processes=True"), std::string::npos) << later;
  EXPECT_EQ(feed.statistics().abandoned, 0u);
  source_.release();
  // Until its thread has returned a batch may fail.
  feed.begin();
  Ref<Batch> batch;
  wait_for([&] {
    try {
      return feed.next(kWatchdogNs, batch) && batch;
    } catch (const Error&) {
      feed.begin();
      return false;
    }
  });
  EXPECT_EQ(batch->ticket().index, 0u);
  expect_batches(feed, batch->ticket().epoch, 1, 20);
}

TEST_F(HungThreads, WhoSkipsWhatHangsIsToldThatNoThreadIsLeft) {
  source_.flags = 0;
  source_.hang_at(0, 1);
  Feed feed(source_.generator(), schema(), options(1, 20, TENON_ON_ERROR_SKIP));
  feed.begin();
  expect_batches(feed, 0, 0, 1);
  const std::string text = failure_of(feed);
  EXPECT_NE(text.find("was not called for batch 2 of epoch 0"), std::string::npos) << text;
}

TEST_F(HungThreads, ManyMayHangInTurnIfTheyReturn) {
  source_.width = 4;
  Feed feed(source_.generator(), schema(), options(4, 8, TENON_ON_ERROR_RETRY));
  for (uint64_t epoch = 0; epoch < 5; ++epoch) {  // more than there are spare slots
    source_.hang_at(epoch, 0, 4);
    feed.begin();
    expect_batches(feed, epoch, 0, 8);
    EXPECT_FALSE(next(feed));
    source_.release();
  }
  EXPECT_GE(feed.statistics().abandoned, 20u);
  EXPECT_EQ(feed.statistics().slots, 6);
}

TEST_F(HungThreads, ThereIsABoundAndAClearErrorThere) {
  source_.hang_at(0, 0, 1 << 30);
  source_.width = 1000;
  Feed feed(source_.generator(), schema(), options(4, 1000, TENON_ON_ERROR_SKIP));
  feed.begin();
  // 8 threads are left behind, and the last four cannot be.
  const std::string told = failure_of(feed);
  EXPECT_NE(told.find("as many of its threads are left behind as may be (8)"), std::string::npos) << told;
  EXPECT_EQ(feed.statistics().abandoned, static_cast<uint64_t>(kMostAbandoned));
  EXPECT_THROW(feed.close(1'000'000), Error);
}

TEST_F(HungThreads, TheGeneratorIsDroppedWhenTheLastOneHasReturned) {
  source_.hang_at(0, 0);
  {
    Feed feed(source_.generator(), schema(), options(1, 8, TENON_ON_ERROR_RETRY));
    feed.begin();
    expect_batches(feed, 0, 0, 8);
    EXPECT_THROW(feed.close(1'000'000), Error);
  }
  EXPECT_EQ(source_.drops, 0);
  source_.release();
  wait_for([&] { return source_.drops == 1; });
}

}  // namespace
}  // namespace tenon::impl
