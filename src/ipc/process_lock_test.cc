// SPDX-License-Identifier: Apache-2.0
//
// The laws of the lock between processes, and of blocks and handles, with stand-ins for processes
// (stand_in_testing.h). crash_test and fork_test use real processes.
#include "ipc/process_lock.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "exec/history_testing.h"
#include "ipc/segments.h"
#include "ipc/stand_in_testing.h"

namespace tenon::impl {
namespace {

using Reason = Conflict::Reason;

constexpr Access kRead = Access::kRead, kWrite = Access::kWrite;
constexpr uint64_t kNbytes = 64;

class Lock : public testing::Test {
 protected:
  Lock() {
    block_ = a_.take(kNbytes);
    other_ = a_.take(kNbytes);
    for (StandIn* s : {&b_, &c_}) {
      EXPECT_TRUE(s->use(block_));
      EXPECT_TRUE(s->use(other_));
    }
  }
  StandInBlock& in(StandIn& s) { return s.place(block_); }
  bool is_granted_now(StandIn& s, Access access, size_t begin = 0, size_t end = kNbytes) {
    TestLease turn(in(s), access, begin, end);
    return turn.acquire(0);
  }
  // A thread with a request that waits.
  std::thread ask(StandIn& s, Access access, std::function<void(TestLease&)> then, size_t begin = 0,
                  size_t end = kNbytes, int64_t timeout_ns = kWatchdogNs) {
    StandInBlock& place = in(s);
    const uint32_t before = waiting(a_.segment(), block_);
    std::thread thread([&place, access, begin, end, timeout_ns, then] {
      TestLease turn(place, access, begin, end);
      (void)turn.acquire(timeout_ns);
      then(turn);
    });
    EXPECT_TRUE(comes_true([&] { return waiting(a_.segment(), block_) > before; }));
    return thread;
  }
  std::vector<std::unique_ptr<StandIn>> more(size_t n) {
    std::vector<std::unique_ptr<StandIn>> all;
    while (all.size() < n) {
      all.push_back(std::make_unique<StandIn>(a_));
      EXPECT_TRUE(all.back()->use(block_));
    }
    return all;
  }
  uint64_t version() { return in(a_).lock.version(); }
  // The result of the next request with default options.
  std::optional<Reason> told(StandIn& s, size_t begin = 0, size_t end = kNbytes) {
    TestLease turn(in(s), kRead, begin, end);
    if (turn.acquire()) return std::nullopt;
    return turn.reason();
  }

  void overwrite(StandIn& s, size_t begin, size_t end) {
    TestLease turn(in(s), kWrite, begin, end);
    ASSERT_TRUE(turn.overwriting().acquire());
  }

  StandIn a_{4};
  StandIn b_{a_};
  StandIn c_{a_};
  uint32_t block_ = 0, other_ = 0;
};

TEST_F(Lock, ReadsGoTogetherAndAWriteGoesAlone) {
  TestLease one(in(a_), kRead), two(in(b_), kRead);
  ASSERT_TRUE(one.acquire() && two.acquire());
  EXPECT_FALSE(is_granted_now(c_, kWrite));
  one.release();
  EXPECT_FALSE(is_granted_now(c_, kWrite));
  two.release();
  TestLease write(in(c_), kWrite);
  ASSERT_TRUE(write.acquire());
  EXPECT_FALSE(is_granted_now(a_, kRead));
  EXPECT_FALSE(is_granted_now(a_, kWrite));
  write.release();
  EXPECT_EQ(granted(a_.segment(), block_) + waiting(a_.segment(), block_), 0U);
}

TEST_F(Lock, BytesThatAreNotSharedAreNotWaitedFor) {
  TestLease front(in(a_), kWrite, 0, 32);
  ASSERT_TRUE(front.acquire());
  EXPECT_TRUE(is_granted_now(b_, kWrite, 32, 64));
  EXPECT_FALSE(is_granted_now(b_, kRead, 31, 64));
  EXPECT_FALSE(is_granted_now(b_, kRead, 0, 1));
  TestLease elsewhere(b_.place(other_), kWrite);
  EXPECT_TRUE(elsewhere.acquire(0)) << "another block";
}

TEST_F(Lock, TurnsAreTakenInTheOrderOfRequests) {
  TestLease first(in(a_), kWrite);
  ASSERT_TRUE(first.acquire());
  std::mutex lock;
  std::vector<int> order;
  const auto note = [&](int number) {
    return [&, number](TestLease& turn) {
      EXPECT_TRUE(turn.is_held());
      const std::scoped_lock locked(lock);
      order.push_back(number);
    };
  };
  const std::vector<std::unique_ptr<StandIn>> others = more(6);
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) threads.push_back(ask(*others[static_cast<size_t>(i)], kWrite, note(i)));
  first.release();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5}));
}

