// SPDX-License-Identifier: Apache-2.0
//
// Oracle: the generator fills a batch with numbers that follow from its (epoch, index, seed) alone; a batch
// whose numbers do not belong together was overwritten, mixed up or not filled.
#include "data/feed.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <latch>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "array/access.h"
#include "base/denied_testing.h"
#include "base/error.h"
#include "base/repeats_testing.h"
#include "data/seed.h"

#if defined(__SANITIZE_THREAD__)
#define TENON_UNDER_TSAN 1
#else
#define TENON_UNDER_TSAN 0
#endif
#ifdef __SANITIZE_ADDRESS__
#define TENON_UNDER_ASAN 1
#else
#define TENON_UNDER_ASAN 0
#endif

namespace tenon::impl {
namespace {

constexpr uint64_t kSeed = 42;
const std::vector<int64_t> kWords{32, 8};
const std::vector<int64_t> kLabels{32};
constexpr uint64_t kNever = UINT64_MAX;

uint64_t rounds(uint64_t n) { return repeats(30 * n, n); }

Ref<Schema> schema() {
  const tenon_field fields[]{{"words", DType(TENON_UINT, 64), 2, kWords.data()},
                             {"label", DType(TENON_INT, 32), 1, kLabels.data()}};
  return Schema::make(fields);
}

struct Source {
  std::atomic<uint64_t> fail_at{kNever};  // index; changed while workers run
  bool throws = false;                    // instead of returning a code
  uint64_t hold_at = kNever;              // the fill of this index waits there for hold
  std::latch reached{1}, hold{1};
  std::atomic<int> inside{0};
  std::atomic<int> most_inside{0};
  std::atomic<uint64_t> fills{0};
  std::atomic<int> drops{0};
  std::vector<uint64_t> order;  // of indices, when one thread fills
  bool notes_order = false;

  int32_t fill(const tenon_fill_request& request, char* message, size_t size) {
    const int now = ++inside;
    if (now > most_inside) most_inside = now;
    if (notes_order) order.push_back(request.index);
    ++fills;
    if (request.index == hold_at) {
      reached.count_down();
      hold.wait();
    }
    --inside;
    if (request.index == fail_at) {
      if (throws) throw 42;
      std::snprintf(message, size, "out of %s", "ideas");
      return 3;
    }
    auto* const words = static_cast<uint64_t*>(request.fields[0]);
    words[0] = request.epoch;
    words[1] = request.index;
    words[2] = request.seed;
    for (uint64_t i = 3; i < 256; ++i) words[i] = split_mix(request.seed + i);
    auto* const label = static_cast<int32_t*>(request.fields[1]);
    for (int64_t i = 0; i < request.rows; ++i)
      label[i] = static_cast<int32_t>(request.index * 100 + static_cast<uint64_t>(i));
    return 0;
  }

