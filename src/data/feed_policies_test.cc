// SPDX-License-Identifier: Apache-2.0
//
// Worker processes, what becomes of failures, and what a consumer gets that keeps batches. Oracle: a batch's
// numbers follow from (epoch, index, seed) alone, for any worker; every failure comes at its place with
// what is known of it; nothing outlives the feed.
#include <dirent.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "base/comes_true_testing.h"
#include "base/error.h"
#include "data/feed.h"
#include "data/feed_testing.h"
#include "data/pages_testing.h"
#include "data/seed.h"
#include "data/worker.h"

#if defined(__SANITIZE_THREAD__)
#define TENON_SKIP_UNDER_TSAN() GTEST_SKIP() << "ThreadSanitizer's forked children can have no threads"
#else
#define TENON_SKIP_UNDER_TSAN() (void)0
#endif

namespace tenon::impl {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kSeed = 42, kNever = UINT64_MAX;
constexpr int64_t kFillNs = 2'000'000'000;  // for a batch of 1 KiB, also on a loaded machine
const std::vector<int64_t> kWords{16, 8}, kLabels{16};

Ref<Schema> schema() {
  const tenon_field fields[]{{"words", DType(TENON_UINT, 64), 2, kWords.data()},
                             {"label", DType(TENON_INT, 32), 1, kLabels.data()}};
  return Schema::make(fields);
}

// A slot of several parts, as map_slot() maps it.
constexpr int64_t kLargeNbytes = 3 * kMapPart + 5;

Ref<Schema> large_schema() {
  const tenon_field field{"bytes", DType(TENON_UINT, 8), 1, &kLargeNbytes};
  return Schema::make({&field, 1});
}

enum class What {
  kFill,
  kCode,
  kKill,
  kCrash,
  kExit,
  kHang,
  kShrink,
  kWrongShape,
  kEnd,
  kNone,
  kAttach,
  kSpoil,
  kNothing
};

// Lies in memory that the worker processes see, too.
struct Source {
  std::atomic<uint64_t> at{kNever};  // the index at which something happens
  What what = What::kFill;
  std::atomic<int> times{1 << 30};  // so often
  std::atomic<int> fills{0}, drops{0};
  std::atomic<int> by_worker[8]{};
  std::atomic<bool> prepares{false};

