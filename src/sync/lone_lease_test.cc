// SPDX-License-Identifier: Apache-2.0
//
// A write lease is alone: calls and new views of other threads wait for it, whatever views exist. And a view
// that outlives its lease continues it.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "exec/cells_testing.h"
#include "exec/history_testing.h"

namespace tenon::impl {
namespace {

constexpr int64_t kSoon = 2'000'000;

thread_local uint64_t task_here = 0;
std::function<void()> collect_garbage;
std::vector<std::string> reports;

class LoneLease : public testing::Test {
 protected:
  void SetUp() override {
    Engine::instance().set_executor("pool", 2);
    WaitHooks hooks;
    hooks.current_task = [] { return task_here; };
    hooks.report = [](const char* text) { reports.emplace_back(text); };
    hooks.is_alone = [](void*) {
      if (collect_garbage) collect_garbage();
      return 0;
    };
    set_wait_hooks(hooks);
    collect_garbage = nullptr;
    reports.clear();
  }
  void TearDown() override {
    wait_all();
    set_wait_hooks({});
    EXPECT_FALSE(cell.queue.has_parts());
    EXPECT_FALSE(cell.queue.has_views());
    EXPECT_FALSE(cell.queue.has_ended_parts());
  }

  Cell cell, other;
  Conflict conflict;
};

using Call = CellCall;

Conflict::Reason refused_in_another_thread(const std::function<bool(Conflict*)>& attempt) {
  Conflict::Reason reason{};
  std::thread([&] { reason = reason_of(attempt); }).join();
  return reason;
}
void in_another_thread(const std::function<void()>& body) { std::thread(body).join(); }

// The view that ordinary code keeps while a thread writes under a lease.
TEST_F(LoneLease, ACallOfAnotherThreadWaitsForAWriteLeaseAlsoBesideAView) {
  for (const Access kept : {Access::kRead, Access::kWrite}) {
    Sight view(kept == Access::kRead ? read(cell) : write(cell));
    ASSERT_TRUE(view.open(&conflict));
    CellLease lease(write(cell));
    ASSERT_TRUE(lease.acquire(&conflict, 0)) << "a kept view is in no lease's way";
    EXPECT_EQ(refused_in_another_thread([&](Conflict* r) { return Call({read(cell)}).begin(r, kSoon); }),
              Conflict::Reason::kTimeout);
    EXPECT_EQ(
        refused_in_another_thread([&](Conflict* r) { return Call({write(cell, 0, 2)}).begin(r, kSoon); }),
        Conflict::Reason::kTimeout);
    Call mine({write(cell)});
    EXPECT_TRUE(mine.begin(&conflict, 0)) << "the thread of the lease acts under it";
  }
}

TEST_F(LoneLease, ANewViewOfAnotherThreadWaitsForAWriteLeaseAlsoBesideAView) {
  Sight kept(write(cell));
  ASSERT_TRUE(kept.open(&conflict));
  CellLease lease(write(cell));
  ASSERT_TRUE(lease.acquire(&conflict, 0));
  EXPECT_EQ(refused_in_another_thread([&](Conflict* r) { return Sight(read(cell)).open(r, kSoon); }),
            Conflict::Reason::kTimeout);
  cell.value = 1;
  std::thread viewer([&] {
    Conflict r;
    Sight late(read(cell));
    EXPECT_TRUE(late.open(&r, kWatchdogNs));
    EXPECT_EQ(cell.value, 2);
  });
  await_parts(cell, 2);
  cell.value = 2;
  lease.release();
  viewer.join();
}

TEST_F(LoneLease, AReadLeaseIsInNoWayOfReadsAndInThatOfWrites) {
  Sight kept(write(cell));
  ASSERT_TRUE(kept.open(&conflict));
  CellLease lease(read(cell));
  ASSERT_TRUE(lease.acquire(&conflict, 0));
  in_another_thread([&] {
    Conflict r;
    EXPECT_TRUE(Call({read(cell)}).begin(&r, 0));
    EXPECT_TRUE(Sight(read(cell)).open(&r, 0));
    EXPECT_EQ(reason_of([&](Conflict* why) { return Call({write(cell)}).begin(why, kSoon); }),
              Conflict::Reason::kTimeout);
    EXPECT_EQ(reason_of([&](Conflict* why) { return Sight(write(cell)).open(why, kSoon); }),
              Conflict::Reason::kTimeout);
  });
}

TEST_F(LoneLease, ACallTakesAllThatItUsesAtOnceOrNothing) {
  CellLease lease(write(other));
  ASSERT_TRUE(lease.acquire(&conflict));
  std::thread caller([&] {
    Conflict r;
    Call both({write(cell), read(other)});
    EXPECT_TRUE(both.begin(&r));
  });
  await_parts(other, 2);
  Call mine({read(other)});
  EXPECT_TRUE(mine.begin(&conflict, 0));
  mine.end();
  lease.release();
  caller.join();
}

TEST_F(LoneLease, ARequestThatWasSubmittedOnceIsGrantedToItsThreadLater) {
  RequestPart part;
  describe(write(cell), part);
  BlockingRequest request(HolderKind::kLease, {&part, 1});
  request.owner = current_actor();
  std::atomic<int> told = 0;
  {
    PendingRequest pending;
    pending.context = &told;
    pending.done = [](void* context) { ++*static_cast<std::atomic<int>*>(context); };
    ASSERT_EQ(request.submit(&pending, &conflict), Appended::kGranted);
    impl::release(request);
  }
  std::atomic<bool> is_held = false;
  std::thread other([&] {
    Conflict r;
    CellLease lease(write(cell));
    EXPECT_TRUE(lease.acquire(&r));
    is_held = true;
    await_parts(cell, 2);
  });
  while (!is_held) std::this_thread::yield();
  EXPECT_TRUE(request.acquire(Deadline(kWatchdogNs), &conflict));
  impl::release(request);
  other.join();
  EXPECT_EQ(told, 0) << "the submission is over";
}

// The host would wait for itself: for the lease, which waits for the op, which waits for the view.
TEST_F(LoneLease, WhoHoldsAViewGoesBeforeWhatWaitsForItAlsoThroughOthers) {
  std::optional<Sight> view(std::in_place, write(cell));
  ASSERT_TRUE(view->open(&conflict));
  const Ref<Op> op = push({read(cell)}, [] {}, OnHost::kWait);
  std::thread leaser([&] {
    Conflict r;
    CellLease behind(write(cell));
    EXPECT_TRUE(behind.acquire(&r, kWatchdogNs));
  });
  await_parts(cell, 2);
  Call reader({read(cell)}), writer({write(cell)});
  EXPECT_TRUE(reader.begin(&conflict)) << "it waits for the lease behind the op";
  reader.end();
  EXPECT_TRUE(writer.begin(&conflict));
  writer.end();
  EXPECT_TRUE(Sight(read(cell)).open(&conflict));
  view.reset();
  leaser.join();
  wait(op);
}

TEST_F(LoneLease, WhoGoesBeforeOthersWaitsForWhatHasBeenGranted) {
  Sight view(write(cell));
  ASSERT_TRUE(view.open(&conflict));
  const Ref<Op> op = push({read(cell, 4, 8)}, [] {}, OnHost::kWait);
  CellLease granted(write(cell, 0, 4));
  ASSERT_TRUE(granted.acquire(&conflict, 0));
  EXPECT_EQ(refused_in_another_thread([&](Conflict* r) { return Call({write(cell)}).begin(r, kSoon); }),
            Conflict::Reason::kTimeout);
  std::thread caller([&] {
    Conflict r;
    Call call({write(cell)});
    EXPECT_TRUE(call.begin(&r));
  });
  await_parts(cell, 3);
  CellLease nested(read(cell, 0, 1));
  EXPECT_TRUE(nested.acquire(&conflict, 0)) << "under the lease";
  granted.release();
  nested.release();
  caller.join();
  view.close();
  wait(op);
}

TEST_F(LoneLease, WhatWouldWaitForAnOpThatWaitsForViewsIsRefusedIfNoViewAllowsIt) {
  Sight view(read(cell));
  ASSERT_TRUE(view.open(&conflict));
  const Ref<Op> op = push({write(cell)}, [] {}, OnHost::kWait);
  EXPECT_EQ(reason_of([&](Conflict* r) { return Call({write(cell)}).begin(r); }),
            Conflict::Reason::kWaitsForHost);
  EXPECT_TRUE(Call({read(cell)}).begin(&conflict));
  view.close();
  wait(op);
}

class OutlivedView : public LoneLease {
 protected:
  // Ends a lease of this thread under which the view was taken.
  void bind(Sight& view, const Wanted& wanted) {
    CellLease lease(wanted);
    ASSERT_TRUE(lease.acquire(&conflict));
    ASSERT_TRUE(view.open(&conflict));
    EXPECT_TRUE(lease.release()) << "a view lives on";
  }
};

TEST_F(OutlivedView, AViewThatOutlivesItsLeaseKeepsItUntilItIsClosed) {
  Sight view(write(cell), "train.py:12");
  bind(view, write(cell));
  Holder holder;
  in_another_thread([&] {
    Conflict r;
    CellLease lease(read(cell));
    EXPECT_EQ(reason_of([&](Conflict* why) {
                const bool is_held = lease.acquire(why, kSoon);
                holder = why->holder;
                return is_held;
              }),
              Conflict::Reason::kTimeout);
    EXPECT_EQ(reason_of([&](Conflict* why) { return Call({read(cell)}).begin(why, kSoon); }),
              Conflict::Reason::kTimeout);
    EXPECT_EQ(reason_of([&](Conflict* why) { return Sight(read(cell)).open(why, kSoon); }),
              Conflict::Reason::kTimeout);
    EXPECT_EQ(reason_of([&](Conflict* why) {
                const Ref<Op> op = make({read(cell)}, [](Op* self) { self->complete(); });
                return submit(op, OnHost::kRaise, why);
              }),
              Conflict::Reason::kHostView);
  });
  EXPECT_EQ(holder.kind, HolderKind::kView);
  EXPECT_STREQ(holder.site, "train.py:12");
  EXPECT_EQ(holder.thread, this_thread.number);
  std::thread next([&] {
    Conflict r;
    CellLease lease(write(cell));
    EXPECT_TRUE(lease.acquire(&r, kWatchdogNs));
    EXPECT_EQ(cell.value, 7);
  });
  await_parts(cell, 1);
  cell.value = 7;
  view.close();
  next.join();
}

TEST_F(OutlivedView, AOutlivedViewForReadingIsInNoWayOfReads) {
  Sight view(read(cell));
  bind(view, write(cell));
  in_another_thread([&] {
    Conflict r;
    CellLease lease(read(cell));
    EXPECT_TRUE(lease.acquire(&r, 0));
    EXPECT_TRUE(Call({read(cell)}).begin(&r, 0));
    EXPECT_TRUE(Sight(read(cell)).open(&r, 0));
    lease.release();
    CellLease writer(write(cell));
    EXPECT_EQ(reason_of([&](Conflict* why) { return writer.acquire(why, kSoon); }),
              Conflict::Reason::kTimeout);
  });
}

TEST_F(OutlivedView, OtherBytesAreFree) {
  Sight view(write(cell, 0, 4));
  bind(view, write(cell));
  in_another_thread([&] {
    Conflict r;
    CellLease lease(write(cell, 4, 8));
    EXPECT_TRUE(lease.acquire(&r, 0));
  });
}

TEST_F(OutlivedView, ItsOwnThreadActsUnderItAlsoWhenOthersWait) {
  Sight view(write(cell));
  bind(view, write(cell));
  std::thread next([&] {
    Conflict r;
    CellLease lease(write(cell));
    EXPECT_TRUE(lease.acquire(&r, kWatchdogNs));
  });
  await_parts(cell, 1);
  EXPECT_TRUE(Call({write(cell)}).begin(&conflict)) << "it waits for a request that waits for it";
  EXPECT_TRUE(Sight(write(cell)).open(&conflict));
  CellLease again(write(cell));
  EXPECT_TRUE(again.acquire(&conflict, kWatchdogNs));
  CellLease nested(read(cell, 0, 2));
  EXPECT_TRUE(nested.acquire(&conflict, kWatchdogNs));
  nested.release();
  view.close();
  EXPECT_EQ(cell.queue.has_ended_parts(), false);
  again.release();
  next.join();
}

TEST_F(OutlivedView, OneForWritingIsInNoWayOfItsOwnThreadAlsoWhereThatTakesMore) {
  Sight view(write(cell, 0, 4));
  bind(view, write(cell, 0, 4));
  CellLease all(write(cell));
  EXPECT_TRUE(all.acquire(&conflict, kWatchdogNs));
  all.release();
  EXPECT_TRUE(Call({write(cell, 2, 8)}).begin(&conflict));
}

TEST_F(OutlivedView, AWaitThatOnlyTheWaitersOwnViewCouldEndIsADeadlock) {
  Sight view(read(cell), "train.py:12");
  bind(view, write(cell));
  CellLease lease(write(cell));
  EXPECT_EQ(reason_of([&](Conflict* r) {
              const bool is_held = lease.acquire(r, kWatchdogNs);
              conflict = *r;
              return is_held;
            }),
            Conflict::Reason::kDeadlock);
  EXPECT_STREQ(conflict.holder.site, "train.py:12");
  EXPECT_EQ(reason_of([&](Conflict* r) { return Call({write(cell)}).begin(r); }),
            Conflict::Reason::kDeadlock);
  EXPECT_EQ(reason_of([&](Conflict* r) { return Sight(write(cell)).open(r, kWatchdogNs); }),
            Conflict::Reason::kDeadlock);
  std::atomic<int> told{0};
  PendingRequest pending;
  EXPECT_EQ(lease.submit(&pending, &told, &conflict), Appended::kRefused);
  EXPECT_EQ(conflict.reason, Conflict::Reason::kDeadlock);
}

TEST_F(OutlivedView, AViewThatNobodyRefersToIsClosedBeforeADeadlockIsTold) {
  Sight view(read(cell));
  bind(view, write(cell));
  collect_garbage = [&] {
    view.close();
    collect_garbage = nullptr;
  };
  CellLease lease(write(cell));
  EXPECT_TRUE(lease.acquire(&conflict, kWatchdogNs));
  lease.release();
  bind(view, write(cell));
  collect_garbage = [&] {
    view.close();
    collect_garbage = nullptr;
  };
  std::atomic<int> told{0};
  PendingRequest pending;
  const Appended appended = lease.submit(&pending, &told, &conflict);
  ASSERT_NE(appended, Appended::kRefused);
  EXPECT_EQ(told, appended == Appended::kWaiting ? 1 : 0);
  lease.release();
}

TEST_F(OutlivedView, ACycleOverAViewOfAnotherThreadIsADeadlock) {
  Sight view(write(cell));
  bind(view, write(cell));
  std::atomic<bool> has_other{false};
  std::atomic<bool> is_told{false};
  // The one that closes the cycle is told: which one that is, depends on their speed.
  const auto is_deadlock = [](CellLease& lease) {
    Conflict r;
    if (lease.acquire(&r, kWatchdogNs)) return false;
    EXPECT_EQ(r.reason, Conflict::Reason::kDeadlock);
    return true;
  };
  std::thread thread([&] {
    Conflict r;
    CellLease mine(write(other));
    ASSERT_TRUE(mine.acquire(&r));
    has_other = true;
    CellLease crossed(write(cell));
    is_told = is_deadlock(crossed);
  });
  while (!has_other) std::this_thread::yield();
  await_parts(cell, 1);
  CellLease crossed(write(other));
  EXPECT_TRUE(is_deadlock(crossed) || is_told);
  view.close();
  thread.join();
}

TEST_F(OutlivedView, AnOpPushedUnderTheLeaseWaitsAndTheThreadOfTheViewDoesNotWaitForIt) {
  Sight view(write(cell));
  Ref<Op> op;
  {
    CellLease lease(write(cell));
    ASSERT_TRUE(lease.acquire(&conflict));
    ASSERT_TRUE(view.open(&conflict));
    op = push({write(cell)}, [&] { ++cell.value; });
    lease.release();
  }
  EXPECT_TRUE(Call({read(cell)}).begin(&conflict)) << "it reads what stands before the op";
  EXPECT_EQ(cell.value, 0);
  EXPECT_EQ(reason_of([&](Conflict* r) { return op->wait(Deadline(kWatchdogNs), r); }),
            Conflict::Reason::kDeadlock);
  view.close();
  wait(op);
  EXPECT_EQ(cell.value, 1);
}

TEST_F(OutlivedView, AViewUnderAnInnerLeaseStaysUnderTheOuterOne) {
  Sight view(write(cell));
  CellLease outer(write(cell));
  ASSERT_TRUE(outer.acquire(&conflict));
  CellLease inner(write(cell));
  ASSERT_TRUE(inner.acquire(&conflict));
  ASSERT_TRUE(view.open(&conflict));
  EXPECT_FALSE(inner.release());
  EXPECT_FALSE(cell.queue.has_ended_parts());
  EXPECT_TRUE(outer.release());
  EXPECT_TRUE(cell.queue.has_ended_parts());
}

TEST_F(OutlivedView, OfADetachedLeaseItIsOfTheThreadThatTookIt) {
  Sight view(write(cell));
  CellLease lease(write(cell));
  ASSERT_TRUE(lease.acquire(&conflict));
  ASSERT_TRUE(view.open(&conflict));
  lease.detach();
  in_another_thread([&] { EXPECT_TRUE(lease.release()); });
  EXPECT_TRUE(Call({write(cell)}).begin(&conflict));
  EXPECT_EQ(refused_in_another_thread([&](Conflict* r) { return Call({read(cell)}).begin(r, kSoon); }),
            Conflict::Reason::kTimeout);
}

TEST_F(OutlivedView, OfATaskItIsThatTasks) {
  Sight view(write(cell));
  task_here = 1;
  bind(view, write(cell));
  EXPECT_TRUE(Call({write(cell)}).begin(&conflict));
  CellLease again(write(cell));
  EXPECT_TRUE(again.acquire(&conflict, 0));
  again.release();
  task_here = 2;
  CellLease of_other(read(cell));
  EXPECT_EQ(reason_of([&](Conflict* r) { return of_other.acquire(r); }), Conflict::Reason::kDeadlock)
      << "none of its tasks goes on while the thread sleeps";
  std::atomic<int> told{0};
  PendingRequest pending;
  ASSERT_EQ(of_other.submit(&pending, &told, &conflict), Appended::kWaiting);
  view.close();
  EXPECT_EQ(told, 1);
  of_other.release();
  task_here = 0;
}

TEST_F(OutlivedView, OfAnEndedThreadItIsInTheWayOfAllUntilItIsClosed) {
  Sight view(read(cell));
  std::thread([&] { bind(view, write(cell)); }).join();
  EXPECT_EQ(reason_of([&](Conflict* r) { return Call({write(cell)}).begin(r, kSoon); }),
            Conflict::Reason::kTimeout);
  EXPECT_TRUE(Call({read(cell)}).begin(&conflict, 0));
  in_another_thread([&] { view.close(); });
  EXPECT_TRUE(Call({write(cell)}).begin(&conflict, 0));
}

TEST_F(OutlivedView, ViewsOfOneLeaseAreInNoWayOfEachOtherNorOfTheNextLeaseInOneOfThem) {
  Sight all(write(cell)), part(read(cell, 0, 2));
  CellLease lease(write(cell));
  ASSERT_TRUE(lease.acquire(&conflict));
  ASSERT_TRUE(all.open(&conflict) && part.open(&conflict));
  EXPECT_TRUE(lease.release());
  CellLease next(write(cell));
  EXPECT_TRUE(next.acquire(&conflict, 0));
  next.release();
  all.close();
  EXPECT_EQ(reason_of([&](Conflict* r) { return next.acquire(r); }), Conflict::Reason::kDeadlock)
      << "only the view that reads is left";
}

TEST_F(OutlivedView, AViewUnderALeaseInsideOfItLivesOnWhenItIsClosed) {
  Sight first(write(cell)), second(write(cell, 0, 4));
  bind(first, write(cell));
  bind(second, write(cell));
  first.close();
  in_another_thread([&] {
    Conflict r;
    CellLease row(write(cell, 4, 8)), other_row(read(cell, 0, 1));
    EXPECT_TRUE(row.acquire(&r, 0));
    EXPECT_EQ(reason_of([&](Conflict* why) { return other_row.acquire(why, kSoon); }),
              Conflict::Reason::kTimeout);
  });
}

TEST_F(OutlivedView, APushIsRefusedOrWaitsOrGoesBesideItAsItsCallerHasSaid) {
  Sight view(write(cell, 0, 4), "train.py:12");
  bind(view, write(cell));
  const auto refused = [&](const Wanted& wanted) {
    const Ref<Op> op = make({wanted}, [](Op* self) { self->complete(); });
    return reason_of([&](Conflict* r) {
      const bool is_pushed = submit(op, OnHost::kRaise, r);
      conflict = *r;
      return is_pushed;
    });
  };
  EXPECT_EQ(refused(read(cell)), Conflict::Reason::kHostView);
  EXPECT_STREQ(conflict.holder.site, "train.py:12");
  wait(push({write(cell, 4, 8)}, [] {}));
  const Ref<Op> waiting = push({write(cell)}, [] {}, OnHost::kWait);
  EXPECT_EQ(reason_of([&](Conflict* r) { return waiting->wait(Deadline(0), r); }),
            Conflict::Reason::kDeadlock);
  wait(push({read(other)}, [] {}));
  view.close();
  wait(waiting);
  bind(view, write(cell));
  wait(push({write(cell)}, [] {}, OnHost::kIgnore));
}

// An op that ignores views may run beside it.
TEST_F(OutlivedView, InsideOfItItsThreadWaitsForWhatRunsBesideIt) {
  Sight view(write(cell));
  bind(view, write(cell));
  std::atomic<bool> may_end{false};
  const auto run = [&] {
    while (!may_end) std::this_thread::yield();
    cell.value = 7;
  };
  const Ref<Op> op = push({write(cell)}, run, OnHost::kIgnore);
  EXPECT_EQ(reason_of([&](Conflict* r) { return CellLease(write(cell)).acquire(r, kSoon); }),
            Conflict::Reason::kTimeout);
  EXPECT_EQ(reason_of([&](Conflict* r) { return Call({read(cell)}).begin(r, kSoon); }),
            Conflict::Reason::kTimeout);
  EXPECT_EQ(reason_of([&](Conflict* r) { return Sight(read(cell)).open(r, kSoon); }),
            Conflict::Reason::kTimeout);
  may_end = true;
  CellLease lease(write(cell));
  EXPECT_TRUE(lease.acquire(&conflict));
  EXPECT_EQ(cell.value, 7);
  lease.release();
  wait(op);
}

TEST_F(OutlivedView, WhoWouldWaitForAnOpThatWaitsForItIsToldThatItWouldWaitForItself) {
  Sight view(read(cell));
  bind(view, write(cell));
  const Ref<Op> op = push({write(cell)}, [] {}, OnHost::kWait);
  EXPECT_EQ(reason_of([&](Conflict* r) { return Call({write(cell)}).begin(r); }),
            Conflict::Reason::kDeadlock);
  EXPECT_TRUE(Call({read(cell)}).begin(&conflict, 0)) << "it goes before the op";
  EXPECT_TRUE(Sight(read(cell)).open(&conflict, 0));
  view.close();
  wait(op);
}

// A view of the thread beside one that has outlived a lease is not in the turn of that lease for ever.
TEST_F(OutlivedView, AFurtherViewOfItsThreadIsOfTheHostAndOpsWaitForBoth) {
  Sight view(write(cell)), further(read(cell));
  bind(view, write(cell));
  const Ref<Op> op = push({write(cell)}, [] {}, OnHost::kWait);
  ASSERT_TRUE(further.open(&conflict, 0));
  view.close();
  EXPECT_EQ(reason_of([&](Conflict* r) { return op->wait(Deadline(kSoon), r); }), Conflict::Reason::kTimeout);
  further.close();
  wait(op);
}

// So its waits need no search for deadlocks (has_empty_hands).
TEST_F(OutlivedView, AThreadIsKnownToHoldNothingWhenItHasClosedIt) {
  in_another_thread([&] {
    Sight view(write(cell));
    bind(view, write(cell));
    EXPECT_EQ(this_thread.requests, 1);
    view.close();
    EXPECT_EQ(this_thread.requests, 0);
  });
}

TEST_F(OutlivedView, ItsThreadKnowsThatItHasOneOfTheseBytes) {
  const auto has_one = [&](size_t begin, size_t end) {
    const std::scoped_lock lock(cell.queue.lock);
    return cell.queue.has_views_of(this_thread_id(), extent_of(read(cell, begin, end)));
  };
  Sight raw(write(cell)), view(read(cell, 0, 4));
  ASSERT_TRUE(raw.open(&conflict));
  {
    CellLease outer(write(cell));
    ASSERT_TRUE(outer.acquire(&conflict));
    EXPECT_FALSE(has_one(0, 8)) << "the other one was not taken under a lease";
    CellLease inner(write(cell));
    ASSERT_TRUE(inner.acquire(&conflict) && view.open(&conflict));
    inner.release();
    EXPECT_TRUE(has_one(0, 8)) << "it is under the outer lease";
  }
  EXPECT_TRUE(has_one(3, 5));
  EXPECT_FALSE(has_one(4, 8));
  in_another_thread([&] { EXPECT_FALSE(has_one(0, 8)); });
  view.close();
  EXPECT_FALSE(has_one(0, 8));
}

TEST_F(OutlivedView, OneThatKeepsOthersWaitingForASecondIsReportedOnce) {
  Sight view(write(cell), "train.py:12");
  bind(view, write(cell));
  in_another_thread([&] {
    for (int i = 0; i < 2; ++i) {
      CellLease lease(read(cell));
      EXPECT_EQ(reason_of([&](Conflict* r) { return lease.acquire(r, 1'200'000'000); }),
                Conflict::Reason::kTimeout);
    }
  });
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_NE(reports[0].find("a writable view of it, taken at train.py:12"), std::string::npos) << reports[0];
}

// Leases with views that outlive them, calls, views, and ops, of several threads. The history says that none
// overlapped that conflict; that all of it ends is the other law.
TEST_F(OutlivedView, LeasesAndTheirViewsCallsAndOpsOfThreadsNeverOverlapAndEnd) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::array<Cell, 2> cells;
  History history;
  std::atomic<uint64_t> next{1};
  const int rounds = repeats(20'000, 2'000, 300);
  std::vector<std::thread> threads;
  std::atomic<int> granted{0};
  for (uint32_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(seed + t);
      for (int i = 0; i < rounds; ++i) {
        Cell& c = cells[random() % 2];
        Wanted wanted = random() % 2 == 0 ? read(c) : write(c);
        if (random() % 3 == 0) wanted.end = 1 + random() % 8;
        const CellAccess access{wanted, HolderKind::kLease, next++, 0, 0, 0, 0};
        Conflict r;
        switch (random() % 4) {
          case 0: {
            Sight view(wanted);
            CellLease lease(wanted);
            if (!lease.acquire(&r, kWatchdogNs)) break;
            const History::Scope scope(history, access);
            ASSERT_TRUE(view.open(&r, 0));
            lease.release();
            if (random() % 2 == 0) {
              Call inner({wanted});
              EXPECT_TRUE(inner.begin(&r)) << static_cast<int>(r.reason);
            }
            ++granted;
            break;  // the view ends after what is noted
          }
          case 1: {
            Call call({wanted, random() % 2 == 0 ? read(cells[0]) : read(cells[1])});
            if (!call.begin(&r)) break;
            const History::Scope scope(history, access);
            ++granted;
            break;
          }
          case 2: {
            CellLease lease(wanted);
            if (!lease.acquire(&r, kWatchdogNs)) break;
            const History::Scope scope(history, access);
            ++granted;
            break;
          }
          default:
            (void)submit(make({wanted},
                              [&history, wanted, &next](Op* self) {
                                {
                                  const History::Scope scope(history,
                                                             {wanted, HolderKind::kOp, next++, 0, 0, 0, 0});
                                }
                                self->complete();
                              }),
                         OnHost::kWait);
        }
        EXPECT_NE(r.reason, Conflict::Reason::kTimeout) << "it hung";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  wait_all();
  EXPECT_GT(granted, rounds);
  EXPECT_EQ(history.take_fault(), "");
}

}  // namespace
}  // namespace tenon::impl
