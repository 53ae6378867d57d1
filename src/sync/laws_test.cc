// SPDX-License-Identifier: Apache-2.0
//
// The laws that users of MXNet's engine know, on every executor. Where a rule differs from MXNet's on
// purpose, the test says so. MXNet's own tests of them print times or count on luck; these assert.
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <latch>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "exec/cells_testing.h"
#include "exec/history_testing.h"

namespace tenon::impl {
namespace {

using LawsOn = OnExecutor;
INSTANTIATE_TEST_SUITE_P(Executors, LawsOn, testing::Values("pool", "inline", "seeded:11"));

TEST_P(LawsOn, AnExecutorCanBeEndedAndStartedAgain) {
  Cell cell;
  for (int64_t round = 1; round <= 20; ++round) {
    push({write(cell)}, [&cell] { ++cell.value; });
    Engine::instance().set_executor(GetParam(), 1 + static_cast<int>(round % 3));
    EXPECT_EQ(cell.value, round);
  }
}

// Oracle: the same sums, one after the other. Doubles, so that another order would show in the last bits.
class RandomSums {
 public:
  explicit RandomSums(uint64_t seed) : random_(seed), serial_(kCells, 1.0) {
    for (size_t i = 0; i < kCells; ++i) {
      cells_.push_back(std::make_unique<Cell>());
      cells_.back()->value = std::bit_cast<int64_t>(1.0);
    }
  }

  void push_one(History& history, uint32_t asker, uint64_t nth) {
    std::vector<size_t> from(2 + random_() % 18);
    for (size_t& i : from) i = random_() % kCells;
    const size_t to = random_() % kCells;
    std::erase(from, to);
    double sum = 0;
    for (const size_t i : from) sum += serial_[i];
    serial_[to] = sum / static_cast<double>(from.size() + 1);
    std::vector<Wanted> wanted;
    for (const size_t i : from) wanted.push_back(read(*cells_[i]));
    wanted.push_back(write(*cells_[to]));
    Conflict conflict;
    ASSERT_TRUE(Engine::instance().push(make(wanted,
                                             [this, &history, from, to, asker, nth](Op* op) {
                                               run(history, from, to, {op->number(), asker, nth});
                                               op->complete();
                                             }),
                                        OnHost::kRaise, &conflict));
  }

  void check() const {
    for (size_t i = 0; i < kCells; ++i) {
      EXPECT_EQ(cells_[i]->value, std::bit_cast<int64_t>(serial_[i])) << "cell " << i;
    }
  }

 private:
  struct Who {
    uint64_t request;
    uint32_t asker;
    uint64_t nth;
  };
  void run(History& history, const std::vector<size_t>& from, size_t to, const Who& who) {
    const auto note = [&](const Wanted& w) {
      return std::make_unique<History::Scope>(
          history, CellAccess{w, HolderKind::kOp, who.request, who.asker, who.nth, 0, 0});
    };
    std::vector<std::unique_ptr<History::Scope>> scopes;
    for (const size_t i : from) scopes.push_back(note(read(*cells_[i])));
    scopes.push_back(note(write(*cells_[to])));
    double sum = 0;
    for (const size_t i : from) sum += std::bit_cast<double>(cells_[i]->value);
    cells_[to]->value = std::bit_cast<int64_t>(sum / static_cast<double>(from.size() + 1));
  }

