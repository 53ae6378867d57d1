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

void record(Recording& recording, std::span<const Wanted> wanted, Body body, const char* name = "body") {
  auto owned = std::make_unique<Body>(std::move(body));
  const auto run = [](void* context, tenon_op* op) {
    (*static_cast<Body*>(context))(reinterpret_cast<Op*>(op));
  };
  recording.begin_add({owned.get(), run}, {name, "here:2"});
  for (const StepUse& use : uses_of(wanted)) recording.add_use(use);
  recording.keep({owned.get(), [](void* context) { delete static_cast<Body*>(context); }});
  (void)owned.release();
  recording.end_add();
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
  Cell a;
  const Ref<Recording> recording = Recording::create();
  Ref<Op> pushed;
  Conflict conflict;
  record(*recording, {write(a)}, [&] {
    pushed = push({write(a)}, [&a] { a.value = 4; });  // behind the replay
    EXPECT_FALSE(pushed->wait(Deadline(-1), &conflict));
  });
  wait(replay(*recording));
  EXPECT_EQ(conflict.reason, Conflict::Reason::kInBody);
  wait(pushed);
  EXPECT_EQ(a.value, 4);
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
  // Of the size of the parts, one of which is the turn of the op: an allocator that has the memory of the
  // parts gives it to this vector, and not to the next op.
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
  EXPECT_EQ(first.size(), 3u);
  EXPECT_EQ(later, first);
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

TEST_F(RecordingOnPool, ReplaysOfBodiesThatWriteNothingRunOneAfterTheOther) {
  const Wanted wanted[] = {read(cell)};
  for (const size_t n_uses : {0, 1}) {
    std::atomic<int> n_running{0}, n_runs{0};
    const Ref<Recording> recording = Recording::create();
    record(*recording, std::span(wanted, n_uses), [&](Op* op) {
      EXPECT_EQ(++n_running, 1);
      std::this_thread::yield();
      ++n_runs;
      --n_running;
      op->complete();
    });
    constexpr int kReplays = 200;
    for (int i = 0; i < kReplays; ++i) (void)replay(*recording);
    wait_all();
    EXPECT_EQ(n_runs, kReplays);
  }
}

// The list is searched when a queue ends, and may have an entry for each array.
TEST_F(RecordingOnPool, ARecordingThatWritesHasNoQueueOfItsOwn) {
  wait(push({write(cell)}, [] {}));
  const size_t n_listed = ListedQueues::count();
  const Ref<Recording> recording = Recording::create();
  record(*recording, {write(cell)}, [] {});
  wait(replay(*recording));
  EXPECT_LE(ListedQueues::count(), n_listed);
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

}  // namespace
}  // namespace tenon::impl
