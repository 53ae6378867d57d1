// SPDX-License-Identifier: Apache-2.0
//
// A process stops (SIGSTOP) before each of its stores to shared memory in turn, while it takes and releases
// leases, or uses a channel. Oracle, for another process:
//   - each call with a timeout ends soon after it, with success or with a timeout whose message names the
//     process and says that it is stopped;
//   - a release takes effect at once, and bytes that the stopped process does not use can be used;
//   - after SIGCONT both processes continue, and no two write leases overlap;
//   - between the other users of a channel, items pass in order as before, in the slots that the stopped
//     process does not have.
//
// In other cases it stops while it cleans up after a killed process: errors name the stopped process, not
// the dead one, and items pass as before in the slots that the dead one did not have.
//
// TENON_STOP_STEP=n tries every n-th store.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ipc/channel_testing.h"
#include "ipc/layout.h"
#include "ipc/peer_testing.h"
#include "tenon/share.hpp"

namespace tenon::impl {
namespace {

constexpr auto kShort = 60ms;  // for calls beside a stopped process
constexpr auto kSoon = 60s;    // a call that takes longer hangs; collect_shared() looks at all processes
constexpr int64_t kElements = 16;

// Writes elements 0 to 8. The first one shows whether a process is writing.
void write_alone(const api::Array& x, uint32_t flags, std::chrono::nanoseconds patience) {
  api::Lease lease(part(x, 0, 8), api::Access::kWrite, flags, patience);
  {
    const auto view = lease.view<int64_t, 1>();
    const std::atomic_ref<int64_t> flag(view(0));
    if (flag.exchange(1, std::memory_order_relaxed) != 0) {
      throw std::runtime_error("two leases for writing overlap");
    }
    flag.store(0, std::memory_order_relaxed);
  }
  lease.release();
}

// ------------------------------------------------------------------------------------------ what is stopped

void use_array(const api::Array& x) {
  write_alone(x, TENON_OVERWRITE, kPatience);
  write_alone(x, 0, kPatience);
  const api::Lease lease(part(x, 0, 8), api::Access::kRead, 0, kPatience);
}

void use_channel(const api::Channel& channel) {
  put(channel, 5);
  (void)take(channel);
}

constexpr int64_t kLastValue = 1'000'000;

// As one that has its roles already.
void pass_items(const api::Channel& channel) {
  put(channel, 5);
  {
    const api::Item dropped = channel.loan(kPatience);
  }
  // Other processes may have received the item, while this one was stopped.
  if (std::optional<api::Item> item = channel.receive(0s)) item->put_back();
  (void)channel.receive(0s);
}

// Holds elements 0 to 8 for writing until it is killed.
int hold(const std::vector<std::string>& words) {
  Lines lines(STDIN_FILENO, STDOUT_FILENO);
  const api::Lease lease(part(api::attach(words[1], false), 0, 8), api::Access::kWrite);
  lines.say("held");
  for (std::string line; lines.hear(&line);) {
  }
  return 0;
}

// Holds a slot of the channel until it is killed.
int lend(const std::vector<std::string>& words) {
  Lines lines(STDIN_FILENO, STDOUT_FILENO);
  const api::Channel channel = api::Channel::open(api::attach(words[1], false));
  const api::Item item = channel.loan(kPatience);
  lines.say("held");
  for (std::string line; lines.hear(&line);) {
  }
  return 0;
}

// The same, as a consumer that receives nothing.
int listen(const std::vector<std::string>& words) {
  Lines lines(STDIN_FILENO, STDOUT_FILENO);
  const api::Channel channel = api::Channel::open(api::attach(words[1], false));
  (void)try_receive(channel);
  lines.say("listens");
  for (std::string line; lines.hear(&line);) {
  }
  return 0;
}

// Uses the memory of the channel, and stops as it attaches it again: then it looks for dead processes.
int attach_and_stop(const std::vector<std::string>& words) {
  Lines lines(STDIN_FILENO, STDOUT_FILENO);
  const api::Array memory = api::attach(words[1], false);
  lines.say("attached");
  std::string line;
  (void)lines.hear(&line);
  (void)stop_at_store(std::stol(line));
  const api::Array again = api::attach(words[1], false);
  const bool is_whole = stop_at_store(0);
  if (is_whole) kill(getpid(), SIGSTOP);
  lines.say(is_whole ? "whole" : "stopped");
  (void)lines.hear(&line);
  return 0;
}

// Sends the number that it reads; 0: closes its end.
int send_numbers(const std::vector<std::string>& words) {
  Lines lines(STDIN_FILENO, STDOUT_FILENO);
  const api::Channel channel = api::Channel::open(api::attach(words[1], false));
  for (std::string line; lines.hear(&line); lines.say("done")) {
    if (const int64_t value = std::stol(line); value != 0) {
      put(channel, value);
    } else {
      channel.close();
    }
  }
  return 0;
}

// Each line that it reads is the number of a store. In each round it stops once: there, or at the end.
int be_stopped(const std::vector<std::string>& words) {
  if (words[0] == "hold") return hold(words);
  if (words[0] == "sender") return send_numbers(words);
  if (words[0] == "lender") return lend(words);
  if (words[0] == "listener") return listen(words);
  if (words[0] == "attacher") return attach_and_stop(words);
  Lines lines(STDIN_FILENO, STDOUT_FILENO);
  const bool is_array = words[0] == "array";
  const api::Array memory = api::attach(words[1], false);
  for (std::string line; lines.hear(&line);) {
    const long number = std::stol(line);
    if (is_array) {
      (void)stop_at_store(number);
      use_array(memory);
    } else if (words[0] == "late") {
      const api::Channel channel = api::Channel::open(memory);
      (void)stop_at_store(number);
      std::optional<api::Item> item;
      (void)code_of([&] { item = channel.receive(0s); });
      const bool is_whole = stop_at_store(0);
      if (is_whole) kill(getpid(), SIGSTOP);
      int64_t before = 0;
      bool has_gap = false;
      while (before != kLastValue) {
        if (!item) item = channel.receive(kSoon);
        const int64_t value = value_of(*item);
        item.reset();
        has_gap = has_gap || (before != 0 && value != kLastValue && value != before + 1);
        before = value;
      }
      lines.say(has_gap ? "a gap" : "no gap");
      lines.say(is_whole ? "whole" : "stopped");
      continue;
    } else if (words[0] == "consumer") {
      static const api::Channel channel = api::Channel::open(memory);
      (void)stop_at_store(number);
      (void)code_of([&] { (void)channel.receive(0s); });
    } else if (words[0] == "reaper") {
      static const api::Channel channel = api::Channel::open(memory);
      use_channel(channel);
      lines.say("has roles");
      (void)lines.hear(&line);
      (void)stop_at_store(number);
      (void)code_of([&] {
        while (channel.receive(0s)) {
        }
      });
    } else if (words[0] == "items") {
      static const api::Channel channel = api::Channel::open(memory);
      use_channel(channel);
      lines.say("has roles");
      (void)stop_at_store(number);
      (void)code_of([&] { pass_items(channel); });
    } else {
      const api::Channel channel = api::Channel::open(memory);
      (void)stop_at_store(number);
      use_channel(channel);
      channel.close();
    }
    const bool is_whole = stop_at_store(0);
    if (is_whole) kill(getpid(), SIGSTOP);
    lines.say(is_whole ? "whole" : "stopped");
  }
  return 0;
}

// -------------------------------------------------------------------------------------------- the others

class Stops : public testing::Test {
 protected:
  void SetUp() override {
    const char* const step = std::getenv("TENON_STOP_STEP");
    step_ = step != nullptr ? std::atoi(step) : 1;
    (void)api::set_lock_timeout(kShort);
  }
  void TearDown() override {
    (void)api::set_lock_timeout(5s);
    go_on();
    for (std::thread& thread : threads_) thread.join();
  }

