// SPDX-License-Identifier: Apache-2.0
//
// A consumer of a served feed stops before each of its stores in turn, while it receives and gives back
// batches. Then it is killed. The others get each batch but those that it had received, in order, and the
// epoch ends. At the end no slot is lost.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/os.h"
#include "data/attached_feed.h"
#include "data/served_feed_testing.h"
#include "ipc/layout.h"

namespace tenon::impl {
namespace {

using serving::Served;
using serving::unique_name;

constexpr int64_t kBatches = 30;

// A process that waits for a byte, then runs its body, whose result is its exit code.
class Child {
 public:
  explicit Child(const std::function<int()>& body) {
    EXPECT_EQ(pipe(to_), 0);
    pid_ = fork();
    if (pid_ != 0) return;
    char byte = 0;
    close(to_[1]);
    if (read(to_[0], &byte, 1) != 1) _exit(100);
    int code = 101;
    try {
      code = body();
    } catch (const std::exception& e) {
      (void)std::fprintf(stderr, "child: %s\\n", e.what());
    }
    _exit(code);
  }
  ~Child() {
    if (pid_ > 0) kill();
    for (const int fd : to_) close(fd);
  }
  void go() { EXPECT_EQ(write(to_[1], "x", 1), 1); }
  bool is_stopped() const { return os::is_stopped(static_cast<uint32_t>(pid_)); }
  // -1: it runs.
  int ended() {
    int status = 0;
    if (pid_ <= 0 || waitpid(pid_, &status, WNOHANG) != pid_) return -1;
    pid_ = -1;
    return WEXITSTATUS(status);
  }
  int join() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  void kill() {
    (void)::kill(pid_, SIGKILL);
    (void)join();
  }

 private:
  int to_[2] = {-1, -1};
  pid_t pid_ = -1;
};

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

int receive_all(const std::string& name) {
  AttachedFeed feed(name);
  feed.begin();
  int n = 0;
  int64_t last = -1;
  while (true) {
    Ref<Batch> batch;
    if (!feed.next(60 * kSecond, batch)) return 102;
    if (!batch) return n;
    if (static_cast<int64_t>(batch->ticket().index) <= last) return 103;
    last = static_cast<int64_t>(batch->ticket().index);
    ++n;
  }
}

// False: the consumer has fewer stores.
bool stop_at(long store, ServedMode mode, bool has_state) {
  const std::string name = unique_name();
  Child victim([&] { return receive_some(name, store); });
  Child other([&] { return receive_all(name); });
  Served served(kBatches, -1, 0, name, has_state);
  served.feed->serve({.mode = mode, .consumers = 1});
  other.go();
  EXPECT_EQ(served.wait(), ServeWhat::kGathered);
  victim.go();
  // It takes part in the round, if it does not stop before.
  while (served.feed->serve_wait(1'000'000).consumers < 2 && !victim.is_stopped()) {
  }
  served.feed->serve_next();
  int code = -1;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  ServeReport report;
  while (report.what != ServeWhat::kEpochEnded && std::chrono::steady_clock::now() < end) {
    report = served.feed->serve_wait(1'000'000);
    if (code < 0) code = victim.ended();
    if (code < 0 && victim.is_stopped()) {
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
  while (code < 0) {
    code = victim.ended();
    if (code < 0 && victim.is_stopped()) {
      victim.kill();
      code = 0;
    }
  }
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
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer's forked children can have no threads";
#endif
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
