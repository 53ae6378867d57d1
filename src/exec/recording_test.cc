// SPDX-License-Identifier: Apache-2.0
//
// Recordings over plain integers. The oracle for values is a run of the bodies one after the other. That
// conflicting bodies do not overlap is counted for each byte while they run.
#include "exec/recording.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <latch>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/foreign_call.h"
#include "exec/cells_testing.h"

namespace tenon::impl {
namespace {

std::vector<StepUse> uses_of(std::span<const Wanted> wanted) {
  std::vector<StepUse> uses;
  for (const Wanted& w : wanted) uses.push_back({&w.cell->home, extent_of(w), w.access, w.is_overwrite});
  return uses;
}

void record(Recording& recording, std::span<const Wanted> wanted, Body body, const char* name = "body") {
  auto owned = std::make_unique<Body>(std::move(body));
  const auto run = [](void* context, tenon_op* op) {
    (*static_cast<Body*>(context))(reinterpret_cast<Op*>(op));
  };
  recording.begin_add({owned.get(), run}, {name, "here:2"});
  for (const StepUse& use : uses_of(wanted)) recording.add_use(use);
  recording.end_add(1);
  recording.keep({owned.release(), [](void* context) { delete static_cast<Body*>(context); }});
}

// Records work that ends when it returns.
void record(Recording& recording, std::initializer_list<Wanted> wanted, std::function<void()> body) {
  record(recording, std::span(wanted.begin(), wanted.size()), [body = std::move(body)](Op* op) {
    body();
    op->complete();
  });
}

Ref<Op> replay(Recording& recording, OnHost on_host = OnHost::kRaise, Conflict* conflict = nullptr) {
  Conflict unused;
  Ref<Op> op = recording.make_op("replay", "here:3");
  if (Engine::instance().push(op, on_host, conflict != nullptr ? conflict : &unused)) return op;
  (void)op->give_up();
  recording.release();
  return {};
}

using RecordingOn = OnExecutor;
INSTANTIATE_TEST_SUITE_P(Executors, RecordingOn, testing::Values("pool", "inline", "seeded:3", "seeded:8"));

// Bodies that use random bytes of some cells, and what they must leave there.
class RandomBodies {
 public:
  static constexpr size_t kCells = 4;
  static constexpr size_t kBytes = sizeof(int64_t);

  RandomBodies(uint32_t seed, Recording* recording) : random_(seed) {
    const size_t n = 1 + draw(60);
    for (size_t i = 0; i < n; ++i) add(recording);
  }

  // Runs all bodies on the model.
  void run_model() {
    for (const auto& uses : bodies_) mix(uses, model_.data());
  }
  void check() {
    for (size_t c = 0; c < kCells; ++c) {
      std::array<uint8_t, kBytes> bytes;
      std::memcpy(bytes.data(), &cells[c].value, kBytes);
      ASSERT_EQ(bytes, model_[c]) << "cell " << c;
    }
    EXPECT_EQ(overlaps_.load(), 0);
  }

  std::array<Cell, kCells> cells;

 private:
  using Bytes = std::array<uint8_t, kBytes>;
  struct Range {
    size_t cell, begin, end;
    bool is_write;
  };

  size_t draw(size_t n) { return random_() % n; }

  void add(Recording* recording) {
    std::vector<Range> ranges;
    std::vector<Wanted> wanted;
    const size_t n = draw(4);
    for (size_t i = 0; i < n; ++i) {
      const bool is_whole = draw(2) == 0;
      const size_t begin = is_whole ? 0 : draw(kBytes);
      const size_t end = is_whole ? kBytes : begin + 1 + draw(kBytes - begin);
      ranges.push_back({draw(kCells), begin, end, draw(2) == 0});
      wanted.push_back({&cells[ranges.back().cell], ranges.back().is_write ? Access::kWrite : Access::kRead,
                        false, begin, end});
    }
    bodies_.push_back(ranges);
    record(*recording, wanted, [this, ranges](Op* op) {
      watch(ranges, 1);
      std::array<Bytes*, kCells> real;
      for (size_t c = 0; c < kCells; ++c) real[c] = reinterpret_cast<Bytes*>(&cells[c].value);
      uint8_t sum = 1;
      for (const Range& r : ranges) {
        for (size_t i = r.begin; i < r.end; ++i) sum = static_cast<uint8_t>(3 * sum + (*real[r.cell])[i]);
      }
      if ((sum & 7) == 0) std::this_thread::yield();
      for (const Range& r : ranges) {
        for (size_t i = r.begin; r.is_write && i < r.end; ++i) (*real[r.cell])[i] = sum++;
      }
      watch(ranges, -1);
      op->complete();
    });
  }

