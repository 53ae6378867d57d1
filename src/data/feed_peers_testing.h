// SPDX-License-Identifier: Apache-2.0
//
// Other processes of tests that serve a feed. Each is forked before its feed is made, so it has nothing of it
// but the name.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/os.h"
#include "data/attached_feed.h"
#include "data/served_feed_testing.h"

#ifdef __SANITIZE_THREAD__
#define TENON_SKIP_UNDER_TSAN() GTEST_SKIP() << "ThreadSanitizer's forked children can have no threads"
#else
#define TENON_SKIP_UNDER_TSAN() (void)0
#endif

namespace tenon::impl {
namespace serving {

// A process that waits for go(), then runs its body, whose result is its exit code.
class Peer {
 public:
  explicit Peer(const std::function<int()>& body) {
    EXPECT_EQ(pipe(to_), 0);
    EXPECT_EQ(pipe(from_), 0);
    pid_ = fork();
    if (pid_ != 0) return;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);  // also when the test crashes
    close(to_[1]);
    said_ = from_[1];
    heard_ = to_[0];
    if (!await()) _exit(100);
    int code = 101;
    try {
      code = body();
    } catch (const std::exception& e) {
      (void)std::fprintf(stderr, "peer: %s\n", e.what());
    }
    _exit(code);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer() {
    if (pid_ > 0) kill();
    for (const int fd : {to_[0], to_[1], from_[0], from_[1]}) close(fd);
  }

  void go() { EXPECT_EQ(write(to_[1], "x", 1), 1); }
  // Waits until the peer has called say().
  void hear() {
    char byte = 0;
    EXPECT_EQ(read(from_[0], &byte, 1), 1);
  }
  // Whether it calls say() within this time.
  bool hears(int within_ms) {
    pollfd said{from_[0], POLLIN, 0};
    if (poll(&said, 1, within_ms) != 1) return false;
    hear();
    return true;
  }
  void stop() { (void)::kill(pid_, SIGSTOP); }
  void go_on() { (void)::kill(pid_, SIGCONT); }
  void kill() {
    (void)::kill(pid_, SIGKILL);
    (void)join();
  }
  bool is_stopped() const { return os::is_stopped(static_cast<uint32_t>(pid_)); }
  // Its exit code; the number of a signal, negative, if that has ended it.
  int join() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  // The same, without waiting. kRuns: it has not ended.
  static constexpr int kRuns = -1000;
  int ended() {
    int status = 0;
    if (pid_ <= 0 || waitpid(pid_, &status, WNOHANG) != pid_) return kRuns;
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  // In the peer.
  static void say() { (void)!write(said_, "x", 1); }
  // Waits for another go().
  static bool await() {
    char byte = 0;
    return read(heard_, &byte, 1) == 1;
  }

 private:
  static inline int said_ = -1, heard_ = -1;
  int to_[2] = {-1, -1}, from_[2] = {-1, -1};
  pid_t pid_ = -1;
};

// The next batch of a loop, null at its end.
inline Ref<Batch> take(AttachedFeed& feed) {
  Ref<Batch> batch;
  if (!feed.next(60 * kSecond, batch)) throw_error(Code::kTimeout, feed.waiting_text());
  return batch;
}

// Takes a loop to its end. Returns how many batches there were; 102: their order, or what is in them, was
// wrong.
inline int take_loop(AttachedFeed& feed) {
  feed.begin();
  int n = 0;
  uint64_t least = 0;
  while (true) {
    Ref<Batch> batch;
    if (!feed.next(60 * kSecond, batch)) return 103;
    if (!batch) return n;
    const Ticket ticket = batch->ticket();
    const auto content = *reinterpret_cast<const uint64_t*>(batch->array(0)->data());
    if (ticket.index < least || content != (ticket.epoch << 32 | ticket.index)) return 102;
    least = ticket.index + 1;
    ++n;
  }
}

// Begins the first epoch, once all consumers are there.
inline void begin_first(Served& served) {
  ASSERT_EQ(served.wait(), ServeWhat::kGathered);
  served.feed->serve_next();
}

// Bodies of peers: one loop; and so many batches, of which it says that it has them, until it is killed.
inline std::function<int()> loop_over(const std::string& name) {
  return [name] {
    AttachedFeed feed(name);
    return take_loop(feed);
  };
}
inline std::function<int()> keeper_of(const std::string& name, size_t batches) {
  return [name, batches] {
    AttachedFeed feed(name);
    feed.begin();
    std::vector<Ref<Batch>> held(batches);
    for (Ref<Batch>& batch : held) {
      batch = take(feed);
      if (!batch) return 1;
    }
    Peer::say();
    pause();
    return 0;
  };
}

}  // namespace serving
}  // namespace tenon::impl