  static constexpr size_t kCells = 100;
  std::mt19937_64 random_;
  std::vector<double> serial_;
  std::vector<std::unique_ptr<Cell>> cells_;
};

TEST_P(LawsOn, RandomSumsAreEqualToTheSerialOnesInEveryBit) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  const uint64_t count = repeats<uint64_t>(500'000, 5'000, 1'000);
  History history;
  RandomSums sums(seed);
  for (uint64_t i = 1; i <= count; ++i) sums.push_one(history, 1, i);
  wait_all();
  sums.check();
  EXPECT_EQ(history.take_fault(), "");
}

// MXNet's test has one pusher. Two that write the same cells have no serial order to compare with, so each
// has its own; that their ops meet in one executor is the point.
TEST_P(LawsOn, RandomSumsOfSeveralPushersAreEqualToTheSerialOnesInEveryBit) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  const uint64_t count = repeats<uint64_t>(200'000, 2'000, 500);
  History history;
  std::vector<std::unique_ptr<RandomSums>> sums;
  for (uint64_t t = 0; t < 3; ++t) sums.push_back(std::make_unique<RandomSums>(seed + t));
  std::vector<std::thread> pushers;
  for (uint32_t t = 0; t < 3; ++t) {
    pushers.emplace_back([&, t] {
      for (uint64_t i = 1; i <= count; ++i) sums[t]->push_one(history, t, i);
    });
  }
  for (std::thread& pusher : pushers) pusher.join();
  wait_all();
  for (const auto& s : sums) s->check();
  EXPECT_EQ(history.take_fault(), "");
}

TEST_P(LawsOn, AnOpOnFreshMemoryWaitsForNothing) {
  Cell cell;
  const Ref<Op> op = push({write(cell)}, [&cell] { cell.value = 1; });
  wait(op);
  EXPECT_EQ(cell.value, 1);
  Conflict conflict;
  CellLease fresh(write(cell));
  EXPECT_TRUE(fresh.acquire(&conflict, 0));
}

// The queue only keeps count; what a version means is the arrays' business.
TEST_P(LawsOn, WritesMoveTheVersionAndReadsDoNot) {
  Cell cell;
  for (int i = 0; i < 10; ++i) push({read(cell)}, [] {});
  wait_all();
  EXPECT_EQ(cell.queue.version(), 0u);
  for (int i = 0; i < 10; ++i) push({write(cell)}, [] {});
  wait_all();
  EXPECT_EQ(cell.queue.version(), 10u);
}

TEST(Laws, ReadersRunTogether) {
  Engine::instance().set_executor("pool", 3);
  Cell cell;
  std::latch all(3);  // a reader that waited for another one's end would wait for ever
  for (int i = 0; i < 3; ++i) push({read(cell)}, [&all] { all.arrive_and_wait(); });
  wait_all();
}

// MXNet has WaitForVar, which waits until memory can be read. Here that is a lease for reading.
TEST(Laws, WhoReadsWaitsForTheWriterAndNotForReaders) {
  Engine::instance().set_executor("pool", 2);
  Cell cell;
  Conflict conflict;
  std::latch may_end(1);
  const Ref<Op> reader = push({read(cell)}, [&may_end] { may_end.wait(); });
  {
    CellLease lease(read(cell));
    EXPECT_TRUE(lease.acquire(&conflict, 0));
    std::thread([&] {
      Conflict r;
      CellLease other(write(cell));
      EXPECT_EQ(reason_of([&](Conflict* why) { return other.acquire(why, 1'000'000); }),
                Conflict::Reason::kTimeout);
    }).join();
  }
  EXPECT_FALSE(Engine::instance().wait_all(Deadline(1'000'000), &conflict));
  may_end.count_down();
  wait_all();
  EXPECT_TRUE(reader->is_done());
}

// In MXNet the first wait throws and the memory is clean afterwards, though it was not written. Here a
// failure stays until the memory has been overwritten.
TEST_P(LawsOn, EveryWaitForAFailedOpSeesTheSameFailure) {
  Cell cell;
  const Ref<Op> bad = push_failing({write(cell)});
  const Ref<Op> later = push({write(cell)}, [] {});
  for (int i = 0; i < 3; ++i) {
    wait(bad);
    wait(later);
    ASSERT_TRUE(bad->failure());
    EXPECT_EQ(later->failure().get(), bad->failure().get());
    EXPECT_EQ(failure_of(cell.home, cell.extent()).get(), bad->failure().get());
  }
}

// In MXNet two rows of one array share a variable: the wait for one takes the error from the other. Here each
// byte knows whether it holds a value.
TEST_P(LawsOn, AFailureIsOfTheBytesThatWereToBeWritten) {
  Cell rows;
  Cell result;
  wait(push_failing({write(rows, 0, 4)}));
  const Ref<Op> from_bad = push({read(rows, 0, 4), write(result, 0, 4)}, [] {});
  const Ref<Op> from_good = push({read(rows, 4, 8), write(result, 4, 8)}, [] {});
  wait_all();
  EXPECT_TRUE(from_bad->failure());
  EXPECT_FALSE(from_good->failure());
  EXPECT_TRUE(failure_of(result.home, extent_of(read(result, 0, 1))));
  EXPECT_FALSE(failure_of(result.home, extent_of(read(result, 4, 8))));
}

// In MXNet the first waitall throws and the second does not. Here waiting for all is only that; the failures
// that began with an op of their own are asked for, and told once.
TEST_P(LawsOn, WaitingForAllEndsBesideFailuresWhichAreToldOnce) {
  Cell a, b, c;
  push_failing({write(a)}, "first");
  push({read(a), write(b)}, [] {});
  push_failing({write(c)}, "second");
  wait_all();
  wait_all();
  EXPECT_EQ(take_failures(), 2u) << "the skipped op has no failure of its own";
  EXPECT_EQ(take_failures(), 0u);
  wait_all();
  EXPECT_TRUE(failure_of(b.home, b.extent())) << "they are told once, but stay where no value is";
}

TEST_P(LawsOn, AFailedOpStopsOnlyWhatNeedsItsResult) {
  Cell bad, good;
  for (int i = 0; i < 100; ++i) {
    push_failing({write(bad)});
    push({write(good)}, [&good] { ++good.value; });
    push({read(bad), write(bad)}, [&bad] { ++bad.value; });
  }
  wait_all();
  EXPECT_EQ(good.value, 100);
  EXPECT_EQ(bad.value, 0);
}

// Counts how often what an op owns is given back.
Ref<Op> new_counted(Cell& cell, std::atomic<int>& drops) {
  const Work work{&drops, [](void*, Op* op) { op->complete(); },
                  [](void* context) { ++*static_cast<std::atomic<int>*>(context); }};
  Ref<Op> op = Op::create(work, 1, "counted", nullptr);
  describe(write(cell), op->parts[0]);
  return op;
}

TEST_P(LawsOn, WhatAnOpOwnsIsDroppedOnceWhetherItRunsOrNot) {
  Cell cell;
  Conflict conflict;
  std::atomic<int> drops{0};
  Engine& engine = Engine::instance();
  ASSERT_TRUE(engine.push(new_counted(cell, drops), OnHost::kRaise, &conflict));
  wait_all();
  EXPECT_EQ(drops, 1) << "it has run";
  wait(push_failing({write(cell)}));
  ASSERT_TRUE(engine.push(new_counted(cell, drops), OnHost::kRaise, &conflict));
  wait_all();
  EXPECT_EQ(drops, 2) << "it was skipped";
  Sight view(read(cell));
  ASSERT_TRUE(view.open(&conflict));
  const Ref<Op> refused = new_counted(cell, drops);
  EXPECT_FALSE(engine.push(refused, OnHost::kRaise, &conflict));
  EXPECT_EQ(refused->give_up(), &drops) << "it was refused, and is its maker's again";
  EXPECT_EQ(drops, 2);
}

}  // namespace
}  // namespace tenon::impl