TEST_F(Lock, AReaderDoesNotOvertakeAWriterThatWaits) {
  TestLease reader(in(a_), kRead);
  ASSERT_TRUE(reader.acquire());
  std::thread writer = ask(b_, kWrite, [](TestLease& turn) { EXPECT_TRUE(turn.is_held()); });
  EXPECT_FALSE(is_granted_now(c_, kRead));
  EXPECT_EQ(waiting(a_.segment(), block_), 1U) << "a request that gave up stands in no other's way";
  reader.release();
  writer.join();
  EXPECT_TRUE(is_granted_now(c_, kRead));
}

// The reader makes a brief request behind the writer that waits for it: the cycle exists only for a moment.
TEST_F(Lock, ARequestThatDoesNotWaitIsNoPartOfADeadlock) {
  for (int i = 0; i < 100; ++i) {
    TestLease reader(in(a_), kRead);
    ASSERT_TRUE(reader.acquire());
    std::atomic<bool> is_done{false};
    std::thread writer = ask(b_, kWrite, [&](TestLease& turn) {
      EXPECT_TRUE(turn.is_held()) << text_of(turn.conflict.holder);
      is_done = true;
    });
    const Deadline deadline(5'000'000);  // the writer looks for deadlocks after 1 ms
    while (!deadline.has_passed() && !is_done) EXPECT_FALSE(is_granted_now(c_, kRead));
    reader.release();
    writer.join();
    ASSERT_FALSE(HasFailure());
  }
}

TEST_F(Lock, WhoGivesUpLetsThoseBehindItPass) {
  TestLease reader(in(a_), kRead);
  ASSERT_TRUE(reader.acquire());
  std::thread writer = ask(
      b_, kWrite, [](TestLease& turn) { EXPECT_EQ(turn.reason(), Reason::kTimeout); }, 0, kNbytes,
      100'000'000);
  std::thread late = ask(c_, kRead, [](TestLease& turn) { EXPECT_TRUE(turn.is_held()); });
  writer.join();
  late.join();
  EXPECT_TRUE(reader.is_held());
}

TEST_F(Lock, ATimeoutNamesTheHolder) {
  TestLease writer(in(a_), kWrite);
  ASSERT_TRUE(writer.acquire());
  writer.detach();
  TestLease turn(in(b_), kRead);
  ASSERT_FALSE(turn.acquire(1'000'000));
  EXPECT_EQ(turn.reason(), Reason::kTimeout);
  const std::string text = text_of(turn.conflict.holder);
  EXPECT_NE(text.find(concat("process ", getpid(), " (")), std::string::npos) << text;
  EXPECT_NE(text.find("writing"), std::string::npos) << text;
  EXPECT_EQ(waiting(a_.segment(), block_), 0U);
}

TEST_F(Lock, VersionsMoveWithWritesOfAll) {
  const uint64_t before = version();
  EXPECT_TRUE(is_granted_now(b_, kRead));
  EXPECT_EQ(version(), before);
  EXPECT_TRUE(is_granted_now(b_, kWrite) && is_granted_now(c_, kWrite));
  EXPECT_EQ(version(), before + 2);
}

TEST_F(Lock, AnotherThreadMayGiveBackWhatOneTook) {
  TestLease turn(in(a_), kWrite);
  ASSERT_TRUE(turn.acquire());
  turn.detach();
  std::thread([&] { turn.release(); }).join();
  EXPECT_TRUE(is_granted_now(b_, kWrite));
}