  static Source& make() {
    void* const memory =
        mmap(nullptr, sizeof(Source), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return *new (memory) Source;
  }

  int32_t fill(const tenon_fill_request& request, char* message, size_t size) {
    ++fills;
    ++by_worker[request.worker];
    auto* const words = static_cast<uint64_t*>(request.fields[0]);
    for (uint64_t i = 0; i < 128; ++i) words[i] = split_mix(request.seed + i);
    words[0] = request.epoch;
    words[1] = request.index;
    if (request.index != at || times.fetch_sub(1) <= 0) return 0;
    switch (what) {
      case What::kCode: std::snprintf(message, size, "out of %s", "ideas"); return 3;
      case What::kKill: raise(SIGKILL); break;
      case What::kCrash:
        (void)signal(SIGSEGV, SIG_DFL);  // a sanitizer would make an exit of it
        raise(SIGSEGV);
        break;
      case What::kExit: _exit(7);
      case What::kHang: std::this_thread::sleep_for(1h); break;
      case What::kShrink:
        request.shapes[0][0] = request.shapes[1][0] = 5;
        request.shapes[0][1] = 3;
        break;
      case What::kWrongShape: request.shapes[0][1] = 9; break;
      case What::kEnd: return TENON_END_OF_EPOCH;
      case What::kNone: return TENON_NO_BATCH;
      case What::kNothing: return TENON_UNWRITTEN;
      case What::kAttach:
        static_cast<char*>(request.attachment)[*request.attachment_nbytes] = '!';
        ++*request.attachment_nbytes;
        break;
      case What::kSpoil:
        request.shapes[0][0] = request.shapes[1][0] = 5;
        *request.attachment_nbytes = 0;
        return 3;
      case What::kFill: break;
    }
    return 0;
  }

  tenon_generator generator() {
    tenon_generator g{};
    g.struct_size = sizeof g;
    g.flags = TENON_THREADSAFE;
    g.context = this;
    g.fill = [](void* context, const tenon_fill_request* request, char* message, size_t size) {
      return static_cast<Source*>(context)->fill(*request, message, size);
    };
    g.drop = [](void* context) { ++static_cast<Source*>(context)->drops; };
    g.name = "source";
    if (prepares) {
      g.prepare = [](void*, const tenon_fill_request* request, char*, size_t) {
        const int n = std::snprintf(static_cast<char*>(request->attachment), request->attachment_size,
                                    "batch %d", static_cast<int>(request->index));
        *request->attachment_nbytes = static_cast<uint64_t>(n);
        return 0;
      };
    }
    return g;
  }
};

tenon_feed_options options(int32_t workers, int64_t batches, bool has_processes = true) {
  tenon_feed_options o{};
  o.struct_size = sizeof o;
  o.workers = workers;
  o.slots = workers + 4;
  o.batches = batches;
  o.seed = kSeed;
  o.flags = has_processes ? TENON_PROCESSES : 0;
  return o;
}

bool is_intact(const Batch& batch, uint64_t epoch, uint64_t index) {
  const auto* const words = reinterpret_cast<const uint64_t*>(batch.array(0)->data());
  const uint64_t seed = batch_seed(kSeed, epoch, index);
  bool is = words[0] == epoch && words[1] == index;
  for (uint64_t i = 2; i < 128; ++i) is &= words[i] == split_mix(seed + i);
  return is && batch.ticket().index == index && batch.ticket().epoch == epoch;
}

Ref<Batch> next(Feed& feed) {
  Ref<Batch> batch;
  EXPECT_TRUE(feed.next(kWatchdogNs, batch)) << feed.waiting_text();
  return batch;
}

// The number of children that this process has, dead ones that were not waited for among them.
int count_children() {
  int n = 0;
  const std::string tasks = "/proc/self/task";
  DIR* const folder = opendir(tasks.c_str());
  while (const dirent* entry = readdir(folder)) {
    std::FILE* const file = std::fopen((tasks + "/" + entry->d_name + "/children").c_str(), "r");
    if (file == nullptr) continue;
    int pid = 0;
    while (std::fscanf(file, "%d", &pid) == 1) ++n;
    std::fclose(file);
  }
  closedir(folder);
  return n;
}

class Processes : public testing::Test {
 protected:
  void SetUp() override { TENON_SKIP_UNDER_TSAN(); }
  void TearDown() override { EXPECT_EQ(count_children(), 0); }
  Source& source_ = Source::make();
};

TEST_F(Processes, FillTheSameBatchesHoweverManyTheyAre) {
  for (const int32_t workers : {1, 2, 4}) {
    {
      Feed feed(source_.generator(), schema(), options(workers, 200));
      for (uint64_t epoch = 0; epoch < 2; ++epoch) {
        feed.begin();
        for (uint64_t i = 0; i < 200; ++i) ASSERT_TRUE(is_intact(*next(feed), epoch, i)) << i;
        EXPECT_FALSE(next(feed));
      }
    }
    EXPECT_EQ(source_.drops.exchange(0), 1);
  }
}

TEST_F(Processes, AreOthersThanThis) {
  source_.at = 0;
  Feed feed(source_.generator(), schema(), options(2, 100));
  EXPECT_EQ(count_children(), 2);
  const int64_t pid = feed.worker_statistics(0).pid;
  EXPECT_GT(pid, 0);
  EXPECT_NE(pid, getpid());
}

// The start of the worker waits for the memory.
TEST_F(Processes, StartWhileTheFirstSlotTakesItsMemory) {
  tenon_generator g = source_.generator();
  g.start = [](void*, int32_t, const char* link, int64_t*, char*, size_t) {
    struct stat status{};
    const int file = WorkerLink::parse(link).fd;
    const auto has_memory = [&] {
      return fstat(file, &status) == 0 && status.st_blocks * 512 >= kLargeNbytes;
    };
    return comes_true(has_memory) ? 7 : 8;
  };
  try {
    const Feed feed(g, large_schema(), options(1, 1));
    FAIL() << "it was made";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "worker 0 cannot be started (code 7)");
  }
}

TEST_F(Processes, FillSlotsThatTheFeedMapsMeanwhile) {
  tenon_generator g = source_.generator();
  g.fill = [](void* context, const tenon_fill_request* request, char*, size_t) {
    while (static_cast<Source*>(context)->at == kNever) std::this_thread::yield();
    std::memset(request->fields[0], 7, kLargeNbytes);
    return 0;
  };
  Feed feed(g, large_schema(), options(1, 1));
  feed.begin();
  const tenon_feed_statistics s = feed.statistics();
  const auto is_mapped = [&] { return count_mapped_pages(s.memory, s.slot_nbytes) == s.slot_nbytes / kPage; };
  std::thread consumer([&] { EXPECT_TRUE(feed.await(kWatchdogNs)); });
  EXPECT_TRUE(comes_true(is_mapped));
  source_.at = 0;
  consumer.join();
  const Ref<Batch> batch = next(feed);
  const auto* const bytes = static_cast<const std::byte*>(batch->array(0)->data());
  EXPECT_TRUE(std::all_of(bytes, bytes + kLargeNbytes, [](std::byte b) { return b == std::byte{7}; }));
}

TEST_F(Processes, AFailureComesAtItsPlaceWithItsText) {
  source_.at = 7;
  source_.what = What::kCode;
  Feed feed(source_.generator(), schema(), options(3, 100));
  feed.begin();
  for (uint64_t i = 0; i < 7; ++i) ASSERT_TRUE(is_intact(*next(feed), 0, i));
  const std::string text = failure_of(feed);
  EXPECT_NE(text.find("returned 3 at batch 7 of epoch 0 in worker process"), std::string::npos) << text;
  EXPECT_NE(text.find("out of ideas"), std::string::npos) << text;
  const tenon_feed_failure failure = feed.failure();
  EXPECT_EQ(failure.kind, TENON_FAILED);
  EXPECT_EQ(failure.code, 3);
  EXPECT_EQ(failure.index, 7u);
  EXPECT_GT(failure.pid, 0);
  source_.at = kNever;
  feed.begin();
  EXPECT_TRUE(is_intact(*next(feed), 1, 0)) << "the feed goes on";
}

TEST_F(Processes, TheEndOfOneIsToldAtItsPlaceAndAnotherTakesItsPlace) {
  struct Case {
    What what;
    const char* text;
    int32_t signal, code;
  };
  for (const Case& c :
       {Case{What::kKill, "killed by signal 9", SIGKILL, -1},
        Case{What::kCrash, "killed by signal 11", SIGSEGV, -1}, Case{What::kExit, "exit code 7", 0, 7}}) {
    SCOPED_TRACE(c.text);
    source_.at = 5;
    source_.what = c.what;
    Feed feed(source_.generator(), schema(), options(2, 100));
    feed.begin();
    for (uint64_t i = 0; i < 5; ++i) ASSERT_TRUE(is_intact(*next(feed), 0, i));
    const std::string text = failure_of(feed);
    EXPECT_NE(text.find(c.text), std::string::npos) << text;
    EXPECT_NE(text.find("batch 5 of epoch 0"), std::string::npos) << text;
    EXPECT_EQ(feed.failure().exit_signal, c.signal);
    EXPECT_EQ(feed.failure().exit_code, c.code);
    EXPECT_EQ(feed.failure().kind, TENON_DIED);
    source_.at = kNever;
    feed.begin();
    for (uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(is_intact(*next(feed), 1, i));
    EXPECT_EQ(count_children(), 2);
    EXPECT_GE(feed.statistics().restarted, 1u);
  }
}

TEST_F(Processes, OneThatTakesTooLongIsKilled) {
  source_.at = 2;
  source_.what = What::kHang;
  tenon_feed_options o = options(2, 10);
  o.fill_timeout_ns = kFillNs;
  Feed feed(source_.generator(), schema(), o);
  feed.begin();
  EXPECT_TRUE(is_intact(*next(feed), 0, 0));
  EXPECT_TRUE(is_intact(*next(feed), 0, 1));
  const std::string text = failure_of(feed);
  EXPECT_NE(text.find("took longer than 2.0 s for batch 2 of epoch 0 in worker process"), std::string::npos)
      << text;
  EXPECT_EQ(feed.failure().kind, TENON_HUNG);
}

TEST_F(Processes, OthersGoOnWhereFailuresAreSkipped) {
  for (const What what : {What::kCode, What::kKill, What::kHang}) {
    source_.at = 3;
    source_.what = what;
    tenon_feed_options o = options(2, 10);
    o.on_error = TENON_ON_ERROR_SKIP;
    o.fill_timeout_ns = kFillNs;
    Feed feed(source_.generator(), schema(), o);
    feed.begin();
    for (uint64_t i = 0; i < 10; ++i) {
      if (i == 3) continue;
      ASSERT_TRUE(is_intact(*next(feed), 0, i)) << i;
    }
    EXPECT_FALSE(next(feed));
    EXPECT_EQ(feed.statistics().skipped, 1u);
  }
}

TEST_F(Processes, ABatchIsFilledAgainByANewOne) {
  for (const What what : {What::kCode, What::kKill, What::kHang}) {
    source_.at = 3;
    source_.what = what;
    source_.times = 2;
    tenon_feed_options o = options(2, 50);
    o.on_error = TENON_ON_ERROR_RETRY;
    o.retries = 2;
    o.fill_timeout_ns = kFillNs;
    Feed feed(source_.generator(), schema(), o);
    feed.begin();
    for (uint64_t i = 0; i < 50; ++i) ASSERT_TRUE(is_intact(*next(feed), 0, i)) << i;
    EXPECT_FALSE(next(feed));
    EXPECT_EQ(feed.statistics().retried, 2u);
    source_.times = 3;  // once too often
    feed.begin();
    for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(is_intact(*next(feed), 1, i)) << i;
    EXPECT_NE(failure_of(feed).find("batch 3 of epoch 1"), std::string::npos);
  }
}

TEST_F(Processes, CloseDoesNotWaitForABusyOne) {
  source_.at = 0;
  source_.what = What::kHang;
  Feed feed(source_.generator(), schema(), options(2, 10));
  feed.begin();
  std::this_thread::sleep_for(50ms);
  feed.close(kWatchdogNs);  // which ends before the hang does
  EXPECT_EQ(source_.drops, 1);
}

TEST_F(Processes, EndWithTheirParent) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    source_.at = 1;
    source_.what = What::kHang;
    Feed feed(source_.generator(), schema(), options(2, 10));
    feed.begin();
    (void)next(feed);
    int64_t pids[2] = {feed.worker_statistics(0).pid, feed.worker_statistics(1).pid};
    (void)!write(ends[1], pids, sizeof pids);
    while (true) pause();
  }
  int64_t pids[2];
  ASSERT_EQ(read(ends[0], pids, sizeof pids), static_cast<ssize_t>(sizeof pids));
  kill(parent, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(parent, &status, 0), parent);
  const auto lives = [](int64_t pid) {
    std::FILE* const file = std::fopen(concat("/proc/", pid, "/stat").c_str(), "r");
    if (file == nullptr) return false;
    char state = 'Z';
    (void)!std::fscanf(file, "%*d (%*[^)]) %c", &state);
    std::fclose(file);
    return state != 'Z' && state != 'X';
  };
  EXPECT_TRUE(comes_true([&] { return !lives(pids[0]) && !lives(pids[1]); }));
  close(ends[0]);
  close(ends[1]);
}

