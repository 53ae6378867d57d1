// SPDX-License-Identifier: Apache-2.0
//
// The laws of memory that other processes use, too, case by case. The processes are stand-ins
// (gate_testing.h).
#include "sync/gate.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <latch>
#include <string>
#include <thread>

#include "exec/gate_testing.h"

namespace tenon::impl {
namespace {

constexpr int64_t kSoon = 2'000'000;

// Two memories, two processes. Of memories the second one comes first in the order of the gates.
class GatesOn : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { Engine::instance().set_executor(GetParam(), 2); }
  void TearDown() override {
    wait_all();
    (void)take_failures();
    for (Turns* turns : all_) EXPECT_EQ(turns->grants(), 0U) << "every grant ends";
    for (StandInProcess* process : {&here_, &there_}) {
      for (const auto& cell : process->cells) {
        EXPECT_FALSE(cell->queue.has_parts());
        EXPECT_FALSE(cell->queue.has_views());
      }
    }
  }
  // A lease of the other process, by a thread of its own.
  class Elsewhere {
   public:
    explicit Elsewhere(const Wanted& wanted) {
      std::thread([&] {
        lease_.emplace(wanted);
        Conflict conflict;
        EXPECT_TRUE(lease_->acquire(&conflict));
        lease_->detach();
      }).join();
    }
    void end() { lease_.reset(); }

   private:
    std::optional<CellLease> lease_;
  };