TEST_F(Lock, RequestsAreToldOfTheirTurnAndCanBeTakenBack) {
  TestLease writer(in(a_), kWrite);
  ASSERT_TRUE(writer.acquire());
  writer.detach();
  PendingRequest first, second;
  std::atomic<int> first_told{0}, second_told{0};
  TestLease one(in(b_), kRead), two(in(c_), kRead);
  ASSERT_EQ(one.submit(&first, &first_told), Appended::kWaiting);
  ASSERT_EQ(two.submit(&second, &second_told), Appended::kWaiting);
  ASSERT_EQ(waiting(a_.segment(), block_), 2U);
  ASSERT_TRUE(one.cancel());
  WaitGraph::instance().leave(&first.node);
  EXPECT_EQ(waiting(a_.segment(), block_), 1U);
  writer.release();
  ASSERT_TRUE(comes_true([&] { return second_told == 1; }));
  two.arrived(second);
  EXPECT_TRUE(two.is_held());
  EXPECT_EQ(first_told, 0);
}

TEST_F(Lock, WithoutAGrantALeaseWaitsAndARequestIsToldLater) {
  std::vector<std::unique_ptr<TestLease>> turns;
  for (size_t i = 0; i < kGrants; ++i) {  // each of bytes that no earlier one covers
    const size_t begin = i % (kNbytes - 2), end = begin + 1 + i / (kNbytes - 2);
    turns.push_back(std::make_unique<TestLease>(in(a_), kRead, begin, end));
    ASSERT_TRUE(turns.back()->acquire());
    turns.back()->detach();  // else the next one would be a part of it
  }
  TestLease none(in(a_), kRead);
  EXPECT_FALSE(none.acquire(0));
  EXPECT_EQ(none.reason(), Reason::kTooMany);
  EXPECT_EQ(none.conflict.holder.pid, 0U) << "no other process is in the way";
  TestLease late(in(a_), kRead);
  EXPECT_FALSE(late.acquire(20'000'000));
  EXPECT_EQ(late.reason(), Reason::kTooMany);
  EXPECT_FALSE(is_granted_now(b_, kWrite));

  TestLease more(in(a_), kRead, 0, kNbytes / 2);
  std::thread thread([&] { EXPECT_TRUE(more.acquire()); });
  EXPECT_TRUE(comes_true([&] { return a_.segment().participant().has_grant_waits(); }));
  turns.pop_back();
  thread.join();
  PendingRequest pending, second;
  std::atomic<int> told{0}, second_told{0};
  TestLease asked(in(a_), kRead), withdrawn(in(a_), kRead);
  ASSERT_EQ(asked.submit(&pending, &told), Appended::kWaiting);
  ASSERT_EQ(withdrawn.submit(&second, &second_told), Appended::kWaiting);
  EXPECT_TRUE(withdrawn.cancel());
  WaitGraph::instance().leave(&second.node);
  turns.pop_back();
  ASSERT_TRUE(comes_true([&] { return told == 1; }));
  asked.arrived(pending);
  EXPECT_TRUE(asked.is_held());
  asked.release();
  more.release();
  turns.clear();
  EXPECT_TRUE(is_granted_now(b_, kWrite));
}

// ------------------------------------------------------------------------------------------------- deadlocks

TEST_F(Lock, OneOfTwoThatWaitForEachOtherIsTold) {
  std::atomic<int> held{0}, refused{0};
  const auto run = [&](StandInBlock& mine, StandInBlock& others) {
    TestLease first(mine, kWrite), second(others, kWrite);
    ASSERT_TRUE(first.acquire());
    held.fetch_add(1);
    while (held < 2) std::this_thread::yield();
    if (second.acquire()) return;
    EXPECT_EQ(second.reason(), Reason::kDeadlock);
    refused.fetch_add(1);
  };
  std::thread one([&] { run(a_.place(block_), a_.place(other_)); });
  std::thread two([&] { run(b_.place(other_), b_.place(block_)); });
  one.join();
  two.join();
  EXPECT_GE(refused, 1);
}

TEST_F(Lock, OneOfThreeInACycleIsToldAndAWaitWithoutACycleIsNot) {
  const uint32_t third = a_.take(kNbytes);
  ASSERT_TRUE(b_.use(third) && c_.use(third));
  std::atomic<int> held{0}, refused{0};
  const auto run = [&](StandIn& s, uint32_t mine, uint32_t next) {
    TestLease first(s.place(mine), kWrite), second(s.place(next), kRead);
    ASSERT_TRUE(first.acquire());
    held.fetch_add(1);
    while (held < 3) std::this_thread::yield();
    if (second.acquire()) return;
    EXPECT_EQ(second.reason(), Reason::kDeadlock);
    refused.fetch_add(1);
  };
  std::thread one([&] { run(a_, block_, other_); });
  std::thread two([&] { run(b_, other_, third); });
  std::thread three([&] { run(c_, third, block_); });
  one.join();
  two.join();
  three.join();
  EXPECT_GE(refused, 1);
  TestLease holder(in(a_), kWrite);
  ASSERT_TRUE(holder.acquire());
  holder.detach();
  EXPECT_FALSE(is_granted_now(b_, kRead));
  TestLease turn(in(b_), kRead);
  ASSERT_FALSE(turn.acquire(20'000'000));
  EXPECT_EQ(turn.reason(), Reason::kTimeout);
}