TEST_F(Processes, ThatCannotBeWatchedAreAnErrorAndNotLeftBehind) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "UndefinedBehaviorSanitizer needs descriptors to look at objects";
#endif
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const int next_file = dup(STDERR_FILENO);
  close(next_file);
  // Room for the memory file, the eventfd and one worker's pidfd, and not for the second one's.
  const rlimit few{static_cast<rlim_t>(next_file) + 3, limit.rlim_max};
  std::string text;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  try {
    const Feed feed(source_.generator(), schema(), options(2, 10));
  } catch (const Error& e) {
    text = e.what();
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_NE(text.find("worker process 1"), std::string::npos) << text;
  EXPECT_NE(text.find("cannot be watched (pidfd_open): Too many open files"), std::string::npos) << text;
}

TEST_F(Processes, RoundRobinGivesEachItsBatches) {
  tenon_feed_options o = options(3, 30);
  o.flags |= TENON_ROUND_ROBIN;
  Feed feed(source_.generator(), schema(), o);
  feed.begin();
  for (uint64_t i = 0; i < 30; ++i) ASSERT_TRUE(is_intact(*next(feed), 0, i));
  EXPECT_FALSE(next(feed));
  for (int worker = 0; worker < 3; ++worker) EXPECT_EQ(source_.by_worker[worker], 10);
}