  // In a thread: a call that hangs continues when the peer does.
  tenon_status status_of(std::function<void()> call, std::string* message) {
    auto told = std::make_shared<std::pair<tenon_status, std::string>>(TENON_ERR_INTERNAL, "");
    std::packaged_task<void()> task([call, told] { told->first = code_of(call, &told->second); });
    const std::future<void> over = task.get_future();
    threads_.emplace_back(std::move(task));
    if (over.wait_for(kSoon) != std::future_status::ready) {
      *message = "it hangs";
      return TENON_ERR_INTERNAL;
    }
    *message = told->second;
    threads_.back().join();
    threads_.pop_back();
    return told->first;
  }
  void expect_end(const std::string& what, std::function<void()> call) {
    std::string message;
    const tenon_status status = status_of(std::move(call), &message);
    if (status == TENON_OK) return;
    ++timeouts_;
    EXPECT_EQ(status, TENON_ERR_TIMEOUT) << what << ": " << message;
    EXPECT_NE(message.find(concat("process ", peer_->pid())), std::string::npos) << what << ": " << message;
    EXPECT_NE(message.find("is stopped"), std::string::npos) << what << ": " << message;
  }
  void expect_success(const std::string& what, std::function<void()> call) {
    std::string message;
    EXPECT_EQ(status_of(std::move(call), &message), TENON_OK) << what << ": " << message;
  }

