// SPDX-License-Identifier: Apache-2.0
//
// Generators that start threads of this process. Oracle: the words of a batch follow from (epoch, index), and
// each batch is delivered once, or told as a failure. Each law holds with and without TENON_STARTS_THREADS.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/comes_true_testing.h"
#include "base/error.h"
#include "data/feed.h"
#include "data/feed_testing.h"
#include "data/generator_call.h"
#include "data/worker.h"

namespace tenon::impl {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kNever = UINT64_MAX;
constexpr uint64_t kWords = 128;

std::set<std::filesystem::path> all_threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return {begin(tasks), end(tasks)};
}

// Outlives its feed, and joins the threads that it has started.
struct Starter {
  uint32_t flags = TENON_THREADSAFE;
  int32_t fails_at = -1;                    // the worker that is not started
  int64_t pid = 0;                          // what its start returns
  bool joins = true;                        // else its threads do not exist
  std::atomic<uint64_t> leaves_at{kNever};  // the index at which a thread leaves
  bool leaves_between = false;              // not within the fill
  std::atomic<uint64_t> hangs_at{kNever};
  std::atomic<int> hangs{0}, hanging{0}, drops{0}, left{0}, joined{0};
  std::atomic<int> hangs_early{0};        // so many threads before their first fill
  std::atomic<int> next_hang_early{0};    // and so many that start while another one hangs
  std::atomic<bool> blocks_start{false};  // until is_released
  bool consumed_by_prepare = false;
  std::atomic<Feed*> consumed{nullptr};
  std::atomic<int> refused{0};
  std::atomic<bool> is_released{false};
  uint64_t nbytes_to_commit = 0;
  bool is_callers = true;  // no feed has it
  bool is_joined_by_drop = false;
  std::mutex mutex;
  std::vector<std::thread> threads;
  std::vector<std::string> links;

  explicit Starter(bool has_flag) {
    if (has_flag) flags |= TENON_STARTS_THREADS;
  }
  ~Starter() {
    join();
    EXPECT_TRUE(is_callers || comes_true([&] { return drops == 1; }));
  }
  void join() {
    is_released = true;
    const std::scoped_lock lock(mutex);
    for (std::thread& thread : threads) {
      if (thread.joinable()) thread.join();
    }
  }

  void run(const std::string& link) {
    try {
      const std::unique_ptr<Worker> worker = Worker::join(link);
      ++joined;
      if ((hanging > 0 && next_hang_early.fetch_sub(1) > 0) || hangs_early.fetch_sub(1) > 0) {
        ++hanging;
        while (!is_released) std::this_thread::sleep_for(1ms);
      }
      while (worker->next(-1) == Worker::Received::kRequest) {
        const tenon_fill_request request = *worker->request();
        if (nbytes_to_commit != 0) worker->commit(nbytes_to_commit);
        auto* const words = static_cast<uint64_t*>(request.fields[0]);
        for (uint64_t i = 0; i < kWords; ++i) words[i] = request.epoch << 40 | request.index << 20 | i;
        if (request.index == hangs_at && hangs.fetch_sub(1) > 0) {
          ++hanging;
          while (!is_released) std::this_thread::sleep_for(1ms);
          std::fill_n(words, kWords, UINT64_MAX);
        }
        const bool leaves = request.index == leaves_at;
        if (leaves && !leaves_between) break;
        worker->answer(0, nullptr);
        if (leaves) break;
      }
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kNotFound) << "the feed was closed before";
    }
    ++left;
  }

  tenon_generator generator() {
    is_callers = false;
    tenon_generator g{};
    g.struct_size = sizeof g;
    g.flags = flags;
    g.context = this;
    g.fill = [](void*, const tenon_fill_request*, char*, size_t) { return 1; };
    g.start = [](void* context, int32_t worker, const char* link, int64_t* pid, char*, size_t) {
      auto& self = *static_cast<Starter*>(context);
      *pid = self.pid;
      if (worker == self.fails_at) return 7;
      while (self.blocks_start && !self.is_released) std::this_thread::sleep_for(1ms);
      const std::scoped_lock lock(self.mutex);
      self.links.emplace_back(link);
      if (self.joins) self.threads.emplace_back([&self, text = std::string(link)] { self.run(text); });
      return 0;
    };
    g.drop = [](void* context) {
      auto& self = *static_cast<Starter*>(context);
      if (self.is_joined_by_drop) self.join();
      ++self.drops;
    };
    g.name = "starter";
    if (consumed_by_prepare) {
      g.prepare = [](void* context, const tenon_fill_request*, char*, size_t) {
        auto& self = *static_cast<Starter*>(context);
        Ref<Batch> batch;
        try {
          (void)self.consumed.load()->next(0, batch);
        } catch (const Error& e) {
          if (e.code() == Code::kValue) ++self.refused;
        }
        return 0;
      };
    }
    return g;
  }
};

