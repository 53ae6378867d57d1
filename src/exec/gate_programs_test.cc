// SPDX-License-Identifier: Apache-2.0
//
// Random programs of two stand-in processes with several threads each, over memories that they share: ops
// over several memories and ranges, leases with and without nested ones, views that outlive them, calls,
// requests that are taken back, leases that another thread ends; and gates that refuse some of it.
//
// Oracle: a history (history_testing.h) of each process, in which its accesses keep the laws of any memory,
// and one of all, in which accesses of two processes that conflict never overlap, whatever they are; that a
// body runs only while its process holds what it uses; and that every grant has ended when all programs have,
// each exactly once (the gates count).
//
// A failure prints the seed. TENON_PROGRAM=<number> runs that one alone.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "exec/gate_testing.h"
#include "exec/history_testing.h"

namespace tenon::impl {
namespace {

constexpr size_t kMemories = 3;
constexpr int kProcesses = 2;
constexpr int kThreads = 2;

std::atomic<uint64_t> next_request{1};

// What one thread of a process does. Whatever it waits for has a deadline: two threads may well wait for each
// other's leases, which no local walk sees.
class Program {
 public:
  Program(uint64_t seed, StandInProcess& process, std::span<Turns* const> turns, std::span<Cell> common,
          History& own, History& all)
      : random_(seed), process_(process), turns_(turns), common_(common), own_(own), all_(all) {}

  void run(int steps) {
    for (int i = 0; i < steps && !testing::Test::HasFailure(); ++i) step();
    while (!views_.empty()) close_one_view();
    while (!kept_.empty()) end_kept();
  }

  int granted = 0, refused = 0, withdrawn = 0;
  std::vector<Ref<Op>> ops;

 private:
  class Noted;
  struct Opened {
    std::unique_ptr<Sight> sight;
    std::unique_ptr<Noted> noted;  // ends first
  };
  struct Kept {  // a lease without an owner
    std::unique_ptr<CellLease> lease;
    std::unique_ptr<Noted> noted;  // ends first
  };

  size_t draw(size_t n) { return static_cast<size_t>(random_() % n); }
  bool chance(unsigned percent) { return random_() % 100 < percent; }

  struct Use {
    size_t memory;
    Wanted wanted;
  };
  Use any_use(unsigned writes) {
    const size_t memory = draw(kMemories);
    Wanted w{&process_[memory], chance(writes) ? Access::kWrite : Access::kRead};
    if (chance(40)) {
      w.begin = draw(8);
      w.end = w.begin + 1 + draw(8 - w.begin);
    }
    return {memory, w};
  }
  // An access while it lives. The history of all processes has one cell for each memory, and knows only the
  // process of a request.
  class Noted {
   public:
    // is_known: to the queue; else it acts under something that another thread may end.
    Noted(Program& program, const Use& use, HolderKind kind, uint64_t request, bool is_known = true)
        : program_(program), is_known_(is_known) {
      mine_.what = use.wanted;
      mine_.kind = kind;
      mine_.request = request;
      shared_ = mine_;
      shared_.what.cell = &program.common_[use.memory];
      shared_.kind = HolderKind::kOp;
      shared_.request = static_cast<uint64_t>(program.process_.number);
      program.all_.begin(shared_);
      program.own_.begin(mine_);
    }
    Noted(const Noted&) = delete;
    Noted& operator=(const Noted&) = delete;
    ~Noted() {
      if (is_known_) program_.own_.end(mine_);
      program_.all_.end(shared_);
    }

   private:
    Program& program_;
    const bool is_known_;
    CellAccess mine_, shared_;
  };
  bool is_held(const Use& use) {
    return turns_[use.memory]->holds(process_.number, {use.wanted.begin, use.wanted.end}, use.wanted.access);
  }
  int64_t patience() { return chance(20) ? 0 : static_cast<int64_t>(random_() % 2'000'000); }
  void dwell() {
    for (size_t n = draw(3); n > 0; --n) std::this_thread::yield();
  }

  void step() {
    switch (draw(10)) {
      case 0:
      case 1:
      case 2: return push_op();
      case 3:
      case 4: return take_lease(0, next_request++);
      case 5: return make_call();
      case 6: return request();
      case 7: return close_one_view();
      case 8: return keep_lease();
      default: return end_kept();
    }
  }

  void push_op() {
    std::vector<Use> uses;
    for (size_t n = 1 + draw(3); n > 0; --n) uses.push_back(any_use(50));
    if (chance(10)) uses.front().wanted = {uses.front().wanted.cell, Access::kWrite, true};
    std::vector<Wanted> wanted;
    for (const Use& use : uses) wanted.push_back(use.wanted);
    const uint64_t request = next_request++;
    Ref<Op> op = make(wanted, [this, uses, request](Op* self) {
      std::vector<std::unique_ptr<Noted>> noted;
      for (const Use& use : uses) {
        EXPECT_TRUE(is_held(use)) << "a body runs with its grants";
        noted.push_back(std::make_unique<Noted>(*this, use, HolderKind::kOp, request));
      }
      if ((request & 3) == 0) std::this_thread::yield();
      noted.clear();
      if (request % 16 == 0) return self->fail(new_failure("now and then"));
      self->complete();
    });
    if (submit(op, chance(50) ? OnHost::kRaise : OnHost::kWait)) ops.push_back(std::move(op));
  }