// What holds for threads and for processes.
class EitherWay : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam()) TENON_SKIP_UNDER_TSAN();
  }
  tenon_feed_options options(int32_t workers, int64_t batches) {
    return tenon::impl::options(workers, batches, GetParam());
  }
  Source& source_ = Source::make();
};

TEST_P(EitherWay, ABatchThatIsFilledAgainBeginsAnew) {
  source_.at = 1;
  source_.what = What::kSpoil;
  source_.times = 1;
  source_.prepares = true;
  tenon_feed_options o = options(1, 3);
  o.on_error = TENON_ON_ERROR_RETRY;
  o.retries = 1;
  o.attachment_nbytes = 100;
  Feed feed(source_.generator(), schema(), o);
  feed.begin();
  for (uint64_t i = 0; i < 3; ++i) {
    const Ref<Batch> batch = next(feed);
    EXPECT_TRUE(is_intact(*batch, 0, i));
    EXPECT_EQ(batch->array(0)->shape()[0], 16);
    EXPECT_EQ(batch->array(1)->shape()[0], 16);
    EXPECT_FALSE(batch->attachment().empty());
  }
  EXPECT_EQ(feed.statistics().retried, 1u);
}

TEST_P(EitherWay, ABatchMayBeSmallerThanItsSchema) {
  source_.at = 1;
  source_.what = What::kShrink;
  Feed feed(source_.generator(), schema(), options(2, 3));
  feed.begin();
  EXPECT_EQ(next(feed)->array(0)->shape()[0], 16);
  const Ref<Batch> batch = next(feed);
  EXPECT_EQ(batch->array(0)->shape()[0], 5);
  EXPECT_EQ(batch->array(0)->shape()[1], 3);
  EXPECT_EQ(batch->array(0)->strides()[0], 3);
  EXPECT_EQ(batch->array(1)->shape()[0], 5);
  EXPECT_EQ(batch->nbytes(), 5u * 3 * 8 + 5 * 4);
  EXPECT_EQ(next(feed)->array(0)->shape()[0], 16) << "the next one is whole again";
}