Ref<Schema> schema() {
  static const int64_t shape[]{kWords};
  const tenon_field fields[]{{"words", DType(TENON_UINT, 64), 1, shape}};
  return Schema::make(fields);
}

tenon_feed_options options(int32_t workers, int64_t batches) {
  tenon_feed_options o{};
  o.struct_size = sizeof o;
  o.workers = workers;
  o.slots = workers + 3;
  o.batches = batches;
  o.flags = TENON_PROCESSES;
  return o;
}

void expect_batches(Feed& feed, uint64_t epoch, uint64_t begin, uint64_t end) {
  for (uint64_t i = begin; i < end; ++i) {
    Ref<Batch> batch;
    ASSERT_TRUE(feed.next(kWatchdogNs, batch)) << feed.waiting_text();
    ASSERT_TRUE(batch) << i;
    const auto* const words = reinterpret_cast<const uint64_t*>(batch->array(0)->data());
    for (uint64_t k = 0; k < kWords; ++k) ASSERT_EQ(words[k], epoch << 40 | i << 20 | k) << i;
  }
}

void expect_filled(Feed& feed) {
  Ref<Batch> batch;
  EXPECT_TRUE(feed.next(kWatchdogNs, batch));
  EXPECT_TRUE(batch);
}

Code code_of_join(const std::string& link) {
  try {
    (void)Worker::join(link);
  } catch (const Error& e) {
    return e.code();
  }
  return Code{};
}

class StartedThreads : public testing::TestWithParam<bool> {
 protected:
  Starter starter_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Feeds, StartedThreads, testing::Bool(),
                         [](const auto& given) { return std::string(given.param ? "flag" : "pid"); });

TEST_P(StartedThreads, FillTheSameBatchesHoweverManyTheyAre) {
  for (const int32_t workers : {1, 2, 4}) {
    Starter starter(GetParam());
    Feed feed(starter.generator(), schema(), options(workers, 300));
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      feed.begin();
      expect_batches(feed, epoch, 0, 300);
      EXPECT_EQ(failure_of(feed), "the end");
    }
    feed.begin();
    expect_batches(feed, 3, 0, 20);
    feed.begin();  // in the middle of the one before
    expect_batches(feed, 4, 0, 300);
    feed.close(kWatchdogNs);
    starter.join();
    EXPECT_EQ(starter.left, workers);
    EXPECT_TRUE(comes_true([&] { return starter.drops == 1; }));
  }
}

TEST_P(StartedThreads, AreTheOnlyOnesOfAFeedWithTheFlag) {
  const std::set<std::filesystem::path> before = all_threads();  // some of earlier tests may still end
  Feed feed(starter_.generator(), schema(), options(2, 10));
  std::set<std::filesystem::path> started = all_threads();
  std::erase_if(started, [&](const auto& thread) { return before.contains(thread); });
  EXPECT_EQ(started.size(), GetParam() ? 2U : 3U);  // else one that watches processes
  EXPECT_EQ(feed.statistics().memory_file < 0, GetParam());
  EXPECT_EQ(feed.worker_statistics(0).pid, 0);
  feed.begin();
  expect_batches(feed, 0, 0, 10);
}