// ---------------------------------------------------------------------------------------------------- deaths

TEST_F(Lock, EverybodyIsToldOfAWriterThatDiedUntilItsBytesAreWritten) {
  TestLease& writer = c_.keep(std::make_unique<TestLease>(in(c_), kWrite, 16, 32));
  ASSERT_TRUE(writer.acquire());
  const uint64_t before = version();
  c_.die();
  EXPECT_EQ(told(a_, 32, 64), std::nullopt) << "other bytes";
  {
    TestLease ignoring(in(a_), kRead);
    EXPECT_TRUE(ignoring.ignoring().acquire());
  }
  for (StandIn* const reader : {&b_, &a_, &b_}) {
    TestLease turn(in(*reader), kRead, 31, 32);
    ASSERT_FALSE(turn.acquire());
    EXPECT_EQ(turn.reason(), Reason::kOwnerDied);
    EXPECT_EQ(turn.conflict.holder.pid, static_cast<uint32_t>(getpid()));
  }
  EXPECT_NE(version(), before);
  overwrite(b_, 16, 32);
  EXPECT_EQ(told(a_), std::nullopt);
  EXPECT_EQ(told(b_), std::nullopt);
}

TEST_F(Lock, AnOverwriteThatFailedHealsNothing) {
  ASSERT_TRUE(c_.keep(std::make_unique<TestLease>(in(c_), kWrite)).acquire());
  c_.die();
  {
    TestLease turn(in(a_), kWrite);
    ASSERT_TRUE(turn.overwriting().acquire());
    turn.has_failed = true;
  }
  EXPECT_EQ(told(b_), Reason::kOwnerDied);
  {
    TestLease turn(in(a_), kWrite);
    ASSERT_TRUE(turn.ignoring().acquire()) << "and one that overwrites nothing, neither";
  }
  EXPECT_EQ(told(b_), Reason::kOwnerDied);
}

TEST_F(Lock, ADeathIsToldOfTheBytesThatWereNotWrittenAnew) {
  const auto expect_told = [&](std::vector<std::pair<size_t, size_t>> dead) {
    for (size_t i = 0; i < kNbytes; ++i) {
      const bool is_dead = std::ranges::any_of(dead, [&](auto d) { return d.first <= i && i < d.second; });
      EXPECT_EQ(told(a_, i, i + 1), is_dead ? std::optional(Reason::kOwnerDied) : std::nullopt)
          << "byte " << i;
    }
  };
  ASSERT_TRUE(c_.keep(std::make_unique<TestLease>(in(c_), kWrite, 16, 48)).acquire());
  c_.die();
  expect_told({{16, 48}});
  overwrite(a_, 0, 20);
  expect_told({{20, 48}});
  overwrite(b_, 40, 64);
  expect_told({{20, 40}});
  overwrite(a_, 30, 34);
  expect_told({{20, 30}, {34, 40}});
  overwrite(b_, 22, 24);
  overwrite(b_, 36, 38);
  expect_told({{20, 22}, {24, 30}, {34, 36}, {38, 40}});
  a_.die();  // what it has split stays in its place
  reap_all(b_.segment().control());
  StandIn d{b_};
  ASSERT_TRUE(d.use(block_));
  EXPECT_EQ(told(d, 24, 30), Reason::kOwnerDied);
  overwrite(d, 20, 40);
  EXPECT_EQ(told(d), std::nullopt);
}