  // Starts a round, and returns when the peer is stopped.
  void stop_at(long store) {
    peer_->say(std::to_string(store));
    await_stop();
  }
  void await_stop() {
    int status = 0;
    ASSERT_EQ(waitpid(peer_->pid(), &status, WUNTRACED), peer_->pid());
    ASSERT_TRUE(WIFSTOPPED(status)) << "status " << status;
    is_stopped_ = true;
  }
  void go_on() {
    if (std::exchange(is_stopped_, false)) (void)kill(peer_->pid(), SIGCONT);
  }
  // True: the peer was stopped at one of its stores.
  bool end_round() {
    go_on();
    std::string line;
    EXPECT_TRUE(peer_->hear(&line)) << "the peer has ended";
    return line == "stopped";
  }

  std::unique_ptr<Peer> peer_;
  std::vector<std::thread> threads_;
  bool is_stopped_ = false;
  int step_ = 1;
  int timeouts_ = 0;
};

TEST_F(Stops, AtAnyStoreOfALeaseNeitherHangTheOthersNorBreakTheLock) {
  api::SharedOptions options;
  options.name = concat("stop_test.", getpid());
  const api::Array x = api::zeros_shared({kElements}, api::dtype_of<int64_t>(), options);
  peer_ = std::make_unique<Peer>(std::vector<std::string>{"array", options.name});
  int stops = 0;
  for (bool is_inside = true; is_inside && !HasFailure();) {
    const long store = 1 + step_ * stops++;
    SCOPED_TRACE(concat("store ", store));
    auto held = std::make_unique<api::Lease>(part(x, 8, 16), api::Access::kWrite);
    held->detach();
    ASSERT_NO_FATAL_FAILURE(stop_at(store));
    expect_end("write", [&] { write_alone(x, 0, kShort); });
    expect_end("read", [&] { (void)api::Lease(part(x, 0, 8), api::Access::kRead, 0, kShort); });
    expect_success("release", [&] { held->release(); });
    expect_success("other bytes", [&] { (void)api::Lease(part(x, 8, 16), api::Access::kWrite, 0, kShort); });
    expect_success("list", [&] { (void)api::describe_shared(); });
    expect_success("collect", [&] { (void)api::collect_shared(); });
    is_inside = end_round();
    expect_success("write afterwards", [&] { write_alone(x, 0, kPatience); });
  }
  EXPECT_GT(stops * step_, 20);
  EXPECT_GT(timeouts_, 0);
  std::cout << stops << " stops, " << timeouts_ << " timeouts\n";
}

TEST_F(Stops, AtAnyStoreOfACleanUpAreNamedInPlaceOfTheDead) {
  api::SharedOptions options;
  options.name = concat("stop_test.", getpid());
  const api::Array x = api::zeros_shared({kElements}, api::dtype_of<int64_t>(), options);
  peer_ = std::make_unique<Peer>(std::vector<std::string>{"array", options.name});
  int stops = 0, cleanups = 0;
  for (bool is_inside = true; is_inside && !HasFailure();) {
    const long store = 1 + step_ * stops++;
    SCOPED_TRACE(concat("store ", store));
    Peer doomed({"hold", options.name});
    std::string line;
    ASSERT_TRUE(doomed.hear(&line));
    const std::string dead = concat(" after process ", doomed.pid());
    doomed.kill();
    ASSERT_NO_FATAL_FAILURE(stop_at(store));
    std::string message;
    const tenon_status status = status_of(
        [&] { (void)api::Lease(part(x, 0, 8), api::Access::kWrite, TENON_OVERWRITE, kShort); }, &message);
    if (status != TENON_OK) {
      ++timeouts_;
      EXPECT_EQ(status, TENON_ERR_TIMEOUT) << message;
      EXPECT_NE(message.find(concat("process ", peer_->pid())), std::string::npos) << message;
      EXPECT_NE(message.find("is stopped"), std::string::npos) << message;
      cleanups += message.find("which is stopped while it cleaned up" + dead) != std::string::npos ? 1 : 0;
    }
    is_inside = end_round();
    expect_success("write afterwards", [&] { write_alone(x, TENON_OVERWRITE, kPatience); });
  }
  EXPECT_GT(stops * step_, 20);
  EXPECT_TRUE(cleanups > 0 || step_ > 1);
  std::cout << stops << " stops, " << timeouts_ << " timeouts, " << cleanups << " of them of a clean-up\n";
}

TEST_F(Stops, AtAnyStoreOfAChannelDoNotHangTheOthers) {
  const std::string name = concat("stop_test.", getpid(), ".channel");
  const api::Channel channel = make(4, ChannelMode::kQueue, WhenFull::kWait, name);
  peer_ = std::make_unique<Peer>(std::vector<std::string>{"channel", name});
  int stops = 0;
  for (bool is_inside = true; is_inside && !HasFailure();) {
    const long store = 1 + step_ * stops++;
    SCOPED_TRACE(concat("store ", store));
    auto lent = std::make_unique<api::Item>(channel.loan(kPatience));
    fill(*lent, 7);
    auto dropped = std::make_unique<api::Item>(channel.loan(kPatience));
    ASSERT_NO_FATAL_FAILURE(stop_at(store));
    expect_success("drop", [&] { dropped.reset(); });
    expect_success("statistics", [&] { (void)channel.statistics(); });
    expect_success("send", [&] { lent->send(); });
    expect_success("receive", [&] { (void)channel.receive(kSoon); });
    expect_success("close", [&] {
      const api::Channel other = api::Channel::open(channel.memory());
      other.close();
    });
    is_inside = end_round();
    lent.reset();
    expect_success("use afterwards", [&] {
      while (try_receive(channel) == TENON_OK) {
      }
      put(channel, 1);
      if (take(channel) != 1) throw std::runtime_error("another item");
    });
  }
  EXPECT_GT(stops * step_, 20);
  std::cout << stops << " stops\n";
}

// A broadcast waits for a dead consumer as long as its reaper is stopped.
TEST_F(Stops, AtAnyStoreOfAReapOfAConsumerAreNamed) {
  int stops = 0, cleanups = 0;
  for (bool is_inside = true; is_inside && !HasFailure();) {
    const std::string name = concat("stop_test.", getpid(), ".named.", stops);
    const api::Channel channel = make(2, ChannelMode::kBroadcast, WhenFull::kWait, name);
    (void)try_receive(channel);
    const long store = 1 + step_ * stops++;
    SCOPED_TRACE(concat("store ", store));
    Peer doomed({"listener", name});
    std::string line;
    ASSERT_TRUE(doomed.hear(&line));
    const std::string dead = concat("while it cleaned up after process ", doomed.pid());
    peer_ = std::make_unique<Peer>(std::vector<std::string>{"attacher", name});
    ASSERT_TRUE(peer_->hear(&line));
    doomed.kill();
    ASSERT_NO_FATAL_FAILURE(stop_at(store));
    for (int i = 1; i <= 3; ++i) {
      std::string message;
      const tenon_status status = status_of([&] { put(channel, i, kShort); }, &message);
      if (status == TENON_OK) {
        expect_success("receive", [&] { (void)take(channel); });
        continue;
      }
      EXPECT_EQ(status, TENON_ERR_TIMEOUT) << message;
      EXPECT_NE(message.find(concat("process ", peer_->pid())), std::string::npos) << message;
      EXPECT_NE(message.find("which is stopped, " + dead), std::string::npos) << message;
      ++cleanups;
    }
    is_inside = end_round();
    expect_success("send afterwards", [&] { put(channel, 5); });
    peer_->say("over");
  }
  EXPECT_GT(stops * step_, 5);
  EXPECT_TRUE(cleanups > 0 || step_ > 1);
  std::cout << stops << " stops, " << cleanups << " timeouts\n";
}

struct Passing {
  ChannelMode mode;
  WhenFull when_full;
};
class StopsOfItems : public Stops, public testing::WithParamInterface<Passing> {};

TEST_P(StopsOfItems, BlockAtMostTheirSlot) {
  const std::string name = concat("stop_test.", getpid(), ".items");
  const api::Channel channel = make(3, GetParam().mode, GetParam().when_full, name);
  const bool is_lossy = GetParam().when_full == WhenFull::kDropOldest;
  peer_ = std::make_unique<Peer>(std::vector<std::string>{"items", name});
  put(channel, 1);
  (void)take(channel);
  int stops = 0;
  int64_t value = 100;
  for (bool is_inside = true; is_inside && !HasFailure();) {
    const long store = 1 + step_ * stops++;
    SCOPED_TRACE(concat("store ", store));
    if (is_lossy) {  // the peer drops some of these
      for (int i = 0; i < 3; ++i) put(channel, ++value);
    }
    ASSERT_NO_FATAL_FAILURE(stop_at(store));
    std::string line;
    ASSERT_TRUE(peer_->hear(&line));
    ASSERT_EQ(line, "has roles");
    expect_success("pass items", [&] {
      for (int i = 0; i < 5; ++i) {
        put(channel, ++value);
        int64_t got = 0;
        do {
          got = value_of(*channel.receive(kSoon));
        } while (got == 5 || (is_lossy && got < value));  // of the stopped process, or earlier
        if (got != value) throw std::runtime_error("another item");
      }
    });
    is_inside = end_round();
    expect_success("use afterwards", [&] {
      while (try_receive(channel) == TENON_OK) {
      }
    });
  }
  EXPECT_GT(stops * step_, 15);
  std::cout << stops << " stops\n";
}

// The peer finds a dead producer. The others try to clean up, too, as they find no item.
TEST_P(StopsOfItems, OfAReaperLetTheOthersPassItems) {
  const std::string name = concat("stop_test.", getpid(), ".reaper");
  const api::Channel channel = make(5, GetParam().mode, GetParam().when_full, name);
  peer_ = std::make_unique<Peer>(std::vector<std::string>{"reaper", name});
  put(channel, 1);
  (void)take(channel);
  int stops = 0, outside = 0, told = 0;
  int64_t value = 100;
  const auto receive_all = [&] {  // 5 is of the peer
    for (tenon_status status = TENON_OK; status != TENON_ERR_TIMEOUT; status = try_receive(channel))
      told += status == TENON_ERR_OWNER_DIED ? 1 : 0;
  };
  while (outside < 3 && !HasFailure()) {  // at this store: another process may have cleaned up first
    const long store = 1 + step_ * stops;
    SCOPED_TRACE(concat("store ", store));
    peer_->say(std::to_string(store));
    std::string line;
    ASSERT_TRUE(peer_->hear(&line));
    Peer doomed({"lender", name});
    ASSERT_TRUE(doomed.hear(&line));
    receive_all();
    const uint64_t deaths = channel.statistics().deaths;
    told = 0;
    doomed.kill();
    peer_->say("go");
    ASSERT_NO_FATAL_FAILURE(await_stop());
    expect_success("pass items", [&] {
      for (int i = 0; i < 8; ++i) {
        receive_all();
        put(channel, ++value);
        if (take(channel) != value) throw std::runtime_error("another item");
      }
    });
    outside = end_round() ? 0 : outside + 1;
    if (outside == 0) ++stops;
    expect_success("receive the news", receive_all);
    EXPECT_EQ(told, 1);
    EXPECT_EQ(channel.statistics().deaths, deaths + 1);
    EXPECT_EQ(channel.statistics().in_use, 0);
  }
  EXPECT_GT(stops * step_, 8);
  std::cout << stops << " stops\n";
}

INSTANTIATE_TEST_SUITE_P(Modes, StopsOfItems,
                         testing::Values(Passing{ChannelMode::kQueue, WhenFull::kWait},
                                         Passing{ChannelMode::kBroadcast, WhenFull::kDropOldest},
                                         Passing{ChannelMode::kLatest, WhenFull::kWait}));

// Others send and receive items while a process becomes a consumer of a broadcast, which waits for all
// consumers.
TEST_F(Stops, OfANewConsumerMakeNoGapInItsItems) {
  int stops = 0;
  int64_t value = 0;
  for (bool is_inside = true; is_inside && !HasFailure();) {
    const std::string name = concat("stop_test.", getpid(), ".late.", stops);
    const api::Channel channel = make(3, ChannelMode::kBroadcast, WhenFull::kWait, name);
    put(channel, ++value);
    (void)take(channel);
    peer_ = std::make_unique<Peer>(std::vector<std::string>{"late", name});
    const long store = 1 + step_ * stops++;
    SCOPED_TRACE(concat("store ", store));
    ASSERT_NO_FATAL_FAILURE(stop_at(store));
    std::string message;
    // First two at once: the later ones get the slot of the first of them, and the second one stays.
    int n = 2;
    const auto pass = [&] {
      for (int i = 0; i < n; ++i, ++value) put(channel, value + 1, kShort);
      for (int i = 0; i < n; ++i) (void)take(channel);
      n = 1;
    };
    for (int i = 0; i < 4 && status_of(pass, &message) == TENON_OK; ++i) {
    }
    go_on();
    EXPECT_TRUE(comes_true([&] { return channel.statistics().consumers == 2; }));
    expect_success("send the last", [&] {
      put(channel, kLastValue);
      (void)take(channel);
    });
    std::string line;
    ASSERT_TRUE(peer_->hear(&line));
    EXPECT_EQ(line, "no gap");
    is_inside = end_round();
  }
  EXPECT_GT(stops * step_, 4);
}

// Producers close while another process is stopped as it takes a role.
TEST_F(Stops, OfARoleHideNoEndOfAnother) {
  int stops = 0;
  for (bool is_inside = true; is_inside && !HasFailure();) {
    const std::string name = concat("stop_test.", getpid(), ".end.", stops);
    const api::Channel channel = make(3, ChannelMode::kQueue, WhenFull::kWait, name);
    const api::Channel producer = api::Channel::open(api::attach(name, false));
    Peer sender({"sender", name});
    ASSERT_EQ(sender.ask("1"), "done");
    put(producer, 1);
    (void)take(channel);
    (void)take(channel);
    peer_ = std::make_unique<Peer>(std::vector<std::string>{"consumer", name});
    const long store = 1 + step_ * stops++;
    SCOPED_TRACE(concat("store ", store));
    ASSERT_NO_FATAL_FAILURE(stop_at(store));
    producer.close();
    std::atomic<bool> has_begun{false};
    std::thread sends([&] {
      while (!has_begun) std::this_thread::yield();
      std::this_thread::sleep_for(5ms);  // so that the receiver waits, usually
      EXPECT_EQ(sender.ask("7"), "done");
    });
    expect_success("receive beside it", [&] {
      has_begun = true;
      if (take(channel) != 7) throw std::runtime_error("another item");
    });
    sends.join();
    EXPECT_EQ(sender.ask("0"), "done");
    is_inside = end_round();
    expect_success("receive the end", [&] {
      if (channel.receive(kSoon)) throw std::runtime_error("an item");
    });
  }
  EXPECT_GT(stops * step_, 3);
}

}  // namespace
}  // namespace tenon::impl

int main(int count, char** words) {
  return tenon::impl::run_tests_or_peer(count, words, tenon::impl::be_stopped);
}