TEST_P(StartedThreads, ThoseThatHaveJoinedAreTheOnlyOnes) {
  starter_.joins = false;
  Feed feed(starter_.generator(), schema(), options(1, 10));
  const std::string link = starter_.links.at(0);
  WorkerLink other = WorkerLink::parse(link);
  EXPECT_EQ(code_of_join("1:2"), Code::kValue);
  ++other.loop;
  EXPECT_EQ(code_of_join(other.text()), Code::kNotFound);
  other = WorkerLink::parse(link);
  other.feed += 1000;
  EXPECT_EQ(code_of_join(other.text()), Code::kNotFound);
  other = WorkerLink::parse(link);
  ++other.process.start;
  EXPECT_EQ(code_of_join(other.text()), Code::kNotFound);
  const std::unique_ptr<Worker> worker = Worker::join(link);
  EXPECT_EQ(code_of_join(link), Code::kNotFound);
  EXPECT_EQ(worker->next(0), Worker::Received::kLate);
  EXPECT_EQ(worker->next(2'000'000), Worker::Received::kLate);
  EXPECT_EQ(worker->request(), nullptr);
  feed.begin();
  EXPECT_EQ(worker->next(kWatchdogNs), Worker::Received::kRequest);
  EXPECT_EQ(worker->next(0), Worker::Received::kRequest) << "until it is answered";
  worker->answer(0, nullptr);
  expect_filled(feed);
  feed.close(kWatchdogNs);
  EXPECT_EQ(starter_.drops, 0);
  EXPECT_EQ(worker->next(kWatchdogNs), Worker::Received::kOver);
  EXPECT_TRUE(comes_true([&] { return starter_.drops == 1; }));
  EXPECT_EQ(worker->next(kWatchdogNs), Worker::Received::kOver);
}

TEST_P(StartedThreads, OneThatNeverJoinsIsNotWaitedFor) {
  starter_.joins = false;
  Feed feed(starter_.generator(), schema(), options(2, 10));
  feed.begin();
  feed.close(kWatchdogNs);
  EXPECT_EQ(starter_.drops, 1);
  EXPECT_EQ(code_of_join(starter_.links.at(0)), Code::kNotFound);
}

TEST_P(StartedThreads, ABusyOneIsNotWaitedForAndKeepsWhatItUses) {
  starter_.hangs_at = 1;
  starter_.hangs = 1;
  {
    Feed feed(starter_.generator(), schema(), options(1, 10));
    feed.begin();
    expect_batches(feed, 0, 0, 1);
    EXPECT_TRUE(comes_true([&] { return starter_.hanging == 1; }));
    feed.close(kWatchdogNs);
  }
  EXPECT_EQ(starter_.drops, 0);
  starter_.join();
  EXPECT_TRUE(comes_true([&] { return starter_.drops == 1; }));
}

TEST_P(StartedThreads, DropMayJoinThemAndHasReturnedWhenTheFeedIsClosed) {
  for (const int32_t workers : {1, 3}) {
    Starter starter(GetParam());
    starter.is_joined_by_drop = true;
    Feed feed(starter.generator(), schema(), options(workers, 10));
    feed.begin();
    expect_batches(feed, 0, 0, 10);
    EXPECT_TRUE(comes_true([&] { return starter.joined == workers; }));
    std::this_thread::sleep_for(50ms);  // they wait for a fill
    feed.close(kWatchdogNs);
    EXPECT_EQ(starter.drops, 1);
  }
}

TEST_P(StartedThreads, DropMayJoinOneThatWasBusy) {
  starter_.is_joined_by_drop = true;
  starter_.hangs_at = 0;
  starter_.hangs = 1;
  Feed feed(starter_.generator(), schema(), options(1, 10));
  feed.begin();
  EXPECT_TRUE(comes_true([&] { return starter_.hanging == 1; }));
  feed.close(kWatchdogNs);
  EXPECT_EQ(starter_.drops, 0);
  starter_.is_released = true;
  EXPECT_TRUE(comes_true([&] { return starter_.drops == 1; }));
}