TEST_F(Lock, DeathsAreNeverForgottenHoweverManyThereAre) {
  constexpr size_t kEach =
      6;  // leases of each process that dies: more than it may leave as deaths of their own
  static_assert(kEach > kDeaths);
  for (size_t first = 0; first < 2; ++first) {
    StandIn d{a_};
    ASSERT_TRUE(d.use(block_));
    for (size_t i = 0; i < kEach; ++i) {
      const size_t at = first + 4 * i;
      TestLease& turn = d.keep(std::make_unique<TestLease>(in(d), kWrite, at, at + 1));
      ASSERT_TRUE(turn.ignoring().acquire());
      turn.detach();
    }
    d.die();
  }
  reap_all(a_.segment().control());
  EXPECT_LE(count_grants(a_.segment(), block_, GrantState::kDied), 2 * kDeaths);
  for (size_t at = 0; at < 4 * kEach; ++at) {
    if (at % 4 >= 2) continue;
    EXPECT_EQ(told(b_, at, at + 1), Reason::kOwnerDied) << at;
  }
  EXPECT_EQ(told(b_, 4 * kEach, kNbytes), std::nullopt);
  overwrite(b_, 0, kNbytes);
  EXPECT_EQ(told(b_), std::nullopt);
  EXPECT_EQ(count_grants(a_.segment(), block_, GrantState::kDied), 0U);
}

TEST_F(Lock, DeathsThatNobodyHealsLeaveProcessesTheirGrants) {
  for (size_t i = 0; i < 2 * size_t{kGrants}; ++i) {
    StandIn d{a_};
    ASSERT_TRUE(d.use(block_));
    ASSERT_TRUE(d.keep(std::make_unique<TestLease>(in(d), kWrite, i % kNbytes, i % kNbytes + 1))
                    .ignoring()
                    .acquire());
    d.die();
    reap_all(a_.segment().control());
  }
  EXPECT_LE(count_grants(a_.segment(), block_, GrantState::kDied), kNbytes) << "the same bytes once";
  EXPECT_EQ(told(a_), Reason::kOwnerDied);
}

TEST_F(Lock, ATimeoutTellsTheStateOfTheProcessThatHoldsNotOfOneThatWaits) {
  constexpr uint32_t kHolder = 1;  // as if it had another number
  constexpr int kTries = 100;      // the one that waits may clean up before this thread prevents it
  const Control& control = a_.segment().control();
  for (int i = 0; i < kTries; ++i) {
    StandIn holder{a_};
    ASSERT_TRUE(holder.use(block_));
    ASSERT_LT(b_.index(), holder.index()) << "the one that waits is seen first";
    ASSERT_TRUE(holder.keep(std::make_unique<TestLease>(in(holder), kWrite)).ignoring().acquire());
    const uint32_t place = holder.index();
    control.place(place).pid.store(kHolder, std::memory_order_relaxed);
    std::thread waits = ask(b_, kWrite, [](TestLease&) {});
    holder.die();
    if (!control.places->try_lock(place)) {
      waits.join();
      continue;
    }
    TestLease turn(in(a_), kRead);
    EXPECT_FALSE(turn.acquire(1'000'000));
    control.places->unlock(place);
    waits.join();
    if (turn.reason() == Reason::kOwnerDied) continue;
    const std::string text = text_of(turn.conflict.holder);
    EXPECT_EQ(text.find(concat("process ", kHolder, " (")), 0u) << text;
    EXPECT_NE(text.find(", which is ending) that holds it for writing since "), std::string::npos) << text;
    return;
  }
  FAIL() << "each time another thread cleaned up first";
}

// All stand-ins belong to this process, so one that cleans up after another counts as a thread of it.
TEST_F(Lock, AThreadThatCleansUpIsNotNamedToAnotherOneOfItsProcess) {
  constexpr uint32_t kDead = 1;  // as if it had another number
  ASSERT_TRUE(c_.keep(std::make_unique<TestLease>(in(c_), kWrite)).acquire());
  const uint32_t place = c_.index();
  const Control& control = b_.segment().control();
  control.place(place).pid.store(kDead, std::memory_order_relaxed);
  c_.die();
  ASSERT_TRUE(control.places->try_lock(place));
  TestLease turn(in(a_), kRead);
  EXPECT_FALSE(turn.acquire(1'000'000));
  EXPECT_EQ(turn.reason(), Reason::kTimeout);
  const std::string text = text_of(turn.conflict.holder);
  EXPECT_EQ(text.find(concat("process ", kDead, " (")), 0u) << text;
  EXPECT_NE(text.find(", which is ending) that holds it for writing since "), std::string::npos) << text;
  EXPECT_EQ(text.find(concat("process ", getpid())), std::string::npos) << text;
  control.places->unlock(place);
}

