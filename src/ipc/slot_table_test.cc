// SPDX-License-Identifier: Apache-2.0
#include "ipc/slot_table.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <thread>
#include <vector>

#include "base/repeats_testing.h"

namespace tenon::impl {
namespace {

constexpr uint32_t kA = 3, kB = 500;  // places

template <size_t kSlots>
struct Memory {
  SlotCounters counters{};
  std::array<SlotState, kSlots> slots{};
  std::array<SlotEntry, kSlots> entries{};
  SlotTable table{counters, slots, entries};

  uint64_t send(uint32_t p, uint32_t slot) {
    EXPECT_TRUE(table.take_free(p, slot));
    table.offer(p, slot);
    return table.give_number(p, slot);
  }
  uint64_t receive(uint32_t p) {
    const SlotTable::Found found = table.next(0);
    if (found.slot == SlotTable::kNone || !table.take(p, found.slot, found.word, found.number())) return 0;
    return found.number();
  }
};

TEST(SlotTable, AWordSaysWhoHasTheSlotForWhichItem) {
  const uint64_t word = SlotWord::make(SlotWord::kOffered, 4095, (uint64_t{1} << 49) - 1);
  EXPECT_EQ(SlotWord::kind(word), SlotWord::kOffered);
  EXPECT_EQ(SlotWord::holder(word), 4095U);
  EXPECT_EQ(SlotWord::number(word), (uint64_t{1} << 49) - 1);
  EXPECT_EQ(SlotWord::item(word), 0U);
  EXPECT_EQ(SlotWord::item(SlotWord::ready(7)), 7U);
  EXPECT_NE(SlotWord::ready(7), SlotWord::ready(7, true));
}

TEST(SlotTable, ItemsComeInTheOrderOfTheirNumbers) {
  Memory<3> memory;
  EXPECT_EQ(memory.receive(kA), 0U);
  EXPECT_EQ(memory.send(kA, 2), 1U);
  EXPECT_EQ(memory.send(kB, 0), 2U);
  EXPECT_FALSE(memory.table.take_free(kA, 2));
  EXPECT_EQ(memory.receive(kB), 1U);
  EXPECT_EQ(memory.receive(kB), 2U);
  EXPECT_EQ(memory.receive(kB), 0U);
}

// A process gives number 3 to slot 1 while another one looks for the next item: the entry of item 1 says 3
// already, the last number is still 2, and slot 0 keeps item 1.
TEST(SlotTable, AnItemWhoseEntryIsOfALaterOneIsFound) {
  Memory<2> memory;
  EXPECT_EQ(memory.send(kA, 0), 1U);
  EXPECT_EQ(memory.send(kA, 1), 2U);
  memory.slots[1].word = SlotWord::make(SlotWord::kOffered, kA, 3);
  memory.entries[1] = uint64_t{3} << 15 | 1;
  EXPECT_EQ(memory.receive(kB), 1U);
  EXPECT_EQ(memory.receive(kB), 3U);
}

// Only damaged memory has such an entry.
TEST(SlotTable, AnEntryThatNamesNoSlotStopsNobody) {
  Memory<2> memory;
  memory.entries[1] = uint64_t{5} << 15 | 4000;
  EXPECT_GT(memory.send(kA, 0), 5U);
}

TEST(SlotTable, AnItemThatIsPutBackComesBeforeLaterOnes) {
  Memory<3> memory;
  (void)memory.send(kA, 0);
  (void)memory.send(kA, 1);
  EXPECT_EQ(memory.receive(kB), 1U);
  EXPECT_EQ(memory.receive(kB), 2U);
  memory.table.put_back(1, 2);
  memory.table.put_back(0, 1);
  (void)memory.send(kA, 2);
  for (const uint64_t n : {1, 2, 3}) EXPECT_EQ(memory.receive(kA), n);
  EXPECT_EQ(memory.counters.strays.load(), 0U) << "later looks do not compare all slots";
}

TEST(SlotTable, AnItemOlderThanAllEntriesIsFound) {
  Memory<2> memory;
  (void)memory.send(kA, 0);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(memory.send(kA, 1), 2U + static_cast<uint64_t>(i));
    const SlotTable::Found found = memory.table.newest();
    ASSERT_TRUE(memory.table.take(kB, found.slot, found.word, 0));
    memory.table.release(1);
  }
  EXPECT_EQ(memory.table.next(0).number(), 1U);
  EXPECT_EQ(memory.table.next(1).slot, SlotTable::kNone);
}

// A producer may stop, or die, after each step of a send.
TEST(SlotTable, AnItemWhoseNumberWasGivenIsSentByWhoComesNext) {
  Memory<2> memory;
  ASSERT_TRUE(memory.table.take_free(kA, 0));
  memory.table.offer(kA, 0);
  EXPECT_EQ(memory.receive(kB), 0U) << "it has no number";
  memory.entries[1].store(uint64_t{1} << 15 | 0);  // what give_number() does first
  EXPECT_EQ(memory.send(kB, 1), 2U);
  EXPECT_EQ(memory.receive(kB), 1U);
  EXPECT_EQ(memory.receive(kB), 2U);
}

TEST(SlotTable, WhatADeadProcessHasBecomesFreeOrReady) {
  Memory<6> memory;
  ASSERT_TRUE(memory.table.take_free(kA, 0));  // a loan
  ASSERT_EQ(memory.send(kB, 1), 1U);
  ASSERT_EQ(memory.receive(kA), 1U);  // an item
  ASSERT_TRUE(memory.table.take_free(kA, 2));
  memory.table.offer(kA, 2);  // without a number
  ASSERT_EQ(memory.send(kB, 3), 2U);
  ASSERT_TRUE(memory.table.claim(kA, 3, 2));
  ASSERT_TRUE(memory.table.take_free(kB, 4));
  memory.table.set_reader(kA, 4);
  ASSERT_TRUE(memory.table.take_free(kA, 5));
  memory.table.offer(kA, 5);
  memory.entries[3].store(uint64_t{3} << 15 | 5);  // its number was given
  EXPECT_TRUE(memory.table.reclaim(kA));
  for (const uint32_t slot : {0U, 1U, 2U}) EXPECT_EQ(memory.table.word(slot), SlotWord::kFree) << slot;
  EXPECT_EQ(memory.table.word(3), SlotWord::ready(2));
  EXPECT_TRUE(SlotWord::is_held_by(memory.table.word(4), kB));
  EXPECT_TRUE(is_empty(memory.table.readers(4)));
  EXPECT_EQ(memory.table.word(5), SlotWord::ready(3));
  EXPECT_FALSE(memory.table.reclaim(kA)) << "there is nothing left";
  EXPECT_EQ(memory.receive(kB), 2U);
  EXPECT_EQ(memory.receive(kB), 3U);
}

// A thread has stopped before it moved the last number on.
TEST(SlotTable, ATicketWhoseEntryIsThereIsGiven) {
  Memory<3> memory;
  ASSERT_TRUE(memory.table.take_free(kA, 0));
  memory.table.hold(kA, 0, 1);
  memory.entries[1].store(uint64_t{1} << 15 | 0);
  ASSERT_TRUE(memory.table.take_free(kB, 1));
  const SlotTable::Turn turn = memory.table.next_number();
  EXPECT_EQ(turn.number, 2U);
  EXPECT_TRUE(memory.table.take_number(1, turn));
  EXPECT_EQ(memory.table.given(), 2U);
  EXPECT_TRUE(memory.table.settle(0, 1));
  EXPECT_EQ(memory.table.word(0), SlotWord::ready(1));
}

TEST(SlotTable, ATicketThatIsTakenLateIsBelowTheNextRound) {
  Memory<3> memory;
  ASSERT_TRUE(memory.table.take_free(kA, 0));
  const SlotTable::Turn late = memory.table.next_number();
  const uint64_t base = memory.table.begin_anew();
  EXPECT_TRUE(memory.table.take_number(0, late));
  EXPECT_LT(late.number, base);
  EXPECT_EQ(memory.table.next_number().number, base);
  EXPECT_EQ(memory.table.passed(), base - 1);
}

TEST(SlotTable, ATicketIsSettledOrLeftOnce) {
  Memory<3> memory;
  for (const bool is_left : {false, true}) {
    ASSERT_TRUE(memory.table.take_free(kA, 0));
    const SlotTable::Turn turn = memory.table.next_number();
    ASSERT_TRUE(memory.table.take_number(0, turn));
    EXPECT_FALSE(memory.table.settle(0, turn.number + 1)) << "another ticket";
    EXPECT_TRUE(is_left ? memory.table.leave(0, turn.number) : memory.table.settle(0, turn.number));
    EXPECT_FALSE(memory.table.leave(0, turn.number));
    EXPECT_FALSE(memory.table.settle(0, turn.number));
    memory.table.move(turn.number, 0, 2);
    EXPECT_EQ(memory.table.slot_of(turn.number), 2U);
    memory.table.release(0);
  }
}

// Oracle: each number is received once, and each thread that receives gets them in order.
TEST(SlotTable, ThreadsGiveEachNumberOnce) {
  constexpr int kSenders = 2, kReceivers = 2;
  const auto items = static_cast<uint64_t>(repeats(1'000'000, 100'000, 10'000));
  const auto memory = std::make_unique<Memory<4>>();
  std::atomic<uint64_t> left{items}, received{0}, sum{0};
  std::atomic<bool> is_in_order{true};
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kSenders; ++i) {
    threads.emplace_back([&, p = i] {
      while (true) {
        uint64_t n = left.load();
        while (n != 0 && !left.compare_exchange_weak(n, n - 1)) {
        }
        if (n == 0) return;
        uint32_t slot = 0;
        while (!memory->table.take_free(p, slot)) {
          slot = (slot + 1) % 4;
          if (slot == 0) std::this_thread::yield();
        }
        memory->table.offer(p, slot);
        (void)memory->table.give_number(p, slot);
      }
    });
  }
  for (uint32_t i = 0; i < kReceivers; ++i) {
    threads.emplace_back([&, p = kSenders + i] {
      uint64_t last = 0;
      while (received.load() < items) {
        const SlotTable::Found found = memory->table.next(0);
        if (found.slot == SlotTable::kNone) {
          std::this_thread::yield();
          continue;
        }
        if (!memory->table.take(p, found.slot, found.word, found.number())) continue;
        if (found.number() <= last) is_in_order = false;
        last = found.number();
        memory->table.release(found.slot);
        sum += last;
        ++received;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(is_in_order);
  EXPECT_EQ(received, items);
  EXPECT_EQ(sum, items * (items + 1) / 2);
  EXPECT_EQ(memory->table.given(), items);
}

}  // namespace
}  // namespace tenon::impl
