// SPDX-License-Identifier: Apache-2.0
//
// What becomes of the tickets of worker processes that end, hang or stop, in a fill and between two.
//
// A worker process is killed, or stops, before each of its stores to the feed's memory in turn, from a fill
// on. Oracle: a killed one costs an attempt of one batch, at most; while one is stopped, the others go on,
// and no call of the consumer takes longer than it may; after its end all batches of the epoch have come,
// each once, in their order, and every slot is free again.
#include <dirent.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/os.h"
#include "data/feed.h"
#include "data/inspect_feeds.h"
#include "data/worker.h"
#include "ipc/layout.h"

#if defined(__SANITIZE_THREAD__)
#define TENON_SKIP_UNDER_TSAN() GTEST_SKIP() << "ThreadSanitizer's forked children can have no threads"
#else
#define TENON_SKIP_UNDER_TSAN() (void)0
#endif

namespace tenon::impl {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kLongNs = 600 * kSecond, kShortNs = 50'000'000;
constexpr int64_t kFillNs = 2 * kSecond;  // for a small batch, also on a loaded machine
constexpr uint64_t kBatches = 12, kStopsAt = 3;
constexpr int64_t kRows = 4;

// Lies in memory that the worker processes see, too.
struct Source {
  std::atomic<long> store{0};                     // before which a worker stops; 0: none does
  std::atomic<int32_t> outcome{0};                // of the fill after which it stops
  std::atomic<int32_t> armed{0};                  // its process
  std::atomic<uint64_t> hangs_after{UINT64_MAX};  // the answer for this batch
  std::atomic<bool> closes_files{false};          // as daemons do
  std::atomic<int32_t> starts{0};                 // how often a worker can be started