TEST_F(Lock, ACallerMaySayThatBytesAreGood) {
  ASSERT_TRUE(c_.keep(std::make_unique<TestLease>(in(c_), kWrite, 0, 32)).acquire());
  c_.die();
  Conflict conflict;
  EXPECT_TRUE(impl::clear_failures(in(a_).home, {in(a_).extent.begin, in(a_).extent.begin + 16}, &conflict));
  EXPECT_EQ(told(b_, 0, 16), std::nullopt);
  EXPECT_EQ(told(b_, 16, 32), Reason::kOwnerDied);
  {
    TestLease turn(in(a_), kWrite);
    ASSERT_TRUE(turn.ignoring().acquire());
    // Under its own lease.
    EXPECT_TRUE(impl::clear_failures(in(a_).home, in(a_).extent, &conflict));
  }
  EXPECT_EQ(told(b_), std::nullopt);
}

TEST_F(Lock, ABlockThatIsTakenAnewHasNoDeaths) {
  const uint32_t block = a_.take(kNbytes);
  ASSERT_TRUE(c_.use(block));
  ASSERT_TRUE(c_.keep(std::make_unique<TestLease>(c_.place(block), kWrite)).acquire());
  c_.die();
  reap_all(a_.segment().control());
  EXPECT_EQ(count_grants(a_.segment(), block, GrantState::kDied), 1U);
  a_.leave(block);
  ASSERT_TRUE(a_.segment().free_if_unused(block));
  EXPECT_EQ(count_grants(a_.segment(), block, GrantState::kDied), 0U);
}

TEST_F(Lock, WhatAllIsWrittenAnewIsToldToNobody) {
  ASSERT_TRUE(c_.keep(std::make_unique<TestLease>(in(c_), kWrite, 16, 32)).acquire());
  c_.die();
  overwrite(a_, 0, 20);
  overwrite(b_, 16, 40);
  EXPECT_EQ(told(a_), std::nullopt);
}

TEST_F(Lock, NobodyIsToldOfAReaderThatDied) {
  ASSERT_TRUE(c_.keep(std::make_unique<TestLease>(in(c_), kRead)).acquire());
  c_.die();
  TestLease writer(in(a_), kWrite);
  EXPECT_TRUE(writer.acquire());
}

TEST_F(Lock, WhoSleepsBehindOneThatDiesGoesOn) {
  for (const Access access : {kRead, kWrite}) {
    StandIn d{a_};
    ASSERT_TRUE(d.use(block_));
    ASSERT_TRUE(d.keep(std::make_unique<TestLease>(in(d), access)).acquire());
    std::vector<std::thread> threads;
    std::atomic<int> deaths{0}, grants{0};
    const std::vector<std::unique_ptr<StandIn>> others = more(4);
    for (const auto& other : others) {
      threads.push_back(ask(*other, kWrite, [&](TestLease& turn) {
        if (turn.is_held()) grants.fetch_add(1);
        if (!turn.is_held() && turn.reason() == Reason::kOwnerDied) deaths.fetch_add(1);
      }));
    }
    d.die();
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(deaths, access == kWrite ? 4 : 0);
    EXPECT_EQ(grants, access == kWrite ? 0 : 4);
    overwrite(a_, 0, kNbytes);
  }
}

TEST_F(Lock, ARequestLearnsOfADeath) {
  ASSERT_TRUE(c_.keep(std::make_unique<TestLease>(in(c_), kWrite)).acquire());
  c_.detach_all();
  PendingRequest pending;
  std::atomic<int> done{0};
  TestLease turn(in(a_), kRead);
  ASSERT_EQ(turn.submit(&pending, &done), Appended::kWaiting);
  c_.die();
  ASSERT_TRUE(comes_true([&] { return done == 1; }));
  turn.arrived(pending);
  EXPECT_FALSE(turn.is_held());
  EXPECT_EQ(turn.reason(), Reason::kOwnerDied);
}

TEST_F(Lock, ThePlaceOfADeadOneIsTakenByTheNext) {
  ASSERT_TRUE(c_.keep(std::make_unique<TestLease>(in(c_), kWrite)).acquire());
  const uint32_t index = c_.index();
  c_.die();
  StandIn d{a_};
  EXPECT_EQ(d.index(), index);
  ASSERT_TRUE(d.use(block_));
  EXPECT_EQ(granted(a_.segment(), block_), 0U);
  EXPECT_EQ(told(d), Reason::kOwnerDied) << "what the one before it left";
}