TEST_P(EitherWay, AShapeThatDoesNotFitIsAFailure) {
  source_.at = 1;
  source_.what = What::kWrongShape;
  Feed feed(source_.generator(), schema(), options(2, 3));
  feed.begin();
  (void)next(feed);
  const std::string text = failure_of(feed);
  EXPECT_NE(text.find("left field 'words' in a shape that does not fit into (16, 8)"), std::string::npos)
      << text;
}

TEST_P(EitherWay, AnEpochMayEndEarlyAndABatchMayBeNone) {
  source_.at = 4;
  source_.what = What::kEnd;
  {
    Feed feed(source_.generator(), schema(), options(3, -1));
    feed.begin();
    for (uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(is_intact(*next(feed), 0, i));
    EXPECT_FALSE(next(feed));
    feed.begin();
    for (uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(is_intact(*next(feed), 1, i));
    EXPECT_FALSE(next(feed));
  }
  source_.what = What::kNone;
  Feed feed(source_.generator(), schema(), options(3, 6));
  feed.begin();
  for (const uint64_t i : {0, 1, 2, 3, 5}) ASSERT_TRUE(is_intact(*next(feed), 0, i));
  EXPECT_FALSE(next(feed));
}

TEST_P(EitherWay, ABatchOfWhichNothingWasWrittenIsPassedOnAndCounted) {
  source_.at = 4;
  source_.what = What::kNothing;
  Feed feed(source_.generator(), schema(), options(2, 9));
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    feed.begin();
    for (uint64_t i = 0; i < 9; ++i) ASSERT_TRUE(is_intact(*next(feed), epoch, i));
    EXPECT_FALSE(next(feed));
    EXPECT_EQ(feed.statistics().unwritten, epoch + 1);
  }
  EXPECT_EQ(feed.worker_statistics(0).failures + feed.worker_statistics(1).failures, 0u);
}

TEST_P(EitherWay, AShuffledEpochHasEachBatchOnceAndIsResumed) {
  tenon_feed_options o = options(3, 50);
  o.flags |= TENON_SHUFFLE;
  const Order order = Order(50).shuffled(kSeed);
  Feed feed(source_.generator(), schema(), o);
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    feed.begin();
    for (uint64_t place = 0; place < 50; ++place) {
      EXPECT_EQ(feed.position().second, place);
      ASSERT_TRUE(is_intact(*next(feed), epoch, order.index_at(epoch, 0, place)));
    }
    EXPECT_FALSE(next(feed));
  }
  feed.seek(1, 48);
  feed.begin();
  ASSERT_TRUE(is_intact(*next(feed), 1, order.index_at(1, 0, 48)));
  ASSERT_TRUE(is_intact(*next(feed), 1, order.index_at(1, 0, 49)));
  EXPECT_FALSE(next(feed));
  source_.at = order.index_at(2, 0, 7);
  source_.what = What::kCode;
  feed.begin();
  for (uint64_t place = 0; place < 7; ++place) (void)next(feed);
  EXPECT_NE(failure_of(feed).find(concat("batch ", order.index_at(2, 0, 7), " of epoch 2")),
            std::string::npos);
  EXPECT_EQ(feed.failure().index, order.index_at(2, 0, 7));
  o.batches = -1;
  EXPECT_THROW(Feed(source_.generator(), schema(), o), Error);
}

