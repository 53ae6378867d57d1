// SPDX-License-Identifier: Apache-2.0
//
// Random programs of threads with leases, views that outlive them, and what the threads do beside these:
// calls, leases inside of them, and pushes that raise, wait or ignore views.
//
// Oracle: the history of all accesses, each noted from inside. Nothing that conflicts overlaps a lease, a
// view after its lease, or an access inside of a view, except accesses of the same thread, and ops that
// ignore views beside views. No wait is refused, and all of it ends. The seed is printed.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "exec/cells_testing.h"
#include "exec/history_testing.h"

namespace tenon::impl {
namespace {

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
