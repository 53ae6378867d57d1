// SPDX-License-Identifier: Apache-2.0
//
// A process stops before each of its stores while it changes the record of a handle: it keeps the handle,
// ends it, or changes its limits. Meanwhile another process does the same to it. Then the first one goes
// on, or is killed. Oracles:
//
//   - what take_over() has said to be kept is live as long as the process lives, unless it is opened or
//     revoked;
//   - a process that goes on changes nothing of the next handle that has the record;
//   - in the end, no block is left.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "ipc/segment.h"
#include "ipc/stand_in_testing.h"

namespace tenon::impl {
namespace {

constexpr uint64_t kNbytes = 64;
constexpr int64_t kHour = 3'600'000'000'000;

// --------------------------------------------------------------------------------------------- the peer

std::string act(Segment& segment, const std::string& verb, const MessageId& handle, uint32_t block) {
  if (verb == "keep") return segment.take_over(handle, 0) == Kept::kYes ? "1" : "0";
  if (verb == "keep-for-1-ns") return segment.take_over(handle, 1) == Kept::kYes ? "1" : "0";
  if (verb == "reap") reap_all(segment.control());
  if (verb == "look") (void)segment.status_of(handle);
  if (verb == "open") return segment.receive(handle) == MessageStatus::kLive ? "1" : "0";
  if (verb == "end-limited") (void)segment.end_limited();
  if (verb == "revoke") return concat(segment.revoke(block));
  if (verb == "limit-to-dead") segment.limit(handle, {{0x7ffffffe, 1}, 0});
  if (verb == "limit") segment.limit(handle, {{}, now_ns() + kHour});
  if (verb == "revoke-one") segment.limit(handle, {{}, 1});
  if (verb == "set-opens") (void)segment.set_opens(handle, 3);
  return "-";
}

// Each line is: a verb, a handle, its block, and the number of a store. In each round it stops once: there,
// or at the end.
int be_peer(const std::vector<std::string>& words) {
  Lines lines(STDIN_FILENO, STDOUT_FILENO);
  MutexOwner mutex_owner;
  const auto segment =
      Segment::open(os::File(::open(words[0].c_str(), O_RDWR | O_CLOEXEC)), true, mutex_owner);
  std::optional<uint32_t> used;
  lines.say("ready");
  for (std::string line; lines.hear(&line);) {
    std::istringstream text(line);
    std::string verb;
    MessageId handle;
    uint32_t block = 0;
    long number = 0;
    text >> verb >> handle.record >> handle.generation >> block >> number;
    if (verb == "send") {
      (void)segment->use(block, segment->block(block).generation);
      handle = segment->send(block);
      (void)segment->leave(block);
      lines.say(concat(handle.record, ' ', handle.generation));
      continue;
    }
    (void)stop_at_store(number);
    const std::string answer = act(*segment, verb, handle, block);
    const bool is_whole = stop_at_store(0);
    if (is_whole) kill(getpid(), SIGSTOP);
    lines.say(concat(answer, ' ', is_whole ? "whole" : "stopped"));
  }
  return 0;
}

// --------------------------------------------------------------------------------------------- the tests

class KeeperStops : public testing::Test {
 protected:
  static std::string path_of(Segment& segment) {
    return concat("/proc/", getpid(), "/fd/", segment.file().fd());
  }
  // A process that has the segment open.
  std::unique_ptr<Peer> new_peer() {
    auto peer = std::make_unique<Peer>(std::vector<std::string>{path_of(a_->segment())});
    std::string line;
    EXPECT_TRUE(peer->hear(&line));
    return peer;
  }
  // Begins a verb in the peer, and returns when it has stopped.
  static void stop(Peer& peer, const std::string& verb, const MessageId& handle, uint32_t block, int number) {
    peer.say(concat(verb, ' ', handle.record, ' ', handle.generation, ' ', block, ' ', number));
    int status = 0;
    ASSERT_EQ(waitpid(peer.pid(), &status, WUNTRACED), peer.pid());
    ASSERT_TRUE(WIFSTOPPED(status)) << status;
  }
  // Returns its answer. *is_whole: it had not stopped at a store.
  static std::string go_on(Peer& peer, bool* is_whole = nullptr) {
    (void)kill(peer.pid(), SIGCONT);
    std::string line;
    EXPECT_TRUE(peer.hear(&line));
    if (is_whole != nullptr) *is_whole = line.ends_with(" whole");
    return line.substr(0, line.find(' '));
  }
  static std::string ask(Peer& peer, const std::string& verb, const MessageId& handle, uint32_t block) {
    stop(peer, verb, handle, block, 1'000'000);  // at the end
    return go_on(peer);
  }
  static MessageId sent_by(Peer& peer, uint32_t block) {
    MessageId handle;
    std::istringstream(peer.ask(concat("send 0 0 ", block))) >> handle.record >> handle.generation;
    return handle;
  }
  // The time for which its sender keeps it passes.
  static void expire(Segment& sender, const MessageId& handle) {
    sender.limit(handle, {{}, now_ns() + kHour});
    // A limit that has passed before it is set would end the handle, also one that is kept.
    store(sender.message(handle.record).until_ns, now_ns());
  }
  MessageStatus status(const MessageId& handle) { return a_->segment().status_of(handle); }
  // The next handle that has the record of an ended one.
  MessageId next_of(const MessageId& handle, uint32_t block) {
    while (true) {
      const MessageId next = a_->segment().send(block);
      if (next.record == handle.record) return next;
      (void)a_->segment().receive(next);
    }
  }
  void SetUp() override { a_.emplace(4, 1 << 22); }

