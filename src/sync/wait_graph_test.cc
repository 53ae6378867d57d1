// SPDX-License-Identifier: Apache-2.0
//
// What waits for what: what is a deadlock, and what only looks like one. Oracle: a request that is refused as
// a deadlock must have stood in a cycle of leases that only their owners could open.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <random>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "exec/cells_testing.h"
#include "exec/history_testing.h"

namespace tenon::impl {
namespace {

thread_local uint64_t task_here = 0;

class WaitGraphOf : public testing::Test {
 protected:
  void SetUp() override {
    Engine::instance().set_executor("pool", 2);
    WaitHooks hooks;
    hooks.current_task = [] { return task_here; };
    set_wait_hooks(hooks);
  }
  void TearDown() override {
    wait_all();
    set_wait_hooks({});
    task_here = 0;
  }
};

TEST_F(WaitGraphOf, ThreadsInOneCycleAreADeadlockOfAtLeastOneAndNoneHangs) {
  History history;
  for (int round = 0; round < 700; ++round) {
    const size_t n = round % 7 < 2 ? 2 : 3;
    std::array<Cell, 3> cells;
    std::latch all(static_cast<ptrdiff_t>(n));
    std::atomic<int> refused{0}, granted{0};
    std::vector<std::thread> threads;
    for (size_t t = 0; t < n; ++t) {
      threads.emplace_back([&, t] {
        Cell &first = cells[t], &second = cells[(t + 1) % n];
        Conflict conflict;
        CellLease mine(write(first));
        ASSERT_TRUE(mine.acquire(&conflict));
        const History::Scope scope(history, {write(first), HolderKind::kLease, t + 1, 0, 0, 0, 0});
        all.arrive_and_wait();
        CellLease next(write(second));
        if (next.acquire(&conflict)) {
          const History::Scope inner(history, {write(second), HolderKind::kLease, t + 1, 0, 0, 0, 0});
          ++granted;
        } else {
          EXPECT_EQ(conflict.reason, Conflict::Reason::kDeadlock);
          EXPECT_EQ(conflict.holder.kind, HolderKind::kLease);
          EXPECT_EQ(conflict.holder.thread, this_thread.number)
              << "the lease of one's own that is in the way";
          ++refused;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(refused + granted, static_cast<int>(n));
    ASSERT_GE(refused, 1);
    ASSERT_EQ(history.take_fault(), "");
  }
}

// One thread asks for no time: that is a cycle for a moment alone.
TEST_F(WaitGraphOf, ARequestThatDoesNotWaitIsNoPartOfADeadlockOfOthers) {
  for (int round = 0; round < 100; ++round) {
    Cell a, b;
    std::latch both(2);
    std::atomic<bool> is_done{false};
    Conflict conflict;
    CellLease mine(write(a));
    ASSERT_TRUE(mine.acquire(&conflict));
    std::thread other([&] {
      Conflict of_other;
      CellLease theirs(write(b));
      ASSERT_TRUE(theirs.acquire(&of_other));
      both.arrive_and_wait();
      CellLease next(write(a));
      EXPECT_TRUE(next.acquire(&of_other)) << "reason " << static_cast<int>(of_other.reason);
      is_done = true;
    });
    both.arrive_and_wait();
    const Deadline deadline(3'000'000);  // the other thread looks for deadlocks after 1 ms
    while (!deadline.has_passed() && !is_done) {
      CellLease next(write(b));
      EXPECT_FALSE(next.acquire(&conflict, 0)) << "the other thread holds it while it waits";
    }
    mine.release();
    other.join();
    ASSERT_FALSE(HasFailure());
  }
}

TEST_F(WaitGraphOf, ACycleThroughAnOpIsADeadlock) {
  Cell a, b;
  Conflict conflict;
  CellLease lease(write(a));
  ASSERT_TRUE(lease.acquire(&conflict));
  const Ref<Op> op = push({read(a), write(b)}, [] {});
  CellLease behind(read(b));
  EXPECT_EQ(reason_of([&](Conflict* r) { return behind.acquire(r); }), Conflict::Reason::kDeadlock);
  Sight view(read(b));
  EXPECT_EQ(reason_of([&](Conflict* r) { return view.open(r); }), Conflict::Reason::kDeadlock);
  lease.release();
  wait(op);
}

TEST_F(WaitGraphOf, ADetachedLeaseIsNobodysSoWaitingForItTimesOut) {
  Cell cell;
  Conflict conflict;
  CellLease lease(write(cell));
  ASSERT_TRUE(lease.acquire(&conflict));
  lease.detach();
  CellLease again(write(cell));
  EXPECT_EQ(reason_of([&](Conflict* r) { return again.acquire(r, 2'000'000); }), Conflict::Reason::kTimeout);
  std::thread other([&] { lease.release(); });
  EXPECT_TRUE(again.acquire(&conflict));
  other.join();
}

TEST_F(WaitGraphOf, ALeaseOfATaskIsThatTasksAndAThreadThatSleepsHoldsUpAllOfItsTasks) {
  Cell cell;
  Conflict conflict;
  task_here = 1;
  CellLease lease(write(cell));
  ASSERT_TRUE(lease.acquire(&conflict));
  CellLease nested(read(cell));
  EXPECT_TRUE(nested.acquire(&conflict, 0));
  nested.release();
  task_here = 2;
  CellLease other(read(cell));
  EXPECT_EQ(reason_of([&](Conflict* r) { return other.acquire(r); }), Conflict::Reason::kDeadlock);
  task_here = 1;
  lease.release();
  task_here = 0;
  CellLease of_thread(write(cell));
  ASSERT_TRUE(of_thread.acquire(&conflict));
  task_here = 2;
  EXPECT_TRUE(other.acquire(&conflict, 0))
      << "a lease that was taken outside of tasks is all of its thread's";
}

TEST_F(WaitGraphOf, ATaskThatItsThreadHasPutAsideWaitsForAnotherTaskOfIt) {
  Cell cell;
  Conflict conflict;
  task_here = 1;
  CellLease lease(write(cell));
  ASSERT_TRUE(lease.acquire(&conflict));
  task_here = 2;
  const Ref<Op> behind = push({read(cell)}, [] {});
  WaitNode aside;
  aside.actor = current_actor();
  aside.is_thread = false;
  aside.request = behind.get();
  WaitGraph::instance().enter(&aside);
  EXPECT_FALSE(WaitGraph::instance().is_deadlock(aside, &conflict.holder));
  WaitGraph::instance().leave(&aside);
  aside.actor.task = 1;
  WaitGraph::instance().enter(&aside);
  EXPECT_TRUE(WaitGraph::instance().is_deadlock(aside, &conflict.holder)) << "it would wait for itself";
  WaitGraph::instance().leave(&aside);
  lease.release();
  wait(behind);
}

TEST_F(WaitGraphOf, ACycleThroughATaskOfASleepingThreadIsADeadlock) {
  Cell a, b;
  Conflict conflict;
  task_here = 1;
  CellLease mine(write(a));
  ASSERT_TRUE(mine.acquire(&conflict));
  std::latch has_other(1);
  std::atomic<int> refused{0};
  std::thread thread([&] {
    Conflict r;
    CellLease other(write(b));
    ASSERT_TRUE(other.acquire(&r));
    has_other.count_down();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the other one sleeps by then
    CellLease crossed(write(a));
    if (!crossed.acquire(&r)) {
      EXPECT_EQ(r.reason, Conflict::Reason::kDeadlock);
      ++refused;
    }
  });
  has_other.wait();
  task_here = 2;
  CellLease crossed(write(b));
  if (!crossed.acquire(&conflict)) {
    EXPECT_EQ(conflict.reason, Conflict::Reason::kDeadlock);
    ++refused;
  }
  mine.release();
  thread.join();
  EXPECT_GE(refused, 1);
}

// Thread A holds `a` and asks for `b`; thread B, which holds `b`, waits for `a`: a cycle, but that a third
// thread gives `b` back at some moment. If that was over before A asked, there never was a cycle. And if the
// lease on `b` was detached, it is not B's, and there is none at all.
TEST_F(WaitGraphOf, ALeaseThatAThirdThreadGivesBackClosesNoCycleThatNeverWas) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  int refused = 0;
  constexpr int kRounds = 10'000;
  Cell a, b;
  std::unique_ptr<CellLease> mine, lent;
  // Of round n: 4 n when it begins, one more when B has its lease, two more when A may ask and C give back.
  std::atomic<int> turn{-1};
  std::atomic<int> ended{0};
  std::atomic<uint32_t> delay{0};
  std::atomic<bool> is_back{false};
  const auto await = [](std::atomic<int>& what, int value) {
    for (int now = what; now < value; now = what) what.wait(now);
  };
  const auto set = [](std::atomic<int>& what, int value) {
    what = value;
    what.notify_all();
  };
  std::thread thread_b([&] {
    for (int round = 0; round < kRounds; ++round) {
      await(turn, 4 * round);
      Conflict conflict;
      lent = std::make_unique<CellLease>(write(b));
      ASSERT_TRUE(lent->acquire(&conflict));
      if (round % 2 == 1) lent->detach();
      set(turn, 4 * round + 1);
      CellLease crossed(write(a));
      (void)crossed.acquire(&conflict);  // granted, or the one that finds the cycle
      crossed.release_if_held();
      ++ended;
      ended.notify_all();
    }
  });
  std::thread thread_c([&] {
    for (int round = 0; round < kRounds; ++round) {
      await(turn, 4 * round + 2);
      for (uint32_t i = delay; i > 0; --i) relax_processor();
      lent->release();
      is_back = true;
      ++ended;
      ended.notify_all();
    }
  });
  for (int round = 0; round < kRounds; ++round) {
    Conflict conflict;
    mine = std::make_unique<CellLease>(write(a));
    ASSERT_TRUE(mine->acquire(&conflict));
    is_back = false;
    ended = 0;
    delay = random() % 400;
    set(turn, 4 * round);
    await(turn, 4 * round + 1);
    set(turn, 4 * round + 2);
    for (uint32_t i = random() % 400; i > 0; --i) relax_processor();
    const bool was_back = is_back;
    CellLease asked(write(b));
    if (asked.acquire(&conflict)) {
      asked.release();
    } else {
      ++refused;
      EXPECT_EQ(conflict.reason, Conflict::Reason::kDeadlock);
      EXPECT_FALSE(was_back) << "the lease had been given back";
      EXPECT_EQ(round % 2, 0) << "the lease had no owner";
    }
    mine->release();
    await(ended, 2);
    if (HasFailure()) std::abort();  // the other threads still wait for their rounds
  }
  thread_b.join();
  thread_c.join();
  RecordProperty("refused", refused);
}

// The walk goes through each queue once, whatever the mixture of reads, writes and parts in it.
TEST_F(WaitGraphOf, ALeaseOfOnesOwnIsFoundBehindALongBacklog) {
  std::array<Cell, 6> cells;
  for (const bool is_detached : {false, true}) {
    // A walk begins at the last cell.
    for (size_t k = cells.size(); k-- > 0;) {
      const std::scoped_lock lists_it(cells[k].queue.lock);
    }
    Conflict conflict;
    CellLease lease(write(cells[0], 0, 4));
    ASSERT_TRUE(lease.acquire(&conflict));
    if (is_detached) lease.detach();
    Ref<Op> last;
    std::mt19937 random(7);
    for (size_t k = 0; k + 1 < cells.size(); ++k) {
      for (int i = 0; i < 300; ++i) {
        Cell &from = cells[k], &to = cells[k + 1];
        switch (random() % 4) {
          case 0: last = push({read(from), write(to)}, [] {}); break;
          case 1: last = push({read(from), read(to)}, [] {}); break;
          case 2: last = push({write(from), write(to, 0, 4)}, [] {}); break;
          default: last = push({read(from, 2, 6), write(to)}, [] {});
        }
      }
    }
    last = push({write(cells[5])}, [] {});
    const Conflict::Reason reason = is_detached ? Conflict::Reason::kTimeout : Conflict::Reason::kDeadlock;
    EXPECT_EQ(reason_of([&](Conflict* r) { return last->wait(Deadline(30'000'000), r); }), reason);
    EXPECT_EQ(reason_of([&](Conflict* r) { return Engine::instance().wait_all(Deadline(30'000'000), r); }),
              reason);
    CellLease behind(read(cells[5]));
    EXPECT_EQ(reason_of([&](Conflict* r) { return behind.acquire(r, 30'000'000); }), reason);
    lease.release();
    wait_all();
  }
}

// Oracle: a plain count that each thread changes under its lease. Half of the threads hold a lease of their
// own meanwhile, so that each of them could close a cycle.
TEST_F(WaitGraphOf, HundredsOfThreadsThatWaitForOneArrayAllGetIt) {
  constexpr int kThreads = 600;
  Cell cell;
  std::vector<Cell> own(kThreads);
  Conflict conflict;
  CellLease first(write(cell));
  ASSERT_TRUE(first.acquire(&conflict));
  int turns = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      Conflict r;
      CellLease mine(write(own[static_cast<size_t>(i)]));
      EXPECT_TRUE(i % 2 != 0 || mine.acquire(&r));
      const bool is_part = i % 8 >= 6;
      CellLease wanted(is_part ? write(cell, 0, 4) : write(cell));
      EXPECT_TRUE(wanted.acquire(&r)) << static_cast<int>(r.reason);
      ++turns;
      wanted.release_if_held();
    });
  }
  await_parts(cell, 1 + kThreads);
  first.release();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(turns, kThreads);
}

TEST_F(WaitGraphOf, WaitingForAllOpsBehindALeaseOfOnesOwnIsADeadlock) {
  Cell a, b;
  Conflict conflict;
  {
    CellLease lease(write(a));
    ASSERT_TRUE(lease.acquire(&conflict));
    push({write(b)}, [] {});
    wait_all();  // nothing stands behind the lease
    push({read(a), write(b)}, [] {});
    EXPECT_EQ(reason_of([&](Conflict* r) { return Engine::instance().wait_all(Deadline(-1), r); }),
              Conflict::Reason::kDeadlock);
  }
  wait_all();
}

TEST_F(WaitGraphOf, WaitingForAllOpsSeesWhatABodyPushesMeanwhile) {
  Cell a, b;
  Conflict conflict;
  {
    CellLease lease(write(a));
    ASSERT_TRUE(lease.acquire(&conflict));
    push({write(b)}, [&a] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      push({write(a)}, [] {});
    });
    EXPECT_EQ(reason_of([&](Conflict* r) { return Engine::instance().wait_all(Deadline(kWatchdogNs), r); }),
              Conflict::Reason::kDeadlock);
  }
  wait_all();
}

TEST_F(WaitGraphOf, APushAtTheLimitBehindALeaseOfOnesOwnIsADeadlock) {
  Cell a;
  Conflict conflict;
  {
    CellLease lease(write(a));
    ASSERT_TRUE(lease.acquire(&conflict));
    Engine::instance().set_limits(4, 0);
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(push({write(a)}, [] {}));
    const Ref<Op> one_more = make({write(a)}, [](Op* self) { self->complete(); });
    EXPECT_EQ(reason_of([&](Conflict* r) { return submit(one_more, OnHost::kRaise, r); }),
              Conflict::Reason::kDeadlock);
    Engine::instance().set_limits(10'000, 0);
  }
  wait_all();
}

// What the hooks are asked, and answer.
std::atomic<int> asked_alone{0};
std::atomic<bool> is_alone{false};
std::function<void()> collect_garbage;
std::function<void()> when_reported;
std::string last_report;

class BehindAView : public WaitGraphOf {
 protected:
  void SetUp() override {
    WaitGraphOf::SetUp();
    WaitHooks hooks;
    hooks.report = [](const char* text) {
      last_report = text;
      if (when_reported) when_reported();
    };
    hooks.is_alone = [](void*) {
      ++asked_alone;
      if (collect_garbage) collect_garbage();
      return is_alone ? 1 : 0;
    };
    set_wait_hooks(hooks);
    asked_alone = 0;
    is_alone = false;
    collect_garbage = when_reported = nullptr;
    last_report.clear();
    ASSERT_TRUE(view.open(nullptr));
    behind = push({write(a), write(b)}, [] {}, OnHost::kWait);
  }

  Cell a, b;
  Sight view{read(a), "train.py:12"};
  Ref<Op> behind;
};

TEST_F(BehindAView, WhoIsAloneAndWaitsForAnOpBehindAViewIsToldAndNotHung) {
  is_alone = true;
  Conflict conflict;
  EXPECT_FALSE(behind->wait(Deadline(kWatchdogNs), &conflict));
  EXPECT_EQ(conflict.reason, Conflict::Reason::kDeadlock);
  EXPECT_EQ(conflict.holder.kind, HolderKind::kView);
  EXPECT_STREQ(conflict.holder.site, "train.py:12");
  CellLease after(read(b));  // behind the op, which is behind the view
  EXPECT_EQ(reason_of([&](Conflict* r) { return after.acquire(r, kWatchdogNs); }),
            Conflict::Reason::kDeadlock);
  EXPECT_EQ(reason_of([&](Conflict* r) { return Engine::instance().wait_all(Deadline(kWatchdogNs), r); }),
            Conflict::Reason::kDeadlock);
  view.close();
  wait(behind);
}

TEST_F(BehindAView, AViewThatACollectionClosesIsInNobodysWay) {
  is_alone = true;
  collect_garbage = [this] { view.close(); };
  wait(behind);
  EXPECT_EQ(asked_alone, 1);
}

TEST_F(BehindAView, WhoIsNotAloneWaitsForOthersToCloseTheView) {
  std::thread other([this] {
    while (asked_alone == 0) std::this_thread::yield();
    view.close();
  });
  wait(behind);
  other.join();
}

TEST_F(BehindAView, NoWaitForAnExportIsCertainToBeEndless) {
  is_alone = true;
  Sight exported(read(a));
  exported.give_away();
  ASSERT_TRUE(exported.open(nullptr));
  Conflict conflict;
  EXPECT_FALSE(behind->wait(Deadline(kWatchdogNs), &conflict)) << "the other view is in the way";
  EXPECT_EQ(conflict.reason, Conflict::Reason::kDeadlock);
  EXPECT_STREQ(conflict.holder.site, "train.py:12");
  view.close();
  const int before = asked_alone;
  std::thread other([&] {
    while (asked_alone == before) std::this_thread::yield();
    exported.close();
  });
  wait(behind);
  other.join();
}

TEST_F(BehindAView, NoWaitForAnExportThatContinuesALeaseIsCertainToBeEndless) {
  view.close();
  wait(behind);
  Conflict conflict;
  CellLease lease(write(a));
  ASSERT_TRUE(lease.acquire(&conflict));
  const Ref<Op> op = push({write(a)}, [] {});
  Sight exported(read(a));
  exported.give_away();
  ASSERT_TRUE(exported.open(nullptr));
  lease.release();
  std::thread other([&] {
    while (asked_alone == 0) std::this_thread::yield();
    exported.close();
  });
  wait(op);
  other.join();
}

TEST_F(BehindAView, AWaitBehindSomethingElseDoesNotAskWhetherItIsAlone) {
  view.close();
  wait(behind);
  Conflict conflict;
  CellLease lease(write(a));
  ASSERT_TRUE(lease.acquire(&conflict));
  lease.detach();
  const Ref<Op> op = push({write(a)}, [] {});
  EXPECT_FALSE(op->wait(Deadline(200'000'000), &conflict));
  EXPECT_EQ(conflict.reason, Conflict::Reason::kTimeout);
  EXPECT_EQ(asked_alone, 0);
  lease.release();
  wait(op);
}

TEST_F(BehindAView, AWaitOfMoreThanFiveSecondsSaysOnWhom) {
  when_reported = [this] { view.close(); };
  wait(behind);
  const std::string thread = concat(" by thread ", current_actor().number, ", ");
  const std::regex expected(concat(
      "waiting for ([5-9]|\\d{2,}) s behind the op 'op' that writes it, pushed at here:1", thread,
      "\\d+\\.\\d s ago, which waits for a view of it, taken at train\\.py:12", thread, "\\d+\\.\\d s ago"));
  EXPECT_TRUE(std::regex_match(last_report, expected)) << last_report;
}

// The grant may come before, while and after the request is made and taken back.
TEST_F(WaitGraphOf, ARequestIsGrantedAtOnceOrToldOfOnceOrTakenBackAndNeverTwoOfThese) {
  std::array<int, 3> seen{};
  for (int round = 0; round < 3000; ++round) {
    Cell cell;
    std::atomic<int> told{0};
    std::atomic<bool> goes{false};
    Conflict conflict;
    task_here = 1;
    CellLease held(write(cell));
    ASSERT_TRUE(held.acquire(&conflict));
    std::thread other([&] {
      while (!goes) relax_processor();
      held.release();
    });
    PendingRequest pending;
    task_here = 2;
    CellLease requested(write(cell));
    if (round % 3 == 0) goes = true;
    const Appended appended = requested.submit(&pending, &told, &conflict);
    goes = true;
    if (round % 3 == 2) other.join();
    const bool is_back = appended == Appended::kWaiting && requested.cancel();
    if (is_back) WaitGraph::instance().leave(&pending.node);
    if (other.joinable()) other.join();
    ASSERT_NE(appended, Appended::kRefused);
    EXPECT_EQ(told, appended == Appended::kWaiting && !is_back ? 1 : 0);
    ++seen[is_back ? 0 : appended == Appended::kWaiting ? 1 : 2];
    if (!is_back) requested.release();
    EXPECT_FALSE(cell.queue.has_parts());
  }
  EXPECT_GT(seen[1], 0);
}

TEST_F(WaitGraphOf, RequestsOfTwoTasksThatWaitForEachOtherAreADeadlockOfTheSecond) {
  Cell a, b;
  std::atomic<int> told{0};
  Conflict conflict;
  PendingRequest of_first, of_second;
  task_here = 1;
  CellLease holds_a(write(a)), wants_b(write(b));
  ASSERT_TRUE(holds_a.acquire(&conflict));
  task_here = 2;
  CellLease holds_b(write(b)), wants_a(write(a));
  ASSERT_TRUE(holds_b.acquire(&conflict));
  EXPECT_EQ(wants_a.submit(&of_second, &told, &conflict), Appended::kWaiting);
  task_here = 1;
  EXPECT_EQ(wants_b.submit(&of_first, &told, &conflict), Appended::kRefused);
  EXPECT_EQ(conflict.reason, Conflict::Reason::kDeadlock);
  holds_a.release();
  EXPECT_EQ(told, 1);
  wants_a.release();
  holds_b.release();
}

// Memory as large as its bounds say; no code touches it.
TEST_F(WaitGraphOf, OpsThatHoldTooMuchMemoryMakePushersWaitAndAreCountedOnce) {
  constexpr uint64_t kBytes = uint64_t{1} << 20;
  const uint64_t before = Queue::held_nbytes();
  Cell a, b, small;
  a.queue.set_bounds({a.extent().begin, a.extent().begin + kBytes});
  b.queue.set_bounds({b.extent().begin, b.extent().begin + kBytes});
  Engine::instance().set_limits(0, 2 * kBytes);
  Conflict conflict;
  CellLease lease(write(a));
  ASSERT_TRUE(lease.acquire(&conflict));
  lease.detach();
  for (int i = 0; i < 100; ++i) push({write(a)}, [] {});
  push({write(small), write(a)}, [] {});
  EXPECT_EQ(Queue::held_nbytes() - before, kBytes);
  push({write(a), write(b)}, [] {});
  EXPECT_EQ(Queue::held_nbytes() - before, 2 * kBytes);
  std::atomic<bool> is_pushed{false};
  std::thread pusher([&] {
    push({write(small)}, [] {});
    is_pushed = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(is_pushed);
  lease.release();
  pusher.join();
  wait_all();
  EXPECT_EQ(Queue::held_nbytes(), before);
  Engine::instance().set_limits(10'000, 0);
}

}  // namespace
}  // namespace tenon::impl