  tenon_generator generator(bool is_threadsafe = true) {
    tenon_generator g{};
    g.struct_size = sizeof g;
    g.flags = is_threadsafe ? TENON_THREADSAFE : 0;
    g.context = this;
    g.fill = [](void* context, const tenon_fill_request* request, char* message, size_t size) {
      return static_cast<Source*>(context)->fill(*request, message, size);
    };
    g.drop = [](void* context) { ++static_cast<Source*>(context)->drops; };
    g.name = "source";
    return g;
  }
};

tenon_feed_options options(int32_t workers, int32_t slots, int64_t batches) {
  tenon_feed_options options{};
  options.struct_size = sizeof options;
  options.workers = workers;
  options.slots = slots;
  options.batches = batches;
  options.seed = kSeed;
  return options;
}

const uint64_t* words_of(const Batch& batch) {
  return reinterpret_cast<const uint64_t*>(batch.array(0)->data());
}

bool is_intact(const Batch& batch) {
  const uint64_t* const words = words_of(batch);
  const Ticket& ticket = batch.ticket();
  if (words[0] != ticket.epoch || words[1] != ticket.index) return false;
  if (words[2] != batch_seed(kSeed, ticket.epoch, ticket.index)) return false;
  for (uint64_t i = 3; i < 256; ++i) {
    if (words[i] != split_mix(words[2] + i)) return false;
  }
  const auto* const label = reinterpret_cast<const int32_t*>(batch.array(1)->data());
  for (uint64_t i = 0; i < 32; ++i) {
    if (label[i] != static_cast<int32_t>(ticket.index * 100 + i)) return false;
  }
  return true;
}

// The next batch of an epoch, waiting as long as it takes; null at the end.
Ref<Batch> next(Feed& feed) {
  Ref<Batch> batch;
  EXPECT_TRUE(feed.next(-1, batch));
  return batch;
}

// The result of the program in a forked child; "": it did not end as it should.
std::string in_child(const std::function<std::string()>& program) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::string result = program();
    _exit(write(ends[1], result.data(), result.size()) == static_cast<ssize_t>(result.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string result(4096, '\0');
  const ssize_t n = read(ends[0], result.data(), result.size());
  close(ends[0]);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  result.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return result;
}

TEST(Feed, ABatchWhoseSlotGetsNoMemoryFails) {
  if (TENON_UNDER_TSAN) GTEST_SKIP() << "ThreadSanitizer does not support new threads in a forked child";
  const std::string text = in_child([] {
    Source source;
    source.hold_at = 0;
    tenon_feed_options o = options(1, 2, 3);
    o.flags |= TENON_SHARED_SLOTS;
    Feed feed(source.generator(), schema(), o);
    feed.begin();
    source.reached.wait();  // slot 0 has its memory, slot 1 has none
    deny(SYS_fallocate, ENOSPC);
    source.hold.count_down();
    const Ref<Batch> first = next(feed);  // kept, so that slot 0 is not filled again
    if (!is_intact(*first)) return std::string("batch 0 is torn");
    try {
      (void)next(feed);
    } catch (const Error& e) {
      return concat(feed.failure().code, " ", e.what());
    }
    return std::string("batch 1 was filled");
  });
  const std::string expected =
      concat(int{TENON_ERR_NO_MEMORY},
             " generator 'source' was not called for batch 1 of epoch 0: there is no "
             "memory for 1 slot of ");
  EXPECT_EQ(text.substr(0, expected.size()), expected);
}

TEST(Feed, BatchesArriveInOrderAndWholeForAnyNumberOfWorkers) {
  for (const int32_t workers : {1, 2, 4}) {
    Source source;
    Feed feed(source.generator(), schema(), options(workers, workers + 2, 500));
    for (uint64_t epoch = 0; epoch < 2; ++epoch) {
      feed.begin();
      for (uint64_t index = 0; index < 500; ++index) {
        const Ref<Batch> batch = next(feed);
        ASSERT_TRUE(batch);
        EXPECT_EQ(batch->ticket().epoch, epoch);
        EXPECT_EQ(batch->ticket().index, index);
        ASSERT_TRUE(is_intact(*batch)) << "batch " << index << " with " << workers << " workers";
      }
      EXPECT_FALSE(next(feed));
    }
  }
}

TEST(Feed, TheSeedOfABatchFollowsFromFeedEpochAndIndexAlone) {
  // From a separate implementation of the documented formula.
  EXPECT_EQ(batch_seed(0, 0, 0), 0x238275bc38fcbe91u);
  EXPECT_EQ(batch_seed(42, 1, 7), 0x1b1863149f1726fau);
  EXPECT_EQ(batch_seed(~uint64_t{0}, 3, 1'000'000), 0x63dddfed907c5bfu);
}

TEST(Feed, FieldsAreAlignedWritableAndOfTheSchemasShape) {
  Source source;
  Feed feed(source.generator(), schema(), options(1, 3, 1));
  feed.begin();
  const Ref<Batch> batch = next(feed);
  for (int32_t i = 0; i < 2; ++i) {
    const Ref<Array> array = batch->array(i);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(array->data()) % kFieldAlignment, 0u);
    EXPECT_FALSE(array->is_readonly());
    EXPECT_TRUE(array->is_contiguous());
  }
  EXPECT_EQ(batch->array(0)->shape().size(), 2u);
  EXPECT_EQ(batch->array(1)->dtype(), DType(TENON_INT, 32));
  EXPECT_FALSE(batch->array(2));
  EXPECT_FALSE(batch->array(-1));
}

TEST(Feed, AGeneratorThatIsNotThreadsafeIsRunByOneThreadInOrder) {
  Source source;
  source.notes_order = true;
  Feed feed(source.generator(false), schema(), options(4, 6, 300));
  feed.begin();
  while (next(feed)) {
  }
  EXPECT_EQ(source.most_inside, 1);
  EXPECT_EQ(feed.statistics().workers, 1);
  feed.close(-1);
  ASSERT_EQ(source.order.size(), 300u);
  for (uint64_t i = 0; i < 300; ++i) EXPECT_EQ(source.order[i], i);
}

TEST(Feed, ASlotIsFilledAgainOnlyWhenBatchArraysAndViewsHaveGone) {
  Source source;
  Feed feed(source.generator(), schema(), options(1, 2, -1));
  feed.begin();
  Ref<Batch> first = next(feed);
  Ref<Batch> second = next(feed);
  Ref<Batch> late;
  const auto is_starved = [&] { return !feed.next(0, late) && feed.statistics().slots_held == 2; };
  EXPECT_TRUE(is_starved());
  Ref<Array> array = first->array(1);
  first = {};
  EXPECT_TRUE(is_starved());
  Ref<Array> view = array->is_contiguous() ? as_readonly(*array) : Ref<Array>();
  array = {};
  EXPECT_TRUE(is_starved());
  view = {};
  late = next(feed);
  EXPECT_EQ(late->ticket().index, 2u);
  EXPECT_TRUE(is_intact(*second));
}

TEST(Feed, BatchesOutliveTheFeed) {
  Source source;
  Ref<Batch> batch;
  {
    Feed feed(source.generator(), schema(), options(2, 4, -1));
    feed.begin();
    batch = next(feed);
  }
  EXPECT_EQ(source.drops, 1);
  EXPECT_TRUE(is_intact(*batch));
}

TEST(Feed, AFailureIsRaisedAtItsPlaceAndTheNextEpochIsWhole) {
  std::mt19937_64 random(7);
  for (uint64_t round = 0; round < rounds(60); ++round) {
    Source source;
    const auto workers = static_cast<int32_t>(1 + random() % 3);
    source.fail_at = random() % 40;
    source.throws = round % 4 == 3;
    Feed feed(source.generator(), schema(), options(workers, workers + 3, 40));
    feed.begin();
    for (uint64_t index = 0; index < source.fail_at; ++index) ASSERT_TRUE(is_intact(*next(feed)));
    try {
      next(feed);
      ADD_FAILURE() << "no error at batch " << source.fail_at;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kOp);
      EXPECT_EQ(e.op_code(), source.throws ? -1 : 3);
      const std::string expected =
          concat("generator 'source' ", source.throws ? "failed" : "returned 3", " at batch ",
                 source.fail_at.load(), " of epoch 0: ", source.throws ? "a C++ exception" : "out of ideas");
      EXPECT_TRUE(std::string(e.what()).starts_with(expected)) << e.what();
    }
    EXPECT_FALSE(next(feed));
    source.fail_at = kNever;
    feed.begin();
    for (uint64_t index = 0; index < 40; ++index) {
      const Ref<Batch> batch = next(feed);
      ASSERT_TRUE(batch && is_intact(*batch));
      EXPECT_EQ(batch->ticket().epoch, 1u);
    }
    EXPECT_FALSE(next(feed));
  }
}

TEST(Feed, AnEpochMayEndAnywhereAndTheNextIsWhole) {
  std::mt19937_64 random(11);
  Source source;
  Feed feed(source.generator(), schema(), options(2, 5, 30));
  Ref<Batch> kept;
  for (uint64_t epoch = 0; epoch < rounds(2'000); ++epoch) {
    feed.begin();
    const uint64_t stop = random() % 32;
    for (uint64_t index = 0; index < stop; ++index) {
      const Ref<Batch> batch = next(feed);
      if (index >= 30) {
        EXPECT_FALSE(batch);
        break;
      }
      ASSERT_TRUE(batch && is_intact(*batch));
      ASSERT_EQ(batch->ticket().epoch, epoch);
      ASSERT_EQ(batch->ticket().index, index);
      if (random() % 16 == 0) kept = batch;
    }
    if (random() % 2 == 0) feed.end();
    ASSERT_TRUE(!kept || is_intact(*kept));
  }
}

// The consumer keeps a random part of what it gets and hands the rest to threads that drop it in random
// order. No kept batch may change.
TEST(Feed, KeptBatchesAreNeverOverwrittenWhileOthersAreDroppedFromManyThreads) {
  const uint64_t rng_seed = 5;
  SCOPED_TRACE(concat("seed ", rng_seed));
  std::mt19937_64 random(rng_seed);
  Source source;
  Feed feed(source.generator(), schema(), options(2, 10, -1));
  feed.begin();

  struct Bin {
    std::mutex mutex;
    std::vector<Ref<Batch>> batches;
    bool is_over = false;
  } bin;
  std::atomic<int> broken{0};
  std::vector<std::thread> droppers;
  for (int t = 0; t < 3; ++t) {
    droppers.emplace_back([&, t] {
      std::mt19937_64 mine(rng_seed + static_cast<uint64_t>(t));
      while (true) {
        Ref<Batch> batch;
        {
          const std::scoped_lock lock(bin.mutex);
          if (bin.batches.empty() && bin.is_over) return;
          if (!bin.batches.empty()) {
            std::swap(bin.batches[mine() % bin.batches.size()], bin.batches.back());
            batch = std::move(bin.batches.back());
            bin.batches.pop_back();
          }
        }
        if (!batch) {
          std::this_thread::yield();
          continue;
        }
        const Ref<Array> last = batch->array(0);  // the batch goes before its array
        if (!is_intact(*batch)) ++broken;
        batch = {};
      }
    });
  }
  std::vector<Ref<Batch>> kept;
  for (uint64_t i = 0; i < rounds(5'000); ++i) {
    Ref<Batch> batch = next(feed);
    if (!is_intact(*batch)) ++broken;
    if (random() % 4 == 0 && kept.size() < 5) {
      kept.push_back(std::move(batch));
    } else {
      const std::scoped_lock lock(bin.mutex);
      bin.batches.push_back(std::move(batch));
    }
    if (kept.size() == 5) {
      for (const Ref<Batch>& k : kept) {
        if (!is_intact(*k)) ++broken;
      }
      kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(random() % 5));
    }
  }
  {
    const std::scoped_lock lock(bin.mutex);
    bin.is_over = true;
  }
  for (std::thread& thread : droppers) thread.join();
  EXPECT_EQ(broken, 0);
  feed.close(-1);
  for (const Ref<Batch>& k : kept) EXPECT_TRUE(is_intact(*k));
  kept.clear();
  EXPECT_EQ(feed.statistics().slots_held, 0);
}

TEST(Feed, WhenTheConsumerHoldsEverySlotTheMessageSaysWhichBatches) {
  Source source;
  Feed feed(source.generator(), schema(), options(1, 3, -1));
  feed.begin();
  std::vector<Ref<Batch>> held;
  for (int i = 0; i < 3; ++i) held.push_back(next(feed));
  HostView view(*held[1]->array(0), Access::kWrite);
  Ref<Batch> batch;
  EXPECT_FALSE(feed.next(1'000'000, batch));
  const std::string text = feed.waiting_text();
  view.close();
  EXPECT_NE(text.find("no batch 3 of epoch 0"), std::string::npos) << text;
  EXPECT_NE(text.find("Held, oldest first: 0 ("), std::string::npos) << text;
  EXPECT_NE(text.find("1 writable view)"), std::string::npos) << text;
  EXPECT_NE(text.find("; or slots=5, if no more are kept than now."), std::string::npos) << text;
  EXPECT_LT(text.size(), sizeof(tenon_error::message)) << text;
  held.erase(held.begin());
  EXPECT_EQ(next(feed)->ticket().index, 3u);
}

TEST(Feed, AMessageAboutManySlotsFitsItsPlace) {
  Source source;
  Feed feed(source.generator(), schema(), options(1, 40, -1));
  feed.begin();
  std::vector<Ref<Batch>> held;
  for (int i = 0; i < 40; ++i) held.push_back(next(feed));
  Ref<Batch> batch;
  EXPECT_FALSE(feed.next(1'000'000, batch));
  const std::string text = feed.waiting_text();
  EXPECT_NE(text.find("and 35 more"), std::string::npos) << text;
  EXPECT_NE(text.find("; or slots=42, if"), std::string::npos) << text;
  EXPECT_LT(text.size(), sizeof(tenon_error::message)) << text;
}

TEST(Feed, WhenAGeneratorIsBusyTheMessageSaysWithWhat) {
  Source source;
  source.hold_at = 2;
  Feed feed(source.generator(), schema(), options(1, 4, -1));
  feed.begin();
  next(feed);
  next(feed);
  Ref<Batch> batch;
  EXPECT_FALSE(feed.next(1'000'000, batch));
  const std::string text = feed.waiting_text();
  EXPECT_NE(text.find("generator 'source' has been busy with batch 2 of epoch 0"), std::string::npos) << text;
  source.hold.count_down();
  EXPECT_EQ(next(feed)->ticket().index, 2u);
}

TEST(Feed, CloseDuringAFillWaitsForItAndDropsTheGeneratorOnce) {
  Source source;
  source.hold_at = 1;
  Feed feed(source.generator(), schema(), options(2, 4, -1));
  feed.begin();
  next(feed);
  source.reached.wait();
  try {
    feed.close(0);
    ADD_FAILURE() << "closed although the generator is busy";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kTimeout);
    EXPECT_NE(std::string(e.what()).find("has not returned from batch 1 of epoch 0"), std::string::npos)
        << e.what();
  }
  EXPECT_EQ(source.drops, 0);
  source.hold.count_down();
  feed.close(-1);
  EXPECT_EQ(source.drops, 1);
  feed.close(-1);
  EXPECT_EQ(source.drops, 1);
  Ref<Batch> batch;
  EXPECT_THROW(feed.next(-1, batch), Error);
  EXPECT_THROW(feed.begin(), Error);
  feed.end();
}

TEST(Feed, AGeneratorLeftBehindKeepsWhatItUses) {
  Source source;
  source.hold_at = 0;
  {
    Feed feed(source.generator(), schema(), options(1, 2, -1));
    feed.begin();
    source.reached.wait();
    EXPECT_THROW(feed.close(0), Error);
    source.hold.count_down();
    // The destructor waits for the worker, which writes its slot only now.
  }
  while (source.drops == 0) std::this_thread::yield();
  EXPECT_EQ(source.drops, 1);
}

TEST(Feed, CloseWakesAWaitingConsumer) {
  Source source;
  source.hold_at = 0;
  Feed feed(source.generator(), schema(), options(1, 2, -1));
  feed.begin();
  source.reached.wait();
  std::thread consumer([&] {
    Ref<Batch> batch;
    EXPECT_THROW(feed.next(-1, batch), Error);
  });
  EXPECT_THROW(feed.close(0), Error);
  consumer.join();
  source.hold.count_down();
  feed.close(-1);
}

TEST(Feed, CloseAtAnyMomentEndsEveryWait) {
  std::mt19937_64 random(3);
  for (uint64_t round = 0; round < rounds(200); ++round) {
    Source source;
    {
      Feed feed(source.generator(), schema(),
                options(static_cast<int32_t>(1 + round % 3), 5, round % 5 == 0 ? 3 : -1));
      std::vector<Ref<Batch>> held;
      feed.begin();
      for (uint64_t i = random() % 6; i > 0; --i) {
        Ref<Batch> batch;
        if (feed.next(random() % 2 == 0 ? 0 : 1'000'000, batch) && batch) held.push_back(std::move(batch));
      }
      if (round % 2 == 0) feed.close(-1);
    }
    ASSERT_EQ(source.drops, 1);
  }
}

TEST(Feed, AWorkerThatUsesItsOwnFeedGetsErrorsAndDoesNotHang) {
  struct Closing {
    Feed* feed = nullptr;
    std::latch done{1};
  } closing;
  tenon_generator generator{};
  generator.struct_size = sizeof generator;
  generator.context = &closing;
  generator.fill = [](void* context, const tenon_fill_request*, char*, size_t) {
    auto* const c = static_cast<Closing*>(context);
    Ref<Batch> batch;
    EXPECT_THROW(c->feed->next(-1, batch), Error);
    EXPECT_THROW(c->feed->close(-1), Error);
    c->done.count_down();
    return 0;
  };
  Feed feed(generator, schema(), options(1, 2, -1));
  closing.feed = &feed;
  feed.begin();
  closing.done.wait();
  feed.close(-1);
}

TEST(Feed, WhatCannotBeAFeedIsRefusedAndTheGeneratorStaysTheCallers) {
  Source source;
  const struct {
    tenon_feed_options options;
    const char* words;
  } cases[] = {
      {options(-1, 4, -1), "workers is -1"},
      {options(2, 2, -1), "2 slots are too few for 2 workers"},
      {options(1, 2, -2), "batches is -2"},
      {options(1, 2'000'000'000, -1), "2000000000 slots"},
  };
  for (const auto& c : cases) {
    try {
      Feed feed(source.generator(), schema(), c.options);
      ADD_FAILURE() << "created: " << c.words;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(c.words), std::string::npos) << e.what();
    }
  }
  tenon_generator empty = source.generator();
  empty.fill = nullptr;
  EXPECT_THROW(Feed(empty, schema(), options(1, 2, -1)), Error);
  EXPECT_EQ(source.drops, 0);
}

TEST(Feed, StatisticsAddUp) {
  Source source;
  Feed feed(source.generator(), schema(), options(2, 6, 100));
  feed.begin();
  const Ref<Batch> held = next(feed);
  for (int i = 1; i < 50; ++i) next(feed);
  const tenon_feed_statistics s = feed.statistics();
  EXPECT_EQ(s.workers, 2);
  EXPECT_EQ(s.slots, 6);
  EXPECT_EQ(s.slots_free + s.slots_filling + s.slots_ready + s.slots_held, 6);
  EXPECT_EQ(s.slots_held, 1);
  EXPECT_EQ(s.batches, 50u);
  EXPECT_EQ(s.nbytes, 50u * (256 * 8 + 32 * 4));
  EXPECT_GT(s.fill_ns, 0u);
  EXPECT_EQ(s.slot_nbytes % 4096, 0u);
  const auto* const data = held->array(0)->data();
  const auto* const memory = static_cast<const std::byte*>(s.memory);
  EXPECT_TRUE(data >= memory && data < memory + 6 * s.slot_nbytes);
}

TEST(Feed, AForkedChildGetsAnErrorAndNeverHangs) {
  if (TENON_UNDER_TSAN) GTEST_SKIP() << "ThreadSanitizer does not support threads in a forked child";
  // The allocator of AddressSanitizer stays locked in a child if another thread is in it at the fork. So
  // there is one worker, which waits for a slot then.
  Source source;
  Feed feed(source.generator(), schema(), options(TENON_UNDER_ASAN ? 1 : 2, 4, -1));
  feed.begin();
  Ref<Batch> batch = next(feed);
  while (TENON_UNDER_ASAN && feed.statistics().slots_ready < 3) std::this_thread::yield();
  const pid_t child = fork();
  if (child == 0) {
    const auto is_closed = [](auto body) {
      try {
        body();
      } catch (const Error& e) {
        return e.code() == Code::kClosed && std::string(e.what()).find("parent process") != std::string::npos;
      }
      return false;
    };
    Ref<Batch> other;
    bool is_right = is_closed([&] { feed.next(-1, other); }) && is_closed([&] { feed.begin(); });
    feed.end();
    is_right = is_right && is_intact(*batch);
    batch = {};
    is_right = is_right && feed.statistics().slots_held == 0;
    feed.close(-1);
    {
      Source own;
      Feed mine(own.generator(), schema(), options(1, 3, 2));
      mine.begin();
      is_right = is_right && is_intact(*next(mine));
    }
    _exit(is_right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_TRUE(is_intact(*next(feed)));
}

}  // namespace
}  // namespace tenon::impl
