// SPDX-License-Identifier: Apache-2.0
//
// Requests, leases and ops over plain integers: no arrays are needed to know what the engine does.
#include <gtest/gtest.h>

#include <latch>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "exec/cells_testing.h"

namespace tenon::impl {
namespace {

class EngineOn : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { Engine::instance().set_executor(GetParam(), 2); }
  void TearDown() override {
    wait_all();
    (void)take_failures();
  }
};
INSTANTIATE_TEST_SUITE_P(Executors, EngineOn, testing::Values("pool", "inline", "seeded:3"));

TEST_P(EngineOn, OpsOnOneCellRunInTheOrderOfTheirPush) {
  Cell cell;
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) push({write(cell)}, [&order, i] { order.push_back(i); });
  wait_all();
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST_P(EngineOn, AReadSeesEveryWriteBeforeItAndNoneAfterIt) {
  Cell source, result;
  for (int64_t i = 1; i <= 500; ++i) {
    push({write(source)}, [&source, i] { source.value = i; });
    push({read(source), write(result)}, [&source, &result, i] { result.value += source.value == i ? 1 : 0; });
  }
  wait_all();
  EXPECT_EQ(result.value, 500);
}

TEST_P(EngineOn, TheSameCellTwiceInOneOpIsOneEntry) {
  Cell cell;
  wait(push({read(cell), write(cell), read(cell)}, [&cell] { cell.value = 7; }));
  EXPECT_EQ(cell.value, 7);
  EXPECT_FALSE(cell.queue.has_parts());
}

TEST_P(EngineOn, AFailureIsInheritedUntilAWholeOverwrite) {
  Cell a, b;
  const Ref<Op> bad = push_failing({write(a)});
  bool has_run = false;
  const Ref<Op> dependant = push({read(a), write(b)}, [&has_run] { has_run = true; });
  wait(dependant);
  EXPECT_FALSE(has_run);
  ASSERT_TRUE(dependant->failure());
  EXPECT_EQ(dependant->failure().get(), bad->failure().get());
  EXPECT_TRUE(failure_of(b.home, b.extent()));
  wait(push({overwrite(a)}, [&a] { a.value = 1; }));
  EXPECT_FALSE(failure_of(a.home, a.extent()));
  const Ref<Op> partial = push({write(b)}, [] {});
  wait(partial);
  EXPECT_TRUE(partial->failure());
  wait(push({overwrite(b)}, [] {}));
  EXPECT_FALSE(failure_of(b.home, b.extent()));
  EXPECT_EQ(Failures::instance().take().get(), bad->failure().get());
  EXPECT_FALSE(Failures::instance().take());
}

// The names of the ops whose failures the hook has got.
class Reports {
 public:
  Reports() {
    names_.clear();
    set_failure_hook([](Failure* owned) {
      const Ref<Failure> failure = Ref<Failure>::adopt(owned);
      const std::scoped_lock lock(lock_);
      names_.push_back(failure->op);
    });
  }
  Reports(const Reports&) = delete;
  Reports& operator=(const Reports&) = delete;
  ~Reports() { set_failure_hook(nullptr); }

  std::vector<std::string> names() const {
    const std::scoped_lock lock(lock_);
    return names_;
  }
  // The thread that has run an op drops its reference a moment after the end of the op; an executor without
  // threads drops that to an op that a waiter has run when it comes to it.
  void wait_for(size_t n) const {
    while (names().size() < n) {
      if (Engine::instance().has_own_threads() || !help()) std::this_thread::yield();
    }
  }