  // request: of all leases that this thread holds around it; it may act under one of them.
  void take_lease(int depth, uint64_t request) {
    const Use use = any_use(50);
    CellLease lease(use.wanted);
    Conflict conflict;
    if (!lease.acquire(&conflict, patience())) return note_refused(conflict);
    ++granted;
    EXPECT_TRUE(is_held(use));
    {
      const Noted noted(*this, use, HolderKind::kLease, request);
      dwell();
      if (chance(30)) open_view(use, request);
      if (depth < 2 && chance(40)) take_nested(use, request);
      if (depth < 2 && chance(20)) take_lease(depth + 1, request);
      if (chance(20)) push_op();
    }
    lease.release();
  }

  // What the outer one allows acts under it.
  void take_nested(const Use& outer, uint64_t request) {
    Use use = outer;
    if (chance(50)) use.wanted.access = Access::kRead;
    CellLease lease(use.wanted);
    Conflict conflict;
    ASSERT_TRUE(lease.acquire(&conflict, 0)) << "nothing is in its way";
    const Noted noted(*this, use, HolderKind::kLease, request);
    if (chance(30)) open_view(use, request);
    dwell();
  }

  void open_view(const Use& outer, uint64_t request) {
    Use use = outer;
    if (chance(50)) use.wanted.access = Access::kRead;
    auto sight = std::make_unique<Sight>(use.wanted);
    Conflict conflict;
    ASSERT_TRUE(sight->open(&conflict)) << "under a lease";
    EXPECT_TRUE(is_held(use));
    views_.push_back({std::move(sight), std::make_unique<Noted>(*this, use, HolderKind::kView, request)});
    if (chance(50)) join(use, request);
  }

  // Another view, under the lease or beside the first one.
  void join(const Use& use, uint64_t request) {
    Sight sight(use.wanted);
    Conflict conflict;
    ASSERT_TRUE(sight.open(&conflict));
    const Noted noted(*this, use, HolderKind::kView, request);
    dwell();
  }

  void close_one_view() {
    if (views_.empty()) return;
    const size_t i = draw(views_.size());
    Opened opened = std::move(views_[i]);
    views_.erase(views_.begin() + static_cast<ptrdiff_t>(i));
    opened.noted.reset();
    opened.sight->close();
  }

  void make_call() {
    std::array<Use, 2> uses{any_use(30), any_use(50)};
    std::array<RequestPart, 2> parts;
    const size_t n = 1 + draw(2);
    for (size_t i = 0; i < n; ++i) describe(uses[i].wanted, parts[i]);
    BlockingRequest request(HolderKind::kCall, std::span(parts).first(n));
    request.owner = current_actor();
    Conflict conflict;
    if (!request.acquire(Deadline(patience()), &conflict)) return note_refused(conflict);
    ++granted;
    const uint64_t number = next_request++;
    {
      std::vector<std::unique_ptr<Noted>> noted;
      for (const RequestPart& e : request.parts) {
        Use use{0, {}};
        while (e.home != &process_[use.memory].home) ++use.memory;
        const uintptr_t at = process_[use.memory].extent().begin;
        use.wanted = {&process_[use.memory], e.access, false, e.extent.begin - at, e.extent.end - at};
        EXPECT_TRUE(is_held(use));
        noted.push_back(std::make_unique<Noted>(*this, use, HolderKind::kView, number, e.is_appended));
      }
      dwell();
    }
    release(request);
  }

  void request() {
    const Use use = any_use(50);
    CellLease lease(use.wanted);
    auto pending = std::make_unique<PendingRequest>();
    std::atomic<int> told{0};
    Conflict conflict;
    const Appended appended = lease.submit(pending.get(), &told, &conflict);
    if (appended == Appended::kRefused) return note_refused(conflict);
    if (appended == Appended::kWaiting) {
      const int64_t until = now_ns() + patience();
      while (told == 0 && now_ns() < until) std::this_thread::yield();
      if (told == 0 && lease.cancel()) {
        WaitGraph::instance().leave(&pending->node);
        EXPECT_EQ(told, 0);
        ++withdrawn;
        return;
      }
      while (told == 0) std::this_thread::yield();
    }
    if (pending->is_refused) return note_refused(pending->conflict);
    ++granted;
    EXPECT_TRUE(is_held(use));
    {
      const Noted noted(*this, use, HolderKind::kLease, next_request++);
      dwell();
    }
    lease.release();
  }