TEST_P(StartedThreads, OneThatLeavesIsToldAtEachOfItsBatches) {
  for (const bool is_between : {false, true}) {
    Starter starter(GetParam());
    starter.leaves_at = 3;
    starter.leaves_between = is_between;
    Feed feed(starter.generator(), schema(), options(1, 10));
    feed.begin();
    expect_batches(feed, 0, 0, is_between ? 4 : 3);
    for (int times = 0; times < 3; ++times) {
      const std::string text = failure_of(feed);
      EXPECT_NE(text.find("the thread of worker 0 has ended: make the feed anew"), std::string::npos) << text;
      EXPECT_EQ(feed.failure().worker, 0);
      feed.begin();
    }
    feed.close(kWatchdogNs);
    EXPECT_EQ(starter.drops, 1) << "the feed has waited for its own thread";
  }
}

TEST_P(StartedThreads, OneThatIsLateIsReplacedAndItsResultDropped) {
  for (const int32_t on_error : {TENON_ON_ERROR_RAISE, TENON_ON_ERROR_SKIP, TENON_ON_ERROR_RETRY}) {
    Starter starter(GetParam());
    starter.hangs_at = 5;
    starter.hangs = 1;
    tenon_feed_options o = options(1, 200);
    o.on_error = on_error;
    o.retries = 1000;
    o.fill_timeout_ns = 1'000'000'000;
    Feed feed(starter.generator(), schema(), o);
    feed.begin();
    expect_batches(feed, 0, 0, 5);
    if (on_error == TENON_ON_ERROR_RAISE) {
      const std::string text = failure_of(feed);
      EXPECT_NE(text.find("took longer than 1.0 s for batch 5 of epoch 0: its thread is left behind"),
                std::string::npos)
          << text;
      feed.begin();
      expect_batches(feed, 1, 0, 50);
      starter.is_released = true;
      expect_batches(feed, 1, 50, 200);
    } else {
      expect_batches(feed, 0, on_error == TENON_ON_ERROR_SKIP ? 6 : 5, 50);
      starter.is_released = true;
      expect_batches(feed, 0, 50, 200);
    }
    EXPECT_GE(feed.statistics().abandoned, 1u);
    const std::string report = feed.take_report();
    EXPECT_NE(report.find("(worker 0) is left behind"), std::string::npos) << report;
    EXPECT_EQ(report.find("its thread 0 "), std::string::npos) << report;
    feed.close(kWatchdogNs);
    starter.join();
    EXPECT_TRUE(comes_true([&] { return starter.drops == 1; }));
  }
}

TEST_P(StartedThreads, OneThatIsLateBeforeItsFirstFillIsReplaced) {
  for (const int32_t on_error : {TENON_ON_ERROR_RAISE, TENON_ON_ERROR_SKIP, TENON_ON_ERROR_RETRY}) {
    Starter starter(GetParam());
    starter.hangs_early = 1;
    tenon_feed_options o = options(1, 50);
    o.on_error = on_error;
    o.retries = 1;
    o.fill_timeout_ns = 500'000'000;
    Feed feed(starter.generator(), schema(), o);
    feed.begin();
    if (on_error == TENON_ON_ERROR_RAISE) {
      const std::string text = failure_of(feed);
      EXPECT_NE(text.find("its thread has not asked for a batch, and is left behind"), std::string::npos)
          << text;
      EXPECT_EQ(feed.failure().kind, TENON_HUNG);
      EXPECT_EQ(feed.failure().worker, 0);
      feed.begin();
    }
    expect_batches(feed, on_error == TENON_ON_ERROR_RAISE ? 1 : 0, 0, 50);
    EXPECT_EQ(feed.statistics().abandoned, 1u);
    const std::string report = feed.take_report();
    EXPECT_NE(report.find("has not asked for a batch for 0."), std::string::npos) << report;
    starter.is_released = true;
    EXPECT_TRUE(comes_true([&] { return starter.left == 1; }));
    feed.close(kWatchdogNs);
  }
}

// The other one waits for a fill, but the next batch is not its.
TEST_P(StartedThreads, OneThatIsLateInItsTurnIsToldBesideOneThatWaits) {
  starter_.hangs_early = 1;
  tenon_feed_options o = options(2, 10);
  o.flags |= TENON_ROUND_ROBIN;
  o.fill_timeout_ns = 200'000'000;
  Feed feed(starter_.generator(), schema(), o);
  feed.begin();
  std::string text = failure_of(feed);
  if (text == "batch 0") text = failure_of(feed);  // of the worker that does not hang
  EXPECT_NE(text.find("has not asked for a batch"), std::string::npos) << text;
  EXPECT_EQ(feed.failure().kind, TENON_HUNG);
}