TEST_P(EitherWay, RanksShareAnEpochAndAnotherNumberOfThemGoesOn) {
  const uint64_t batches = 23;
  for (const uint32_t flags : {0u, uint32_t{TENON_SHUFFLE}}) {
    std::vector<int> seen(batches);
    std::pair<uint64_t, uint64_t> left{0, 0};
    for (const auto& [ranks, count] :
         std::vector<std::pair<int32_t, int>>{{4, 1}, {1, 1}, {3, 2}, {1, 2}, {2, 100}}) {
      const std::pair<uint64_t, uint64_t> begin = left;
      for (int32_t rank = 0; rank < ranks; ++rank) {
        tenon_feed_options o = options(2, static_cast<int64_t>(batches));
        o.flags |= flags;
        o.rank = rank;
        o.world_size = ranks;
        Feed feed(source_.generator(), schema(), o);
        feed.seek(begin.first, begin.second);
        feed.begin();
        for (int i = 0; i < count; ++i) {
          const Ref<Batch> batch = next(feed);
          if (!batch) break;
          ++seen[batch->ticket().index];
          ASSERT_TRUE(is_intact(*batch, 0, batch->ticket().index));
        }
        if (rank == 0 || count < 100) left = feed.position();
      }
    }
    EXPECT_EQ(seen, std::vector<int>(batches, 1));
  }
  tenon_feed_options o = options(2, 5);
  for (const auto& [rank, ranks] :
       std::vector<std::pair<int32_t, int32_t>>{{1, 1}, {-1, 2}, {2, 2}, {1, 0}, {0, -1}}) {
    o.rank = rank;
    o.world_size = ranks;
    EXPECT_THROW(Feed(source_.generator(), schema(), o), Error);
  }
}

