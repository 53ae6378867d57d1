// SPDX-License-Identifier: Apache-2.0
//
// Requests, leases and ops over plain integers: no arrays are needed to know what the engine does.
#include <gtest/gtest.h>
#include <pthread.h>

#include <latch>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "exec/cells_testing.h"

namespace tenon::impl {
namespace {

constexpr int64_t kWatchdogNs = 600'000'000'000;

using EngineOn = OnExecutor;
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

// A lock of a language that the workers cannot get.
struct TakenLock {
  static inline std::atomic<int> n_asked{0};
  static inline std::atomic<int> n_left{0};
  static inline std::latch* free = nullptr;

  TakenLock() {
    WaitHooks hooks;
    hooks.enter = []() -> void* {
      ++n_asked;
      free->wait();
      return free;
    };
    hooks.leave = [](void* token) { n_left += token == free ? 1 : 0; };
    n_asked = n_left = 0;
    free = &latch;
    set_wait_hooks(hooks);
  }
  TakenLock(const TakenLock&) = delete;
  TakenLock& operator=(const TakenLock&) = delete;
  ~TakenLock() {
    latch.count_down();
    wait_all();
    Engine::instance().set_executor("inline", 0);  // no worker is inside of the hook any more
    set_wait_hooks({});
  }

  std::latch latch{1};
};

TEST_F(OnPool, AWaitingThreadRunsABodyWhoseWorkerWaitsForTheLock) {
  const TakenLock lock;
  std::thread::id ran_in;
  int n_runs = 0;
  const Ref<Op> op = make({write(cell)}, [&](Op* self) {
    ran_in = std::this_thread::get_id();
    ++n_runs;
    self->complete();
  });
  op->traits = Request::kNeedsLock;
  ASSERT_TRUE(submit(op));
  while (TakenLock::n_asked == 0) std::this_thread::yield();
  wait(op);
  EXPECT_EQ(ran_in, std::this_thread::get_id());
  EXPECT_EQ(n_runs, 1);
}

// The frames of the language would stay on the stack.
TEST_F(OnPool, ABodyThatEndsItsThreadWithTheLockEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [this] {
    WaitHooks hooks;
    hooks.enter = []() -> void* { return &Engine::instance(); };
    hooks.leave = [](void*) {};
    set_wait_hooks(hooks);
    const Ref<Op> op = make({write(cell)}, [](Op*) { pthread_exit(nullptr); }, "locked");
    op->traits = Request::kNeedsLock;
    (void)submit(op);
    (void)op->wait(Deadline(kWatchdogNs), &conflict);
  };
  EXPECT_DEATH(run(), "the body of op 'locked' did not return, because it ended its thread");
}

TEST_F(OnPool, WithoutALanguageABodyThatNeedsTheLockMayEndItsThread) {
  const Ref<Op> op = make({write(cell)}, [](Op*) { pthread_exit(nullptr); });
  op->traits = Request::kNeedsLock;
  ASSERT_TRUE(submit(op));
  ASSERT_TRUE(op->wait(Deadline(kWatchdogNs), &conflict));
  EXPECT_TRUE(op->failure());
  (void)take_failures();
}

TEST_F(OnPool, ABodyThatNeedsTheLockBeginsWhenItsWorkerHasIt) {
  bool has_run = false;
  Ref<Op> op;
  {
    const TakenLock lock;
    op = make({write(cell)}, [&has_run](Op* self) {
      has_run = true;
      self->complete();
    });
    op->traits = Request::kNeedsLock;
    ASSERT_TRUE(submit(op));
    while (TakenLock::n_asked == 0) std::this_thread::yield();
    EXPECT_FALSE(has_run);
  }
  EXPECT_TRUE(has_run);
  EXPECT_FALSE(op->failure());
  EXPECT_EQ(TakenLock::n_left, 1);
}

TEST_F(OnPool, AnOpThatNeedsTheLockDropsItsBodyWithoutTheLock) {
  int n_left_at_drop = 0;
  {
    const TakenLock lock;
    auto on_drop = [&n_left_at_drop](void*) { n_left_at_drop = TakenLock::n_left; };
    std::shared_ptr<void> dropped(&n_left_at_drop, on_drop);
    const Ref<Op> op = make({write(cell)}, [dropped](Op* self) { self->complete(); });
    dropped.reset();
    op->traits = Request::kNeedsLock;
    ASSERT_TRUE(submit(op));
    while (TakenLock::n_asked == 0) std::this_thread::yield();
  }
  EXPECT_EQ(n_left_at_drop, 1);
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
  EXPECT_TRUE(reports.names().empty()) << "the values of b are invalid because of it";
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

using EngineOnPool = OnPool;

TEST_F(EngineOnPool, WaitingForWorkBehindOnesOwnLeaseIsADeadlockAndSaysSo) {
  CellLease lease(read(cell));
  ASSERT_TRUE(lease.acquire(&conflict));
  const Ref<Op> op = push({write(cell)}, [&] { cell.value = 5; });
  EXPECT_EQ(reason_of([&](Conflict* r) { return op->wait(Deadline(-1), r); }), Conflict::Reason::kDeadlock);
  EXPECT_FALSE(op->is_done());
  EXPECT_EQ(cell.value, 0);
  lease.release();
  wait(op);
  EXPECT_EQ(cell.value, 5);
}

TEST_F(EngineOnPool, ALeaseThatTimesOutIsForgottenAndWhoStoodBehindItGoesOn) {
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

TEST_F(EngineOnPool, PartsOfOneCellDoNotConflict) {
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

TEST_F(EngineOnPool, NestedAccessActsUnderTheOwnLease) {
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

TEST_F(EngineOnPool, APushThatConflictsWithAViewOfTheHostIsRefusedWhole) {
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

TEST_P(EngineOn, LeasesAndViewsWaitForWorkThatWasPushedBeforeThemWithoutAWorkersHelp) {
  Cell cell;
  Conflict conflict;
  push({write(cell)}, [&cell] { ++cell.value; });
  CellLease lease(read(cell));
  ASSERT_TRUE(lease.acquire(&conflict, kWatchdogNs));
  EXPECT_EQ(cell.value, 1);
  lease.release();
  push({write(cell)}, [&cell] { ++cell.value; });
  Sight view(read(cell));
  ASSERT_TRUE(view.open(&conflict, kWatchdogNs));
  EXPECT_EQ(cell.value, 2);
}

// The body's own memory: else it would have to declare it.
TEST_F(EngineOnPool, AViewThatWouldWaitInsideOfABodyIsRefused) {
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

TEST_F(EngineOnPool, AReadDoesNotWaitBehindAReadThatWaitsForTheHost) {
  Sight view(write(cell));
  ASSERT_TRUE(view.open(&conflict));
  const Ref<Op> waits = push({read(cell)}, [] {}, OnHost::kWait);
  CellLease lease(read(cell));
  EXPECT_TRUE(lease.acquire(&conflict, kWatchdogNs)) << "it waits for its own thread";
  view.close();
  wait(waits);
}

TEST_F(EngineOnPool, WorkDoesNotWaitForAViewThatWaitsForIt) {
  CellLease lease(write(cell));
  ASSERT_TRUE(lease.acquire(&conflict));
  Sight escaping(read(cell));
  ASSERT_TRUE(escaping.open(&conflict));
  const Ref<Op> op = push({write(cell)}, [this] { cell.value = 5; });
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
TEST_F(EngineOnPool, AViewWaitsForWorkThatHasWaitedForTheHostBefore) {
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

TEST(Bodies, ALeaseThatABodyKeepsIsSeenBehindAViewThatOutlivedAnother) {
  Cell cell;
  Conflict conflict;
  std::unique_ptr<CellLease> kept, ended;
  std::unique_ptr<Sight> view;
  std::atomic<int> seen = 0;
  const Ref<Op> op = make({write(cell)}, [&](Op* self) {
    kept = std::make_unique<CellLease>(write(cell, 4, 8));
    EXPECT_TRUE(kept->acquire(&conflict));
    ended = std::make_unique<CellLease>(write(cell, 0, 4));
    EXPECT_TRUE(ended->acquire(&conflict));
    view = std::make_unique<Sight>(write(cell, 0, 4));
    EXPECT_TRUE(view->open(&conflict));
    std::thread([&] { ended->release(); }).join();
    seen += has_views(*self) ? 1 : 0;
    kept.reset();
    seen += has_views(*self) ? 1 : 0;
    view.reset();
    seen += has_views(*self) ? 1 : 0;
    self->complete();
  });
  ASSERT_TRUE(submit(op));
  wait(op);
  EXPECT_EQ(seen, 2);
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