  Turns late_{2}, early_{1};
  std::array<Turns*, 2> all_{&late_, &early_};
  StandInProcess here_{1, all_}, there_{2, all_};
};
INSTANTIATE_TEST_SUITE_P(Executors, GatesOn, testing::Values("pool", "inline", "seeded:5"));

Conflict::Reason refused(CellLease& lease, int64_t timeout_ns = kSoon, Conflict* out = nullptr) {
  Conflict conflict;
  EXPECT_FALSE(lease.acquire(&conflict, timeout_ns));
  if (out != nullptr) *out = conflict;
  return conflict.reason;
}

TEST_P(GatesOn, ALeaseExcludesOtherProcessesAndMovesTheVersionOnce) {
  Conflict conflict;
  CellLease mine(write(here_[0]));
  ASSERT_TRUE(mine.acquire(&conflict));
  CellLease theirs(read(there_[0]));
  EXPECT_EQ(refused(theirs, kSoon, &conflict), Conflict::Reason::kTimeout);
  EXPECT_EQ(conflict.holder.kind, HolderKind::kProcess);
  EXPECT_NE(text_of(conflict.holder).find("process 1 (stand-in) that holds it for writing since "),
            std::string::npos)
      << text_of(conflict.holder);
  const uint64_t before = there_.gates[0]->version();
  mine.release();
  EXPECT_EQ(there_.gates[0]->version(), before + 1);
  ASSERT_TRUE(theirs.acquire(&conflict));
  theirs.release();
  EXPECT_EQ(there_.gates[0]->version(), before + 1) << "reading is no version";
}

TEST_P(GatesOn, WhatIsRefusedAtTheSecondGateGivesEverythingBack) {
  Elsewhere there(write(there_[0]));
  std::array<RequestPart, 2> parts;
  describe(write(here_[0]), parts[0]);
  describe(write(here_[1]), parts[1]);
  BlockingRequest both(HolderKind::kCall, parts);
  both.owner = current_actor();
  Conflict conflict;
  EXPECT_FALSE(both.acquire(Deadline(kSoon), &conflict));
  EXPECT_EQ(conflict.reason, Conflict::Reason::kTimeout);
  EXPECT_EQ(conflict.part->home, &here_[0].home);
  EXPECT_EQ(early_.turns_taken(), 1U) << "it had passed the gate that comes first";
  EXPECT_EQ(early_.grants(), 0U);
  EXPECT_EQ(here_.gates[1]->version(), 0U) << "nothing was written";
  EXPECT_FALSE(here_[0].queue.has_parts());
  there.end();
  ASSERT_TRUE(both.acquire(Deadline(-1), &conflict));
  release(both);
}

TEST_P(GatesOn, OfOneMemoryAClaimTakesOneTurnForAllThatItUses) {
  const Ref<Op> op = make({read(here_[0], 0, 2), write(here_[0], 6, 7)}, [&](Op* self) {
    EXPECT_TRUE(late_.holds(1, {0, 7}, Access::kWrite));
    self->complete();
  });
  ASSERT_TRUE(submit(op));
  wait(op);
  EXPECT_EQ(late_.turns_taken(), 1U);
  EXPECT_EQ(late_.grants(), 0U);
}

TEST_P(GatesOn, WhatIsTakenUnderALeaseSharesItsGrantAndKeepsIt) {
  Conflict conflict;
  std::optional<Sight> view;
  CellLease outer(write(here_[0]));
  ASSERT_TRUE(outer.acquire(&conflict));
  {
    CellLease inner(read(here_[0], 2, 4));
    ASSERT_TRUE(inner.acquire(&conflict));
    view.emplace(write(here_[0], 2, 3));
    ASSERT_TRUE(view->open(&conflict));
  }
  EXPECT_EQ(late_.turns_taken(), 1U);
  outer.release();
  EXPECT_TRUE(late_.holds(1, {0, 8}, Access::kWrite)) << "the view outlives the block";
  CellLease theirs(read(there_[0]));
  EXPECT_EQ(refused(theirs), Conflict::Reason::kTimeout);
  Sight joins(read(here_[0], 2, 3)), wider(read(here_[0], 2, 4));
  EXPECT_TRUE(joins.open(&conflict));
  EXPECT_EQ(reason_of([&](Conflict* r) { return wider.open(r); }), Conflict::Reason::kNoPossession);
  view.reset();
  EXPECT_EQ(refused(theirs), Conflict::Reason::kTimeout) << "another view has joined it";
  joins.close();
  EXPECT_TRUE(theirs.acquire(&conflict));
}

TEST_P(GatesOn, AViewNeedsPossession) {
  Conflict conflict;
  Sight view(read(here_[0])), writer(write(here_[0]));
  EXPECT_EQ(reason_of([&](Conflict* r) { return view.open(r); }), Conflict::Reason::kNoPossession);
  CellLease lease(read(here_[0]));
  ASSERT_TRUE(lease.acquire(&conflict));
  EXPECT_EQ(reason_of([&](Conflict* r) { return writer.open(r); }), Conflict::Reason::kOwnLease);
  std::thread([&] {
    Sight other(read(here_[0]));
    EXPECT_EQ(reason_of([&](Conflict* r) { return other.open(r); }), Conflict::Reason::kNoPossession);
  }).join();
  lease.detach();
  EXPECT_EQ(here_.gates[0]->disowned, 1);
  std::thread([&] {
    EXPECT_TRUE(view.open(&conflict)) << "every thread may act under a lease without an owner";
    EXPECT_EQ(reason_of([&](Conflict* r) { return writer.open(r); }), Conflict::Reason::kNoPossession);
    View weakened;
    describe(write(here_[0]), weakened);
    EXPECT_EQ(try_open_view(weakened, true, &conflict), Appended::kGranted);
    EXPECT_EQ(weakened.access, Access::kRead);
    close_view(weakened);
  }).join();
  view.close();
}

TEST_P(GatesOn, ACallTakesItsTurnOrActsUnderWhatThereIs) {
  Conflict conflict;
  const auto call = [&](const Wanted& wanted, int64_t timeout_ns = -1) {
    std::array<RequestPart, 1> part;
    describe(wanted, part[0]);
    BlockingRequest request(HolderKind::kCall, part);
    request.owner = current_actor();
    if (!request.acquire(Deadline(timeout_ns), &conflict)) return false;
    EXPECT_TRUE(late_.holds(1, {wanted.begin, wanted.end}, wanted.access));
    release(request);
    return true;
  };
  EXPECT_TRUE(call(write(here_[0])));
  EXPECT_EQ(late_.turns_taken(), 1U);
  EXPECT_EQ(late_.grants(), 0U);
  {
    Elsewhere there(read(there_[0]));
    EXPECT_FALSE(call(write(here_[0]), kSoon));
    EXPECT_TRUE(call(read(here_[0])));
  }
  const uint64_t before = late_.turns_taken();
  CellLease lease(write(here_[0]));
  ASSERT_TRUE(lease.acquire(&conflict));
  EXPECT_TRUE(call(write(here_[0])));
  lease.detach();
  std::thread([&] { EXPECT_TRUE(call(write(here_[0]))); }).join();
  Sight view(write(here_[0], 0, 4));
  ASSERT_TRUE(view.open(&conflict));
  lease.release();
  EXPECT_TRUE(call(write(here_[0], 1, 3))) << "the view continues the lease for the thread that took it";
  std::thread([&] { EXPECT_FALSE(call(write(here_[0], 1, 3), kSoon)); }).join();
  EXPECT_EQ(late_.turns_taken(), before + 1);
}

TEST_P(GatesOn, AnOpWaitsAtTheGatesWithoutAThreadAndRunsWithItsGrants) {
  std::optional<Elsewhere> there(std::in_place, write(there_[0]));
  std::atomic<int> ran{0};
  std::vector<Ref<Op>> ops;
  for (int i = 0; i < 20; ++i) {  // more than there are workers
    ops.push_back(push({write(here_[0]), write(here_[1])}, [&] {
      EXPECT_TRUE(late_.holds(1, {0, 8}, Access::kWrite));
      EXPECT_TRUE(early_.holds(1, {0, 8}, Access::kWrite));
      ++here_[0].value;
      ++ran;
    }));
  }
  Cell free;
  wait(push({write(free)}, [&] { free.value = 1; }));
  EXPECT_EQ(free.value, 1) << "no worker sleeps";
  EXPECT_EQ(ran, 0);
  there.reset();
  for (const Ref<Op>& op : ops) wait(op);
  EXPECT_EQ(here_[0].value, 20);
}

TEST_P(GatesOn, AnOpThatIsRefusedFailsAndSoDoWhatReadsItsOutputs) {
  Cell out;
  const Ref<Op> sound = push({overwrite(out)}, [] {});
  wait(sound);
  for (const bool is_late : {false, true}) {
    std::optional<Elsewhere> there;
    if (is_late) there.emplace(write(there_[0]));
    if (!is_late) late_.refuse_next(Conflict::Reason::kOwnerDied);
    const uint64_t version = here_.gates[1]->version();
    std::atomic<int> told{0};
    const Ref<Op> op = push({read(here_[0]), write(here_[1]), write(out)}, [] { FAIL(); });
    DoneCall done{[](void* n) { ++*static_cast<std::atomic<int>*>(n); }, &told};
    op->call_when_done(&done);
    const Ref<Op> after = push({read(out)}, [] { FAIL(); });
    if (is_late) late_.refuse_next(Conflict::Reason::kOwnerDied);
    there.reset();
    wait(after);
    EXPECT_EQ(told, 1);
    ASSERT_TRUE(op->failure());
    EXPECT_EQ(op->failure()->code, Code::kOwnerDied);
    EXPECT_EQ(op->failure()->op_code, 4711);
    EXPECT_NE(op->failure()->text().find("process 4711 died while it was writing there"), std::string::npos);
    EXPECT_EQ(after->failure().get(), op->failure().get());
    EXPECT_EQ(failure_of(here_[1].home, here_[1].extent()).get(), op->failure().get());
    EXPECT_EQ(early_.grants(), 0U);
    EXPECT_EQ(here_.gates[1]->version(), version) << "nothing was written";
    EXPECT_EQ(take_failures(), 1U);
    wait(push({overwrite(here_[1]), overwrite(out)}, [] {}));
  }
  late_.refuse_next(Conflict::Reason::kOwnerDied);
  const Ref<Op> heals = push({overwrite(here_[0])}, [] {});
  wait(heals);
  EXPECT_FALSE(heals->failure()) << "a full overwrite ignores the death of a writer";
}

TEST_P(GatesOn, ARequestIsToldOfItsTurnOnceAndCanBeTakenBackBefore) {
  std::optional<Elsewhere> there(std::in_place, write(there_[0]));
  std::atomic<int> told{0};
  Conflict conflict;
  {
    CellLease lease(read(here_[0]));
    PendingRequest pending;
    ASSERT_EQ(lease.submit(&pending, &told, &conflict), Appended::kWaiting);
    Sight view(read(here_[0]));
    EXPECT_EQ(reason_of([&](Conflict* r) { return view.open(r); }), Conflict::Reason::kNoPossession)
        << "its own thread does not act under it yet";
    EXPECT_TRUE(lease.cancel());
    WaitGraph::instance().leave(&pending.node);
    EXPECT_EQ(late_.grants(), 1U);
    EXPECT_FALSE(here_[0].queue.has_parts());
  }
  CellLease lease(read(here_[0]));
  PendingRequest pending;
  ASSERT_EQ(lease.submit(&pending, &told, &conflict), Appended::kWaiting);
  there.reset();
  while (told == 0) std::this_thread::yield();
  EXPECT_FALSE(pending.is_refused);
  EXPECT_TRUE(late_.holds(1, {0, 8}, Access::kRead));
  EXPECT_FALSE(lease.cancel()) << "it has been granted";
  lease.release();
  EXPECT_EQ(told, 1);
}

TEST_P(GatesOn, ARefusedRequestSaysWhyAndStandsInNobodysWay) {
  for (const bool is_late : {false, true}) {
    std::optional<Elsewhere> there;
    if (is_late) there.emplace(write(there_[0]));
    if (!is_late) late_.refuse_next(Conflict::Reason::kOwnerDied);
    std::atomic<int> told{0};
    Conflict conflict;
    CellLease lease(write(here_[0]));
    PendingRequest pending;
    EXPECT_EQ(lease.submit(&pending, &told, &conflict), is_late ? Appended::kWaiting : Appended::kGranted);
    if (is_late) late_.refuse_next(Conflict::Reason::kOwnerDied);
    there.reset();
    while (is_late && told == 0) std::this_thread::yield();
    EXPECT_EQ(told, is_late ? 1 : 0);
    EXPECT_TRUE(pending.is_refused);
    EXPECT_EQ(pending.conflict.reason, Conflict::Reason::kOwnerDied);
    EXPECT_EQ(pending.conflict.part->home, &here_[0].home);
    EXPECT_FALSE(here_[0].queue.has_parts());
  }
}

TEST_P(GatesOn, ARequestThatIsTakenBackBetweenItsGatesDoesNotWaitAtTheNext) {
  Elsewhere first(write(there_[1])), second(write(there_[0]));
  std::array<RequestPart, 2> parts;
  describe(write(here_[0]), parts[0]);
  describe(write(here_[1]), parts[1]);
  BlockingRequest both(HolderKind::kLease, parts);
  both.owner = current_actor();
  std::atomic<int> told{0};
  PendingRequest pending;
  pending.done = [](void* n) { ++*static_cast<std::atomic<int>*>(n); };
  pending.context = &told;
  Conflict conflict;
  ASSERT_EQ(both.submit(&pending, &conflict), Appended::kWaiting);
  first.end();
  while (!early_.holds(1, {0, 8}, Access::kWrite)) std::this_thread::yield();
  // It is on its way to the second gate, or waits there.
  if (cancel(both)) {
    WaitGraph::instance().leave(&pending.node);
    EXPECT_EQ(told, 0);
  } else {
    while (told == 0) std::this_thread::yield();
    release(both);
  }
  EXPECT_EQ(early_.grants(), 0U);
}

TEST_P(GatesOn, ABodyDoesNotWaitAtAGate) {
  Elsewhere there(write(there_[0]));
  Queue own;  // of memory that the body has made
  const Ref<Op> op = make({write(here_[1])}, [&](Op* self) {
    here_[0].queue.set_birth(self->number());
    CellLease lease(read(here_[0]));
    EXPECT_EQ(refused(lease, -1), Conflict::Reason::kInBody);
    CellLease nested(write(here_[1]));
    Conflict conflict;
    EXPECT_TRUE(nested.acquire(&conflict)) << "under its own part it may take what it wants";
    nested.release();
    self->complete();
  });
  ASSERT_TRUE(submit(op));
  wait(op);
  here_[0].queue.set_birth(0);
}

TEST_P(GatesOn, TheDeadlineOfALeaseHoldsAtTheGateToo) {
  Conflict conflict;
  Elsewhere there(read(there_[0]));
  CellLease reader(read(here_[0]));
  ASSERT_TRUE(reader.acquire(&conflict));
  reader.release();
  CellLease now(write(here_[0]));
  EXPECT_EQ(refused(now, 0), Conflict::Reason::kTimeout);
  std::latch asked(1);
  std::thread behind([&] {  // the local queue, then the gate
    CellLease lease(write(here_[0]));
    asked.count_down();
    EXPECT_EQ(refused(lease, 20 * kSoon), Conflict::Reason::kTimeout);
  });
  asked.wait();
  behind.join();
}

TEST(Gates, AGateIsNoBusinessOfOtherMemory) {
  Cell cell;
  Conflict conflict;
  Sight view(write(cell));
  EXPECT_TRUE(view.open(&conflict));
  CellLease lease(write(cell));
  EXPECT_TRUE(lease.acquire(&conflict));
}

}  // namespace
}  // namespace tenon::impl