TEST_P(EitherWay, WhatIsPreparedAndAttachedTravelsWithTheBatch) {
  source_.prepares = true;
  source_.at = 1;
  source_.what = What::kAttach;
  tenon_feed_options o = options(2, 4);
  o.attachment_nbytes = 100;
  Feed feed(source_.generator(), schema(), o);
  feed.begin();
  for (const char* const wanted : {"batch 0", "batch 1!", "batch 2", "batch 3"}) {
    const Ref<Batch> batch = next(feed);
    const auto bytes = batch->attachment();
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), wanted);
  }
}

TEST_P(EitherWay, RoundRobinNeitherKeepsSlotsNorStandsInTheWay) {
  source_.prepares = true;
  tenon_feed_options o = options(3, -1);
  o.flags |= TENON_ROUND_ROBIN;
  o.attachment_nbytes = 100;
  o.on_starved = TENON_ON_STARVED_RAISE;
  for (int round = 0; round < 20; ++round) {
    Feed feed(source_.generator(), schema(), o);
    feed.begin();
    for (uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(is_intact(*next(feed), 0, i));
    std::vector<Ref<Batch>> kept;
    for (uint64_t i = 20; i < 27; ++i) {  // every slot
      kept.push_back(next(feed));
      ASSERT_TRUE(kept.back()) << i;
    }
    Ref<Batch> none;
    EXPECT_THROW((void)feed.next(-1, none), Error);
    kept.clear();
    ASSERT_TRUE(is_intact(*next(feed), 0, 27));
  }
}

TEST_P(EitherWay, AFeedGoesOnWhereItWasLeft) {
  uint64_t epoch = 0, index = 0;
  {
    Feed feed(source_.generator(), schema(), options(2, 20));
    feed.begin();
    while (next(feed)) {
    }
    feed.begin();
    for (int i = 0; i < 7; ++i) (void)next(feed);
    std::tie(epoch, index) = feed.position();
  }
  EXPECT_EQ(epoch, 1u);
  EXPECT_EQ(index, 7u);
  Feed feed(source_.generator(), schema(), options(3, 20));
  feed.seek(epoch, index);
  feed.begin();
  for (uint64_t i = 7; i < 20; ++i) ASSERT_TRUE(is_intact(*next(feed), 1, i));
  EXPECT_FALSE(next(feed));
  EXPECT_EQ(feed.position().first, 2u);
  feed.begin();
  EXPECT_TRUE(is_intact(*next(feed), 2, 0));
}

TEST_P(EitherWay, AConsumerThatKeepsAllGetsWhatItHasAskedFor) {
  std::vector<Ref<Batch>> kept;
  const auto keep = [&](Feed& feed, uint64_t n) {
    feed.begin();
    for (uint64_t i = 0; i < n; ++i) kept.push_back(next(feed));
    for (uint64_t i = 0; i < n; ++i) ASSERT_TRUE(is_intact(*kept[i], 0, i)) << i;
    kept.clear();
  };
  tenon_feed_options o = options(2, -1);
  o.on_starved = TENON_ON_STARVED_COPY;
  {
    Feed feed(source_.generator(), schema(), o);
    keep(feed, 40);
    EXPECT_EQ(feed.statistics().copied, 36u) << "four slots of six can be lent";
    EXPECT_EQ(feed.statistics().slots, 6);
  }
  o.on_starved = TENON_ON_STARVED_GROW;
  {
    Feed feed(source_.generator(), schema(), o);
    keep(feed, 40);
    EXPECT_GE(feed.statistics().slots, 40);
    EXPECT_EQ(feed.statistics().copied, 0u);
  }
  o.on_starved = TENON_ON_STARVED_RAISE;
  Feed feed(source_.generator(), schema(), o);
  feed.begin();
  for (int i = 0; i < 6; ++i) kept.push_back(next(feed));
  Ref<Batch> none;
  try {
    (void)feed.next(-1, none);
    FAIL() << "it waited";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kLeaseConflict);
    EXPECT_NE(std::string(e.what()).find("all 6 slots hold delivered batches"), std::string::npos)
        << e.what();
  }
  kept.erase(kept.begin());
  EXPECT_TRUE(is_intact(*next(feed), 0, 6));
}

