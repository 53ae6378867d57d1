// SPDX-License-Identifier: Apache-2.0
//
// The consumers of a feed: what each has is given back after its death, by any process that has the segment
// open; a slot is taken again only when nobody wants it, and its state is noted; damaged memory hurts no
// reaper.
#include "ipc/served_ends.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "ipc/served_testing.h"
#include "ipc/stand_in_testing.h"

namespace tenon::impl {
namespace {

constexpr uint32_t kSlots = 4;

// Several stand-ins in one segment with a feed. The first one is the server.
class Served : public testing::Test {
 protected:
  Served() {
    const NamedArray bytes = one_byte();
    SegmentPlan plan;
    plan.blocks = 2;
    plan.array = &bytes;
    plan.feed_slots = kSlots;
    plan.feed_pages = static_cast<uint32_t>((ServedState::end_at(kSlots) + kPage - 1) / kPage);
    plan.data_nbytes = plan.feed_pages * kPage + kSlots * kPage;
    server_ = std::make_unique<StandIn>(plan);
    Segment& segment = server_->segment();
    begin_state(segment);
    state().noted = ServedState::kNoStates;
    ends().serve(server_->index());
  }

  ServedState& state() { return *server_->segment().control().served(); }
  ServedEnds ends() { return ServedEnds(server_->segment().control()); }
  SlotTable table() { return ends().table(); }
  void set_mode(ServedMode mode) { state().mode = mode; }
  std::unique_ptr<StandIn> join() {
    auto other = std::make_unique<StandIn>(*server_);
    ends().begin_join(other->index(), false);
    ends().end_join(other->index(), 0);
    return other;
  }
  void fill_all(uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) ASSERT_NE(fill(ends()), 0U);
  }
  static uint64_t generation(const Event& event) { return observe(event.sleepers) >> 32; }