// It may wait for a lock that the caller has, such as Python's.
TEST_P(StartedThreads, OneOutsideOfAFillIsNotLateForACallerThatDoesNotWait) {
  starter_.hangs_early = 1;
  tenon_feed_options o = options(1, 10);
  o.fill_timeout_ns = 50'000'000;
  Feed feed(starter_.generator(), schema(), o);
  feed.begin();
  std::this_thread::sleep_for(3 * std::chrono::nanoseconds(o.fill_timeout_ns));
  Ref<Batch> batch;
  EXPECT_FALSE(feed.next(0, batch));
  EXPECT_EQ(feed.statistics().abandoned, 0u);
  EXPECT_NE(failure_of(feed).find("has not asked for a batch"), std::string::npos);
  EXPECT_EQ(feed.statistics().abandoned, 1u);
}

TEST_P(StartedThreads, OneThatGoesOnWithABatchMayBeLateBeforeIt) {
  starter_.hangs_at = 5;
  starter_.hangs = 1;
  starter_.next_hang_early = 2;
  tenon_feed_options o = options(2, 50);
  o.on_error = TENON_ON_ERROR_RETRY;
  o.retries = 5;
  o.fill_timeout_ns = 500'000'000;
  Feed feed(starter_.generator(), schema(), o);
  EXPECT_TRUE(comes_true([&] { return starter_.joined == 2; }));
  feed.begin();
  expect_batches(feed, 0, 0, 50);
  EXPECT_EQ(feed.statistics().abandoned, 3u);
}

TEST_P(StartedThreads, OneThatNeverJoinsIsReplaced) {
  starter_.joins = false;
  tenon_feed_options o = options(1, 50);
  o.on_error = TENON_ON_ERROR_RETRY;
  o.retries = 1;
  o.fill_timeout_ns = 100'000'000;
  Feed feed(starter_.generator(), schema(), o);
  feed.begin();
  const std::string text = failure_of(feed);  // none of the others does
  EXPECT_NE(text.find("as many of its threads are left behind as may be (8)"), std::string::npos) << text;
  EXPECT_EQ(feed.statistics().abandoned, 8u);
  feed.close(kWatchdogNs);
  EXPECT_EQ(starter_.drops, 1);
}

TEST_P(StartedThreads, AConsumerDoesNotWaitForTheStartOfOne) {
  starter_.hangs_at = 0;
  starter_.hangs = 1;
  tenon_feed_options o = options(1, 50);
  o.fill_timeout_ns = 100'000'000;
  Feed feed(starter_.generator(), schema(), o);
  starter_.blocks_start = true;
  feed.begin();
  EXPECT_NE(failure_of(feed).find("its thread is left behind"), std::string::npos);
  feed.begin();
  const auto begin = std::chrono::steady_clock::now();
  Ref<Batch> batch;
  try {
    EXPECT_FALSE(feed.next(200'000'000, batch));
  } catch (const Error& e) {  // that no thread is started in time
    EXPECT_EQ(e.code(), Code::kOp);
  }
  try {
    feed.close(1'000'000'000);
    FAIL() << "the generator has not returned from start";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kTimeout);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
  EXPECT_EQ(starter_.drops, 0);
  starter_.is_released = true;
  EXPECT_TRUE(comes_true([&] { return starter_.drops == 1; }));
}

TEST_P(StartedThreads, TheirPrepareTakesNoBatchesFromTheFeed) {
  starter_.consumed_by_prepare = true;
  Feed feed(starter_.generator(), schema(), options(1, 3));
  starter_.consumed = &feed;
  feed.begin();
  expect_batches(feed, 0, 0, 3);
  EXPECT_EQ(starter_.refused, 3);
}

TEST_P(StartedThreads, ManyMayBeLateInTurnIfTheyReturn) {
  tenon_feed_options o = options(1, 4);
  o.fill_timeout_ns = 100'000'000;
  o.on_error = TENON_ON_ERROR_RETRY;
  o.retries = 1000;
  Feed feed(starter_.generator(), schema(), o);
  for (uint64_t epoch = 0; epoch < 20; ++epoch) {  // more than there are spare slots and loops
    starter_.is_released = false;
    starter_.hangs_at = 0;
    starter_.hangs = 1;
    feed.begin();
    expect_batches(feed, epoch, 0, 4);
    starter_.is_released = true;
    EXPECT_TRUE(comes_true([&] { return starter_.left >= static_cast<int>(epoch) + 1; }));
  }
  EXPECT_EQ(feed.statistics().slots, 4);
}

TEST_P(StartedThreads, OneThatCannotBeStartedIsAnErrorOfTheFeed) {
  starter_.fails_at = 1;
  try {
    const Feed feed(starter_.generator(), schema(), options(2, 10));
    FAIL() << "it was made";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "worker 1 cannot be started (code 7)");
    EXPECT_EQ(e.code(), Code::kOp);
  }
  starter_.is_callers = true;
  starter_.join();
  EXPECT_EQ(starter_.left, 1);
  EXPECT_EQ(starter_.drops, 0) << "the generator is the caller's";
}