// 8 GiB for each slot, of which 32 bytes are filled; also the copies of batches that are kept are small.
TEST_P(EitherWay, SparseSlotsTakeMemoryWhereTheyAreWritten) {
  const int64_t shape[]{int64_t{1} << 33};
  const tenon_field field{"bytes", DType(TENON_UINT, 8), 1, shape};
  tenon_generator g = source_.generator();
  g.fill = [](void*, const tenon_fill_request* request, char*, size_t) {
    std::memset(request->fields[0], static_cast<int>(request->index), 32);
    request->shapes[0][0] = 32;
    *static_cast<char*>(request->attachment) = static_cast<char>(request->index);
    *request->attachment_nbytes = 1;
    return 0;
  };
  tenon_feed_options o = options(2, 50);
  o.flags |= TENON_SPARSE_SLOTS;
  o.on_starved = TENON_ON_STARVED_COPY;
  o.attachment_nbytes = 1;
  Feed feed(g, Schema::make({&field, 1}), o);
  feed.begin();
  std::vector<Ref<Batch>> kept;
  for (uint64_t i = 0; i < 50; ++i) kept.push_back(next(feed));
  for (size_t i = 0; i < 50; ++i) {
    const auto* const bytes = kept[i]->array(0)->data();
    EXPECT_EQ(kept[i]->nbytes(), 32u);
    EXPECT_EQ(static_cast<size_t>(bytes[0]), i);
    EXPECT_EQ(static_cast<size_t>(bytes[31]), i);
    EXPECT_EQ(static_cast<size_t>(kept[i]->attachment()[0]), i);
  }
  EXPECT_GT(feed.statistics().copied, 40u);
  rusage usage{};
  ASSERT_EQ(getrusage(RUSAGE_SELF, &usage), 0);
  EXPECT_LT(usage.ru_maxrss, 4 << 20) << "in KiB";
}

INSTANTIATE_TEST_SUITE_P(Feeds, EitherWay, testing::Bool(),
                         [](const auto& test) { return test.param ? "processes" : "threads"; });

TEST(Threads, OneThatTakesTooLongIsLeftBehind) {
  Source& source = Source::make();
  source.at = 2;
  source.what = What::kHang;
  tenon_feed_options o = options(2, 10, false);
  o.fill_timeout_ns = kFillNs;
  for (const int32_t policy : {TENON_ON_ERROR_RAISE, TENON_ON_ERROR_SKIP}) {
    o.on_error = policy;
    Feed feed(source.generator(), schema(), o);
    feed.begin();
    EXPECT_TRUE(is_intact(*next(feed), 0, 0));
    EXPECT_TRUE(is_intact(*next(feed), 0, 1));
    if (policy == TENON_ON_ERROR_RAISE) {
      EXPECT_NE(failure_of(feed).find("took longer than 2.0 s for batch 2"), std::string::npos);
    } else {
      for (uint64_t i = 3; i < 10; ++i) ASSERT_TRUE(is_intact(*next(feed), 0, i));
    }
    EXPECT_THROW(feed.close(1'000'000), Error);
  }
}

}  // namespace
}  // namespace tenon::impl