// -------------------------------------------------------------------------------------- blocks and handles

TEST_F(Lock, ABlockIsFreeWhenAllHaveLeftOrDied) {
  const uint32_t block = a_.take(kNbytes);
  ASSERT_TRUE(b_.use(block) && c_.use(block));
  const uint32_t generation = a_.segment().block(block).generation;
  a_.leave(block);
  EXPECT_FALSE(a_.segment().free_if_unused(block));
  b_.leave(block);
  EXPECT_FALSE(a_.segment().free_if_unused(block));
  c_.die();
  reap_all(a_.segment().control());
  EXPECT_TRUE(a_.segment().free_if_unused(block));
  EXPECT_FALSE(b_.segment().use(block, generation)) << "it is another one now";
  EXPECT_EQ(a_.take(kNbytes), block) << "the first one that is free";
}

// -------------------------------------------------------------------------------------------------- programs

// Threads of several processes take random leases: with and without timeouts, of some or all bytes, and as
// tasks that may cancel their requests. Processes die while they hold leases, and others start. Oracle: the
// history has no two accesses of different processes that overlap and conflict; at the end no grant is left.
// Prints its seed.
class Programs : public testing::TestWithParam<uint64_t> {
 protected:
  static constexpr int kProcesses = 3, kThreads = 2, kRounds = 4;
  static constexpr size_t kSections = 8;

  Cell common_[2];
  History history_;
  std::atomic<uint64_t> next_request_{1};
  std::atomic<uint64_t> granted_{0}, died_{0}, timed_out_{0}, deadlocks_{0};

  class Noted {
   public:
    Noted(Programs& test, int block, Access access, size_t begin, size_t end, int process) : test_(test) {
      access_.what = {&test.common_[block], access, false, begin, end};
      access_.kind = HolderKind::kOp;
      access_.request = static_cast<uint64_t>(process) + 1;  // one process excludes itself by its queues
      test_.history_.begin(access_);
    }
    ~Noted() { test_.history_.end(access_); }

   private:
    Programs& test_;
    CellAccess access_;
  };

  void count(const TestLease& turn) {
    if (turn.is_held()) {
      ++granted_;
    } else if (turn.reason() == Reason::kOwnerDied) {
      ++died_;
    } else if (turn.reason() == Reason::kDeadlock) {
      ++deadlocks_;
    } else {
      // Interrupted: it was cancelled between the queue and the gate.
      EXPECT_TRUE(turn.reason() == Reason::kTimeout || turn.reason() == Reason::kInterrupted);
      ++timed_out_;
    }
  }