  std::unique_ptr<StandIn> server_;
};

TEST_F(Served, WhatADeadConsumerHadIsGivenBackByOneThatReceivesNothing) {
  set_mode(ServedMode::kQueue);
  fill_all(3);
  const auto dead = join();
  const uint32_t p = dead->index();
  ASSERT_EQ(receive(ends(), p).number, 1U);
  // It has died between its two stores.
  const uint32_t slot = table().slot_of(2);
  ASSERT_TRUE(table().change(slot, SlotWord::ready(2), SlotWord::held(p, 2)));
  table().set_reader(p, table().slot_of(3));
  state().records[p].ended = 7;
  const std::vector<uint64_t> before{generation(state().pool().settled), generation(state().pool().room),
                                     generation(state().ends)};
  dead->die();
  StandIn other(*server_);  // takes the place
  EXPECT_EQ(table().passed(), 2U) << "the batch that it had is lost, and nobody waits for it";
  EXPECT_EQ(table().word(slot), SlotWord::kFree);
  EXPECT_EQ(table().word(table().slot_of(3)), SlotWord::ready(3));
  EXPECT_TRUE(is_empty(table().readers(table().slot_of(3))));
  EXPECT_EQ(state().records[p].word, CursorRecord::kNone);
  EXPECT_EQ(state().records[p].cursor, 0U);
  EXPECT_EQ(state().records[p].ended, 0U);
  EXPECT_FALSE(has_bit(state().users, p));
  EXPECT_TRUE(has_bit(state().users, server_->index()));
  EXPECT_NE(generation(state().pool().settled), before[0]);
  EXPECT_NE(generation(state().pool().room), before[1]);
  EXPECT_NE(generation(state().ends), before[2]);
  EXPECT_EQ(ends().count(), 0U);
}

TEST_F(Served, AStoppedConsumerKeepsOneBatchAndTheOthersGoOn) {
  set_mode(ServedMode::kQueue);
  const auto stopped = join(), other = join();
  fill_all(3);
  const uint32_t slot = table().slot_of(1);
  ASSERT_TRUE(table().change(slot, SlotWord::ready(1), SlotWord::held(stopped->index(), 1)));
  for (uint64_t n = 2; n < 20; ++n) {
    const Received batch = receive(ends(), other->index());
    ASSERT_EQ(batch.number, n);
    let_go(ends(), other->index(), batch);
    ASSERT_NE(fill(ends()), 0U);
  }
  EXPECT_EQ(table().word(slot), SlotWord::held(stopped->index(), 1));
}

TEST_F(Served, ABatchIsTakenOnce) {
  set_mode(ServedMode::kQueue);
  const auto one = join(), two = join();
  fill_all(1);
  ASSERT_TRUE(ends().take(one->index(), 0, 1));
  EXPECT_FALSE(ends().take(two->index(), 0, 1));
  EXPECT_EQ(receive(ends(), two->index()).number, 0U);
}

TEST_F(Served, NoSlotIsFreeBeforeItsStateIsNoted) {
  set_mode(ServedMode::kQueue);
  state().noted = 0;
  const auto one = join(), dead = join();
  fill_all(4);
  const Received first = receive(ends(), one->index());
  ASSERT_EQ(receive(ends(), dead->index()).number, 2U);
  const Received third = receive(ends(), one->index());
  let_go(ends(), one->index(), third);
  let_go(ends(), one->index(), first);
  dead->die();
  reap_all(server_->segment().control());
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(table().word(i), SlotWord::unnoted(i + 1));
  EXPECT_EQ(free_slot(ends()), kNoSlot);
  std::vector<uint64_t> noted;
  const auto note = [&](uint32_t slot, uint64_t n) {
    EXPECT_EQ(slot, n - 1);
    EXPECT_NE(table().word(slot), SlotWord::kFree);
    noted.push_back(n);
  };
  ends().note_up_to(2, note);
  EXPECT_EQ(noted, (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(table().word(0), SlotWord::kFree);
  EXPECT_EQ(table().word(1), SlotWord::kFree);
  EXPECT_EQ(table().word(2), SlotWord::unnoted(3));
  EXPECT_EQ(state().noted, 2U);
  // Noted while a consumer has it: it frees the slot.
  const Received fourth = receive(ends(), one->index());
  ends().note_up_to(4, note);
  EXPECT_EQ(noted, (std::vector<uint64_t>{1, 2, 3, 4}));
  EXPECT_EQ(table().word(3), SlotWord::held(one->index(), 4));
  let_go(ends(), one->index(), fourth);
  EXPECT_EQ(table().word(3), SlotWord::kFree);
}

// It had looked at what is noted before it gave the slot back, and has died before it looked again.
TEST_F(Served, ASlotThatWasNotedMeanwhileIsFreedByTheReaper) {
  set_mode(ServedMode::kQueue);
  state().noted = 0;
  const auto dead = join();
  fill_all(2);
  ASSERT_EQ(receive(ends(), dead->index()).number, 1U);
  ends().note_up_to(1, [](uint32_t, uint64_t) {});
  ASSERT_TRUE(table().change(0, SlotWord::held(dead->index(), 1), SlotWord::unnoted(1)));
  dead->die();
  reap_all(server_->segment().control());
  EXPECT_EQ(table().word(0), SlotWord::kFree);
}

// A thread of the feed hangs in ticket 1, another one fills ticket 2, and 3 is not passed.
TEST_F(Served, OnlyStatesOfBatchesThatWereReceivedAreNoted) {
  set_mode(ServedMode::kQueue);
  state().noted = 0;
  fill_all(3);
  ASSERT_TRUE(table().change(0, SlotWord::ready(1), SlotWord::make(SlotWord::kLeft, kWorker, 1)));
  ASSERT_TRUE(table().change(1, SlotWord::ready(2), SlotWord::held(kWorker, 2)));
  ends().note_up_to(2, [](uint32_t, uint64_t n) { ADD_FAILURE() << n; });
  EXPECT_EQ(state().noted, 2U);
}

TEST_F(Served, EachConsumerOfABroadcastReadsEachBatchBeforeItsSlotIsTaken) {
  set_mode(ServedMode::kBroadcast);
  const auto one = join(), two = join();
  fill_all(kSlots);
  EXPECT_EQ(fill(ends()), 0U);
  const Received first = receive(ends(), one->index());
  EXPECT_EQ(first.number, 1U);
  let_go(ends(), one->index(), first);
  EXPECT_EQ(floor_of(state(), table(), 0), 0U);
  EXPECT_EQ(fill(ends()), 0U) << "the other one wants it";
  const Received read = receive(ends(), two->index());
  EXPECT_EQ(read.number, 1U);
  EXPECT_EQ(floor_of(state(), table(), 0), 1U);
  EXPECT_TRUE(ends().is_read(read.slot));
  EXPECT_EQ(fill(ends()), 0U) << "the other one reads it";
  let_go(ends(), two->index(), read);
  EXPECT_EQ(fill(ends()), kSlots + 1);
  ASSERT_EQ(receive(ends(), one->index()).number, 2U);
  ASSERT_EQ(receive(ends(), one->index()).number, 3U);
  EXPECT_EQ(ends().held(), 2U);
  two->die();
  EXPECT_EQ(floor_of(state(), table(), 0), 1U) << "the dead one counts";
  reap_all(server_->segment().control());
  EXPECT_EQ(floor_of(state(), table(), 0), 3U) << "until it is reaped";
  EXPECT_EQ(fill(ends()), 0U) << "but the other one reads both";
  ends().leave(one->index());
  let_go(ends(), one->index(), {table().slot_of(2), 2});
  EXPECT_EQ(fill(ends()), kSlots + 2);
}

TEST_F(Served, ASlotOfABroadcastIsNotTakenBeforeItsStateIsNoted) {
  set_mode(ServedMode::kBroadcast);
  state().noted = 0;
  const auto one = join();
  fill_all(kSlots);
  let_go(ends(), one->index(), receive(ends(), one->index()));
  EXPECT_EQ(fill(ends()), 0U);
  ends().note_up_to(1, [](uint32_t, uint64_t) {});
  EXPECT_EQ(fill(ends()), kSlots + 1);
}

// The batches of a round that is over are wanted by nobody, but those that are read stay.
TEST_F(Served, OfABroadcastWhatIsPastIsSpare) {
  set_mode(ServedMode::kBroadcast);
  const auto one = join();
  fill_all(kSlots);
  const Received read = receive(ends(), one->index());
  const uint64_t base = table().begin_anew();
  for (uint64_t i = 1; i < kSlots; ++i) EXPECT_EQ(fill(ends(), base), base + i - 1);
  EXPECT_EQ(fill(ends(), base), 0U);
  EXPECT_EQ(table().word(read.slot), SlotWord::ready(1));
}

TEST_F(Served, ALateConsumerOfABroadcastHasNoGap) {
  set_mode(ServedMode::kBroadcast);
  const auto one = join();
  fill_all(kSlots);
  for (uint64_t n = 1; n <= 2; ++n) {
    const Received batch = receive(ends(), one->index());
    let_go(ends(), one->index(), batch);
  }
  ASSERT_EQ(fill(ends()), kSlots + 1);  // in the slot of batch 1
  const auto late = join();
  EXPECT_EQ(state().records[late->index()].cursor, 2U);
  EXPECT_EQ(floor_of(state(), table(), 0), 2U);
  EXPECT_EQ(receive(ends(), late->index()).number, 3U);
}

TEST_F(Served, NoRoundBeginsBeforeEachLivingConsumerHasEndedThisOne) {
  set_mode(ServedMode::kQueue);
  constexpr uint64_t kBase = 9;
  EXPECT_TRUE(ends().have_all_ended(kBase)) << "there is none";
  const auto one = join();
  EXPECT_FALSE(ends().have_all_ended(kBase));
  ends().end_round(one->index(), kBase);
  EXPECT_TRUE(ends().have_all_ended(kBase));
  EXPECT_EQ(state().told, kBase);
  EXPECT_FALSE(ends().have_all_ended(kBase + 1)) << "the next one";
  const auto joining = std::make_unique<StandIn>(*server_);
  ends().begin_join(joining->index(), true);
  EXPECT_FALSE(ends().have_all_ended(kBase)) << "it may be of this round";
  EXPECT_EQ(ends().count(), 2U);
  ends().end_join(joining->index(), kBase, true);
  EXPECT_EQ(state().records[joining->index()].word, CursorRecord::kConsumer | CursorRecord::kHasWanted);
  ends().drop_wanted();
  EXPECT_EQ(state().records[joining->index()].word, CursorRecord::kConsumer) << "a round has begun";
  EXPECT_TRUE(ends().have_all_ended(kBase)) << "it is not";
  const auto dead = join();
  EXPECT_FALSE(ends().have_all_ended(kBase));
  dead->die();
  EXPECT_TRUE(ends().have_all_ended(kBase)) << "before it is reaped";
  const auto left = join();
  ends().leave(left->index());
  EXPECT_TRUE(ends().have_all_ended(kBase));
  EXPECT_EQ(ends().count(), 2U);
  ends().begin_join(left->index(), false);
  EXPECT_FALSE(ends().have_all_ended(kBase)) << "it has come again";
  ends().end_loop(one->index(), kBase + 3);
  EXPECT_EQ(state().told, kBase) << "a loop that is closed is told no end";
}

TEST_F(Served, TheServerIsKnownByItsPlaceAndItsTurnThere) {
  EXPECT_TRUE(ends().is_server_alive());
  auto dead = std::make_unique<StandIn>(*server_);
  const uint32_t p = dead->index();
  ends().serve(p);
  EXPECT_TRUE(ends().is_server_alive());
  dead->die();
  EXPECT_FALSE(ends().is_server_alive());
  StandIn other(*server_);
  ASSERT_EQ(other.index(), p);
  EXPECT_FALSE(ends().is_server_alive()) << "another process has its place";
  state().server = UINT32_MAX - 1;
  EXPECT_FALSE(ends().is_server_alive());
}

TEST_F(Served, ASleeperWakesForASignalAndForADeath) {
  set_mode(ServedMode::kQueue);
  const auto consumer = join();
  const auto visit = [&](const auto& add) { ends().visit_consumers(add); };
  std::atomic<bool> is_so{false};
  std::thread first([&] {
    EXPECT_TRUE(ends().sleep(
        server_->index(), state().pool().settled, Deadline(-1), [&] { return is_so.load(); }, visit));
  });
  while (!state().pool().settled.has_sleepers()) std::this_thread::yield();
  is_so = true;
  state().pool().settled.signal_all();
  first.join();
  EXPECT_FALSE(state().pool().settled.has_sleepers());
  std::thread second([&] {
    EXPECT_TRUE(ends().sleep(
        server_->index(), state().ends, Deadline(-1), [&] { return ends().count() == 0; }, visit));
  });
  while (!state().ends.has_sleepers()) std::this_thread::yield();
  consumer->die();
  second.join();
  EXPECT_FALSE(
      ends().sleep(server_->index(), state().ends, Deadline(1'000'000), [] { return false; }, visit));
  EXPECT_FALSE(state().ends.has_sleepers());
}

TEST_F(Served, DamagedMemoryHurtsNoReaper) {
  std::mt19937 random(7);
  const uint64_t nbytes = ServedState::end_at(kSlots);
  for (int i = 0; i < 300; ++i) {
    const auto dead = join();
    const uint32_t p = dead->index();
    auto* const bytes = reinterpret_cast<std::byte*>(&state());
    if (i % 3 == 0) {
      for (uint64_t at = 0; at < nbytes; ++at) bytes[at] = std::byte(random());
    } else {
      const uint64_t begin = random() % nbytes, end = begin + random() % 256;
      for (uint64_t at = begin; at < std::min(end, nbytes); ++at) bytes[at] = std::byte(random());
    }
    set_bit(state().users, p);
    set_mode(i % 2 == 0 ? ServedMode::kQueue : ServedMode::kBroadcast);
    dead->die();
    reap_all(server_->segment().control());
    EXPECT_FALSE(has_bit(state().users, p));
    (void)ends().count();
    (void)ends().have_all_ended(random());
    (void)floor_of(state(), table(), random());
    (void)ends().held();
    (void)ends().is_server_alive();
    ends().help();
    ends().reap_dead();
    StandIn other(*server_);
    ends().begin_join(other.index(), false);
    (void)receive(ends(), other.index());
  }
}

}  // namespace
}  // namespace tenon::impl
