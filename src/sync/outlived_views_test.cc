// SPDX-License-Identifier: Apache-2.0
//
// Views that outlive their leases: to what they belong then, how the time grows with their number, and
// random programs of threads with leases, views that outlive them, and what the threads do beside these:
// calls, leases inside of them, and pushes that raise, wait or ignore views.
//
// Oracle of the programs: the history of all accesses, each noted from inside. Nothing that conflicts
// overlaps a lease, a view after its lease, or an access inside of a view, except accesses of the same
// thread, and ops that ignore views beside views. No wait is refused, and all of it ends. The seed is
// printed.
#include <gtest/gtest.h>

#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "exec/cells_testing.h"
#include "exec/history_testing.h"

namespace tenon::impl {
namespace {

thread_local uint64_t task_here = 0;

class AfterItsLease : public OnPool {
 protected:
  void SetUp() override {
    OnPool::SetUp();
    WaitHooks hooks;
    hooks.current_task = [] { return task_here; };
    set_wait_hooks(hooks);
  }
  void TearDown() override {
    Engine::instance().set_executor("pool", 2);
    set_wait_hooks({});
    EXPECT_FALSE(cell.queue.has_parts());
    EXPECT_FALSE(cell.queue.has_views());
  }
  bool excludes_others() {
    bool is_excluded = false;
    std::thread([&] {
      Conflict r;
      is_excluded = !CellCall({write(cell)}).begin(&r, 2'000'000) && r.reason == Conflict::Reason::kTimeout;
    }).join();
    return is_excluded;
  }
};

TEST_F(AfterItsLease, AViewIsOfTheTaskOfTheLeaseAlsoIfAnotherTaskReleasesThat) {
  task_here = 1;
  CellLease of_other(read(cell));
  ASSERT_TRUE(of_other.acquire(&conflict));
  task_here = 2;
  CellLease lease(read(cell));
  Sight view(read(cell));
  ASSERT_TRUE(lease.acquire(&conflict) && view.open(&conflict));
  task_here = 1;
  EXPECT_TRUE(lease.release());
  EXPECT_TRUE(cell.queue.has_ended_parts()) << "the view is in no lease of task 1";
  of_other.release();
  CellLease writer(write(cell));
  EXPECT_EQ(reason_of([&](Conflict* r) { return writer.acquire(r, 2'000'000); }),
            Conflict::Reason::kDeadlock);
  view.close();
  task_here = 0;
}

TEST_F(AfterItsLease, AViewIsOfNoOpWhoseBodyReleasesTheLease) {
  Engine::instance().set_executor("inline", 0);
  CellLease lease(read(cell));
  Sight view(read(cell));
  ASSERT_TRUE(lease.acquire(&conflict) && view.open(&conflict));
  wait(push({read(cell)}, [&] { EXPECT_TRUE(lease.release()); }));
  EXPECT_TRUE(excludes_others());
}

TEST_F(AfterItsLease, AViewIsNotTheHostsWhenACallAroundTheLeaseEnds) {
  CellCall call({write(cell)});
  ASSERT_TRUE(call.begin(&conflict));
  CellLease lease(write(cell));
  Sight view(write(cell));
  ASSERT_TRUE(lease.acquire(&conflict) && view.open(&conflict));
  EXPECT_TRUE(lease.release());
  call.end();
  EXPECT_FALSE(cell.queue.has_views());
  EXPECT_TRUE(excludes_others());
}

TEST_F(AfterItsLease, ACycleThatTheEndOfADetachedLeaseClosesIsADeadlock) {
  Cell other;
  CellLease lease(write(cell));
  Sight view(write(cell));
  ASSERT_TRUE(lease.acquire(&conflict) && view.open(&conflict));
  lease.detach();
  constexpr int64_t kLong = 60'000'000'000;
  std::array<Conflict::Reason, 2> reasons{};
  std::atomic<int> n_held = 0;
  std::thread holder([&] {
    Conflict r;
    CellLease second(write(other)), first(write(cell));
    ASSERT_TRUE(second.acquire(&r));
    ++n_held;
    if (!first.acquire(&r, kLong)) reasons[1] = r.reason;
  });
  while (n_held == 0) std::this_thread::yield();
  await_parts(cell, 2);
  std::thread releaser([&] {
    await_parts(other, 2);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // both have looked for a cycle
    lease.release();
  });
  CellLease second(write(other));
  if (!second.acquire(&conflict, kLong)) reasons[0] = conflict.reason;
  view.close();
  second.release_if_held();
  holder.join();
  releaser.join();
  EXPECT_GE(std::ranges::count(reasons, Conflict::Reason::kDeadlock), 1);
}

TEST_F(AfterItsLease, AViewOfTheHostTakesNoMemoryForAPart) {
  CellLease lease(read(cell));
  ASSERT_TRUE(lease.acquire(&conflict));
  std::thread([&] {
    Conflict r;
    Sight view(read(cell));
    EXPECT_TRUE(view.open(&r));
    EXPECT_EQ(this_thread.room, nullptr);
  }).join();
}

double now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

// The least time for each of n views.
struct EndTimes {
  double end = std::numeric_limits<double>::max();
  double close = std::numeric_limits<double>::max();
};
EndTimes times_of_end(size_t n, bool is_equal, bool has_waiter) {
  std::vector<int64_t> memory(n);
  Queue queue;
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  queue.set_bounds({begin, begin + n * sizeof(int64_t)});
  Home home(&queue);
  EndTimes least;
  for (int round = 0; round < 3; ++round) {
    Conflict r;
    const auto describe = [&](auto& use) {
      use.home = &home;
      use.access = Access::kWrite;
      use.extent = queue.bounds();
    };
    RequestPart part, waiting_part;
    BlockingRequest lease(HolderKind::kLease, {&part, 1}), waiter(HolderKind::kLease, {&waiting_part, 1});
    describe(part);
    describe(waiting_part);
    lease.owner = current_actor();
    EXPECT_TRUE(lease.acquire(Deadline(-1), &r));
    std::vector<View> views(n);
    for (size_t i = 0; i < n; ++i) {
      describe(views[i]);
      if (!is_equal) views[i].extent = {begin + i * 8, begin + i * 8 + 8};
      EXPECT_EQ(try_open_view(views[i], false, &r), Appended::kGranted);
    }
    std::thread other;
    if (has_waiter) {
      other = std::thread([&] {
        Conflict c;
        waiter.owner = current_actor();
        EXPECT_TRUE(waiter.acquire(Deadline(-1), &c));
        release(waiter);
      });
      const auto n_parts = [&] {
        const std::scoped_lock lock(queue.lock);
        return queue.first()->next != nullptr;
      };
      while (!n_parts()) std::this_thread::yield();
    }
    const double at_begin = now();
    release(lease);
    const double ended = now();
    for (View& view : views) close_view(view);
    const double closed = now();
    if (has_waiter) other.join();
    least.end = std::min(least.end, (ended - at_begin) / static_cast<double>(n));
    least.close = std::min(least.close, (closed - ended) / static_cast<double>(n));
  }
  return least;
}

TEST_F(AfterItsLease, TheTimeForEachViewDoesNotGrowWithTheirNumber) {
  for (const bool is_equal : {false, true}) {
    for (const bool has_waiter : {false, true}) {
      const EndTimes few = times_of_end(300, is_equal, has_waiter);
      const EndTimes many = times_of_end(30'000, is_equal, has_waiter);
      EXPECT_LT(many.end, 20 * few.end) << is_equal << has_waiter;
      EXPECT_LT(many.close, 20 * few.close) << is_equal << has_waiter;
    }
  }
}

// The least time for each of n leases of rows inside of a lease of all, with a view of each.
double time_of_leases_inside(size_t n) {
  struct Row {
    RequestPart part;
    BlockingRequest lease{HolderKind::kLease, {&part, 1}};
    View view;
  };
  std::vector<int64_t> memory(n);
  Queue queue;
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  queue.set_bounds({begin, begin + n * sizeof(int64_t)});
  Home home(&queue);
  double least = std::numeric_limits<double>::max();
  for (int round = 0; round < 3; ++round) {
    Conflict r;
    Row all;
    std::vector<Row> rows(n);
    const auto acquire = [&](Row& row, const Extent& extent) {
      row.part.home = row.view.home = &home;
      row.part.access = row.view.access = Access::kWrite;
      row.part.extent = row.view.extent = extent;
      row.lease.owner = current_actor();
      EXPECT_TRUE(row.lease.acquire(Deadline(-1), &r));
    };
    acquire(all, queue.bounds());
    const double at_begin = now();
    for (size_t i = 0; i < n; ++i) acquire(rows[i], {begin + i * 8, begin + i * 8 + 8});
    for (Row& row : rows) EXPECT_EQ(try_open_view(row.view, false, &r), Appended::kGranted);
    for (Row& row : rows) EXPECT_EQ(row.view.under, &row.part) << "the innermost lease";
    for (Row& row : rows) release(row.lease);
    for (Row& row : rows) EXPECT_EQ(row.view.under, &all.part);
    least = std::min(least, (now() - at_begin) / static_cast<double>(n));
    for (Row& row : rows) close_view(row.view);
    release(all.lease);
  }
  return least;
}

TEST_F(AfterItsLease, TheTimeForALeaseInsideOfAnotherDoesNotGrowWithTheirNumber) {
  EXPECT_LT(time_of_leases_inside(30'000), 20 * time_of_leases_inside(300));
}

// What one thread does. Each run has one lease.
class Session {
 public:
  Session(uint32_t seed, std::array<Cell, 2>& cells, History& with_views, History& beside_views,
          std::atomic<uint64_t>& next)
      : random_(seed), cells_(cells), with_views_(with_views), beside_views_(beside_views), next_(next) {}

  void run() {
    request_ = next_++;
    const Wanted wanted = part_of(write(cells_[random_() % 2]));
    CellLease lease(wanted);
    std::vector<std::unique_ptr<Outlived>> views;
    {
      Conflict r;
      ASSERT_TRUE(lease.acquire(&r, kWatchdogNs)) << static_cast<int>(r.reason);
      const Both access(*this, wanted);
      for (size_t n = random_() % 3; n > 0; --n) views.push_back(std::make_unique<Outlived>(part_of(wanted)));
      for (auto& view : views) ASSERT_TRUE(view->sight.open(&r, 0));
      if (random_() % 2 == 0) push();
      if (random_() % 8 == 0) lease.detach();
      for (auto& view : views)
        view->access = std::make_unique<History::Scope>(with_views_, note(view->wanted));
    }
    EXPECT_EQ(lease.release(), !views.empty());
    while (!views.empty()) {
      if (random_() % 2 == 0) push();
      act_inside(views[random_() % views.size()]->wanted);
      std::swap(views[random_() % views.size()], views.back());
      views.back()->access.reset();
      views.pop_back();
    }
  }

 private:
  struct Outlived {
    explicit Outlived(const Wanted& w) : wanted(w), sight(w) {}
    const Wanted wanted;
    Sight sight;
    std::unique_ptr<History::Scope> access;  // since its lease has ended
  };
  // An access that ops that ignore views do not overlap either.
  struct Both {
    Both(Session& s, const Wanted& w) : with(s.with_views_, s.note(w)), beside(s.beside_views_, s.note(w)) {}
    History::Scope with, beside;
  };

  CellAccess note(const Wanted& wanted) const { return {wanted, HolderKind::kLease, request_, 0, 0, 0, 0}; }

  Wanted part_of(Wanted w) {
    if (random_() % 2 == 0) w.access = Access::kRead;
    if (random_() % 2 == 0) return w;
    w.begin += random_() % (w.end - w.begin);
    w.end = w.begin + 1 + random_() % (w.end - w.begin);
    return w;
  }

  void act_inside(const Wanted& view) {
    const Wanted wanted = part_of(view);
    Conflict r;
    if (random_() % 2 == 0) {
      CellCall call({wanted});
      ASSERT_TRUE(call.begin(&r)) << static_cast<int>(r.reason);
      const Both access(*this, wanted);
      return;
    }
    CellLease lease(wanted);
    ASSERT_TRUE(lease.acquire(&r, kWatchdogNs)) << static_cast<int>(r.reason);
    const Both access(*this, wanted);
    Sight view_inside(part_of(wanted));
    ASSERT_TRUE(view_inside.open(&r, 0));
  }

  void push() {
    const Wanted wanted = part_of(write(cells_[random_() % 2]));
    const OnHost on_host = std::array{OnHost::kRaise, OnHost::kWait, OnHost::kIgnore}[random_() % 3];
    const CellAccess access{wanted, HolderKind::kOp, next_++, 0, 0, 0, 0};
    History* const with_views = on_host != OnHost::kIgnore ? &with_views_ : nullptr;
    History& beside_views = beside_views_;
    (void)submit(make({wanted},
                      [=, &beside_views](Op* self) {
                        {
                          const History::Scope scope(beside_views, access);
                          std::optional<History::Scope> heeding;
                          if (with_views != nullptr) heeding.emplace(*with_views, access);
                        }
                        self->complete();
                      }),
                 on_host);
  }

  std::mt19937 random_;
  std::array<Cell, 2>& cells_;
  History &with_views_, &beside_views_;
  std::atomic<uint64_t>& next_;
  uint64_t request_ = 0;
};

TEST(OutlivedViews, AreInTheTurnOfTheirThreadsUntilTheyAreClosed) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  Engine::instance().set_executor("pool", 2);
  std::array<Cell, 2> cells;
  History with_views, beside_views;
  std::atomic<uint64_t> next{1};
  const int rounds = repeats(20'000, 2'000, 300);
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      Session session(seed + t, cells, with_views, beside_views, next);
      for (int i = 0; i < rounds && !HasFailure(); ++i) session.run();
      EXPECT_EQ(this_thread.requests, 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  wait_all();
  EXPECT_EQ(with_views.take_fault(), "");
  EXPECT_EQ(beside_views.take_fault(), "");
}

}  // namespace
}  // namespace tenon::impl
