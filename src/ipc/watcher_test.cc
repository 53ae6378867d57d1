// SPDX-License-Identifier: Apache-2.0
//
// Descriptors of channels: readable when there may be something to do, and not for ever; one thread serves
// many of them; they end with their channel.
#include "ipc/watcher.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "exec/cells_testing.h"
#include "ipc/channel.h"

namespace tenon::impl {
namespace {

constexpr int kWatchdogMs = 600'000;

bool is_readable(int fd, int timeout_ms = 0) {
  pollfd poller{fd, POLLIN, 0};
  return poll(&poller, 1, timeout_ms) == 1;
}

Ref<Channel> make(uint32_t slots, WhenFull when_full = WhenFull::kWait) {
  const tenon_field field{"k", {TENON_INT, 64, 1}, 0, nullptr};
  return Channel::create({&field, 1}, {slots, ChannelMode::kQueue, when_full}, {});
}

// The code with which an attempt fails, kTimeout if it returns null; kFine: success.
using Outcome = std::optional<Code>;
constexpr Outcome kFine = std::nullopt;
template <class Attempt>
Outcome code_of(Attempt attempt) {
  try {
    return attempt() ? kFine : Code::kTimeout;
  } catch (const Error& e) {
    return e.code();
  }
}
Outcome receive(Channel& channel) {
  return code_of([&] { return channel.receive(Deadline(0), nullptr); });
}

void send(Channel& channel) {
  const Ref<Item> item = channel.loan(Deadline(-1), nullptr);
  channel.send(*item);
}

// Waits until the descriptor is not readable: earlier events may be signaled late.
void quieten(Channel& channel, int fd) {
  for (int quiet = 0; quiet < 3;) {
    quiet = is_readable(fd, 20) ? 0 : quiet + 1;
    EXPECT_EQ(receive(channel), Code::kTimeout);
  }
}

int watcher_threads() {
  int n = 0;
  DIR* const tasks = opendir("/proc/self/task");
  while (const dirent* task = readdir(tasks)) {
    std::ifstream file(std::string("/proc/self/task/") + task->d_name + "/comm");
    std::string name;
    std::getline(file, name);
    n += name == "tenon-watcher" ? 1 : 0;
  }
  closedir(tasks);
  return n;
}

bool comes_to(int threads) {
  const Deadline watchdog(kWatchdogNs);
  while (watcher_threads() != threads) {
    if (watchdog.has_passed()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

TEST(Watcher, ADescriptorIsReadableUntilThereIsNothingToReceive) {
  const Ref<Channel> channel = make(4);
  const int fd = channel->descriptor(Access::kRead);
  EXPECT_EQ(channel->descriptor(Access::kRead), fd);
  EXPECT_TRUE(is_readable(fd));  // what was sent before would be there
  quieten(*channel, fd);
  for (int times = 0; times < 100; ++times) {
    send(*channel);
    send(*channel);
    ASSERT_TRUE(is_readable(fd, kWatchdogMs));
    ASSERT_EQ(receive(*channel), kFine);
    ASSERT_TRUE(is_readable(fd));  // the second one is there
    ASSERT_EQ(receive(*channel), kFine);
    ASSERT_EQ(receive(*channel), Code::kTimeout);
  }
  quieten(*channel, fd);
  EXPECT_FALSE(is_readable(fd));
}

TEST(Watcher, ADescriptorForLoansTellsOfFreeSlots) {
  for (const WhenFull when_full : {WhenFull::kWait, WhenFull::kRaise}) {
    const Ref<Channel> channel = make(1, when_full);
    const int fd = channel->descriptor(Access::kWrite);
    Ref<Item> held = channel->loan(Deadline(0), nullptr);
    for (int quiet = 0; quiet < 3;) {
      quiet = is_readable(fd, 20) ? 0 : quiet + 1;
      EXPECT_NE(code_of([&] { return channel->loan(Deadline(0), nullptr); }), kFine);
    }
    held = {};
    EXPECT_TRUE(is_readable(fd, kWatchdogMs));
    EXPECT_EQ(code_of([&] { return channel->loan(Deadline(0), nullptr); }), kFine);
  }
}

// Oracle: no thread sleeps for ever, although two threads use one descriptor and a third one waits without
// it.
TEST(Watcher, NoItemIsMissedByThreadsThatPollOneDescriptor) {
  constexpr int kItems = 4000;
  const Ref<Channel> channel = make(4);
  const int fd = channel->descriptor(Access::kRead);
  std::atomic<int> received{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      while (true) {
        ASSERT_TRUE(is_readable(fd, kWatchdogMs));
        Outcome code = kFine;
        while ((code = receive(*channel)) == kFine) received.fetch_add(1);
        if (code == Code::kClosed) return;
        ASSERT_EQ(code, Code::kTimeout);
      }
    });
  }
  threads.emplace_back([&] {
    const auto wait = [&] { return channel->receive(Deadline(1'000'000), nullptr); };
    for (Outcome code = code_of(wait); code != Code::kClosed; code = code_of(wait)) {
      if (code == kFine) received.fetch_add(1);
    }
  });
  const auto wait_for = [&](int n) {
    const Deadline watchdog(kWatchdogNs);
    while (received.load() < n && !watchdog.has_passed()) std::this_thread::yield();
    return received.load();
  };
  for (int i = 0; i < kItems; ++i) send(*channel);
  EXPECT_EQ(wait_for(kItems), kItems);
  channel->close();
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(is_readable(fd));
}

// A call that finds an item and does not take it must leave the descriptor readable.
TEST(Watcher, AThreadThatWaitsAndTakesNothingLeavesTheDescriptorReadable) {
  constexpr int kItems = 10000;
  const Ref<Channel> channel = make(4);
  const int fd = channel->descriptor(Access::kRead);
  std::atomic<bool> has_ended{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      while (!has_ended.load()) (void)code_of([&] { return channel->wait_for_item(Deadline(0)); });
    });
  }
  int received = 0;
  for (bool is_told = true; is_told && received < kItems; ++received) {
    send(*channel);
    while ((is_told = is_readable(fd, kWatchdogMs)) && receive(*channel) != kFine) {
    }
  }
  has_ended.store(true);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(received, kItems);
}

TEST(Watcher, ManyDescriptorsCostOneThreadWhichEndsWithThem) {
  ASSERT_TRUE(comes_to(0));
#if defined(__SANITIZE_THREAD__)
  constexpr int kChannels =
      40;  // it knows 64 locks of a thread, and the mutex owner has one for each segment
#else
  constexpr int kChannels = 100;
#endif
  std::vector<Ref<Channel>> channels;
  for (int i = 0; i < kChannels; ++i) {
    channels.push_back(make(2));
    (void)channels.back()->descriptor(Access::kRead);
  }
  EXPECT_TRUE(comes_to(1)) << "a thread gives itself its name";
  for (size_t i = 0; i < channels.size(); i += 9) {
    const int fd = channels[i]->descriptor(Access::kRead);
    quieten(*channels[i], fd);
    send(*channels[i]);
    EXPECT_TRUE(is_readable(fd, kWatchdogMs)) << i;
    EXPECT_EQ(receive(*channels[i]), kFine);
  }
  EXPECT_EQ(watcher_threads(), 1);
#if !defined(__SANITIZE_THREAD__)
  for (int i = 0; i < 50; ++i) {
    channels.push_back(make(2));
    (void)channels.back()->descriptor(Access::kRead);
  }
  EXPECT_TRUE(comes_to(2));
#endif
  for (const Ref<Channel>& channel : channels) channel->close();
  EXPECT_TRUE(comes_to(0));
  const int fd = channels[0]->descriptor(Access::kRead);
  EXPECT_TRUE(is_readable(fd));
  channels.clear();
  EXPECT_EQ(fcntl(fd, F_GETFD), -1);  // closed with its channel
}

TEST(Watcher, AForkedChildHasDescriptorsOfItsOwn) {
  const Ref<Channel> channel = make(2);
  const int fd = channel->descriptor(Access::kRead);
  quieten(*channel, fd);
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(600);
    const int own = channel->descriptor(Access::kRead);
    bool is_good = own != fd && is_readable(own);
    is_good &= receive(*channel) == Code::kTimeout;
    (void)!::write(pipe_ends[1], "x", 1);
    Outcome outcome = Code::kTimeout;
    while (outcome == Code::kTimeout && is_readable(own, kWatchdogMs)) outcome = receive(*channel);
    _exit(is_good && outcome == kFine ? 0 : 1);
  }
  char byte = 0;
  ASSERT_EQ(::read(pipe_ends[0], &byte, 1), 1);
  send(*channel);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  // The child has its own descriptor: the one of this process was signaled for the same item.
  EXPECT_TRUE(is_readable(fd, kWatchdogMs));
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

TEST(Watcher, TheEndOfAProcessIsTold) {
  const Ref<Channel> channel = make(2);
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(600);
    const Ref<Item> item = channel->loan(Deadline(0), nullptr);
    (void)!::write(pipe_ends[1], "x", 1);
    pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(pipe_ends[0], &byte, 1), 1);
  const int fd = channel->descriptor(Access::kRead);
  quieten(*channel, fd);
  kill(child, SIGKILL);
  Outcome code = Code::kTimeout;
  const Deadline watchdog(kWatchdogNs);
  while (code == Code::kTimeout && !watchdog.has_passed()) {
    ASSERT_TRUE(is_readable(fd, kWatchdogMs));
    code = receive(*channel);
  }
  EXPECT_EQ(code, Code::kOwnerDied);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

// A process that has closed the channel, so that it has no role any more, and holds the only slot. It ends
// while it holds the slot, or is stopped after it has freed it and before it signals this, or ends there.
class WatcherEnds : public testing::TestWithParam<int> {};

TEST_P(WatcherEnds, OfAProcessThatHasClosedAreTold) {
  const bool frees = GetParam() != 0, is_killed = GetParam() != 1;
  const Ref<Channel> channel = make(1);
  int pipe_ends[2], go[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  ASSERT_EQ(pipe(go), 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(600);
    Ref<Item> item = channel->loan(Deadline(0), nullptr);
    channel->close();
    (void)!::write(pipe_ends[1], "x", 1);
    char byte = 0;
    (void)!::read(go[0], &byte, 1);
    (void)stop_at_store(2);  // the first clears its bit
    item = {};
    pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(pipe_ends[0], &byte, 1), 1);
  const auto lend = [&] { return code_of([&] { return channel->loan(Deadline(0), nullptr); }); };
  const int fd = channel->descriptor(Access::kWrite);
  for (int quiet = 0; quiet < 3;) {
    quiet = is_readable(fd, 20) ? 0 : quiet + 1;
    EXPECT_EQ(lend(), Code::kTimeout);
  }
  if (frees) {
    ASSERT_EQ(::write(go[1], "x", 1), 1);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
    ASSERT_TRUE(WIFSTOPPED(status));
  }
  if (is_killed) kill(child, SIGKILL);
  Outcome code = Code::kTimeout;
  const Deadline watchdog(kWatchdogNs);
  while (code == Code::kTimeout && !watchdog.has_passed()) {
    ASSERT_TRUE(is_readable(fd, 20'000));
    code = lend();
  }
  EXPECT_EQ(code, kFine);
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  for (const int end : {pipe_ends[0], pipe_ends[1], go[0], go[1]}) close(end);
}
INSTANTIATE_TEST_SUITE_P(Watcher, WatcherEnds, testing::Values(0, 1, 2));

}  // namespace
}  // namespace tenon::impl
