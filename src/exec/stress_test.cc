// SPDX-License-Identifier: Apache-2.0
//
// The engine under many threads, on the pool. Oracles: plain integers that only the engine protects (a lost
// or doubled turn is a wrong number, and a race for ThreadSanitizer), and the history of all accesses
// (history_testing.h). What should happen is waited for without a limit; a hang is ended by the runner's.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "exec/cells_testing.h"
#include "exec/history_testing.h"

namespace tenon::impl {
namespace {

// ---- the checker itself ----

CellAccess access_of(Cell& cell, Access access, uint64_t request, uint64_t nth = 0,
                     HolderKind kind = HolderKind::kOp) {
  return {{&cell, access}, kind, request, 1, nth, 0, 0};
}

TEST(History, WritesThatOverlapAreAFault) {
  Cell cell;
  History history;
  CellAccess a = access_of(cell, Access::kWrite, 1), b = access_of(cell, Access::kRead, 2);
  history.begin(a);
  history.begin(b);
  history.end(a);
  history.end(b);
  EXPECT_NE(history.take_fault(), "");
  EXPECT_EQ(history.take_fault(), "") << "it forgets";
}

TEST(History, ReadsAndOtherBytesAndOnesOwnMayOverlap) {
  Cell cell;
  History history;
  CellAccess reads[] = {access_of(cell, Access::kRead, 1), access_of(cell, Access::kRead, 2)};
  for (CellAccess& a : reads) history.begin(a);
  for (CellAccess& a : reads) history.end(a);
  CellAccess parts[] = {access_of(cell, Access::kWrite, 3), access_of(cell, Access::kWrite, 4)};
  parts[0].what.end = parts[1].what.begin = 4;
  for (CellAccess& a : parts) history.begin(a);
  for (CellAccess& a : parts) history.end(a);
  CellAccess nested[] = {access_of(cell, Access::kWrite, 5), access_of(cell, Access::kRead, 5)};
  for (CellAccess& a : nested) history.begin(a);
  for (CellAccess& a : nested) history.end(a);
  EXPECT_EQ(history.take_fault(), "");
}

TEST(History, AViewExcludesTheOpsThatHeedItAndNobodyElse) {
  Cell cell;
  for (const auto& [kind, ignores_views] : {std::pair(HolderKind::kOp, false),
                                            {HolderKind::kOp, true},
                                            {HolderKind::kLease, false},
                                            {HolderKind::kView, false}}) {
    History history;
    CellAccess view = access_of(cell, Access::kWrite, 1, 0, HolderKind::kView),
               other = access_of(cell, Access::kWrite, 2, 0, kind);
    other.ignores_views = ignores_views;
    history.begin(view);
    history.begin(other);
    history.end(view);
    history.end(other);
    EXPECT_EQ(history.take_fault().empty(), kind != HolderKind::kOp || ignores_views);
  }
}

TEST(History, WhatOneThreadAskedForLaterMayNotBeginEarlier) {
  Cell cell;
  History history;
  for (const uint64_t nth : {2, 1}) History::Scope(history, access_of(cell, Access::kRead, nth, nth));
  EXPECT_EQ(history.take_fault(), "");
  History::Scope(history, access_of(cell, Access::kWrite, 4, 4));
  History::Scope(history, access_of(cell, Access::kRead, 3, 3));
  EXPECT_NE(history.take_fault(), "");
}

// ---- ops ----

class Stress : public testing::Test {
 protected:
  void SetUp() override { Engine::instance().set_executor("pool", 3); }
  void TearDown() override {
    wait_all();
    EXPECT_EQ(history.take_fault(), "");
    (void)take_failures();
  }
  History history;
};

// An op that adds one to each cell that it writes, and notes what it does.
Ref<Op> new_increment(History& history, std::vector<Wanted> wanted, uint32_t asker, uint64_t nth,
                      HolderKind kind = HolderKind::kOp) {
  Body body = [&history, wanted, asker, nth, kind](Op* self) {
    std::array<std::optional<History::Scope>, 4> scopes;
    for (size_t i = 0; i < wanted.size(); ++i) {
      scopes[i].emplace(history, CellAccess{wanted[i], kind, self->number(), asker, nth, 0, 0});
    }
    for (const Wanted& w : wanted) {
      if (w.access == Access::kWrite) ++w.cell->value;
    }
    for (auto& scope : scopes) scope.reset();
    self->complete();
  };
  return make(wanted, std::move(body));
}

// What stops an engine that appends one part at a time.
TEST_F(Stress, CrossedPairsFromTwoPushersDoNotStop) {
  constexpr uint64_t kRound = 50'000;
  const uint64_t rounds = repeats<uint64_t>(1'000, 1);
  Cell a, b;
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    std::vector<std::thread> pushers;
    for (uint32_t t = 1; t <= 2; ++t) {
      pushers.emplace_back([&, t] {
        Cell &from = t == 1 ? a : b, &to = t == 1 ? b : a;
        for (uint64_t i = 1; i <= kRound; ++i) submit(new_increment(history, {read(from), write(to)}, t, i));
      });
    }
    for (std::thread& pusher : pushers) pusher.join();
    wait_all();
    ASSERT_EQ(history.take_fault(), "");
  }
  EXPECT_EQ(a.value, static_cast<int64_t>(rounds * kRound));
  EXPECT_EQ(b.value, static_cast<int64_t>(rounds * kRound));
}

TEST_F(Stress, OpsThatOtherThreadsCompleteKeepTheirTurn) {
  struct Running {
    Op* op;
    CellAccess access;
  };
  std::mutex lock;
  std::condition_variable has_come;
  std::deque<Running> running;  // guarded by lock, as is is_over
  bool is_over = false;
  std::vector<std::thread> completers;
  for (int t = 0; t < 2; ++t) {
    completers.emplace_back([&] {
      std::unique_lock guard(lock);
      while (true) {
        has_come.wait(guard, [&] { return is_over || !running.empty(); });
        if (running.empty()) return;
        const Running next = running.front();
        running.pop_front();
        guard.unlock();
        const bool fails = next.access.nth % 16 == 0;
        next.access.what.cell->value += fails ? 0 : 1;
        history.end(next.access);
        fails ? next.op->fail(new_failure("bad")) : next.op->complete();
        guard.lock();
      }
    });
  }
  Cell cells[4];
  const uint64_t count = repeats<uint64_t>(1'000'000, 4'000);
  for (uint64_t i = 1; i <= count; ++i) {
    Cell& cell = cells[i * 7 % 4];
    const Wanted wanted = overwrite(cell);  // so that a failure is healed by the next
    submit(make({wanted}, [&, wanted, i](Op* self) {
      CellAccess access{wanted, HolderKind::kOp, self->number(), 1, i, 0, 0};
      history.begin(access);
      const std::scoped_lock guard(lock);
      running.push_back({self, access});
      has_come.notify_one();
    }));
  }
  wait_all();
  {
    const std::scoped_lock guard(lock);
    is_over = true;
  }
  has_come.notify_all();
  for (std::thread& completer : completers) completer.join();
  int64_t sum = 0;
  for (const Cell& cell : cells) sum += cell.value;
  EXPECT_EQ(static_cast<uint64_t>(sum), count - count / 16);
  constexpr uint64_t kMostListed = 1000;  // as sync/failure.cc keeps
  EXPECT_EQ(take_failures(), std::min(count / 16, kMostListed));
}

TEST_F(Stress, WaitAllWaitsForWhatWasPushedBeforeItBesideTheWorkOfOthers) {
  Cell cells[2];
  std::atomic<bool> is_over{false};
  std::thread other([&] {
    for (uint64_t i = 1; !is_over; ++i) {
      submit(new_increment(history, {write(cells[0])}, 1, i));
      if (i % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  const int64_t rounds = repeats(20'000, 300);
  for (int64_t round = 1; round <= rounds && !HasFailure(); ++round) {
    const auto nth = static_cast<uint64_t>(round);
    submit(new_increment(history, {read(cells[0]), write(cells[1])}, 2, nth));
    wait_all();
    EXPECT_EQ(cells[1].value, round);
  }
  is_over = true;
  other.join();
  wait_all();  // before the cells go
}

TEST_F(Stress, APushWaitsAtTheLimitAndGoesOn) {
  constexpr uint64_t kLimit = 32;
  constexpr uint64_t kPushers = 3;
  const uint64_t count = repeats<uint64_t>(300'000, 3'000);
  Engine& engine = Engine::instance();
  engine.set_limits(kLimit, 0);
  Cell cells[kPushers];
  std::atomic<uint64_t> most{0}, pushes{0};
  std::vector<std::thread> pushers;
  for (uint32_t t = 0; t < kPushers; ++t) {
    pushers.emplace_back([&, t] {
      for (uint64_t i = 1; i <= count; ++i) {
        submit(new_increment(history, {write(cells[t])}, t, i));
        const uint64_t pushed = ++pushes;
        const uint64_t now = engine.unfinished();
        if (pushes != pushed) continue;  // it may count what ended and what was pushed while it counted
        uint64_t before = most;
        while (before < now && !most.compare_exchange_weak(before, now)) continue;
      }
    });
  }
  for (std::thread& pusher : pushers) pusher.join();
  wait_all();
  engine.set_limits(10'000, 0);
  // Each pusher may find room for one more at the same time, and be in the middle of a push.
  EXPECT_LT(most, kLimit + 2 * kPushers);
  EXPECT_GT(most, 0u);
  for (const Cell& cell : cells) EXPECT_EQ(static_cast<uint64_t>(cell.value), count);
}

TEST_F(Stress, ExecutorsAreExchangedBetweenPrograms) {
  Cell a, b;
  int64_t pushed = 0;
  const uint64_t rounds = repeats<uint64_t>(2'000, 40);
  static constexpr const char* kNames[] = {"pool", "seeded:5", "inline"};
  for (uint64_t round = 0; round < rounds; ++round) {
    Engine::instance().set_executor(kNames[round % 3], 1 + static_cast<int>(round % 4));
    std::vector<std::thread> pushers;
    for (uint32_t t = 1; t <= 2; ++t) {
      pushers.emplace_back([&, t] {
        for (uint64_t i = 1; i <= 200; ++i) {
          submit(new_increment(history, {read(t == 1 ? a : b), write(t == 1 ? b : a)}, t, round * 200 + i));
        }
      });
    }
    for (std::thread& pusher : pushers) pusher.join();  // the next exchange waits for the ops
    pushed += 200;
  }
  wait_all();
  EXPECT_EQ(a.value, pushed);
  EXPECT_EQ(b.value, pushed);
}

// ---- leases and views ----

// One holds the cell and gives it back at about the moment when the request of another one times out; a third
// one stands behind both, and an op behind all of them.
TEST_F(Stress, WhoTimesOutBesideAGrantForgetsNobody) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const int rounds = repeats(200'000, 1'500, 200);
  int timed_out = 0, granted = 0;
  Cell cell;
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    const auto hold_ns = static_cast<int64_t>(random() % 60'000);
    const auto timeout_ns = static_cast<int64_t>(random() % 60'000);
    const bool has_part = random() % 2 == 0;   // in a queue that counts, and in one that does not
    const bool is_reader = random() % 2 == 0;  // then it is the end of the request that lets the third one in
    std::latch is_held(1), is_asked(1);
    std::thread holder([&] {
      Conflict conflict;
      const Wanted wanted = is_reader ? read(cell) : write(cell);
      CellLease lease(wanted);
      ASSERT_TRUE(lease.acquire(&conflict));
      is_held.count_down();
      const History::Scope scope(history, {wanted, HolderKind::kLease, 4u * round + 1u, 0, 0, 0, 0});
      is_asked.wait();
      for (const Deadline end(hold_ns); !end.has_passed();) {
        if (!is_reader) ++cell.value;
      }
    });
    is_held.wait();
    std::thread hasty([&] {
      Conflict conflict;
      const Wanted wanted = has_part ? write(cell, 0, 4) : write(cell);
      CellLease lease(wanted);
      is_asked.count_down();
      if (lease.acquire(&conflict, timeout_ns)) {
        const History::Scope scope(history, {wanted, HolderKind::kLease, 4u * round + 2u, 0, 0, 0, 0});
        ++cell.value;
        ++granted;
      } else {
        EXPECT_EQ(conflict.reason, Conflict::Reason::kTimeout);
        ++timed_out;
      }
    });
    std::thread patient([&] {
      Conflict conflict;
      CellLease lease(read(cell));
      ASSERT_TRUE(lease.acquire(&conflict));
      const History::Scope scope(history, {read(cell), HolderKind::kLease, 4u * round + 3u, 0, 0, 0, 0});
    });
    const Ref<Op> op = new_increment(history, {write(cell)}, 0, 0);
    submit(op);
    wait(op);
    holder.join();
    hasty.join();
    patient.join();
    ASSERT_FALSE(cell.queue.has_parts());
  }
  RecordProperty("timed_out", timed_out);  // on a slow machine perhaps all, or none
  RecordProperty("granted", granted);
}

// Views of several threads are one kind: what keeps them from each other is the test's own lock. Views that
// join one another without end would keep work waiting for ever: so the viewers let it end now and then.
TEST_F(Stress, OpsAndTheViewsOfThreadsTakeTurns) {
  constexpr uint64_t kCells = 3;
  Cell cells[kCells];
  std::mutex host;
  std::atomic<int64_t> written{0};
  std::atomic<bool> is_over{false};
  std::vector<std::thread> viewers;
  for (uint64_t t = 0; t < 2; ++t) {
    viewers.emplace_back([&, t] {
      std::mt19937 random(static_cast<uint32_t>(t));
      for (uint64_t n = 1; !is_over; ++n) {
        while (Engine::instance().unfinished() > 30) std::this_thread::yield();
        Cell& cell = cells[random() % kCells];
        const Wanted wanted = random() % 2 == 0 ? write(cell) : read(cell);
        Conflict conflict;
        Sight view(wanted);
        if (!view.open(&conflict)) {
          EXPECT_EQ(conflict.reason, Conflict::Reason::kWaitsForHost);
          continue;
        }
        const History::Scope scope(history, {wanted, HolderKind::kView, (t + 1) << 60 | n, 0, 0, 0, 0});
        const std::scoped_lock guard(host);
        if (wanted.access == Access::kWrite) {
          ++cell.value;
          ++written;
        }
      }
    });
  }
  const uint64_t count = repeats<uint64_t>(1'000'000, 10'000, 1'000);
  Engine::instance().set_limits(60, 0);  // a queue that counts is slow when it is long
  for (uint64_t i = 1; i <= count; ++i) {
    Cell &from = cells[i % kCells], &to = cells[i * 5 / 3 % kCells];
    const OnHost on_host = i % 3 == 0 ? OnHost::kRaise : OnHost::kWait;
    if (submit(new_increment(history, {read(from), write(to)}, 1, i), on_host)) ++written;
  }
  is_over = true;
  for (std::thread& viewer : viewers) viewer.join();
  wait_all();
  Engine::instance().set_limits(10'000, 0);
  int64_t sum = 0;
  for (const Cell& cell : cells) sum += cell.value;
  EXPECT_EQ(sum, written);
}

// ---- waits ----

// A sleeper looks for itself every 50 ms, so a wake that is lost is only late. The hook is called after each
// such look for which no thread had woken it: it then counts what is over already.
thread_local const std::function<bool()>* is_wait_over = nullptr;
std::atomic<int> late{0};

class Wakes : public Stress {
 protected:
  void SetUp() override {
    Stress::SetUp();
    late = 0;
    WaitHooks hooks;
    hooks.poll = [](void*) {
      if (is_wait_over != nullptr && (*is_wait_over)()) ++late;
      return 0;
    };
    set_wait_hooks(hooks);
  }
  void TearDown() override {
    set_wait_hooks({});
    Stress::TearDown();
  }

  static constexpr int kThreads = 4;

  // begin makes something to wait for, wait waits in several threads, end ends it when they sleep.
  // late_per_round: what a loaded machine explains; lost wakes make kThreads.
  static void run(const std::function<void()>& begin, const std::function<void()>& wait,
                  const std::function<bool()>& is_over, const std::function<void()>& end,
                  double late_per_round = 0.5) {
    const int rounds = repeats(2'000, 25);
    for (int round = 0; round < rounds; ++round) {
      begin();
      std::vector<std::thread> waiters;
      for (int t = 0; t < kThreads; ++t) {
        waiters.emplace_back([&] {
          is_wait_over = &is_over;
          wait();
          EXPECT_TRUE(is_over());
          is_wait_over = nullptr;
        });
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      end();
      for (std::thread& waiter : waiters) waiter.join();
    }
    wait_all();
    EXPECT_LT(late, rounds * late_per_round) << "sleepers were not woken";
  }
};

// An op that another thread ends.
struct Pending {
  void push() {
    is_over = false;
    op = make({write(cell)}, [this](Op* self) { running = self; });
    EXPECT_TRUE(submit(op));
    while (running == nullptr) std::this_thread::yield();
  }
  void end() {
    is_over = true;
    running.exchange(nullptr)->complete();
  }
  Cell cell;
  Ref<Op> op;
  std::atomic<Op*> running{nullptr};
  std::atomic<bool> is_over{false};
};

TEST_F(Wakes, WhoWaitsForAnOpIsWoken) {
  Pending p;
  run([&] { p.push(); }, [&] { impl::wait(p.op); }, [&] { return p.op->is_done(); }, [&] { p.end(); });
}

TEST_F(Wakes, WhoWaitsForALeaseIsWoken) {
  Pending p;
  run([&] { p.push(); },
      [&] {
        Conflict conflict;
        CellLease lease(read(p.cell));
        EXPECT_TRUE(lease.acquire(&conflict));
      },
      [&] { return p.is_over.load(); }, [&] { p.end(); });
}

TEST_F(Wakes, WhoWaitsForAViewIsWoken) {
  Pending p;
  run([&] { p.push(); },
      [&] {
        Conflict conflict;
        Sight view(write(p.cell));
        EXPECT_TRUE(view.open(&conflict));
      },
      [&] { return p.is_over.load(); }, [&] { p.end(); },
      kThreads - 1);  // they take turns, so all but one may rightly wait when it is over
}

TEST_F(Wakes, WhoWaitsForAllOpsIsWoken) {
  Pending p;
  run([&] { p.push(); }, [] { wait_all(); }, [&] { return p.is_over.load(); }, [&] { p.end(); });
}

TEST_F(Wakes, WhoWaitsForRoomIsWoken) {
  Pending p;
  Cell others;
  run(
      [&] {
        p.push();
        Engine::instance().set_limits(1, 0);
      },
      [&] { impl::push({write(others)}, [] {}); }, [&] { return p.is_over.load(); }, [&] { p.end(); },
      kThreads - 1);  // the room is for one at a time, so the others may rightly wait when it is over
  Engine::instance().set_limits(10'000, 0);
}

TEST(ChangeOfTheEngine, BesidePushesOfOthersLosesNoOpAndRunsEachOnce) {
  constexpr int kPushers = 3;
  const int changes = kHasSanitizer ? 40 : 200;
  std::atomic<bool> is_over{false};
  std::atomic<int64_t> runs{0}, pushed{0};
  std::vector<std::thread> pushers;
  for (int p = 0; p < kPushers; ++p) {
    pushers.emplace_back([&] {
      Cell mine;
      while (!is_over) {
        for (int i = 0; i < 20; ++i, ++pushed) push({write(mine)}, [&] { ++runs; });
        wait(push({read(mine)}, [] {}));
      }
    });
  }
  const char* const names[] = {"pool", "inline", "seeded:5", "pool"};
  for (int i = 0; i < changes; ++i) {
    Engine::instance().set_executor(names[i % 4], 1 + i % 3);
    std::this_thread::yield();
  }
  is_over = true;
  for (std::thread& pusher : pushers) pusher.join();
  wait_all();
  EXPECT_EQ(runs, pushed);
  EXPECT_GT(pushed, 0);
  Engine::instance().set_executor("pool", 2);
}

TEST(ChangeOfTheEngine, InTheBodyOfAnOpIsRefused) {
  Cell cell;
  std::atomic<int> code{0};
  wait(push({write(cell)}, [&] {
    try {
      Engine::instance().set_executor("inline", 0);
    } catch (const Error& e) {
      code = static_cast<int>(e.code());
    }
  }));
  EXPECT_EQ(code, static_cast<int>(Code::kLeaseConflict));
}

}  // namespace
}  // namespace tenon::impl