  std::optional<StandIn> a_;  // the creator
};

// A process takes the handle over. It has seen that the handle is live, and stops at a store. Then the
// handle loses what kept it, and the peer stops while it ends the handle. The first process goes on, and
// then the peer.
TEST_F(KeeperStops, AProcessMayTakeTheHandleOverAtAnyStoreOfItsEnd) {
  for (const std::string verb : {"look", "reap", "open", "end-limited"}) {
    int stops = 0, kept = 0;
    bool is_taken = false;  // before any store of the peer
    for (int m = 1; !is_taken && !HasFailure(); ++m) {
      bool is_whole = false;
      for (int n = 1; !is_whole && !HasFailure(); ++n, ++stops) {
        SCOPED_TRACE(concat(verb, ", stores ", m, " and ", n));
        const uint32_t block = a_->take(kNbytes);
        auto taker = new_peer(), peer = new_peer();
        StandIn sender{*a_};
        ASSERT_TRUE(sender.use(block));
        a_->leave(block);
        // Of end-limited, the peer is the sender, and the receiver has ended.
        const bool is_limited = verb == "end-limited";
        const MessageId handle = is_limited ? sent_by(*peer, block) : sender.segment().send(block);
        if (is_limited) (void)ask(*peer, "limit-to-dead", handle, block);
        sender.leave(block);
        stop(*taker, "keep", handle, block, m);
        if (verb == "open") {
          expire(sender.segment(), handle);
        } else {
          sender.die();
        }
        stop(*peer, verb, handle, block, n);
        const bool is_kept = go_on(*taker, &is_taken) == "1";
        kept += is_kept ? 1 : 0;
        const bool is_opened = go_on(*peer, &is_whole) == "1";
        if (is_limited) {  // its sender keeps it no more
          const bool is_over = a_->segment().message(handle.record).until_ns == 1;
          EXPECT_TRUE(is_kept ? is_over : status(handle) == MessageStatus::kReceiversGone);
        }
        peer->kill();
        reap_all(a_->segment().control());
        if (is_kept && !is_opened) {
          EXPECT_EQ(status(handle), MessageStatus::kLive) << "it was said to be kept";
          EXPECT_FALSE(a_->segment().free_if_unused(block));
        }
        EXPECT_EQ(ask(*taker, "revoke", handle, block), is_kept && !is_opened ? "1" : "0");
        EXPECT_TRUE(a_->segment().free_if_unused(block));
      }
    }
    EXPECT_GT(kept, 1) << verb;
    std::cout << verb << ": " << stops << " stops, " << kept << " kept\n";
  }
}

// The record gets its next handle while the peer is about to keep, end or limit the last one.
TEST_F(KeeperStops, AtAnyStoreTheRecordMayGetItsNextHandle) {
  for (const std::string verb : {"keep", "keep-for-1-ns", "look", "open", "reap", "revoke"}) {
    int n = 0;
    for (bool is_whole = false; !is_whole && !HasFailure(); ++n) {
      SCOPED_TRACE(concat(verb, ", store ", n + 1));
      const uint32_t block = a_->take(kNbytes);
      StandIn keeper{*a_};
      auto peer = new_peer();
      const MessageId handle = a_->segment().send(block);
      if (verb == "revoke") {
        ASSERT_EQ(ask(*peer, "keep", handle, block), "1");
      }
      stop(*peer, verb, handle, block, n + 1);
      a_->segment().limit(handle, {{}, 1});  // ends it
      const MessageId next = next_of(handle, block);
      ASSERT_EQ(keeper.segment().take_over(next, 0), Kept::kYes);
      const std::string answer = go_on(*peer, &is_whole);
      if (!is_whole && verb.starts_with("keep")) {
        EXPECT_EQ(answer, "0") << "the handle has ended before it was kept";
      }
      (void)ask(*peer, "end-limited", handle, block);
      peer->kill();
      reap_all(a_->segment().control());
      EXPECT_EQ(status(next), MessageStatus::kLive);
      a_->leave(block);
      expire(a_->segment(), next);  // its sender keeps it no more, but the other process does
      EXPECT_TRUE(keeper.segment().has_sent());
      EXPECT_FALSE(a_->segment().free_if_unused(block));
      EXPECT_EQ(a_->segment().receive(next), MessageStatus::kLive);
      EXPECT_TRUE(a_->segment().free_if_unused(block));
    }
    std::cout << verb << ": " << n << " stops\n";
  }
}

// A process that is killed while it changes a handle of its own, or keeps one of another process.
TEST_F(KeeperStops, AKillAtAnyStoreLosesNothingOfOthersAndLeavesNoBlock) {
  for (const std::string verb : {"keep", "limit", "revoke-one", "set-opens", "revoke", "end-limited"}) {
    for (const bool is_kept : {false, true}) {
      constexpr int kStores = 12;  // more than any of them has; then it is killed after the last one
      for (int n = 1; n <= kStores && !HasFailure(); ++n) {
        SCOPED_TRACE(concat(verb, is_kept ? ", kept" : "", ", store ", n));
        const uint32_t block = a_->take(kNbytes);
        StandIn keeper{*a_};
        auto peer = new_peer();
        const bool is_own = verb != "keep";
        const MessageId handle = is_own ? sent_by(*peer, block) : a_->segment().send(block);
        if (is_kept && is_own) {
          ASSERT_EQ(keeper.segment().take_over(handle, 0), Kept::kYes);
        }
        if (verb == "end-limited") (void)ask(*peer, "limit-to-dead", handle, block);
        stop(*peer, verb, handle, block, n);
        if (is_kept && !is_own) (void)keeper.segment().take_over(handle, 0);
        const uint64_t word = look(a_->segment().message(handle.record).word);
        const bool is_revoked = MessageWord::status(word) == MessageStatus::kRevoked;
        peer->kill();
        reap_all(a_->segment().control());
        const bool is_live = !is_own || (is_kept && !is_revoked);  // its sender or the keeper lives
        EXPECT_EQ(status(handle) == MessageStatus::kLive, is_live);
        a_->leave(block);
        (void)keeper.segment().revoke(block);
        (void)a_->segment().revoke(block);
        EXPECT_TRUE(a_->segment().free_if_unused(block));
      }
    }
  }
}

// Another process reaps the dead keeper, and stops meanwhile. Then the keeper neither lives nor has gone.
TEST_F(KeeperStops, ADeadKeeperIsNoReasonToRefuseAnother) {
  int later = 0;
  bool is_whole = false;
  for (int n = 1; !is_whole && !HasFailure(); ++n) {
    SCOPED_TRACE(concat("store ", n));
    const uint32_t block = a_->take(kNbytes);
    StandIn keeper{*a_};
    auto first = new_peer(), reaper = new_peer();
    const MessageId handle = a_->segment().send(block);
    a_->leave(block);
    ASSERT_EQ(ask(*first, "keep", handle, block), "1");
    EXPECT_EQ(keeper.segment().take_over(handle, 0), Kept::kNo) << "the first one lives";
    first->kill();
    stop(*reaper, "reap", handle, block, n);
    const Kept meanwhile = keeper.segment().take_over(handle, 0);
    EXPECT_NE(meanwhile, Kept::kNo);
    later += meanwhile == Kept::kLater ? 1 : 0;
    (void)go_on(*reaper, &is_whole);
    EXPECT_TRUE(keep_patiently([&] { return keeper.segment().take_over(handle, 0); }));
    EXPECT_EQ(keeper.segment().revoke(block), 1U);
    EXPECT_TRUE(comes_true([&] {
      reap_all(a_->segment().control());
      return a_->segment().free_if_unused(block);
    }));
  }
  EXPECT_GT(later, 0);
}

// In one process: arrays are sent and opened, and the handles of one of them are revoked all the time.
TEST_F(KeeperStops, ARevokeEndsHandlesOfItsArrayOnly) {
  const uint32_t a = a_->take(kNbytes), b = a_->take(kNbytes);
  std::atomic<bool> ends{false};
  std::thread revokes([&] {
    while (!ends) {
      (void)a_->segment().send(a);
      (void)a_->segment().revoke(a);
    }
  });
  for (int i = 0; i < 20'000 && !HasFailure(); ++i) {
    const MessageId handle = a_->segment().send(b);
    ASSERT_EQ(a_->segment().receive(handle), MessageStatus::kLive) << i;
  }
  ends = true;
  revokes.join();
  a_->leave(a);
  a_->leave(b);
  EXPECT_TRUE(a_->segment().free_if_unused(a));
  EXPECT_TRUE(a_->segment().free_if_unused(b));
}

}  // namespace
}  // namespace tenon::impl

int main(int count, char** words) {
  return tenon::impl::run_tests_or_peer(count, words, tenon::impl::be_peer);
}
