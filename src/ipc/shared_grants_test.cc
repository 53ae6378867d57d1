// SPDX-License-Identifier: Apache-2.0
//
// Readers of one process that share grants because few are left, with stand-ins for processes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "ipc/process_lock.h"
#include "ipc/stand_in_testing.h"

namespace tenon::impl {
namespace {

class SharedGrants : public testing::Test {
 protected:
  static constexpr Access kRead = Access::kRead, kWrite = Access::kWrite;
  static constexpr uint64_t kNbytes = 64;

  SharedGrants() : block_(a_.take(kNbytes)) { EXPECT_TRUE(b_.use(block_)); }
  StandInBlock& in(StandIn& s) { return s.place(block_); }
  bool is_granted_now(StandIn& s, Access access) {
    TestLease turn(in(s), access);
    return turn.acquire(0);
  }
  // A thread with a request that waits.
  std::thread ask(StandIn& s, Access access, std::function<void(TestLease&)> then, size_t end = kNbytes) {
    StandInBlock& place = in(s);
    const uint32_t before = waiting(a_.segment(), block_);
    std::thread thread([&place, access, end, then] {
      TestLease turn(place, access, 0, end);
      (void)turn.acquire();
      then(turn);
    });
    EXPECT_TRUE(comes_true([&] { return waiting(a_.segment(), block_) > before; }));
    return thread;
  }

