// SPDX-License-Identifier: Apache-2.0
//
// Generators that end their thread (pthread_exit) instead of returning. Law: the batch fails, another thread
// continues, and close() waits for it. A thread of the consumer cannot be replaced.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>

#include <atomic>
#include <string>

#include "base/error.h"
#include "data/feed.h"
#include "data/feed_testing.h"

namespace tenon::impl {
namespace {

constexpr uint64_t kBatches = 20;

// Lies in memory that the worker processes see, too.
struct Ending {
  std::atomic<uint64_t> at{5};      // the index at which a thread ends
  std::atomic<int> times{1 << 30};  // so often
  std::atomic<int> drops{0};
  bool in_prepare = false;

  static Ending& make() {
    void* const memory =
        mmap(nullptr, sizeof(Ending), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return *new (memory) Ending;
  }
  void end(uint64_t index) {
    if (index == at && times.fetch_sub(1) > 0) pthread_exit(nullptr);
  }
  tenon_generator generator() {
    tenon_generator g{};
    g.struct_size = sizeof g;
    g.flags = TENON_THREADSAFE;
    g.context = this;
    g.fill = [](void* context, const tenon_fill_request* request, char*, size_t) {
      auto& self = *static_cast<Ending*>(context);
      *static_cast<uint64_t*>(request->fields[0]) = request->epoch << 32 | request->index;
      if (!self.in_prepare) self.end(request->index);
      return 0;
    };
    if (in_prepare) {
      g.prepare = [](void* context, const tenon_fill_request* request, char*, size_t) {
        static_cast<Ending*>(context)->end(request->index);
        return 0;
      };
    }
    g.drop = [](void* context) { ++static_cast<Ending*>(context)->drops; };
    g.name = "ending";
    return g;
  }
};

Ref<Schema> schema() {
  static const int64_t shape[]{1};
  const tenon_field fields[]{{"word", DType(TENON_UINT, 64), 1, shape}};
  return Schema::make(fields);
}

tenon_feed_options options(int32_t workers, bool has_processes = false) {
  tenon_feed_options o{};
  o.struct_size = sizeof o;
  o.workers = workers;
  o.slots = workers + 4;
  o.batches = kBatches;
  o.flags = has_processes ? TENON_PROCESSES : 0;
  return o;
}

void expect_batches(Feed& feed, uint64_t epoch, uint64_t begin, uint64_t end) {
  for (uint64_t i = begin; i < end; ++i) {
    Ref<Batch> batch;
    ASSERT_TRUE(feed.next(kWatchdogNs, batch)) << feed.waiting_text();
    ASSERT_TRUE(batch) << i;
    ASSERT_EQ(*reinterpret_cast<const uint64_t*>(batch->array(0)->data()), epoch << 32 | i);
  }
}

void expect_end(const std::string& text) {
  EXPECT_NE(text.find("generator 'ending' failed at batch 5 of epoch"), std::string::npos) << text;
  EXPECT_NE(text.find("it ended its thread (pthread_exit"), std::string::npos) << text;
}

class EndedThreads : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    if (GetParam()) GTEST_SKIP() << "ThreadSanitizer's forked children can have no threads";
#endif
  }
  Ending& ending_ = Ending::make();
};
INSTANTIATE_TEST_SUITE_P(Feeds, EndedThreads, testing::Bool(), [](const auto& given) {
  return std::string(given.param ? "processes" : "threads");
});

TEST_P(EndedThreads, FailTheirBatchAndTheFeedGoesOn) {
  for (const bool in_prepare : {false, true}) {
    ending_.in_prepare = in_prepare;
    ending_.at = 5;
    Feed feed(ending_.generator(), schema(), options(2, GetParam()));
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      feed.begin();
      expect_batches(feed, epoch, 0, 5);
      expect_end(failure_of(feed));
    }
    ending_.at = kBatches;
    feed.begin();
    expect_batches(feed, 3, 0, kBatches);
  }
}

TEST_P(EndedThreads, ABatchIsSkippedOrFilledAgain) {
  for (const int32_t on_error : {TENON_ON_ERROR_SKIP, TENON_ON_ERROR_RETRY}) {
    const bool is_retried = on_error == TENON_ON_ERROR_RETRY;
    ending_.times = 3;
    tenon_feed_options o = options(2, GetParam());
    o.on_error = on_error;
    o.retries = 3;
    Feed feed(ending_.generator(), schema(), o);
    feed.begin();
    expect_batches(feed, 0, 0, 5);
    expect_batches(feed, 0, is_retried ? 5 : 6, kBatches);
    EXPECT_EQ(failure_of(feed), "the end");
    EXPECT_EQ(feed.statistics().retried, is_retried ? 3u : 0u);
    feed.close(kWatchdogNs);
    EXPECT_EQ(ending_.drops.exchange(0), 1) << "close() has waited for the thread that continues";
  }
}

TEST(EndedThreadOfTheConsumer, EndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const bool in_prepare : {false, true}) {
    Ending& ending = Ending::make();
    ending.in_prepare = in_prepare;
    Feed feed(ending.generator(), schema(), options(0));
    feed.begin();
    expect_batches(feed, 0, 0, 5);
    EXPECT_DEATH((void)failure_of(feed), "generator 'ending' did not return, because it ended its thread");
  }
}

}  // namespace
}  // namespace tenon::impl
