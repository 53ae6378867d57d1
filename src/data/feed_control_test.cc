// SPDX-License-Identifier: Apache-2.0
#include "data/feed_control.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"

namespace tenon::impl {
namespace {

constexpr char kSchema[] = "schema";

FeedHead head_of(int32_t most, int32_t loops, uint64_t state_nbytes = 0) {
  FeedHead head{};
  head.magic = kFeedMagic;
  head.version = kFeedVersion;
  head.loops = head.workers = loops;
  head.slots = head.most = most;
  head.fields = 1;
  head.ranks = 1;
  head.layout.state_nbytes = state_nbytes;
  head.parts = FeedLayout::of(most, loops, loops, state_nbytes, sizeof kSchema);
  head.slots_at = head.parts.nbytes;
  head.nbytes = head.slots_at + kPage;
  return head;
}

// Of this process.
class Made {
 public:
  explicit Made(const FeedHead& head) : nbytes_(head.parts.nbytes) {
    memory_ = mmap(nullptr, nbytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    control = FeedControl::make(static_cast<std::byte*>(memory_), head, {kSchema, sizeof kSchema});
  }
  ~Made() { munmap(memory_, nbytes_); }
  Made(const Made&) = delete;
  Made& operator=(const Made&) = delete;

  FeedControl control;

 private:
  void* memory_;
  size_t nbytes_;
};

struct Part {
  const void* begin;
  uint64_t nbytes;
};

TEST(FeedControl, NoPartLiesInAnother) {
  for (const uint64_t state_nbytes : {uint64_t{0}, uint64_t{8}, uint64_t{64}, uint64_t{100 << 10}}) {
    const Made made(head_of(300, 3, state_nbytes));
    const FeedControl& control = made.control;
    const uint64_t words = control.start_words(0).size();
    EXPECT_EQ(words * sizeof(uint64_t), state_nbytes);
    const std::vector<Part> parts = {
        {control.base(), sizeof(FeedHead)},
        {&control.shared(), sizeof(FeedShared)},
        {&control.table().readers(0), 300 * sizeof(SlotState) - offsetof(SlotState, readers)},
        {control.base() + control.head().parts.entries_at, 300 * sizeof(SlotEntry)},
        {&control.record(0), 300 * sizeof(SlotRecord)},
        {&control.loop(0), sizeof(LoopRecord)},
        {&control.loop(1), sizeof(LoopRecord)},
        {&control.loop(2), sizeof(LoopRecord)},
        {control.start_words(0).data(), state_nbytes},
        {control.start_words(1).data(), state_nbytes},
        {control.start_words(2).data(), state_nbytes},
        {control.schema().data(), sizeof kSchema}};
    const std::byte* end = control.base();
    for (const Part& part : parts) {
      EXPECT_GE(static_cast<const std::byte*>(part.begin), end);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(part.begin) % 8, 0U);
      end = static_cast<const std::byte*>(part.begin) + part.nbytes;
    }
    EXPECT_LE(end, control.base() + control.head().parts.nbytes);
    EXPECT_EQ(control.head().parts.nbytes % kPage, 0U);
  }
}

// Its memory is taken when the feed is made.
TEST(FeedControl, OnlyWorkersHaveRoomForAState) {
  constexpr uint64_t kState = 100 << 20;
  EXPECT_LT(FeedLayout::of(8, 16, 2, kState, 0).nbytes, 3 * kState);
}

TEST(FeedControl, ZerosAreATableOfFreeSlotsAndIdleLoops) {
  const Made made(head_of(2, 2));
  const SlotTable table = made.control.table();
  EXPECT_EQ(table.word(0), SlotWord::kFree);
  EXPECT_TRUE(table.take_free(7, 1));
  EXPECT_EQ(table.word(1), SlotWord::make(SlotWord::kHeld, 7, 0));
  EXPECT_EQ(table.given(), 0U);
  EXPECT_EQ(table.entries(), 256U);
  EXPECT_EQ(made.control.loop(1).number.load(), 0U);
  EXPECT_EQ(made.control.loop(1).times.count(), 0U);
  EXPECT_EQ(std::memcmp(made.control.schema().data(), kSchema, sizeof kSchema), 0);
}

TEST(FeedControl, EachSlotHasAnEntry) { EXPECT_EQ(Made(head_of(300, 1)).control.table().entries(), 300U); }

// Another process that may write to the events cannot change that.
TEST(FeedControl, SleepersLookFromTimeToTimeWhereItIsShared) {
  FeedHead head = head_of(1, 1);
  EXPECT_EQ(Made(head).control.look_ns(), Event::kNoLookNs);
  head.flags |= kHasProcesses;
  const Made made(head);
  std::memset(static_cast<void*>(&made.control.shared()), 0xff, sizeof(FeedShared));
  EXPECT_EQ(made.control.look_ns(), Event::kLookNs);
}

TEST(FeedControl, WhatIsWrittenIntoTheHeadLaterDoesNotMoveItsParts) {
  const Made made(head_of(4, 2));
  const LoopRecord* const loop = &made.control.loop(1);
  std::memset(made.control.base(), 0xFF, sizeof(FeedHead));
  EXPECT_EQ(&made.control.loop(1), loop);
  EXPECT_EQ(made.control.head().most, 4);
}

TEST(FeedControl, TheOrderIsThatOfTheOptions) {
  FeedHead head = head_of(1, 1);
  head.batches = 100;
  head.rank = 1;
  head.ranks = 3;
  EXPECT_EQ(head.order().index_at(0, 0, 0), 1U);
  EXPECT_EQ(head.order().index_at(0, 0, 1), 4U);
  head.flags = kIsShuffled;
  head.seed = 5;
  EXPECT_EQ(head.order().index_at(3, 0, 7), Order(100, 1, 3).shuffled(5).index_at(3, 0, 7));
}

TEST(FeedControl, AHeadOfAnotherProcessIsChecked) {
  const FeedHead good = head_of(4, 2, 64);
  EXPECT_NO_THROW(check_head(good, good.nbytes));
  const struct {
    std::function<void(FeedHead&)> damage;
    const char* says;
  } cases[] = {
      {[](FeedHead& h) { h.magic = 0; }, "it is being made"},
      {[](FeedHead& h) { h.magic = 7; }, "it begins with 7 and not with"},
      {[](FeedHead& h) { ++h.version; }, "its layout has version"},
      {[](FeedHead& h) { h.workers = 0; }, "0 workers"},
      {[](FeedHead& h) { h.workers = 3; }, "3 workers with 2 loops"},
      {[](FeedHead& h) { h.loops = INT32_MAX; }, "2147483647 loops"},
      {[](FeedHead& h) { h.slots = 5; }, "5 slots of 4"},
      {[](FeedHead& h) { h.slots = h.most = INT32_MAX; }, "2147483647 slots"},
      {[](FeedHead& h) { h.slots = -1; }, "-1 slots"},
      {[](FeedHead& h) { h.fields = 0; }, "0 fields"},
      {[](FeedHead& h) { h.ranks = 0; }, "rank 0 of 0"},
      {[](FeedHead& h) { h.rank = 1; }, "rank 1 of 1"},
      {[](FeedHead& h) { h.loops = 3; }, "do not lie where"},
      {[](FeedHead& h) { h.most = 3000; }, "do not lie where"},
      {[](FeedHead& h) { h.layout.state_nbytes += 64; }, "do not lie where"},
      {[](FeedHead& h) { h.layout.state_nbytes = UINT64_MAX; }, "63 bits"},
      {[](FeedHead& h) { h.layout.state_nbytes = INT64_MAX / 2; }, "63 bits"},
      {[](FeedHead& h) { h.parts.schema_nbytes = UINT64_MAX - 100; }, "63 bits"},
      {[](FeedHead& h) { h.parts.records_at += 64; }, "do not lie where"},
      {[](FeedHead& h) { h.slots_at = 0; }, "do not fit into"},
      {[](FeedHead& h) {
         h.loops = h.workers = 4000;
         h.parts = FeedLayout::of(h.most, h.loops, h.workers, h.layout.state_nbytes, h.parts.schema_nbytes);
         h.slots_at = h.parts.nbytes;
       },
       "4000 loops do not fit into"},
  };
  for (const auto& [damage, says] : cases) {
    FeedHead head = good;
    damage(head);
    try {
      check_head(head, good.nbytes);
      ADD_FAILURE() << "no failure; expected: " << says;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(says), std::string::npos) << e.what() << "; expected: " << says;
    }
  }
}

}  // namespace
}  // namespace tenon::impl