 private:
  static inline std::mutex lock_;
  static inline std::vector<std::string> names_;
};

TEST_P(EngineOn, AFailureIsReportedOnceWhenNobodyCanSeeItAnyMore) {
  const Reports reports;
  Cell a, b;
  Ref<Op> bad = push_failing({write(a)});
  Ref<Op> skipped = push({read(a), write(b)}, [] {});
  wait(skipped);
  bad = {};
  wait(push({overwrite(a)}, [] {}));
  skipped = {};
  EXPECT_TRUE(reports.names().empty()) << "b holds no value because of it";
  wait(push({overwrite(b)}, [] {}));
  reports.wait_for(1);
  EXPECT_EQ(take_failures(), 1u) << "a thread that waits for all ops learns of it nevertheless";
  wait(push_failing({}, "last"));
  reports.wait_for(2);
  EXPECT_EQ(reports.names(), (std::vector<std::string>{"bad", "last"}));
}

TEST_P(EngineOn, AFailureThatWasThrownOrThatAWaiterForAllOpsCanTakeIsNotReported) {
  const Reports reports;
  Ref<Op> thrown = push_failing({}, "thrown");
  wait(thrown);
  (void)OpFailure(thrown->failure());
  Ref<Op> taken = push_failing({}, "taken");
  wait_all();
  thrown = taken = {};
  EXPECT_EQ(take_failures(), 2u);
  wait(push_failing({}, "last"));
  reports.wait_for(1);
  EXPECT_EQ(reports.names(), (std::vector<std::string>{"last"}));
}

TEST_P(EngineOn, TheRestIsReportedOnce) {
  const Reports reports;
  const Ref<Op> bad = push_failing({});
  wait_all();
  EXPECT_TRUE(reports.names().empty());
  Failures::instance().report_rest();
  Failures::instance().report_rest();
  EXPECT_EQ(reports.names(), (std::vector<std::string>{"bad"}));
}

TEST_P(EngineOn, MoreFailuresThanAreListedAreAllReported) {
  constexpr size_t kMany = 1200;
  const Reports reports;
  std::vector<Ref<Op>> ops;
  for (size_t i = 0; i < kMany; ++i) ops.push_back(push_failing({}));
  for (const Ref<Op>& op : ops) wait(op);
  ops.clear();
  reports.wait_for(kMany);
  EXPECT_EQ(reports.names().size(), kMany);
}

TEST_P(EngineOn, AWaitInsideOfABodyIsRefused) {
  Cell a;
  bool was_refused = false;
  const Ref<Op> first = push({write(a)}, [] {});
  wait(first);
  const Ref<Op> later = make({write(a)}, [](Op* op) { op->complete(); });
  wait(push({}, [&] {
    Conflict conflict;
    was_refused = !later->wait(Deadline(-1), &conflict) && conflict.reason == Conflict::Reason::kInBody;
  }));
  EXPECT_TRUE(was_refused);
  forget(later);
}

TEST_P(EngineOn, AnOpMayBeCompletedByAnotherThreadAndBeforeItsBodyReturns) {
  Cell cell;
  Conflict conflict;
  std::vector<std::thread> threads;
  for (int i = 0; i < 100; ++i) {
    const Ref<Op> op = make({write(cell)}, [&](Op* self) {
      self->retain();
      threads.emplace_back([self] {
        self->complete();
        self->release();
      });
    });
    ASSERT_TRUE(Engine::instance().push(op, OnHost::kRaise, &conflict));
    wait(op);
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Engine, WorkQueuesBehindALeaseAndRunsAfterIt) {
  Engine::instance().set_executor("pool", 2);
  Cell cell;
  Conflict conflict;
  CellLease lease(write(cell));
  ASSERT_TRUE(lease.acquire(&conflict));
  const Ref<Op> op = push({write(cell)}, [&cell] { cell.value = 5; });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(op->is_done());
  EXPECT_EQ(cell.value, 0);
  lease.release();
  wait(op);
  EXPECT_EQ(cell.value, 5);
}

TEST(Engine, WaitingForWorkBehindOnesOwnLeaseIsADeadlockAndSaysSo) {
  Engine::instance().set_executor("pool", 2);
  Cell cell;
  Conflict conflict;
  CellLease lease(read(cell));
  ASSERT_TRUE(lease.acquire(&conflict));
  const Ref<Op> op = push({write(cell)}, [] {});
  EXPECT_EQ(reason_of([&](Conflict* r) { return op->wait(Deadline(-1), r); }), Conflict::Reason::kDeadlock);
  lease.release();
  wait(op);
}

TEST(Engine, OfCrossedLeasesAtLeastOneIsRefusedAndNoneHangs) {
  for (int round = 0; round < 200; ++round) {
    Cell a, b;
    std::latch both(2);
    std::atomic<int> refused{0};
    const auto cross = [&](Cell& first, Cell& second) {
      Conflict conflict;
      CellLease mine(write(first));
      ASSERT_TRUE(mine.acquire(&conflict));
      both.arrive_and_wait();
      CellLease other(write(second));
      if (!other.acquire(&conflict)) {
        EXPECT_EQ(conflict.reason, Conflict::Reason::kDeadlock);
        ++refused;
      }
    };
    std::thread one([&] { cross(a, b); });
    std::thread two([&] { cross(b, a); });
    one.join();
    two.join();
    EXPECT_GE(refused, 1);
  }
}

TEST(Engine, ALeaseThatTimesOutIsForgottenAndWhoStoodBehindItGoesOn) {
  Cell cell;
  Conflict conflict;
  CellLease reader(read(cell));
  ASSERT_TRUE(reader.acquire(&conflict));
  std::thread([&] {
    CellLease writer(write(cell));
    EXPECT_EQ(reason_of([&](Conflict* r) { return writer.acquire(r, 1'000'000); }),
              Conflict::Reason::kTimeout);
    CellLease other(read(cell));
    EXPECT_TRUE(other.acquire(&conflict, kWatchdogNs));
  }).join();
}

TEST(Engine, PartsOfOneCellDoNotConflict) {
  Cell cell;
  Conflict conflict;
  CellLease one(write(cell, 0, 1));
  ASSERT_TRUE(one.acquire(&conflict));
  std::thread([&] {
    Conflict r;
    CellLease two(write(cell, 1, 2));
    EXPECT_TRUE(two.acquire(&r, 0));
    CellLease whole(write(cell));
    EXPECT_FALSE(whole.acquire(&r, 1'000'000));
  }).join();
  EXPECT_TRUE(cell.queue.has_parts());
}

TEST(Engine, NestedAccessActsUnderTheOwnLease) {
  Cell cell;
  Conflict conflict;
  CellLease outer(write(cell));
  ASSERT_TRUE(outer.acquire(&conflict));
  CellLease inner(read(cell));
  EXPECT_TRUE(inner.acquire(&conflict, 0));
  CellLease again(write(cell));
  EXPECT_TRUE(again.acquire(&conflict, 0));
  again.release();
  outer.release();
  CellLease stronger(write(cell));
  EXPECT_EQ(reason_of([&](Conflict* r) { return stronger.acquire(r); }), Conflict::Reason::kOwnLease);
  inner.release();
  EXPECT_TRUE(stronger.acquire(&conflict));
}

TEST(Engine, APushThatConflictsWithAViewOfTheHostIsRefusedWhole) {
  Cell a, b;
  Conflict conflict;
  View view;
  describe(read(a), view);
  view.site = "loader.py:7";
  ASSERT_EQ(try_open_view(view, false, &conflict), Appended::kGranted);
  const Ref<Op> op = make({write(b), write(a)}, [](Op* self) { self->complete(); });
  EXPECT_FALSE(submit(op, OnHost::kRaise, &conflict));
  EXPECT_EQ(conflict.reason, Conflict::Reason::kHostView);
  EXPECT_STREQ(conflict.holder.site, "loader.py:7");
  EXPECT_FALSE(b.queue.has_parts());
  wait(push({read(a)}, [] {}));
  close_view(view);
  wait(push({write(a)}, [] {}));
}

TEST(Engine, AViewWaitsForWorkThatWasPushedBeforeIt) {
  Engine::instance().set_executor("pool", 2);
  Cell cell;
  std::latch may_end(1);
  const Ref<Op> op = push({write(cell)}, [&] {
    may_end.wait();
    cell.value = 9;
  });
  std::thread viewer([&] {
    Conflict conflict;
    View view;
    describe(read(cell), view);
    ASSERT_TRUE(open_view(view, false, Deadline(-1), &conflict));
    EXPECT_EQ(cell.value, 9);
    close_view(view);
  });
  may_end.count_down();
  viewer.join();
  wait(op);
}

TEST(Engine, AViewThatOutlivesItsLeaseIsTheHostsAndWorkBehindItWaits) {
  Engine::instance().set_executor("pool", 2);
  Cell cell;
  Conflict conflict;
  CellLease lease(write(cell));
  ASSERT_TRUE(lease.acquire(&conflict));
  View view;
  describe(write(cell), view);
  ASSERT_EQ(try_open_view(view, false, &conflict), Appended::kGranted);
  const Ref<Op> op = push({write(cell)}, [] {});
  ASSERT_TRUE(op);
  EXPECT_TRUE(lease.release());
  EXPECT_FALSE(op->is_done());
  close_view(view);
  wait(op);
}

TEST_P(EngineOn, AnOpThatTakesAllAndAPartOfACellBehindWorkThatWaitsForTheHostRuns) {
  Cell cell, other;
  Conflict conflict;
  Sight view(write(cell));
  ASSERT_TRUE(view.open(&conflict));
  const Ref<Op> waits = push({read(cell)}, [] {}, OnHost::kWait);
  const Ref<Op> passes = push({read(cell), read(cell, 0, 4), write(other)}, [] {}, OnHost::kIgnore);
  EXPECT_TRUE(passes->wait(Deadline(kWatchdogNs), &conflict)) << "it was granted and never told so";
  view.close();
  EXPECT_TRUE(waits->wait(Deadline(kWatchdogNs), &conflict));
}

TEST_P(EngineOn, ALeaseWaitsForWorkThatWasPushedBeforeItWithoutAWorkersHelp) {
  Cell cell;
  Conflict conflict;
  push({write(cell)}, [&cell] { cell.value = 1; });
  CellLease lease(read(cell));
  ASSERT_TRUE(lease.acquire(&conflict, kWatchdogNs));
  EXPECT_EQ(cell.value, 1);
}

TEST_P(EngineOn, AViewWaitsForWorkThatWasPushedBeforeItWithoutAWorkersHelp) {
  Cell cell;
  Conflict conflict;
  push({write(cell)}, [&cell] { cell.value = 1; });
  Sight view(read(cell));
  ASSERT_TRUE(view.open(&conflict, kWatchdogNs));
  EXPECT_EQ(cell.value, 1);
}

// The body's own memory: else it would have to declare it.
TEST(Engine, AViewThatWouldWaitInsideOfABodyIsRefused) {
  Engine::instance().set_executor("pool", 1);
  Cell cell;
  Conflict::Reason reason = Conflict::Reason::kHostView;
  std::latch has_begun(1);  // on the worker: a thread that waits for the op could run it
  const Ref<Op> op = push({}, [&] {
    has_begun.count_down();
    cell.queue.set_birth(this_thread.running);
    push({write(cell)}, [] {});
    Conflict conflict;
    Sight view(read(cell));
    if (!view.open(&conflict, kWatchdogNs)) reason = conflict.reason;
  });
  has_begun.wait();
  wait(op);
  wait_all();
  EXPECT_EQ(reason, Conflict::Reason::kInBody);
}

TEST(Engine, AReadDoesNotWaitBehindAReadThatWaitsForTheHost) {
  Engine::instance().set_executor("pool", 2);
  Cell cell;
  Conflict conflict;
  Sight view(write(cell));
  ASSERT_TRUE(view.open(&conflict));
  const Ref<Op> waits = push({read(cell)}, [] {}, OnHost::kWait);
  CellLease lease(read(cell));
  EXPECT_TRUE(lease.acquire(&conflict, kWatchdogNs)) << "it waits for its own thread";
  view.close();
  wait(waits);
}

TEST(Engine, WorkDoesNotWaitForAViewThatWaitsForIt) {
  Engine::instance().set_executor("pool", 2);
  Cell cell;
  Conflict conflict;
  CellLease lease(write(cell));
  ASSERT_TRUE(lease.acquire(&conflict));
  Sight escaping(read(cell));
  ASSERT_TRUE(escaping.open(&conflict));
  const Ref<Op> op = push({write(cell)}, [&cell] { cell.value = 5; });
  std::thread viewer([&] {
    Conflict r;
    Sight behind(read(cell));
    EXPECT_TRUE(behind.open(&r, kWatchdogNs)) << "op and view wait for each other";
    EXPECT_EQ(cell.value, 5);
  });
  await_parts(cell, 3);
  EXPECT_TRUE(lease.release());
  EXPECT_FALSE(op->is_done());
  escaping.close();
  EXPECT_TRUE(op->wait(Deadline(kWatchdogNs), &conflict)) << "op and view wait for each other";
  viewer.join();
}

// A call is refused when it would wait for the host. Work that has waited for the host, and does so no more,
// is work like any other: else the answer depends on whether it has ended.
TEST(Engine, AViewWaitsForWorkThatHasWaitedForTheHostBefore) {
  Engine::instance().set_executor("pool", 2);
  Cell cell;
  Conflict conflict;
  std::latch may_end(1);
  Sight first(read(cell));
  ASSERT_TRUE(first.open(&conflict));
  const Ref<Op> op = push(
      {write(cell)},
      [&] {
        may_end.wait();
        cell.value = 9;
      },
      OnHost::kWait);
  Sight refused(write(cell));
  EXPECT_EQ(reason_of([&](Conflict* r) { return refused.open(r); }), Conflict::Reason::kWaitsForHost);
  first.close();
  std::thread viewer([&] {
    Conflict r;
    Sight second(read(cell));
    EXPECT_TRUE(second.open(&r)) << static_cast<int>(r.reason);
    EXPECT_EQ(cell.value, 9);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  may_end.count_down();
  viewer.join();
  wait(op);
}

// Oracle: each op mixes its own number into what it reads and writes that; the same program run one op after
// the other gives the same.
TEST_P(EngineOn, RandomProgramsGiveWhatTheSerialOrderGives) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 20; ++round) {
    constexpr size_t kCells = 20;
    std::vector<std::unique_ptr<Cell>> cells;
    std::vector<uint64_t> serial(kCells, 1);
    for (size_t i = 0; i < kCells; ++i) {
      cells.push_back(std::make_unique<Cell>());
      cells.back()->value = 1;
    }
    for (uint64_t op = 0; op < 500; ++op) {
      const size_t a = random() % kCells, b = random() % kCells, c = random() % kCells;
      const auto mix = [op](uint64_t x, uint64_t y) { return (x * 31 + y * 17 + op) * 0x9E3779B97F4A7C15u; };
      serial[c] = mix(serial[a], serial[b]);
      Cell &from_a = *cells[a], &from_b = *cells[b], &to = *cells[c];
      push({read(from_a), read(from_b), write(to)}, [&from_a, &from_b, &to, mix] {
        to.value = static_cast<int64_t>(
            mix(static_cast<uint64_t>(from_a.value), static_cast<uint64_t>(from_b.value)));
      });
    }
    wait_all();
    for (size_t i = 0; i < kCells; ++i) ASSERT_EQ(static_cast<uint64_t>(cells[i]->value), serial[i]) << i;
  }
}

// Two pushers with crossed pairs of cells: what stops an engine that appends one part at a time.
TEST_P(EngineOn, CrossedPairsFromTwoPushersDoNotStop) {
  Cell a, b;
  std::vector<std::thread> pushers;
  for (int t = 0; t < 2; ++t) {
    pushers.emplace_back([&, t] {
      Cell &from = t == 0 ? a : b, &to = t == 0 ? b : a;
      for (int i = 0; i < 20'000; ++i) push({read(from), write(to)}, [&to] { ++to.value; });
    });
  }
  for (std::thread& pusher : pushers) pusher.join();
  wait_all();
  EXPECT_EQ(a.value, 20'000);
  EXPECT_EQ(b.value, 20'000);
}

TEST(FailedRange, IsHealedByPartsAndInTheMiddle) {
  Cell cell;
  const auto fails = [&cell](size_t begin, size_t end) {
    const uintptr_t at = cell.extent().begin;
    return failure_of(cell.home, {at + begin, at + end}).get() != nullptr;
  };
  const auto overwrite_part = [&cell](size_t begin, size_t end) {
    Wanted wanted = write(cell, begin, end);
    wanted.is_overwrite = true;
    wait(push({wanted}, [] {}));
  };
  Conflict conflict;
  ASSERT_TRUE(push_failing({write(cell)})->wait(Deadline(-1), &conflict));
  take_failures();
  overwrite_part(2, 4);  // in the middle
  EXPECT_TRUE(fails(0, 2) && fails(4, 8));
  EXPECT_FALSE(fails(2, 4));
  overwrite_part(0, 3);
  EXPECT_FALSE(fails(0, 4));
  overwrite_part(6, 8);
  EXPECT_TRUE(fails(4, 6));
  EXPECT_FALSE(fails(6, 8));
  overwrite_part(4, 6);
  EXPECT_FALSE(fails(0, 8));
}

TEST(Bodies, WhatALeaseIsTakenInIsWhereItAllowsSomething) {
  Engine::instance().set_executor("inline", 0);
  Cell a, b;
  Conflict conflict;
  CellLease outer(write(b));
  ASSERT_TRUE(outer.acquire(&conflict));
  wait(push({write(a)}, [&] {
    Sight view(write(b));
    EXPECT_EQ(reason_of([&](Conflict* r) { return view.open(r); }), Conflict::Reason::kUndeclared)
        << "the lease is of the code that pushed";
    CellLease inner(write(a));
    EXPECT_TRUE(inner.acquire(&conflict));
    Sight under(write(a));
    EXPECT_TRUE(under.open(&conflict));
  }));
  outer.release();
  Engine::instance().set_executor("pool", 2);
}

TEST(Bodies, ALeaseThatABodyKeepsIsSeenAtItsEnd) {
  Cell cell;
  Conflict conflict;
  std::unique_ptr<CellLease> kept;
  std::atomic<bool> is_seen{false};
  const Ref<Op> op = make({write(cell)}, [&](Op* self) {
    EXPECT_FALSE(has_views(*self));
    kept = std::make_unique<CellLease>(write(cell));
    EXPECT_TRUE(kept->acquire(&conflict));
    is_seen = has_views(*self);
    self->complete();
  });
  ASSERT_TRUE(submit(op));
  wait(op);
  EXPECT_TRUE(is_seen);
  kept.reset();
}

TEST(Limits, WhatBelongsToTheEndOfAnOpPushesWithoutWaiting) {
  Engine::instance().set_executor("pool", 1);
  Engine::instance().set_limits(4, 0);
  Cell cell;
  std::atomic<int> runs{0};
  struct Pusher : DoneCall {
    Cell* cell;
    std::atomic<int>* runs;
  } pusher;
  pusher.cell = &cell;
  pusher.runs = &runs;
  pusher.context = &pusher;
  pusher.call = [](void* context) {
    auto& self = *static_cast<Pusher*>(context);
    for (int i = 0; i < 20; ++i) push({write(*self.cell)}, [&] { ++*self.runs; });
  };
  std::atomic<bool> may_end{false};
  const Ref<Op> op = push({write(cell)}, [&] {
    while (!may_end) std::this_thread::yield();
  });
  op->call_when_done(&pusher);
  may_end = true;
  wait(op);
  wait_all();
  EXPECT_EQ(runs, 20);
  Engine::instance().set_limits(10'000, 0);
  Engine::instance().set_executor("pool", 2);
}

}  // namespace
}  // namespace tenon::impl
