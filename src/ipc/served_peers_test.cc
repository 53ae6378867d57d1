// SPDX-License-Identifier: Apache-2.0
//
// A consumer of a feed, or a process that cleans up after one, stops before each of its stores in turn. The
// others pass batches in order beside it, in the slots that it does not have. Then it is killed, or goes on.
// In both cases all slots are free at the end, no batch but its own was lost, and no round waits for it.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ipc/layout.h"
#include "ipc/served_peers_testing.h"

namespace tenon::impl {
namespace {

constexpr uint64_t kBase = 5;
constexpr uint64_t kLast = 60;  // the number after which a late consumer has seen enough

// ------------------------------------------------------------------------------------------- what is stopped

void act(const OpenFeed& feed, const std::string& what) {
  const ServedEnds& ends = feed.ends();
  if (what == "receive") {
    for (int i = 0; i < 2; ++i) {
      const Received batch = receive(ends, feed.self());
      if (batch.number != 0) let_go(ends, feed.self(), batch);
    }
  } else if (what == "end") {
    ends.end_round(feed.self(), kBase);
    ends.end_loop(feed.self(), kBase + 1);
  } else if (what == "join") {
    feed.join();
  } else if (what == "leave") {
    ends.leave(feed.self());
  } else if (what == "reap") {
    ends.reap_dead();
  }
}

// Reads a broadcast to the end. Says whether a number was missing.
void read_on(const OpenFeed& feed, Lines& lines) {
  uint64_t before = 0;
  bool has_gap = false;
  while (before < kLast) {
    const Received batch = receive(feed.ends(), feed.self());
    if (batch.number == 0) {
      std::this_thread::yield();
      continue;
    }
    has_gap = has_gap || (before != 0 && batch.number != before + 1);
    before = batch.number;
    let_go(feed.ends(), feed.self(), batch);
  }
  lines.say(has_gap ? "a gap" : "no gap");
}

// Reads the number of a store, where it stops, or at the end.
int be_user(const std::string& name, const std::string& what) {
  Lines lines(STDIN_FILENO, STDOUT_FILENO);
  const OpenFeed feed(name);
  if (what != "join" && what != "reap") feed.join();
  lines.say("ready");
  std::string line;
  (void)lines.hear(&line);
  (void)stop_at_store(std::stol(line));
  act(feed, what);
  const bool is_whole = stop_at_store(0);
  lines.say(is_whole ? "whole" : "stopped");
  if (is_whole) kill(getpid(), SIGSTOP);
  if (what == "join" && feed.ends().is_broadcast()) read_on(feed, lines);
  (void)lines.hear(&line);
  return 0;
}

int be_sleeper(const std::string& name) {
  const OpenFeed feed(name);
  feed.join();
  (void)feed.ends().sleep(
      feed.self(), feed.state().pool().settled, Deadline(-1), [] { return false; }, [](const auto&) {});
  return 0;
}

int be_peer(const std::vector<std::string>& words) {
  if (words[0] == "maker") return be_maker(words);
  if (words[0] == "consumer") return be_consumer(words);
  if (words[0] == "sleeper") return be_sleeper(words[1]);
  return be_user(words[1], words[2]);
}

// -------------------------------------------------------------------------------------------- the others

struct Case {
  ServedMode mode;
  bool has_states;
  bool is_killed;
};
std::string name_of(const testing::TestParamInfo<Case>& info) {
  return concat(info.param.mode == ServedMode::kQueue ? "Queue" : "Broadcast",
                info.param.has_states ? "WithStates" : "", info.param.is_killed ? "Killed" : "Stopped");
}

// A server, a worker and a consumer in this process, and peers.
class ServedStops : public testing::TestWithParam<Case> {
 protected:
  void begin() {
    name_ = new_name();
    feed_ = std::make_unique<OpenFeed>(
        OpenFeed::create(name_, GetParam().has_states ? 0 : ServedState::kNoStates));
    feed_->state().mode = GetParam().mode;
    ends().serve(feed_->self());
    if (ends().is_broadcast()) feed_->join();
    Segments::instance().take_name(*feed_->memory());
    received_ = passed_over_ = 0;
  }
  const ServedEnds& ends() { return feed_->ends(); }
  const SlotTable& table() { return feed_->table(); }
  void note() {
    if (GetParam().has_states) ends().note_up_to(table().passed(), [](uint32_t, uint64_t) {});
  }
  void fill_all() {
    while (fill(ends()) != 0) {
    }
  }
  // Receives a batch. False: there is none. A peer that received others from a queue has had at most `most`.
  bool pass(uint64_t most) {
    const Received batch = receive(ends(), feed_->self());
    if (batch.number == 0) return false;
    EXPECT_GT(batch.number, received_);
    passed_over_ += batch.number - received_ - 1;
    EXPECT_LE(passed_over_, ends().is_broadcast() ? 0 : most);
    received_ = batch.number;
    let_go(ends(), feed_->self(), batch);
    note();
    return true;
  }
  // The others go on. A consumer of a broadcast that is stopped keeps what it has not read.
  void go_on_beside(uint64_t most) {
    const bool may_wait = ends().is_broadcast() && ends().count() > 1;
    for (int i = 0; i < 12; ++i) {
      const bool is_filled = fill(ends()) != 0;
      const bool is_passed = pass(most);
      if (!may_wait) {
        EXPECT_TRUE(is_filled || is_passed) << i;
      }
    }
    if (!may_wait) {
      EXPECT_GT(received_, 8U);
    }
  }
  std::unique_ptr<Peer> start(const std::string& what) {
    auto peer = std::make_unique<Peer>(std::vector<std::string>{"user", name_, what});
    std::string line;
    EXPECT_TRUE(peer->hear(&line));
    EXPECT_EQ(line, "ready");
    return peer;
  }
  static void stop_at(Peer& peer, long store) {
    peer.say(std::to_string(store));
    int status = 0;
    ASSERT_EQ(waitpid(peer.pid(), &status, WUNTRACED), peer.pid());
    ASSERT_TRUE(WIFSTOPPED(status)) << "status " << status;
  }
  // Each slot is free, and nobody waits for a process that is gone.
  void expect_all_back(uint64_t most) {
    EXPECT_TRUE(comes_true([&] {
      reap_all(feed_->segment().control());
      uint32_t users = 0;
      visit_bits(feed_->state().users, [&](uint32_t) { ++users; });
      return users == 1;
    }));
    for (int i = 0; i < 12; ++i) {
      fill_all();
      EXPECT_TRUE(pass(most)) << i;
    }
    while (pass(most)) {
    }
    EXPECT_EQ(table().passed(), table().given());
    EXPECT_EQ(ends().held(), 0U);
    EXPECT_EQ(ends().count(), ends().is_broadcast() ? 1U : 0U);
    if (ends().is_broadcast()) ends().end_loop(feed_->self(), UINT64_MAX);
    EXPECT_TRUE(ends().have_all_ended(UINT64_MAX));
    for (uint32_t i = 0; i < kSlots; ++i) {
      EXPECT_TRUE(is_empty(table().readers(i)));
      if (!ends().is_broadcast()) {
        EXPECT_EQ(table().word(i), SlotWord::kFree);
      }
    }
    for (const CursorRecord& record : feed_->state().records) {
      if (&record == &feed_->state().records[feed_->self()]) continue;
      EXPECT_EQ(record.word, 0U);
      EXPECT_EQ(record.cursor, 0U);
      EXPECT_EQ(record.ended, 0U);
    }
  }