  // Leases that a process holds at its death block its own threads, too: these do not wait.
  void run(StandIn& self, StandInBlock* const* places, int process, uint64_t seed, int steps, bool is_dying,
           bool keeps_last) {
    std::mt19937_64 random(seed);
    for (int i = 0; i < steps; ++i) {
      const int block = static_cast<int>(random() % 2);
      const Access access = random() % 2 == 0 ? kRead : kWrite;
      size_t begin = 0, end = kSections;
      if (random() % 2 == 0) {
        begin = random() % kSections;
        end = begin + 1 + random() % (kSections - begin);
      }
      auto turn = std::make_unique<TestLease>(*places[block], access, begin * 8, end * 8);
      if (access == kWrite && random() % 4 == 0) turn->overwriting();
      if (random() % 8 == 0) turn->ignoring();
      if (random() % 4 == 0) {
        PendingRequest pending;
        std::atomic<int> told{0};
        const Appended appended = turn->submit(&pending, &told);
        if (appended == Appended::kWaiting) {
          if ((is_dying || random() % 2 == 0) && turn->cancel()) {
            WaitGraph::instance().leave(&pending.node);
            continue;
          }
          ASSERT_TRUE(comes_true([&] { return told == 1; }));
          turn->arrived(pending);
        }
      } else {
        const int64_t patience = random() % 3 == 0 ? 0 : static_cast<int64_t>(random() % 2'000'000);
        (void)turn->acquire(random() % 8 == 0 && !is_dying ? kWatchdogNs : patience);
      }
      count(*turn);
      if (!turn->is_held()) continue;
      const Noted noted(*this, block, access, begin, end, process);
      for (size_t n = random() % 3; n > 0; --n) std::this_thread::yield();
      if (random() % 4 == 0) {  // one more, while this is held
        TestLease inner(*places[1 - block], kRead);
        if (inner.acquire(static_cast<int64_t>(random() % 500'000))) {
          const Noted also(*this, 1 - block, kRead, 0, kSections, process);
          std::this_thread::yield();
        }
      }
      if (!keeps_last || i + 1 != steps) continue;
      (void)self.keep(std::move(turn));
    }
  }
};

TEST_P(Programs, KeepTheLaws) {
  std::mt19937_64 random(GetParam());
  StandIn keeper{4};
  const uint32_t blocks[2] = {keeper.take(kNbytes), keeper.take(kNbytes)};
  const int steps = repeats(2000, 200, 60);
  std::vector<std::unique_ptr<StandIn>> processes(kProcesses);
  for (int round = 0; round < kRounds && !HasFailure(); ++round) {
    std::vector<std::thread> threads;
    std::vector<bool> dies(kProcesses);
    for (int p = 0; p < kProcesses; ++p) {
      auto& process = processes[static_cast<size_t>(p)];
      if (!process) {
        process = std::make_unique<StandIn>(keeper);
        ASSERT_TRUE(process->use(blocks[0]) && process->use(blocks[1]));
      }
      StandInBlock* const places[2] = {&process->place(blocks[0]), &process->place(blocks[1])};
      dies[static_cast<size_t>(p)] = random() % 2 == 0;
      for (int t = 0; t < kThreads; ++t) {
        const bool is_dying = dies[static_cast<size_t>(p)];
        threads.emplace_back([this, &process, places, p, seed = random(), steps, is_dying, t] {
          run(*process, places, p, seed, steps, is_dying, is_dying && t == 0);
        });
      }
    }
    // Each dies as soon as its threads have ended, while the others may wait for its leases.
    std::vector<std::thread> undertakers;
    for (int p = 0; p < kProcesses; ++p) {
      undertakers.emplace_back([&, p] {
        for (int t = 0; t < kThreads; ++t) threads[static_cast<size_t>(p * kThreads + t)].join();
        if (dies[static_cast<size_t>(p)]) processes[static_cast<size_t>(p)]->die();
      });
    }
    for (std::thread& thread : undertakers) thread.join();
    for (int p = 0; p < kProcesses; ++p) {
      if (dies[static_cast<size_t>(p)]) processes[static_cast<size_t>(p)].reset();
    }
  }
  EXPECT_EQ(history_.take_fault(), "") << "seed " << GetParam();
  reap_all(keeper.segment().control());
  for (const uint32_t block : blocks) {
    EXPECT_EQ(granted(keeper.segment(), block) + waiting(keeper.segment(), block), 0U)
        << "seed " << GetParam();
  }
  EXPECT_GT(granted_, 0U);
  RecordProperty("granted", std::to_string(granted_));
  RecordProperty("died", std::to_string(died_));
  RecordProperty("timed_out", std::to_string(timed_out_));
  RecordProperty("deadlocks", std::to_string(deadlocks_));
}

INSTANTIATE_TEST_SUITE_P(Seeds, Programs, testing::Range<uint64_t>(1, 9));

TEST(Walks, NoThreadClosesASegmentMeanwhile) {
  StandIn a{4};
  std::atomic<bool> is_over{false};
  std::thread other([&] {
    const uint64_t sizes[] = {64, 64};
    while (!is_over) {
      (void)Segments::instance().create_blocks(sizes, {});
      std::this_thread::yield();
    }
  });
  uint64_t places = 0;
  const auto walk = [&] {
    std::vector<const Segment*> open;
    const auto locked = lock_open(a.segment(), &open);
    for (int again = 0; again < 20; ++again) {
      for (const Segment* segment : open) {
        for (uint32_t p = 0; p < segment->control().used_places(); ++p)
          places += segment->control().has_place(p) ? 1 : 0;
      }
    }
    return open.size() > 1;
  };
  int walks = 0;
  EXPECT_TRUE(comes_true([&] { return (walks += walk() ? 1 : 0) == 100; }));
  is_over = true;
  other.join();
  EXPECT_GT(places, 0U);
}

}  // namespace
}  // namespace tenon::impl