  static Source& make() {
    void* const memory =
        mmap(nullptr, sizeof(Source), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return *new (memory) Source;
  }

  int32_t fill(const tenon_fill_request& request) {
    auto* const words = static_cast<uint64_t*>(request.fields[0]);
    for (int64_t i = 0; i < kRows; ++i) words[i] = request.epoch << 32 | request.index;
    if (request.state_size != 0) {
      static uint64_t own = 0;  // the state: how many batches this worker has filled
      if ((request.flags & TENON_RESTORE_START) != 0) own = 0;
      if ((request.flags & TENON_RESTORE_STATE) != 0) own = *static_cast<const uint64_t*>(request.state);
      words[kRows - 1] = ++own;
      *static_cast<uint64_t*>(request.state) = own;
      *request.state_nbytes = sizeof own;
    }
    static int fills_since = 0;  // of this process
    if (armed == getpid() && ++fills_since == 2) (void)stop_at_store(0);
    if (request.index != kStopsAt) return 0;
    if (const long number = store.exchange(0); number != 0) {
      armed = getpid();
      (void)stop_at_store(number);
      return outcome;
    }
    return 0;
  }

  tenon_generator generator(bool has_state) {
    tenon_generator g{};
    g.struct_size = sizeof g;
    g.flags = TENON_THREADSAFE | (has_state ? TENON_HAS_STATE : 0);
    g.context = this;
    g.fill = [](void* context, const tenon_fill_request* request, char*, size_t) {
      return static_cast<Source*>(context)->fill(*request);
    };
    g.name = "source";
    return g;
  }
};

Ref<Schema> schema() {
  const tenon_field field{"words", DType(TENON_UINT, 64), 1, &kRows};
  return Schema::make({&field, 1});
}

tenon_feed_options options(int32_t workers) {
  tenon_feed_options o{};
  o.struct_size = sizeof o;
  o.workers = workers;
  o.slots = workers + 2;
  o.batches = kBatches;
  o.flags = TENON_PROCESSES;
  o.on_error = TENON_ON_ERROR_RETRY;
  o.retries = 1;
  return o;
}

tenon_feed_options raising(int32_t workers) {
  tenon_feed_options o = options(workers);
  o.on_error = TENON_ON_ERROR_RAISE;
  o.retries = 0;
  return o;
}

// False: not within ten seconds.
template <class Condition>
bool comes_true(Condition is_true) {
  const auto end = std::chrono::steady_clock::now() + 10s;
  while (!is_true() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  return is_true();
}

bool is_stopped(const Source& source) {
  const int32_t pid = source.armed;
  return pid != 0 && os::is_stopped(static_cast<uint32_t>(pid));
}

// workers: among which the batches go round; 0: the generator has no state.
void expect_batch(const Batch& batch, uint64_t epoch, uint64_t index, uint64_t workers) {
  EXPECT_EQ(batch.ticket().index, index);
  const auto* const words = reinterpret_cast<const uint64_t*>(batch.array(0)->data());
  for (int64_t i = 0; i < kRows - 1; ++i) EXPECT_EQ(words[i], epoch << 32 | index);
  EXPECT_EQ(words[kRows - 1], workers == 0 ? epoch << 32 | index : (epoch * kBatches + index) / workers + 1);
}

class AtEachStore : public testing::Test {
 protected:
  void SetUp() override { TENON_SKIP_UNDER_TSAN(); }

  // Takes an epoch, and kills a worker that has stopped once nothing comes. The first `kept` batches are kept
  // until all of them are there. round: of expect_batch().
  void play(Feed& feed, uint64_t epoch, size_t kept, uint64_t round);
  // A worker stops before its n-th store after a fill. False: it has begun its next fill but one before.
  bool stop_at(long n, int32_t workers, bool has_state, int32_t outcome);
  // least: so many stores it has at least. On a loaded machine, the other worker may fill all batches before:
  // then the store is tried again.
  void run(int32_t workers, bool has_state, int32_t outcome, long least) {
    long n = 1;
    for (int misses = 0; !HasFailure() && misses < (n < least ? 10 : 1);) {
      if (stop_at(n, workers, has_state, outcome)) {
        n += step_;
        misses = 0;
      } else {
        ++misses;
      }
    }
    EXPECT_FALSE(HasFailure()) << "at store " << n;
    EXPECT_GE(n, least);
  }

  Source& source_ = Source::make();
  bool has_stopped_ = false;
  long step_ = 1;
  int64_t timeout_ns_ = 0;  // the feed kills a worker that takes longer, and the test does not
};

void AtEachStore::play(Feed& feed, uint64_t epoch, size_t kept, uint64_t round) {
  feed.begin();
  std::vector<Ref<Batch>> held;
  const auto end = std::chrono::steady_clock::now() + 60s;
  for (uint64_t at = 0; at < kBatches;) {
    Ref<Batch> batch;
    const auto start = std::chrono::steady_clock::now();
    const bool has = feed.next(kShortNs, batch);
    ASSERT_LT(std::chrono::steady_clock::now() - start, 20s) << "a stopped worker stops the consumer";
    if (!has) {
      if (is_stopped(source_)) {
        has_stopped_ = true;
        if (timeout_ns_ == 0) kill(source_.armed, SIGKILL);
      }
      ASSERT_LT(std::chrono::steady_clock::now(), end) << "no batch " << at << ": " << feed.waiting_text();
      continue;
    }
    ASSERT_TRUE(batch) << "the epoch has ended before batch " << at;
    if (at == kStopsAt && source_.outcome == TENON_NO_BATCH && batch->ticket().index == at + 1) ++at;
    ASSERT_NO_FATAL_FAILURE(expect_batch(*batch, epoch, at++, round));
    if (held.size() < kept) held.push_back(std::move(batch));
    if (held.size() == kept) {
      held.clear();
      kept = 0;
    }
  }
  Ref<Batch> batch;
  EXPECT_TRUE(feed.next(kLongNs, batch));
  EXPECT_FALSE(batch);
}

bool AtEachStore::stop_at(long n, int32_t workers, bool has_state, int32_t outcome) {
  has_stopped_ = false;
  source_.armed = 0;
  source_.outcome = outcome;
  source_.store = n;
  tenon_feed_options o = options(workers);
  o.fill_timeout_ns = timeout_ns_;
  if (timeout_ns_ != 0) o.retries = 1000;  // a fill that takes longer is filled again
  Feed feed(source_.generator(has_state), schema(), o);
  const auto round = static_cast<uint64_t>(has_state ? workers : 0);
  play(feed, 0, 0, round);
  // No slot is lost: a consumer can have all of them.
  if (!HasFatalFailure()) play(feed, 1, static_cast<size_t>(feed.statistics().slots), round);
  EXPECT_LE(feed.statistics().retried, timeout_ns_ == 0 ? 1U : 1000U);
  return has_stopped_ || is_stopped(source_);
}

TEST_F(AtEachStore, TheOnlyWorkerIsKilled) { run(1, false, 0, 20); }
TEST_F(AtEachStore, AWorkerWithAStateIsKilled) { run(2, true, 0, 20); }
TEST_F(AtEachStore, OneOfTwoWorkersStopsAndIsKilled) { run(2, false, 0, 20); }
TEST_F(AtEachStore, AWorkerThatSkipsIsKilled) { run(2, false, TENON_NO_BATCH, 20); }
TEST_F(AtEachStore, AWorkerThatFailsIsKilled) { run(2, false, 3, 1); }  // it ends itself

TEST_F(AtEachStore, AWorkerThatStopsIsKilledIfItTakesTooLong) {
  step_ = 4;
  timeout_ns_ = 300'000'000;
  run(1, false, 0, 20);
  run(2, true, 0, 20);
}

class EndedProcesses : public testing::Test {
 protected:
  void SetUp() override { TENON_SKIP_UNDER_TSAN(); }

  Source& source_ = Source::make();
};

int count_threads() {
  int n = 0;
  DIR* const folder = opendir("/proc/self/task");
  while (const dirent* entry = readdir(folder)) n += entry->d_name[0] != '.' ? 1 : 0;
  closedir(folder);
  return n;
}

TEST_F(EndedProcesses, AreWatchedByOneThread) {
  const int before = count_threads();
  const Feed feed(source_.generator(false), schema(), options(4));
  // A thread that has dropped an earlier feed may end meanwhile.
  EXPECT_TRUE(comes_true([&] { return count_threads() <= before + 1; })) << count_threads();
}

const char* state_of(Feed& feed, int32_t worker) {
  struct stat file{};
  if (fstat(feed.statistics().memory_file, &file) != 0) return "";
  for (const FeedReport& report : inspect_feeds()) {
    if (report.inode == file.st_ino && !report.workers.empty())
      return report.workers[static_cast<size_t>(worker)].state;
  }
  return "";
}

// Kills the worker while it waits for a ticket. It is reaped then.
void kill_idle(Feed& feed, int32_t worker) {
  ASSERT_TRUE(comes_true([&] { return std::string_view(state_of(feed, worker)) == "asleep"; }));
  const int64_t pid = feed.worker_statistics(worker).pid;
  ASSERT_EQ(kill(static_cast<pid_t>(pid), SIGKILL), 0);
  ASSERT_TRUE(comes_true([&] { return feed.worker_statistics(worker).pid != pid; }));
}

// What a consumer is told in an epoch: the batches that it does not get, and the failure, if there is one.
struct Told {
  std::string failure;
  int missing = 0;
};

Told play(Feed& feed, uint64_t epoch) {
  Told told;
  feed.begin();
  for (uint64_t at = 0;;) {
    Ref<Batch> batch;
    try {
      EXPECT_TRUE(feed.next(kLongNs, batch)) << feed.waiting_text();
    } catch (const Error& e) {
      told.failure = e.what();
      return told;
    }
    if (!batch) {
      told.missing += static_cast<int>(kBatches - at);
      return told;
    }
    for (; at < batch->ticket().index; ++at) ++told.missing;
    expect_batch(*batch, epoch, at++, 0);
  }
}

TEST_F(EndedProcesses, AnIdleOneThatIsKilledIsToldAtABatchAndReplaced) {
  for (const int32_t policy : {TENON_ON_ERROR_RAISE, TENON_ON_ERROR_SKIP, TENON_ON_ERROR_RETRY}) {
    for (const int32_t workers : {1, 2}) {
      SCOPED_TRACE(concat("policy ", policy, ", ", workers, " workers"));
      tenon_feed_options o = options(workers);
      o.on_error = policy;
      o.retries = policy == TENON_ON_ERROR_RETRY ? 1 : 0;
      Feed feed(source_.generator(false), schema(), o);
      EXPECT_EQ(play(feed, 0).failure, "");
      ASSERT_NO_FATAL_FAILURE(kill_idle(feed, workers - 1));
      Told told;
      uint64_t epoch = 1;
      const auto is_told = [&] {
        return !told.failure.empty() || told.missing > 0 || feed.statistics().retried > 0;
      };
      // With another worker, that one may be faster in an epoch.
      for (; !is_told() && epoch < (workers == 1 ? 2U : 1000U); ++epoch) told = play(feed, epoch);
      EXPECT_TRUE(is_told());
      EXPECT_EQ(told.failure.find("was killed by signal 9") != std::string::npos,
                policy == TENON_ON_ERROR_RAISE)
          << told.failure;
      EXPECT_EQ(told.missing, policy == TENON_ON_ERROR_SKIP ? 1 : 0);
      EXPECT_EQ(feed.statistics().retried, policy == TENON_ON_ERROR_RETRY ? 1U : 0U);
      EXPECT_TRUE(comes_true([&] { return feed.worker_statistics(workers - 1).pid != 0; }));
      EXPECT_EQ(feed.statistics().restarted, 1U);
      EXPECT_EQ(play(feed, epoch).failure, "") << "it is told once";
    }
  }
}

TEST_F(EndedProcesses, OneThatEndsBeforeItsFirstBatchIsToldAtABatch) {
  Feed feed(source_.generator(false), schema(), raising(1));
  ASSERT_NO_FATAL_FAILURE(kill_idle(feed, 0));
  EXPECT_NE(play(feed, 0).failure.find("was killed by signal 9"), std::string::npos);
  EXPECT_EQ(play(feed, 1).failure, "");
}

// A process that joins by its link, as those of other languages do.
int32_t start_by_link(Source& source, const char* link, int64_t* pid) {
  const pid_t child = fork();
  *pid = child;
  if (child != 0) return child > 0 ? 0 : -1;
  const std::unique_ptr<Worker> worker = Worker::join(link);
  for (int fd = STDERR_FILENO + 1; source.closes_files && fd < 256; ++fd) close(fd);
  while (worker->next(-1) == Worker::Received::kRequest) {
    const uint64_t index = worker->request()->index;
    worker->answer(source.fill(*worker->request()), nullptr);
    if (index == source.hangs_after) std::this_thread::sleep_for(1h);
  }
  _exit(0);
}

TEST_F(EndedProcesses, OneThatCannotBeStartedAgainIsToldAtEachBatch) {
  tenon_generator g = source_.generator(false);
  source_.starts = 1;
  g.start = [](void* context, int32_t, const char* link, int64_t* pid, char* text, size_t size) {
    Source& source = *static_cast<Source*>(context);
    if (source.starts.fetch_sub(1) > 0) return start_by_link(source, link, pid);
    std::snprintf(text, size, "no room");
    return 9;
  };
  Feed feed(g, schema(), raising(1));
  EXPECT_EQ(play(feed, 0).failure, "");
  ASSERT_NO_FATAL_FAILURE(kill_idle(feed, 0));
  EXPECT_NE(play(feed, 1).failure.find("was killed by signal 9"), std::string::npos);
  for (uint64_t epoch = 2; epoch < 5; ++epoch) {
    const std::string failure = play(feed, epoch).failure;
    EXPECT_NE(failure.find("worker 0 has ended, and is not started again (code 9): no room"),
              std::string::npos)
        << failure;
  }
}

TEST_F(EndedProcesses, OneThatHasClosedItsDescriptorsFillsSlots) {
  source_.closes_files = true;
  tenon_generator g = source_.generator(false);
  g.start = [](void* context, int32_t, const char* link, int64_t* pid, char*, size_t) {
    return start_by_link(*static_cast<Source*>(context), link, pid);
  };
  Feed feed(g, schema(), raising(2));
  for (uint64_t epoch = 0; epoch < 3; ++epoch) EXPECT_EQ(play(feed, epoch).failure, "");
}

TEST_F(EndedProcesses, OneThatHangsBetweenTwoBatchesIsKilledWhenTheConsumerWaits) {
  source_.hangs_after = kBatches - 1;
  tenon_generator g = source_.generator(false);
  g.start = [](void* context, int32_t, const char* link, int64_t* pid, char*, size_t) {
    return start_by_link(*static_cast<Source*>(context), link, pid);
  };
  tenon_feed_options o = options(1);
  o.on_error = TENON_ON_ERROR_RAISE;
  o.fill_timeout_ns = kFillNs;
  Feed feed(g, schema(), o);
  EXPECT_EQ(play(feed, 0).failure, "");
  const int64_t pid = feed.worker_statistics(0).pid;
  std::this_thread::sleep_for(std::chrono::nanoseconds(kFillNs + kFillNs / 4));
  EXPECT_EQ(feed.worker_statistics(0).pid, pid) << "nobody has waited for it";
  source_.hangs_after = UINT64_MAX;
  const std::string failure = play(feed, 1).failure;
  EXPECT_NE(failure.find("took longer than 2.0 s for batch 0 of epoch 1 in worker process 0"),
            std::string::npos)
      << failure;
  EXPECT_EQ(feed.failure().kind, TENON_HUNG);
  EXPECT_EQ(play(feed, 2).failure, "");
}

}  // namespace
}  // namespace tenon::impl
