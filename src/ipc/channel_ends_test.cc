// SPDX-License-Identifier: Apache-2.0
//
// The ends of a channel: deaths are counted once, by whichever reaper comes to it; a hand-over between
// producers is no end; damaged memory hurts no reaper.
#include "ipc/channel_ends.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/repeats_testing.h"
#include "ipc/stand_in_testing.h"

namespace tenon::impl {
namespace {

constexpr uint32_t kSlots = 4;

// Several stand-ins in one segment with a channel, without its description.
class Ends : public testing::Test {
 protected:
  Ends() {
    const NamedArray bytes = one_byte();
    SegmentPlan plan;
    plan.blocks = 2;
    plan.array = &bytes;
    plan.channel_slots = kSlots;
    plan.data_nbytes = ChannelState::nbytes_before_description(kSlots);
    first_ = std::make_unique<StandIn>(plan);
    Segment& segment = first_->segment();
    begin_state(segment);
    state_ = segment.control().channel();
    ends_ = ChannelEnds(segment.control(), *state_);
    table_ = state_->table(kSlots);
  }

  std::unique_ptr<StandIn> join(uint32_t roles) {
    auto other = std::make_unique<StandIn>(*first_);
    ends_.set_roles(other->index(), roles);
    return other;
  }
  void reap_others() { reap_all(first_->segment().control()); }