  void keep_lease() {
    if (kept_.size() == 2) return end_kept();
    const Use use = any_use(50);
    Kept kept{std::make_unique<CellLease>(use.wanted), nullptr};
    Conflict conflict;
    if (!kept.lease->acquire(&conflict, patience())) return note_refused(conflict);
    kept.lease->detach();
    kept.noted = std::make_unique<Noted>(*this, use, HolderKind::kView, next_request++);
    kept_.push_back(std::move(kept));
  }

  void end_kept() {
    if (kept_.empty()) return;
    Kept kept = std::move(kept_.back());
    kept_.pop_back();
    kept.noted.reset();
    // By another thread, as a deleter might.
    if (chance(20)) {
      std::thread([&] { kept.lease->release(); }).join();
    } else {
      kept.lease->release();
    }
    kept.lease.reset();
  }

  void note_refused(const Conflict& conflict) {
    using Reason = Conflict::Reason;
    ++refused;
    switch (conflict.reason) {
      case Reason::kTimeout:
      case Reason::kOwnerDied:
      case Reason::kOwnLease:
      case Reason::kDeadlock:
      case Reason::kInterrupted:
      case Reason::kWaitsForHost: return;
      default: ADD_FAILURE() << "refused for the reason " << static_cast<int>(conflict.reason);
    }
  }

  std::mt19937_64 random_;
  StandInProcess& process_;
  const std::span<Turns* const> turns_;
  const std::span<Cell> common_;
  History& own_;
  History& all_;
  std::vector<Opened> views_;
  std::vector<Kept> kept_;
};

using GateProgramsOn = OnExecutor;
INSTANTIATE_TEST_SUITE_P(Executors, GateProgramsOn, testing::Values("pool", "inline", "seeded:3"));

struct Sum {
  int granted = 0, refused = 0, withdrawn = 0;
  size_t ran = 0, failed = 0;
};

Sum run_programs(uint64_t seed, unsigned refusals_percent, int steps) {
  Turns first(1), second(2), third(3);
  const std::array<Turns*, kMemories> turns{&second, &third, &first};
  for (Turns* t : turns) t->refuse_some(refusals_percent, seed);
  std::array<Cell, kMemories> common;
  std::array<History, 3> histories;  // of all, of each
  Sum sum;
  {
    StandInProcess one(1, turns), two(2, turns);
    std::vector<std::unique_ptr<Program>> programs;
    std::vector<std::thread> threads;
    for (int i = 0; i < kProcesses * kThreads; ++i) {
      programs.push_back(std::make_unique<Program>(seed * 101 + static_cast<uint64_t>(i),
                                                   i % 2 == 0 ? one : two, turns, common,
                                                   histories[static_cast<size_t>(1 + i % 2)], histories[0]));
    }
    for (const auto& program : programs) threads.emplace_back([&program, steps] { program->run(steps); });
    for (std::thread& thread : threads) thread.join();
    wait_all();
    for (const auto& program : programs) {
      sum.granted += program->granted;
      sum.refused += program->refused;
      sum.withdrawn += program->withdrawn;
      for (const Ref<Op>& op : program->ops) ++(op->failure() ? sum.failed : sum.ran);
    }
    for (StandInProcess* process : {&one, &two}) {
      for (const auto& cell : process->cells) {
        EXPECT_FALSE(cell->queue.has_parts());
        EXPECT_FALSE(cell->queue.has_views());
      }
    }
  }
  for (Turns* t : turns) EXPECT_EQ(t->grants(), 0U) << "every grant ends";
  for (History& history : histories) EXPECT_EQ(history.take_fault(), "");
  return sum;
}

TEST_P(GateProgramsOn, ProcessesNeverOverlapInConflictAndEveryGrantEndsOnce) {
  const char* const only = std::getenv("TENON_PROGRAM");
  const uint64_t begin = only != nullptr ? std::strtoull(only, nullptr, 10) : 1;
  const uint64_t end = only != nullptr ? begin + 1 : begin + repeats<uint64_t>(2000, 60, 25);
  Sum all;
  for (uint64_t seed = begin; seed < end && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    const Sum sum = run_programs(seed, seed % 3 == 0 ? 5 : 0, 60);
    (void)take_failures();
    all.granted += sum.granted;
    all.refused += sum.refused;
    all.withdrawn += sum.withdrawn;
    all.ran += sum.ran;
    all.failed += sum.failed;
  }
  if (only != nullptr) return;
  EXPECT_GT(all.granted, 100);
  EXPECT_GT(all.refused, 10);
  EXPECT_GT(all.withdrawn, 0);
  EXPECT_GT(all.ran, 100U);
  EXPECT_GT(all.failed, 10U);
}

}  // namespace
}  // namespace tenon::impl