  static void mix(const std::vector<Range>& ranges, Bytes* bytes) {
    uint8_t sum = 1;
    for (const Range& r : ranges) {
      for (size_t i = r.begin; i < r.end; ++i) sum = static_cast<uint8_t>(3 * sum + bytes[r.cell][i]);
    }
    for (const Range& r : ranges) {
      for (size_t i = r.begin; r.is_write && i < r.end; ++i) bytes[r.cell][i] = sum++;
    }
  }

  // Counts the bodies that use each byte: readers, and 1000 for each writer. A body may use a byte twice.
  void watch(const std::vector<Range>& ranges, int sign) {
    std::array<std::array<int, kBytes>, kCells> own{};
    for (const Range& r : ranges) {
      for (size_t i = r.begin; i < r.end; ++i) {
        int& use = own[r.cell][i];
        use = r.is_write || use == 1000 ? 1000 : 1;
      }
    }
    for (size_t c = 0; c < kCells; ++c) {
      for (size_t i = 0; i < kBytes; ++i) {
        if (own[c][i] == 0) continue;
        const int before = users_[c][i].fetch_add(sign * own[c][i]);
        if (sign > 0 && (before >= 1000 || (own[c][i] == 1000 && before != 0))) ++overlaps_;
      }
    }
  }

  std::mt19937 random_;
  std::vector<std::vector<Range>> bodies_;
  std::array<Bytes, kCells> model_{};
  std::array<std::array<std::atomic<int>, kBytes>, kCells> users_{};
  std::atomic<int> overlaps_{0};
};

TEST_P(RecordingOn, ReplaysHaveTheResultOfTheirBodiesOneAfterTheOther) {
  const uint32_t n = repeats<uint32_t>(3000, 60, 20);
  for (uint32_t seed = 0; seed < n; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Ref<Recording> recording = Recording::create();
    RandomBodies bodies(seed, recording.get());
    for (int i = 0; i < 4; ++i) {
      const Ref<Op> op = replay(*recording);
      bodies.run_model();
      if (i == 1) wait(op);
    }
    wait_all();
    bodies.check();
    if (HasFatalFailure()) return;
  }
}

TEST_P(RecordingOn, OtherOpsAreOrderedWithTheReplayAsAWhole) {
  Cell a, b;
  const Ref<Recording> recording = Recording::create();
  record(*recording, {write(a)}, [&a] { a.value = a.value * 3 + 1; });
  record(*recording, {read(a), write(b)}, [&a, &b] { b.value = b.value * 5 + a.value; });
  record(*recording, {write(a)}, [&a] { a.value += 7; });
  int64_t model_a = 0, model_b = 0;
  for (int i = 0; i < 200; ++i) {
    replay(*recording);
    model_a = model_a * 3 + 1;
    model_b = model_b * 5 + model_a;
    model_a += 7;
    push({read(b), write(a)}, [&a, &b] { a.value = (a.value + b.value) % 1'000'003; });
    model_a = (model_a + model_b) % 1'000'003;
    model_b %= 1'000'003;
    push({write(b)}, [&b] { b.value %= 1'000'003; });
  }
  wait_all();
  EXPECT_EQ(a.value, model_a);
  EXPECT_EQ(b.value, model_b);
}

TEST_P(RecordingOn, AReplayWithoutBodiesIsDone) {
  const Ref<Recording> recording = Recording::create();
  const Ref<Op> op = replay(*recording);
  wait(op);
  EXPECT_FALSE(op->failure());
}

TEST_P(RecordingOn, AFailureSkipsTheRestAndLeavesNoValue) {
  Cell a, b, c;
  bool is_to_fail = true;
  int n_late = 0;
  const Ref<Recording> recording = Recording::create();
  record(*recording, {overwrite(a)}, [&a] { a.value = 1; });
  const std::array wanted{write(a), write(b)};
  record(
      *recording, wanted,
      [&](Op* op) {
        if (!is_to_fail) return op->complete();
        const auto [name, site] = op->texts();
        op->fail(Ref<Failure>::adopt(new Failure(Code::kOp, 9, "no", name, site)));
      },
      "second");
  record(*recording, {write(b), read(c)}, [&n_late] { ++n_late; });
  const Ref<Op> bad = replay(*recording);
  const Ref<Op> behind = push({read(b)}, [&n_late] { ++n_late; });
  wait(behind);
  ASSERT_TRUE(bad->failure());
  EXPECT_EQ(bad->failure()->op, "second");
  EXPECT_EQ(bad->failure()->site, "here:2");
  EXPECT_EQ(bad->failure()->op_code, 9);
  EXPECT_EQ(behind->failure().get(), bad->failure().get());
  EXPECT_EQ(n_late, 0);
  EXPECT_TRUE(failure_of(a.home, a.extent())) << "its writer succeeded, but the op as a whole has failed";
  EXPECT_FALSE(failure_of(c.home, c.extent())) << "it was only read";
  is_to_fail = false;
  EXPECT_EQ(take_failures(), 1u);
  const Ref<Op> skipped = replay(*recording);
  wait(skipped);
  EXPECT_EQ(skipped->failure().get(), bad->failure().get()) << "b is read before it is written";
  wait(push({overwrite(b)}, [] {}));
  const Ref<Op> good = replay(*recording);
  wait(good);
  EXPECT_FALSE(good->failure());
  EXPECT_EQ(n_late, 1);
  EXPECT_FALSE(failure_of(a.home, a.extent())) << "its first body overwrites it";
}

TEST_P(RecordingOn, ABodyThatReturnsWithoutAnEndFails) {
  Cell a;
  Op* kept = nullptr;
  const Ref<Recording> recording = Recording::create();
  const std::array wanted{write(a)};
  record(*recording, wanted, [&kept](Op* op) { kept = op; });
  Ref<Op> op = replay(*recording);
  wait(op);
  ASSERT_TRUE(op->failure());
  EXPECT_NE(op->failure()->message.find("returned before"), std::string::npos) << op->failure()->message;
  EXPECT_EQ(op->failure()->op, "body");
  op = {};
  kept->complete();  // later, on a thread that does not run it: without effect
  kept->fail(new_failure("late"));
  wait(push({overwrite(a)}, [] {}));
  EXPECT_FALSE(failure_of(a.home, a.extent()));
}

TEST_P(RecordingOn, ABodyThatEndsItsThreadFailsAndTheThreadContinues) {
  Cell a;
  int n_calls = 0;
  const Ref<Recording> recording = Recording::create();
  record(*recording, {overwrite(a)}, [&n_calls] {
    if (++n_calls == 1) pthread_exit(nullptr);
  });
  record(*recording, {write(a)}, [&a] { a.value = 5; });
  const Ref<Op> op = replay(*recording);
  wait(op);
  ASSERT_TRUE(op->failure());
  EXPECT_EQ(op->failure()->message, kEndedThread);
  EXPECT_EQ(op->failure()->op, "body");
  wait(replay(*recording));
  EXPECT_EQ(a.value, 5);
  EXPECT_EQ(this_thread.running, 0u);
}

TEST_P(RecordingOn, OnlyTheFirstEndOfABodyCounts) {
  Cell a;
  const Ref<Recording> recording = Recording::create();
  const std::array wanted{write(a)};
  record(*recording, wanted, [](Op* op) {
    op->complete();
    op->fail(new_failure("second"));
  });
  const Ref<Op> op = replay(*recording);
  wait(op);
  EXPECT_FALSE(op->failure());
}

TEST_P(RecordingOn, BodiesAreDroppedOnceBeforeTheLastReplayIsDone) {
  Cell a;
  auto counted = std::make_shared<int>(0);
  Ref<Recording> recording = Recording::create();
  for (int i = 0; i < 3; ++i) record(*recording, {write(a)}, [counted] { ++*counted; });
  wait(replay(*recording));
  EXPECT_EQ(counted.use_count(), 4);
  const Ref<Op> last = replay(*recording);
  recording = {};
  wait(last);
  EXPECT_EQ(counted.use_count(), 1);
  EXPECT_EQ(*counted, 6);
  Ref<Recording> unused = Recording::create();
  record(*unused, {write(a)}, [counted] {});
  unused = {};
  EXPECT_EQ(counted.use_count(), 1);
}

TEST_P(RecordingOn, ABodyMayPushButNotWait) {
  Cell a, b;
  const Ref<Recording> recording = Recording::create();
  Ref<Op> pushed;
  Conflict conflict;
  record(*recording, {write(a)}, [&] {
    pushed = push({write(b)}, [&b] { b.value = 4; });
    EXPECT_FALSE(pushed->wait(Deadline(-1), &conflict));
  });
  wait(replay(*recording));
  EXPECT_EQ(conflict.reason, Conflict::Reason::kInBody);
  wait(pushed);
  EXPECT_EQ(b.value, 4);
}

TEST_P(RecordingOn, BodiesUseTheMemoryOfAllBodiesAndNoOther) {
  Cell a, b, other;
  const Ref<Recording> recording = Recording::create();
  std::array<bool, 3> is_refused{};
  record(*recording, {write(a)}, [&] {
    Conflict conflict;
    std::array<Cell*, 3> cells{&a, &b, &other};
    for (size_t i = 0; i < 3; ++i) {
      CellLease lease(read(*cells[i]));
      is_refused[i] = !lease.acquire(&conflict);
    }
    EXPECT_EQ(conflict.reason, Conflict::Reason::kUndeclared);
  });
  record(*recording, {write(b)}, [] {});
  wait(replay(*recording));
  EXPECT_EQ(is_refused, (std::array{false, false, true}));
}

using RecordingOnPool = OnPool;

TEST_F(RecordingOnPool, IndependentBodiesRunAtTheSameTime) {
  Cell a, b;
  std::latch both(2);
  const Ref<Recording> recording = Recording::create();
  record(*recording, {write(a)}, [&both] { both.arrive_and_wait(); });
  record(*recording, {write(b)}, [&both] { both.arrive_and_wait(); });
  wait(replay(*recording));
}

TEST_F(RecordingOnPool, BodiesThatBecomeReadyTogetherRunAtTheSameTime) {
  Cell a, b;
  std::latch both(2);
  const Ref<Recording> recording = Recording::create();
  record(*recording, {write(cell)}, [] {});
  record(*recording, {read(cell), write(a)}, [&both] { both.arrive_and_wait(); });
  record(*recording, {read(cell), write(b)}, [&both] { both.arrive_and_wait(); });
  wait(replay(*recording));
}

TEST_F(RecordingOnPool, AllThreadsGetStepsInEachReplay) {
  constexpr int kBodies = 5;
  Engine::instance().set_executor("pool", kBodies);
  std::array<Cell, kBodies> cells;
  std::latch first(kBodies), second(kBodies);
  std::latch* all = &first;
  const Ref<Recording> recording = Recording::create();
  record(*recording, {write(cell)}, [] {});
  for (Cell& each : cells) record(*recording, {read(cell), write(each)}, [&all] { all->arrive_and_wait(); });
  wait(replay(*recording));
  all = &second;
  wait(replay(*recording));
}

TEST_F(RecordingOnPool, ViewsOfOtherBodiesAreNotThoseOfThisThread) {
  Cell other;
  std::latch is_open(1), is_seen(1);
  const Ref<Recording> recording = Recording::create();
  record(*recording, {write(cell)}, [&] {
    Conflict none;
    CellLease lease(read(cell));
    ASSERT_TRUE(lease.acquire(&none));
    EXPECT_TRUE(has_views_of_thread(*this_thread.running_request));
    is_open.count_down();
    is_seen.wait();
    lease.release();
    EXPECT_FALSE(has_views_of_thread(*this_thread.running_request));
    Sight view(read(cell));
    ASSERT_TRUE(view.open(&none));
    EXPECT_TRUE(has_views_of_thread(*this_thread.running_request));
  });
  record(*recording, {write(other)}, [&] {
    is_open.wait();
    EXPECT_TRUE(has_views(*this_thread.running_request));
    EXPECT_FALSE(has_views_of_thread(*this_thread.running_request));
    is_seen.count_down();
  });
  wait(replay(*recording));
}

TEST_F(RecordingOnPool, ABodyForWhichThereWasNoMemoryMakesTheRecordingUnusable) {
  const Ref<Recording> recording = Recording::create();
  const RecordedBody body{nullptr, [](void*, tenon_op* op) { reinterpret_cast<Op*>(op)->complete(); }};
  recording->begin_add(body, {"refused", nullptr});  // end_add() is missing, as after an exception
  const auto code_of = [](auto&& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.code();
    }
    return Code{};
  };
  EXPECT_EQ(code_of([&] { recording->begin_add(body, {"next", nullptr}); }), Code::kNoMemory);
  EXPECT_EQ(code_of([&] { recording->make_op("op", nullptr); }), Code::kNoMemory);
}

TEST_F(RecordingOnPool, AReplayNeedsTheLockThatABodyNeeds) {
  const Ref<Recording> recording = Recording::create();
  record(*recording, {write(cell)}, [] {});
  EXPECT_EQ(recording->make_op("op", nullptr)->traits, 0);
  recording->release();  // for the op, which is not pushed
  recording->set_needs_lock();
  EXPECT_EQ(recording->make_op("op", nullptr)->traits, Request::kNeedsLock);
  recording->release();
}

TEST_F(RecordingOnPool, ReplaysOfOneRecordingDoNotOverlap) {
  std::atomic<int> running{0};
  std::atomic<int> overlaps{0};
  const Ref<Recording> recording = Recording::create();
  record(*recording, {read(cell)}, [&] {
    overlaps += running++ != 0 ? 1 : 0;
    std::this_thread::yield();
    --running;
  });
  for (int i = 0; i < 200; ++i) replay(*recording);
  wait_all();
  EXPECT_EQ(overlaps, 0);
}

TEST_F(RecordingOnPool, ALeaseAndAReplayExcludeEachOther) {
  const Ref<Recording> recording = Recording::create();
  std::atomic<bool> has_run{false};
  record(*recording, {write(cell, 0, 2)}, [&has_run] { has_run = true; });
  record(*recording, {write(cell, 6, 8)}, [] {});
  CellLease between(write(cell, 2, 6));
  ASSERT_TRUE(between.acquire(&conflict));
  wait(replay(*recording));  // claims no bytes between those of the bodies
  EXPECT_TRUE(has_run.exchange(false));
  CellLease last(read(cell, 7, 8));
  ASSERT_TRUE(last.acquire(&conflict));
  const Ref<Op> op = replay(*recording);
  EXPECT_FALSE(op->wait(Deadline(-1), &conflict)) << "the op waits for the lease of this thread";
  EXPECT_EQ(conflict.reason, Conflict::Reason::kDeadlock);
  EXPECT_FALSE(has_run) << "the op runs as a whole";
  last.release();
  wait(op);
  EXPECT_TRUE(has_run);
}

TEST_F(RecordingOnPool, AViewRefusesAReplay) {
  const Ref<Recording> recording = Recording::create();
  auto counted = std::make_shared<int>(0);
  record(*recording, {write(cell)}, [counted] { ++*counted; });
  {
    Sight view(read(cell));
    ASSERT_TRUE(view.open(&conflict));
    EXPECT_FALSE(replay(*recording, OnHost::kRaise, &conflict));
    EXPECT_EQ(conflict.reason, Conflict::Reason::kHostView);
  }
  wait(replay(*recording));
  EXPECT_EQ(*counted, 1);
}

TEST_F(RecordingOnPool, ARefusedReplayHoldsNoMemory) {
  std::array<Cell, 4> cells;
  const Ref<Recording> recording = Recording::create();
  for (Cell& each : cells) record(*recording, {write(each)}, [] {});
  for (Cell& seen : cells) {
    Sight view(read(seen));
    ASSERT_TRUE(view.open(&conflict));
    EXPECT_FALSE(replay(*recording, OnHost::kRaise, &conflict));
    for (Cell& each : cells) {
      CellLease lease(write(each));
      EXPECT_TRUE(lease.acquire(&conflict));
    }
  }
  wait(replay(*recording));
}

TEST_F(RecordingOnPool, ReplaysUseThePartsOfEarlierOnes) {
  std::array<Cell, 2> cells;
  const Ref<Recording> recording = Recording::create();
  for (Cell& each : cells) record(*recording, {write(each)}, [&each] { ++each.value; });
  Engine::instance().set_executor("inline", 0);  // an op ends before its push returns
  replay(*recording);                            // the first use of its queues
  const RequestPart* const first = replay(*recording)->parts.data();
  // Of the size of the parts (one is the turn of the op): would get their memory if it was free.
  const std::vector<std::byte> other(sizeof(void*) + (cells.size() + 1) * sizeof(RequestPart));
  EXPECT_EQ(replay(*recording)->parts.data(), first);
  Engine::instance().set_executor("pool", 2);
  for (int i = 0; i < 300; ++i) replay(*recording);  // some of them wait while others run
  wait_all();
  for (const Cell& each : cells) EXPECT_EQ(each.value, 303);
}

TEST_F(RecordingOnPool, ReplaysThatAreUnderWayTogetherLeaveTheirPartsToLaterOnes) {
  const Ref<Recording> recording = Recording::create();
  record(*recording, {write(cell)}, [] {});
  Engine::instance().set_executor("inline", 0);
  replay(*recording);  // the first use of its queues
  std::set<const RequestPart*> first, later;
  for (std::set<const RequestPart*>* const parts : {&first, &later}) {
    std::array<Ref<Op>, 3> ops;
    for (Ref<Op>& op : ops) op = replay(*recording);
    for (const Ref<Op>& op : ops) parts->insert(op->parts.data());
  }
  EXPECT_TRUE(first.size() == 3 && later == first);
}

// append() changes the parts of an op with several claims in one queue, so that they are not used again.
TEST_F(RecordingOnPool, EachReplayClaimsWhatWasRecorded) {
  Engine::instance().set_executor("inline", 0);
  const Ref<Recording> recording = Recording::create();
  record(*recording, {Wanted{&cell, Access::kWrite, true, 2, 4}}, [] {});
  record(*recording, {read(cell)}, [] {});
  record(*recording, {write(cell)}, [] {});
  const auto claims_of_next = [&recording] {
    Ref<Op> op = recording->make_op("op", nullptr);
    std::vector<std::pair<Extent, Access>> claims;
    for (const RequestPart& part : op->parts) claims.emplace_back(part.extent, part.access);
    recording->release();  // for the op, which is not pushed
    return claims;
  };
  const auto recorded = claims_of_next();
  EXPECT_GT(recorded.size(), 2u);
  for (int i = 0; i < 3; ++i) {
    wait(replay(*recording));
    EXPECT_EQ(claims_of_next(), recorded);
  }
}

TEST_F(RecordingOnPool, TheClaimsAreInTheOrderOfTheirQueues) {
  std::array<Cell, 8> cells;
  const Ref<Recording> recording = Recording::create();
  for (const size_t i : {3, 6, 0, 7, 1, 5, 2, 4}) record(*recording, {write(cells[i])}, [] {});
  const Ref<Op> op = recording->make_op("op", nullptr);
  EXPECT_TRUE(std::is_sorted(op->parts.begin(), op->parts.end(),
                             [](const auto& a, const auto& b) { return a.home->load() < b.home->load(); }));
  recording->release();  // for the op, which is not pushed
}

TEST_F(RecordingOnPool, AnObjectIsNewOnce) {
  const Ref<Recording> recording = Recording::create();
  std::array<int, 64> objects{};
  EXPECT_TRUE(recording->is_new(&objects[0]));
  EXPECT_FALSE(recording->is_new(&objects[0]));
  EXPECT_TRUE(recording->is_new(&objects[32]));
  EXPECT_FALSE(recording->is_new(&objects[32]));
}

TEST_F(RecordingOnPool, TheFirstOfSeveralFailuresIsThatOfTheReplay) {
  Cell a, b;
  std::latch both(2), has_failed(1);
  const Ref<Recording> recording = Recording::create();
  const std::array first{write(a)}, second{write(b)};
  record(*recording, first, [&](Op* op) {
    both.arrive_and_wait();
    op->fail(new_failure("first"));
    has_failed.count_down();
  });
  record(*recording, second, [&](Op* op) {
    both.arrive_and_wait();
    has_failed.wait();
    op->fail(new_failure("second"));
  });
  const Ref<Op> op = replay(*recording);
  wait(op);
  ASSERT_TRUE(op->failure());
  EXPECT_EQ(op->failure()->op, "first");
}

TEST_F(RecordingOnPool, AFailureDoesNotOutliveTheRecordingAndItsReaders) {
  Cell a;
  int n_dropped = 0;
  Engine::instance().set_executor("inline", 0);  // no worker that may still hold an op
  {
    const Ref<Recording> recording = Recording::create();
    const std::array wanted{write(a)};
    record(*recording, wanted, [&n_dropped](Op* op) {
      op->fail(Ref<Failure>::adopt(new Failure(Code::kOp, 0, "no", nullptr, nullptr, &n_dropped,
                                               [](void* count) { ++*static_cast<int*>(count); })));
    });
    wait(replay(*recording));
  }
  wait(push({overwrite(a)}, [] {}));
  wait_all();
  take_failures();
  EXPECT_EQ(n_dropped, 1);
}

TEST_F(RecordingOnPool, AReplayedRecordingCannotBeExtended) {
  const Ref<Recording> recording = Recording::create();
  record(*recording, {write(cell)}, [] {});
  wait(replay(*recording));
  auto counted = std::make_shared<int>(0);
  EXPECT_THROW(record(*recording, {write(cell)}, [counted] {}), Error);
  EXPECT_EQ(counted.use_count(), 1);
  wait(replay(*recording));
}

void add(StepGraph& graph, const std::vector<StepUse>& uses) {
  graph.add_step();
  for (const StepUse& use : uses) graph.use(use);
}

std::vector<StepUse> claims_of(std::initializer_list<std::vector<Wanted>> steps) {
  StepGraph graph;
  for (const std::vector<Wanted>& step : steps) add(graph, uses_of(step));
  return graph.claims();
}

TEST(StepGraph, ClaimsWhatTheStepsUseTogether) {
  Cell cell;
  const uintptr_t at = cell.extent().begin;
  const auto claims = claims_of({{read(cell, 0, 4)}, {write(cell, 2, 3)}, {read(cell, 4, 6)}, {read(cell)}});
  ASSERT_EQ(claims.size(), 5u);
  EXPECT_EQ(claims[0].extent, (Extent{at, at + 2}));
  EXPECT_EQ(claims[0].access, Access::kRead);
  EXPECT_EQ(claims[1].extent, (Extent{at + 2, at + 3}));
  EXPECT_EQ(claims[1].access, Access::kWrite);
  EXPECT_EQ(claims[2].extent, (Extent{at + 3, at + 8})) << "ranges with the same access are one claim";
  EXPECT_EQ(claims[2].access, Access::kRead);
  EXPECT_EQ(claims[3].extent, (Extent{at, at + 4}))
      << "a step that reads it must find one claim to act under";
  EXPECT_EQ(claims[3].access, Access::kRead);
  EXPECT_TRUE(claims[3].is_overwrite) << "the first claims say which of its bytes must hold a value";
  EXPECT_EQ(claims[4].extent, cell.extent());
  EXPECT_EQ(claims[4].access, Access::kRead);
}

TEST(StepGraph, OnlyClaimsOfOneKindAndMemoryAreMerged) {
  std::array<Home, 2> homes;
  const auto claims_of_two = [&](StepUse a, StepUse b) {
    StepGraph graph;
    add(graph, {{a, b}});
    return graph.claims().size();
  };
  const StepUse first{&homes[0], {64, 128}, Access::kWrite, true};
  EXPECT_EQ(claims_of_two(first, {&homes[0], {128, 192}, Access::kWrite, true}), 1u);
  EXPECT_EQ(claims_of_two(first, {&homes[1], {128, 192}, Access::kWrite, true}), 2u);
  EXPECT_EQ(claims_of_two(first, {&homes[0], {128, 192}, Access::kWrite, false}), 2u);
  EXPECT_EQ(claims_of_two(first, {&homes[0], {128, 192}, Access::kRead, false}), 2u);
  StepGraph graph;
  add(graph, {{StepUse{&homes[0], {64, 128}, Access::kRead, true}}});
  EXPECT_FALSE(graph.claims().front().is_overwrite) << "a read overwrites nothing";
}

// Each use is inside of a claim that allows it, and each claimed byte has the strongest access of the steps.
TEST(StepGraph, EachUseIsInsideOfAClaim) {
  std::mt19937 random(6);
  for (int round = 0; round < 500; ++round) {
    Cell cell;
    std::array<bool, 8> is_written{}, is_used{};
    StepGraph graph;
    std::vector<StepUse> all;
    const size_t n_steps = 1 + random() % 8;
    for (size_t step = 0; step < n_steps; ++step) {
      std::vector<StepUse> uses;
      const size_t n = random() % 4;
      for (size_t i = 0; i < n; ++i) {
        const size_t begin = random() % 8;
        const size_t end = begin + 1 + random() % (8 - begin);
        const bool is_write = random() % 3 == 0;
        const Wanted wanted{&cell, is_write ? Access::kWrite : Access::kRead, is_write && random() % 2 == 0,
                            begin, end};
        uses.push_back(uses_of({&wanted, 1}).front());
        for (size_t b = begin; b < end; ++b) {
          is_used[b] = true;
          is_written[b] |= is_write;
        }
      }
      all.insert(all.end(), uses.begin(), uses.end());
      add(graph, uses);
    }
    const std::vector<StepUse> claims = graph.claims();
    for (const StepUse& use : all) {
      EXPECT_TRUE(std::any_of(claims.begin(), claims.end(), [&use](const StepUse& claim) {
        return claim.extent.contains(use.extent) && includes(claim.access, use.access);
      })) << round;
    }
    std::array<bool, 8> claims_write{}, claims_use{};
    for (const StepUse& claim : claims) {
      for (uintptr_t b = claim.extent.begin; b < claim.extent.end; ++b) {
        claims_use[b - cell.extent().begin] = true;
        claims_write[b - cell.extent().begin] |= claim.access == Access::kWrite;
      }
    }
    EXPECT_EQ(claims_use, is_used) << round;
    EXPECT_EQ(claims_write, is_written) << round;
  }
}

TEST_P(RecordingOn, BodiesReadMoreThanOthersWrite) {
  Cell cell;
  const Ref<Recording> recording = Recording::create();
  int n_granted = 0;
  const auto read_all = [&] {
    Conflict conflict;
    CellLease lease(read(cell));
    n_granted += lease.acquire(&conflict) ? 1 : 0;
  };
  record(*recording, {read(cell)}, read_all);
  record(*recording, {write(cell, 2, 4)}, [] {});
  record(*recording, {read(cell)}, read_all);
  wait(replay(*recording));
  EXPECT_EQ(n_granted, 2);
}

TEST(StepGraph, BytesAreOverwrittenIfTheirFirstStepOverwritesThem) {
  Cell cell;
  const auto overwrites = [&](std::initializer_list<std::vector<Wanted>> steps) {
    return claims_of(steps).front().is_overwrite;
  };
  EXPECT_TRUE(overwrites({{overwrite(cell)}}));
  EXPECT_TRUE(overwrites({{overwrite(cell)}, {read(cell)}, {write(cell)}}));
  EXPECT_FALSE(overwrites({{write(cell)}, {overwrite(cell)}}));
  EXPECT_FALSE(overwrites({{read(cell)}, {overwrite(cell)}}));
  EXPECT_FALSE(overwrites({{read(cell), overwrite(cell)}}));
  EXPECT_FALSE(overwrites({{overwrite(cell), read(cell)}}));
}

// Each step waits for exactly the earlier ones that conflict, directly or through others.
TEST(StepGraph, OrdersConflictingStepsAndNoOthers) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    std::array<Cell, 2> cells;
    std::vector<std::vector<StepUse>> steps(1 + random() % 24);
    StepGraph graph;
    for (auto& step : steps) {
      const size_t n = random() % 4;
      for (size_t i = 0; i < n; ++i) {
        const size_t begin = random() % 8;
        const size_t end = begin + 1 + random() % (8 - begin);
        const Wanted wanted{&cells[random() % 2], random() % 2 == 0 ? Access::kRead : Access::kWrite, false,
                            begin, end};
        step.push_back(uses_of({&wanted, 1}).front());
      }
      add(graph, step);
    }
    const size_t n = steps.size();
    std::vector<std::vector<bool>> expected(n, std::vector<bool>(n)), found = expected;
    std::vector<uint32_t> n_before(n);
    for (size_t to = 0; to < n; ++to) {
      for (size_t from = 0; from < to; ++from) {
        for (const StepUse& a : steps[from]) {
          for (const StepUse& b : steps[to]) {
            if (in_conflict(a.access, a.extent, b.access, b.extent)) expected[from][to] = true;
          }
        }
      }
    }
    for (uint32_t from = 0; from < n; ++from) {
      graph.visit_after(from, [&](uint32_t to) {
        EXPECT_FALSE(found[from][to]) << "counted twice";
        EXPECT_TRUE(expected[from][to]) << from << " to " << to << " in round " << round;
        found[from][to] = true;
        ++n_before[to];
      });
    }
    for (uint32_t i = 0; i < n; ++i) EXPECT_EQ(graph.n_before(i), n_before[i]);
    const auto close = [n](std::vector<std::vector<bool>>& reaches) {
      for (size_t k = 0; k < n; ++k) {
        for (size_t i = 0; i < n; ++i) {
          for (size_t j = 0; reaches[i][k] && j < n; ++j) reaches[i][j] = reaches[i][j] || reaches[k][j];
        }
      }
    };
    close(expected);
    close(found);
    ASSERT_EQ(expected, found) << "round " << round;
  }
}

}  // namespace
}  // namespace tenon::impl