  std::unique_ptr<StandIn> first_;
  ChannelState* state_ = nullptr;
  ChannelEnds ends_;
  SlotTable table_;
};

TEST_F(Ends, WhatADeadProcessHadIsGivenBackByOneThatDoesNotUseTheChannel) {
  const auto dead = join(kProducer | kConsumer);
  const uint32_t p = dead->index();
  ASSERT_TRUE(table_.take_free(p, 0));
  ASSERT_TRUE(table_.take_free(p, 1));
  table_.offer(p, 1);
  EXPECT_EQ(table_.give_number(p, 1), 1U);
  ASSERT_TRUE(table_.take_free(p, 2));
  table_.offer(p, 2);
  state_->entries(kSlots)[2] = uint64_t{2} << 15 | 2;  // its number was given
  table_.set_reader(p, 1);
  dead->die();
  const uint32_t items = look(state_->items.signals), room = look(state_->room.signals);
  StandIn other(*first_);  // takes the place
  EXPECT_EQ(other.index(), p);
  EXPECT_EQ(table_.word(0), SlotWord::kFree);
  EXPECT_EQ(table_.word(1), SlotWord::ready(1));
  EXPECT_EQ(table_.word(2), SlotWord::ready(2));
  EXPECT_TRUE(is_empty(table_.readers(1)));
  EXPECT_EQ(look(state_->deaths), 1U);
  EXPECT_EQ(ends_.pid_of_death(1), static_cast<uint32_t>(getpid()));
  EXPECT_EQ(ends_.closings(), 1U);
  EXPECT_EQ(ends_.count(kProducer) + ends_.count(kConsumer), 0U);
  EXPECT_TRUE(is_empty(state_->users));
  EXPECT_NE(look(state_->items.signals), items);
  EXPECT_NE(look(state_->room.signals), room);
}

TEST_F(Ends, AProcessThatLeavesWithoutARoleIsNoDeath) {
  {
    const auto other = join(kProducer);
    ends_.set_roles(other->index(), 0);
  }
  EXPECT_EQ(look(state_->deaths), 0U);
  EXPECT_EQ(ends_.closings(), 1U);
  EXPECT_TRUE(is_empty(state_->users));
}

TEST_F(Ends, TheLastEndOfAProducerSaysWhetherItHasDied) {
  const auto died = join(kProducer);
  died->die();
  reap_others();
  EXPECT_EQ(ends_.ended_after(0, false), 1U);
  EXPECT_EQ(ends_.ended_after(0, true), 0U) << "another producer may come in its place";
  const auto closed = join(kProducer);
  ends_.set_roles(closed->index(), 0);
  EXPECT_EQ(ends_.ended_after(1, true), 2U);
  const auto again = join(kProducer);
  again->die();
  reap_others();
  EXPECT_EQ(ends_.ended_after(2, true), 0U);
  EXPECT_EQ(ends_.ended_after(2, false), 3U);
}

TEST_F(Ends, OnlyDeathsOfProducersAndMembersAreCounted) {
  for (const uint32_t roles : {kConsumer, kMember, kProducer}) {
    const auto dead = join(roles);
    dead->die();
    reap_others();
  }
  EXPECT_EQ(look(state_->deaths), 2U);
  EXPECT_EQ(ends_.closings(), 1U);
}

// A reaper was killed after each step of the count of one death; another death may have been counted since.
TEST_F(Ends, AKilledReaperLeavesADeathThatIsCountedOnce) {
  for (const bool is_given : {false, true}) {
    for (const bool is_said : {false, true}) {
      if (is_said && !is_given) continue;
      for (const bool has_other : {false, true}) {
        SCOPED_TRACE(concat(is_given, is_said, has_other));
        const uint64_t before = look(state_->deaths), n = before + 1;
        const auto dead = join(kProducer), other = join(kMember);
        const uint32_t p = dead->index(), q = other->index();
        state_->ends[p].word = EndWord::make(kProducer, is_said ? EndWord::kCounted : EndWord::kAsks, n);
        if (is_given) state_->entries_of_deaths[n % kKnownDead] = DeathEntry::make(n, p, 77);
        if (has_other) {
          other->die();
          ASSERT_TRUE(reap(first_->segment().control(), q));
        }
        dead->die();
        reap_others();
        EXPECT_EQ(look(state_->deaths), before + (has_other ? 2 : 1));
        if (is_given) {
          EXPECT_EQ(ends_.pid_of_death(n), 77U);
        }
        EXPECT_EQ(observe(state_->ends[p].word), 0U);
      }
    }
  }
}

// The numbers of damaged entries are not given: else no later death would have a number of its own.
TEST_F(Ends, AreCountedOverDamagedEntries) {
  for (auto& entry : state_->entries_of_deaths) entry = DeathEntry::make((uint64_t{1} << 33) - 1, 0, 1);
  for (uint64_t n = 1; n <= 3; ++n) {
    const auto dead = join(kProducer);
    dead->die();
    reap_others();
    EXPECT_EQ(look(state_->deaths), n);
    EXPECT_EQ(ends_.pid_of_death(n), static_cast<uint32_t>(getpid()));
  }
}

// As if the reaper were stopped.
TEST_F(Ends, AReaperIsWaitedForOnce) {
  std::atomic<uint64_t> waited_for{0};
  for (int round = 0; round < 2; ++round) {
    const auto dead = join(kProducer);
    const uint32_t p = dead->index();
    StandIn other(*first_);
    const Control& reaping = other.segment().control();
    dead->die();
    const pid_t ended = fork();
    if (ended == 0) _exit(0);
    ASSERT_EQ(waitpid(ended, nullptr, 0), ended);
    store(reaping.place(p).pid, static_cast<uint32_t>(ended));
    ASSERT_TRUE(reaping.places->try_lock(p));
    EXPECT_TRUE(ends_.reap_dead(waited_for));
    EXPECT_FALSE(ends_.reap_dead(waited_for));
    reaping.places->unlock(p);
    EXPECT_TRUE(ends_.reap_dead(waited_for));
    EXPECT_FALSE(ends_.reap_dead(waited_for));
  }
}

// What the dead process had sent is there before its death is told.
TEST_F(Ends, SlotsAreGivenBackBeforeTheDeathIsCounted) {
  for (int round = repeats(2000, 400, 100); round > 0; --round) {
    const auto dead = join(kProducer);
    const uint32_t p = dead->index(), slot = static_cast<uint32_t>(round) % kSlots;
    const uint64_t deaths = look(state_->deaths), n = table_.given() + 1;
    ASSERT_TRUE(table_.take_free(p, slot));
    table_.offer(p, slot);
    state_->entries(kSlots)[n % kSlots] = n << 15 | slot;
    uint64_t seen = 0;
    std::atomic<bool> looks{false};
    std::thread consumer([&] {
      looks = true;
      while (observe(state_->deaths) == deaths) {
      }
      seen = table_.word(slot);
    });
    while (!looks) std::this_thread::yield();
    dead->die();
    const bool is_reaped = reap(first_->segment().control(), p);
    consumer.join();
    ASSERT_TRUE(is_reaped);
    ASSERT_EQ(seen, SlotWord::ready(n));
    ASSERT_EQ(table_.next(n - 1).number(), n);  // moves the last number on
    ASSERT_TRUE(table_.take(first_->index(), slot, seen, n));
    table_.release(slot);
  }
}

TEST_F(Ends, ReapersBesideEachOtherCountEachDeathOnce) {
  constexpr uint32_t kDead = 12;
  for (int round = repeats(200, 40, 10); round > 0; --round) {
    const uint64_t before = look(state_->deaths);
    std::vector<std::unique_ptr<StandIn>> dead;
    for (uint32_t i = 0; i < kDead; ++i) dead.push_back(join(kProducer));
    for (const auto& one : dead) one->die();
    StandIn a(*first_), b(*first_);  // one of them takes the place of a dead one
    std::thread beside([&] { reap_all(a.segment().control()); });
    reap_all(b.segment().control());
    beside.join();
    ASSERT_EQ(look(state_->deaths), before + kDead);
    for (uint64_t n = before + 1; n <= before + kDead; ++n) {
      ASSERT_EQ(ends_.pid_of_death(n), static_cast<uint32_t>(getpid()));
    }
  }
}

// There is always a producer: the next one comes after the old one was counted, before its role ends.
TEST_F(Ends, AHandOverBetweenProducersIsNoEnd) {
  constexpr uint32_t kPlaces = 400;  // a look at all of them takes a while
  for (uint32_t p = 1; p <= kPlaces; ++p) ends_.set_roles(p, 0);
  ends_.set_roles(1, kProducer);
  std::atomic<bool> is_over{false};
  std::thread hands_over([&] {
    ChannelEnds ends = ends_;
    std::mt19937 random(7);
    for (uint32_t now = 1; !is_over;) {
      const uint32_t next = 1 + (now + static_cast<uint32_t>(random()) % (kPlaces - 1)) % kPlaces;
      (void)add(state_->closings, uint64_t{2});
      for (uint32_t i = random() % 512; i > 0; --i) (void)observe(state_->closings);
      ends.set_roles(next, kProducer);
      announce(state_->ends[now].word, uint64_t{0});
      for (uint32_t i = random() % 512; i > 0; --i) (void)observe(state_->closings);
      now = next;
    }
  });
  while (observe(state_->closings) == 0) std::this_thread::yield();
  int ends = 0;
  for (int i = repeats(1'000'000, 50'000, 5'000); i > 0; --i)
    ends += ends_.ended_after(0, false) != 0 ? 1 : 0;
  is_over = true;
  hands_over.join();
  EXPECT_EQ(ends, 0);
  ends_.set_roles(1, kProducer);
  for (uint32_t p = 1; p <= kPlaces; ++p) ends_.set_roles(p, 0);
  EXPECT_EQ(ends_.ended_after(0, false), ends_.closings());
  EXPECT_EQ(ends_.ended_after(ends_.closings(), false), 0U) << "it was reported";
  for (uint32_t p = 1; p <= kPlaces; ++p) clear_bit(state_->users, p);
}

// Whatever the state says, a reaper comes to its end, touches no other memory, and frees the place.
TEST_F(Ends, DamagedMemoryHurtsNoReaper) {
  std::mt19937_64 random(11);
  const size_t words = ChannelState::nbytes_before_description(kSlots) / 8;
  auto* const memory = reinterpret_cast<std::atomic<uint64_t>*>(state_);
  const int rounds = repeats(2000, 300, 60);
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(round);
    const auto dead = join(kProducer | kMember);
    const uint32_t p = dead->index();
    const uint64_t some[] = {0,
                             1,
                             UINT64_MAX,
                             random(),
                             EndWord::make(7, EndWord::kAsks, random() % 40),
                             DeathEntry::make(random() % 70, p, 5),
                             SlotWord::make(SlotWord::kOffered, p, 3)};
    for (size_t i = 0; i < words; ++i) {
      if (round % 4 == 0 || random() % 8 == 0) memory[i] = some[random() % std::size(some)];
    }
    if (round % 3 == 0) state_->deaths = (uint64_t{1} << 33) - 1 - random() % 3;
    set_bit(state_->users, p);
    dead->die();
    ASSERT_TRUE(reap(first_->segment().control(), p));
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      ASSERT_FALSE(SlotWord::has_holder(table_.word(slot)) && SlotWord::holder(table_.word(slot)) == p);
    }
    ASSERT_EQ(observe(state_->ends[p].word), 0U);
    std::memset(static_cast<void*>(state_), 0, words * 8);
  }
}

}  // namespace
}  // namespace tenon::impl