  // A peer that does this, stopped before each store.
  void stop_at_each_store(const std::string& what, uint64_t most, long fewest) {
    long store = 1;
    for (bool is_over = false; !is_over && !HasFailure(); ++store) {
      SCOPED_TRACE(concat("store ", store));
      begin();
      auto peer = start(what);
      fill_all();
      ASSERT_NO_FATAL_FAILURE(stop_at(*peer, store));
      go_on_beside(most);
      is_over = end_stop(*peer);
      let_end(*peer);
      expect_all_back(most);
    }
    EXPECT_GT(store, fewest);
    std::cout << store - 1 << " stops\n";
  }
  // Kills the peer, or lets it go on. True: it had made all of its stores before it was stopped.
  bool end_stop(Peer& peer) {
    if (GetParam().is_killed) {
      (void)kill(peer.pid(), SIGKILL);
      return !peer.listen().empty();
    }
    (void)kill(peer.pid(), SIGCONT);
    std::string line;
    EXPECT_TRUE(peer.hear(&line)) << "the peer has ended";
    return line == "whole";
  }
  static void let_end(Peer& peer) {
    if (GetParam().is_killed) return peer.kill();
    peer.say("over");
    EXPECT_EQ(peer.end(), 0);
  }

  std::string name_;
  std::unique_ptr<OpenFeed> feed_;
  uint64_t received_ = 0, passed_over_ = 0;
};

TEST_P(ServedStops, OfAReceiverBlockItsSlotAlone) { stop_at_each_store("receive", 2, 6); }

TEST_P(ServedStops, OfOneThatEndsARoundBlockTheNextRoundAlone) { stop_at_each_store("end", 0, 4); }

TEST_P(ServedStops, OfOneThatLeavesBlockNothing) { stop_at_each_store("leave", 0, 3); }

TEST_P(ServedStops, OfOneThatJoinsMakeNoGap) {
  const bool is_broadcast = GetParam().mode == ServedMode::kBroadcast;
  long store = 1;
  for (bool is_over = false; !is_over && !HasFailure(); ++store) {
    SCOPED_TRACE(concat("store ", store));
    begin();
    auto peer = start("join");
    fill_all();
    ASSERT_NO_FATAL_FAILURE(stop_at(*peer, store));
    go_on_beside(0);
    const uint32_t consumers = ends().count() - (is_broadcast ? 1 : 0);
    EXPECT_EQ(ends().have_all_ended(kBase), consumers == 0 && !is_broadcast);
    is_over = end_stop(*peer);
    if (!GetParam().is_killed && is_broadcast) {
      EXPECT_TRUE(comes_true([&] { return ends().count() == 2; }));
      EXPECT_TRUE(comes_true([&] {
        (void)fill(ends());
        (void)pass(0);
        return received_ > kLast;
      }));
      std::string line;
      ASSERT_TRUE(peer->hear(&line));
      EXPECT_EQ(line, "no gap");
    }
    let_end(*peer);
    expect_all_back(0);
  }
  EXPECT_GT(store, 5);
}

// The dead one was stopped between two stores of its receive. In a queue, it has a slot.
TEST_P(ServedStops, OfAReaperBlockTheSlotsOfTheDeadAlone) {
  long store = 1;
  for (bool is_over = false; !is_over && !HasFailure(); ++store) {
    SCOPED_TRACE(concat("store ", store));
    begin();
    auto doomed = start("receive");
    auto reaper = start("reap");
    fill_all();
    ASSERT_NO_FATAL_FAILURE(stop_at(*doomed, 2));
    doomed->kill();
    ASSERT_NO_FATAL_FAILURE(stop_at(*reaper, store));
    go_on_beside(1);
    is_over = end_stop(*reaper);
    let_end(*reaper);
    expect_all_back(1);
  }
  EXPECT_GT(store, 8);
}

INSTANTIATE_TEST_SUITE_P(
    Feeds, ServedStops,
    testing::Values(Case{ServedMode::kQueue, false, false}, Case{ServedMode::kQueue, false, true},
                    Case{ServedMode::kQueue, true, false}, Case{ServedMode::kQueue, true, true},
                    Case{ServedMode::kBroadcast, false, false}, Case{ServedMode::kBroadcast, false, true},
                    Case{ServedMode::kBroadcast, true, false}, Case{ServedMode::kBroadcast, true, true}),
    name_of);

TEST(ServedDeaths, AConsumerThatSleepsWakesWhenTheServerDies) {
  const std::string name = new_name();
  Peer server({"maker", name});
  for (const char* const order : {"make", "serve", "take"}) ASSERT_EQ(server.ask(order)[0], '0');
  const OpenFeed feed(name);
  feed.join();
  std::thread kills([&] {
    while (!feed.state().pool().settled.has_sleepers()) std::this_thread::yield();
    server.kill();
  });
  const uint32_t place = feed.state().server;
  EXPECT_TRUE(feed.ends().sleep(
      feed.self(), feed.state().pool().settled, Deadline(60'000'000'000),
      [&] { return !feed.ends().is_server_alive(); }, [&](const auto& add) { add(place); }));
  kills.join();
}

TEST(ServedDeaths, AServerThatSleepsWakesWhenAConsumerDies) {
  const std::string name = new_name();
  const OpenFeed feed(OpenFeed::create(name));
  feed.ends().serve(feed.self());
  Segments::instance().take_name(*feed.memory());
  Peer sleeper({"sleeper", name});
  EXPECT_TRUE(
      comes_true([&] { return feed.ends().count() == 1 && feed.state().pool().settled.has_sleepers(); }));
  std::thread kills([&] {
    while (!feed.state().ends.has_sleepers()) std::this_thread::yield();
    sleeper.kill();
  });
  EXPECT_TRUE(feed.ends().sleep(
      feed.self(), feed.state().ends, Deadline(60'000'000'000),
      [&] { return feed.ends().have_all_ended(kBase); },
      [&](const auto& add) { feed.ends().visit_consumers(add); }));
  kills.join();
  EXPECT_TRUE(comes_true([&] {
    reap_all(feed.segment().control());
    return !feed.state().pool().settled.has_sleepers();
  })) << "the dead one does not count among the sleepers";
}

}  // namespace
}  // namespace tenon::impl

int main(int count, char** words) {
  return tenon::impl::run_tests_or_peer(count, words, tenon::impl::be_peer);
}