TEST_P(StartedThreads, ANumberThatIsNoWorkersIsAnErrorAndGetsNoSignal) {
  starter_.joins = false;
  for (const int64_t pid : {int64_t{getpid()}, int64_t{-1}, int64_t{INT32_MAX} + getpid() + 1}) {
    starter_.pid = pid;
    try {
      const Feed feed(starter_.generator(), schema(), options(1, 10));
      FAIL() << "it was made";
    } catch (const Error& e) {
      EXPECT_EQ(e.what(), no_worker_text(0, pid));
      EXPECT_EQ(e.code(), Code::kOp);
    }
    starter_.is_callers = true;
  }
}

TEST_P(StartedThreads, OneThatCannotBeReplacedIsToldWithItsReason) {
  starter_.hangs_at = 2;
  starter_.hangs = 1;
  tenon_feed_options o = options(1, 10);
  o.fill_timeout_ns = 1'000'000'000;
  Feed feed(starter_.generator(), schema(), o);
  feed.begin();
  expect_batches(feed, 0, 0, 2);
  starter_.fails_at = 0;
  EXPECT_NE(failure_of(feed).find("took longer than"), std::string::npos);
  feed.begin();
  const std::string text = failure_of(feed);
  EXPECT_NE(text.find("worker 0 cannot be started (code 7)"), std::string::npos) << text;
}

TEST_P(StartedThreads, TakeMemoryForPartsOfSparseSlots) {
  for (const uint32_t flag : {0u, uint32_t{TENON_SHARED_SLOTS}}) {
    Starter starter(GetParam());
    starter.nbytes_to_commit = 1000;
    tenon_feed_options o = options(1, 20);
    o.flags |= TENON_SPARSE_SLOTS | flag;
    Feed feed(starter.generator(), schema(), o);
    feed.begin();
    expect_batches(feed, 0, 0, 20);
  }
  starter_.joins = false;
  tenon_feed_options o = options(1, 20);
  o.flags |= TENON_SPARSE_SLOTS;
  Feed feed(starter_.generator(), schema(), o);
  const std::unique_ptr<Worker> worker = Worker::join(starter_.links.at(0));
  EXPECT_THROW(worker->commit(1), Error) << "there is no request";
  feed.begin();
  ASSERT_EQ(worker->next(kWatchdogNs), Worker::Received::kRequest);
  EXPECT_THROW(worker->commit(kWords * 8 + 256), Error) << "more than the slot has";
  worker->commit(kWords * 8);
}

TEST_P(StartedThreads, TakeNoBatchesFromTheFeedThatTheyFill) {
  starter_.joins = false;
  Feed feed(starter_.generator(), schema(), options(1, 20));
  const std::unique_ptr<Worker> worker = Worker::join(starter_.links.at(0));
  feed.begin();
  ASSERT_EQ(worker->next(kWatchdogNs), Worker::Received::kRequest);
  Ref<Batch> batch;
  EXPECT_THROW((void)feed.next(0, batch), Error);
  worker->answer(0, nullptr);
  expect_filled(feed);
}

}  // namespace
}  // namespace tenon::impl