  StandIn a_{4};
  StandIn b_{a_};
  const uint32_t block_;
};

TEST_F(SharedGrants, AFullProcessIsToldBehindWhomItWaits) {
  TestLease writer(in(b_), kWrite, 0, 1);
  ASSERT_TRUE(writer.acquire());
  writer.detach();
  std::thread reader = ask(a_, kRead, [](TestLease& turn) { EXPECT_TRUE(turn.is_held()); }, 1);
  std::vector<std::unique_ptr<TestLease>> turns;
  for (size_t i = 0; i + 1 < kGrants; ++i) {
    const size_t begin = 1 + i % (kNbytes - 4), end = begin + 1 + i / (kNbytes - 4);
    turns.push_back(std::make_unique<TestLease>(in(a_), kRead, begin, end));
    ASSERT_TRUE(turns.back()->acquire());
    turns.back()->detach();
  }
  TestLease late(in(a_), kRead, 1);
  EXPECT_FALSE(late.acquire(20'000'000));
  EXPECT_EQ(late.reason(), Conflict::Reason::kTooMany);
  EXPECT_EQ(late.conflict.holder.pid, static_cast<uint32_t>(getpid()));
  writer.release();
  reader.join();
}

TEST_F(SharedGrants, ReadersOfTheSameBytesShareGrantsAndLetAWriterPass) {
  std::vector<std::unique_ptr<TestLease>> turns;
  for (size_t i = 0; i < 2 * kGrants; ++i) {
    const size_t begin = i % 8;  // covered by an earlier one, if it is not the first of eight
    turns.push_back(std::make_unique<TestLease>(in(a_), kRead, begin));
    ASSERT_TRUE(turns.back()->acquire(0));
    turns.back()->detach();
  }
  EXPECT_EQ(granted(a_.segment(), block_), kGrants / 2);
  std::atomic<bool> has_written{false};
  std::thread writer = ask(b_, kWrite, [&](TestLease& turn) {
    EXPECT_TRUE(turn.is_held());
    has_written = true;
  });
  EXPECT_FALSE(is_granted_now(a_, kRead)) << "it would overtake the writer";
  for (size_t i = 0; i + 1 < turns.size(); ++i) turns[i * 7 % turns.size()]->release();
  EXPECT_EQ(granted(a_.segment(), block_), 1U);
  EXPECT_FALSE(has_written);
  std::thread reader = ask(a_, kRead, [&](TestLease& turn) { EXPECT_TRUE(turn.is_held() && has_written); });
  turns.clear();
  writer.join();
  reader.join();
  EXPECT_EQ(granted(a_.segment(), block_), 0U);
}

TEST_F(SharedGrants, ReadersThatWaitShareAGrantWhichLastsUntilTheLastHasLeft) {
  constexpr size_t kReaders = 3 * kGrants;
  TestLease first(in(b_), kWrite);
  ASSERT_TRUE(first.acquire());
  first.detach();
  std::vector<std::unique_ptr<TestLease>> readers;
  std::vector<PendingRequest> pending(kReaders);
  std::vector<std::atomic<int>> told(kReaders);
  for (size_t i = 0; i < kReaders; ++i) {
    readers.push_back(std::make_unique<TestLease>(in(a_), kRead));
    ASSERT_EQ(readers[i]->submit(&pending[i], &told[i]), Appended::kWaiting);
  }
  EXPECT_EQ(waiting(a_.segment(), block_), kGrants / 2);
  std::atomic<bool> is_over{false};
  std::thread thread([&] {
    TestLease turn(in(a_), kRead);
    EXPECT_TRUE(turn.acquire());
    EXPECT_TRUE(is_over);
  });
  for (size_t i = 0; i < kReaders; i += 2) {  // also those that had their grants first
    EXPECT_TRUE(readers[i]->cancel());
    WaitGraph::instance().leave(&pending[i].node);
  }
  is_over = true;
  first.release();
  thread.join();
  for (size_t i = 1; i < kReaders; i += 2) {
    ASSERT_TRUE(comes_true([&] { return told[i] == 1; }));
    readers[i]->arrived(pending[i]);
    EXPECT_TRUE(readers[i]->is_held());
  }
  EXPECT_EQ(told[0], 0);
  EXPECT_LE(granted(a_.segment(), block_), kGrants / 2);
  for (size_t i = 1; i < kReaders; i += 2) {
    ASSERT_FALSE(is_granted_now(b_, kWrite)) << i;
    readers[i]->release();
  }
  EXPECT_TRUE(is_granted_now(b_, kWrite));
}

TEST_F(SharedGrants, ReadersThatShareAGrantAreAllToldOfADeathUnlessTheyIgnoreIt) {
  auto& dying = b_.keep(std::make_unique<TestLease>(in(b_), kWrite, 0, 1));
  ASSERT_TRUE(dying.acquire());
  b_.detach_all();
  std::vector<std::unique_ptr<TestLease>> others;
  for (size_t i = 0; i < kGrants / 2; ++i) {
    others.push_back(std::make_unique<TestLease>(in(a_), kRead, 1));
    ASSERT_TRUE(others.back()->acquire());
    others.back()->detach();
  }
  constexpr size_t kReaders = 12;
  std::vector<std::unique_ptr<TestLease>> readers;
  std::vector<PendingRequest> pending(kReaders);
  std::vector<std::atomic<int>> told(kReaders);
  for (size_t i = 0; i < kReaders; ++i) {
    readers.push_back(std::make_unique<TestLease>(in(a_), kRead));
    if (i % 3 == 0) readers[i]->ignoring();
    ASSERT_EQ(readers[i]->submit(&pending[i], &told[i]), Appended::kWaiting);
  }
  EXPECT_EQ(waiting(a_.segment(), block_), 1U);
  b_.die();
  for (size_t i = 0; i < kReaders; ++i) {
    ASSERT_TRUE(comes_true([&] { return told[i] == 1; }));
    readers[i]->arrived(pending[i]);
    EXPECT_EQ(readers[i]->is_held(), i % 3 == 0);
    EXPECT_EQ(readers[i]->reason() == Conflict::Reason::kOwnerDied, i % 3 != 0);
  }
  EXPECT_EQ(granted(a_.segment(), block_), kGrants / 2 + 1);
  readers.clear();
  EXPECT_EQ(granted(a_.segment(), block_), kGrants / 2);
}

}  // namespace
}  // namespace tenon::impl
