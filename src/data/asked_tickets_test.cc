// SPDX-License-Identifier: Apache-2.0
//
// Tickets that are asked of a worker, and what a dead worker had. Each case makes the stores of
// docs/dev/slots.md up to one of them.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "data/ticket_ring.h"
#include "data/ticket_testing.h"

namespace tenon::impl {
namespace {

uint32_t asked(const Bench& bench) {
  return static_cast<uint32_t>(bench.slots->control().shared().asked.load());
}

TEST(TicketRing, AnAskedTicketIsFilledOnceByTheWorkerOfWhomItIsAsked) {
  Bench bench(4, 4);
  bench.ring.begin();
  const Ticket first = bench.take(), second = bench.take();
  Ticket taken;
  EXPECT_FALSE(bench.ring.take_asked(1, taken));
  EXPECT_TRUE(bench.ring.ask(second, TicketRing::kPreparer));
  EXPECT_TRUE(bench.ring.ask(first, 1));
  EXPECT_EQ(asked(bench), 2U);
  EXPECT_EQ(bench.ring.snapshot().filling, 2);
  EXPECT_TRUE(bench.ring.take_asked(0, taken)) << "of any";
  EXPECT_EQ(taken.number, second.number);
  EXPECT_EQ(taken.slot, second.slot);
  EXPECT_EQ(taken.index, second.index);
  EXPECT_EQ(taken.round, second.round);
  bench.publish(taken);
  EXPECT_FALSE(bench.ring.take_asked(0, taken)) << "it is asked of worker 1";
  EXPECT_EQ(bench.ring.await_turn(1, Deadline(0)), TicketRing::TicketTake::kTicket);
  ASSERT_TRUE(bench.ring.take_asked(1, taken));
  EXPECT_EQ(taken.index, 0U);
  EXPECT_EQ(asked(bench), 0U);
  EXPECT_FALSE(bench.ring.take_asked(1, taken));
  bench.publish(first);
  for (const uint64_t index : {0U, 1U}) {
    ASSERT_EQ(bench.next(), NextBatch::kBatch);
    EXPECT_EQ(bench.item.ticket.index, index);
    bench.slots->give(bench.item.ticket.slot);
  }
}

TEST(TicketRing, AnAskedTicketWakesItsWorker) {
  Bench bench(4, 1);
  bench.ring.begin();
  const Ticket ticket = bench.take();
  std::atomic<bool> is_taken{false};
  std::thread worker([&] {
    Ticket own;
    EXPECT_EQ(bench.ring.await_turn(1, Deadline(-1)), TicketRing::TicketTake::kTicket);
    is_taken = bench.ring.take_asked(1, own);
  });
  while (!bench.slots->control().shared().work.has_sleepers()) std::this_thread::yield();
  EXPECT_TRUE(bench.ring.ask(ticket, 1));
  worker.join();
  EXPECT_TRUE(is_taken);
}

TEST(TicketRing, AnAskedTicketOfAnEarlierRoundIsPast) {
  Bench bench(4, 4);
  Ticket taken;
  bench.ring.begin();
  Ticket ticket = bench.take();
  EXPECT_TRUE(bench.ring.ask(ticket, 1));
  bench.ring.begin();
  EXPECT_EQ(bench.free_slots(), 4) << "the consumer frees it";
  EXPECT_EQ(asked(bench), 0U);
  ticket = bench.take();
  bench.ring.begin();
  EXPECT_FALSE(bench.ring.ask(ticket, 1));
  EXPECT_EQ(bench.free_slots(), 4) << "ask() looks at the base afterwards";
  EXPECT_EQ(asked(bench), 0U);
  // It is asked after the consumer has looked at the words, and taken before ask() looks at the base.
  ticket = bench.take();
  const auto slot = static_cast<uint32_t>(ticket.slot);
  bench.ring.begin();
  bench.slots->control().shared().asked = 1;
  EXPECT_TRUE(bench.slots->table().ask(slot, ticket.number, 0));
  EXPECT_FALSE(bench.ring.take_asked(1, taken));
  EXPECT_EQ(bench.free_slots(), 4);
}

TEST(TicketRing, NoAskedTicketBehindAFailureIsFilled) {
  Bench bench(4, 4);
  bench.ring.begin();
  const Ticket first = bench.take(), second = bench.take(), third = bench.take();
  EXPECT_TRUE(bench.ring.ask(third, 1));
  EXPECT_TRUE(bench.ring.ask(first, 1));
  bench.ring.fail(second, 0, failure_of(3, "no"));
  Ticket taken;
  EXPECT_TRUE(bench.ring.take_asked(1, taken));
  EXPECT_EQ(taken.number, first.number);
  EXPECT_FALSE(bench.ring.take_asked(1, taken));
  EXPECT_EQ(bench.ring.await_turn(1, Deadline(0)), TicketRing::TicketTake::kNone);
  bench.publish(first);
  ASSERT_EQ(bench.next(), NextBatch::kBatch);
  bench.slots->give(bench.item.ticket.slot);
  EXPECT_EQ(bench.next(), NextBatch::kFailure);
  EXPECT_EQ(bench.free_slots(), 4);
  EXPECT_EQ(asked(bench), 0U);
}

TEST(TicketRing, WorkersFillOnlyWhatIsPreparedAndThePreparerKeepsAheadOfEach) {
  const SlotsPlan plan{4, static_cast<size_t>(sysconf(_SC_PAGESIZE))};
  FeedHead head = Bench::head_of(4, 0);
  head.flags |= kPrepares;
  const Ref<Slots> slots = Slots::create(plan, head);
  TicketRing ring(slots);
  ring.begin();
  const auto take = [&](int32_t worker) {
    Ticket ticket{.slot = slots->try_take(Slots::kFirstLoop)};
    const bool has = ring.take(worker, ticket) == TicketRing::TicketTake::kTicket;
    if (!has) slots->give(ticket.slot);
    return has ? ticket : Ticket{};
  };
  EXPECT_EQ(take(0).number, 0U) << "a worker takes no new ticket";
  const Ticket first = take(TicketRing::kPreparer), second = take(TicketRing::kPreparer);
  EXPECT_EQ(first.index, 0U);
  EXPECT_EQ(second.index, 1U);
  EXPECT_TRUE(ring.ask(first, TicketRing::kPreparer));
  EXPECT_TRUE(ring.ask(second, TicketRing::kPreparer));
  EXPECT_EQ(take(TicketRing::kPreparer).number, 0U) << "one for each of two workers waits";
  Ticket taken;
  EXPECT_TRUE(ring.take_asked(1, taken));
  EXPECT_EQ(taken.number, first.number);
  EXPECT_NE(take(TicketRing::kPreparer).number, 0U);
}

// ------------------------------------------------------------------------------------------- dead workers

// The loop that Bench::take() runs.
bool reclaim(Bench& bench, std::vector<Ticket>* tickets) {
  return bench.ring.reclaim(0, [&](const Ticket& ticket) { tickets->push_back(ticket); });
}

TEST(TicketRing, WhatADeadWorkerHasNotSettledIsAskedOrSettled) {
  Bench bench(3, 9);
  std::vector<Ticket> tickets;
  bench.ring.begin();
  EXPECT_FALSE(reclaim(bench, &tickets)) << "it has nothing";
  // A slot without a ticket; one with a ticket in its word alone.
  int32_t slot = bench.slots->try_take(Slots::kFirstLoop);
  EXPECT_GE(slot, 0);
  EXPECT_FALSE(reclaim(bench, &tickets));
  EXPECT_EQ(bench.free_slots(), 3);
  slot = bench.slots->try_take(Slots::kFirstLoop);
  bench.slots->table().hold(Slots::kFirstLoop, static_cast<uint32_t>(slot), bench.slots->table().given() + 1);
  EXPECT_FALSE(reclaim(bench, &tickets));
  EXPECT_EQ(bench.free_slots(), 3);
  // Its ticket.
  const Ticket ticket = bench.take();
  EXPECT_TRUE(reclaim(bench, &tickets));
  ASSERT_EQ(tickets.size(), 1U);
  EXPECT_EQ(tickets[0].number, ticket.number);
  EXPECT_EQ(tickets[0].slot, ticket.slot);
  EXPECT_EQ(tickets[0].round, ticket.round);
  EXPECT_TRUE(bench.ring.ask(tickets[0], 0));
  EXPECT_FALSE(reclaim(bench, &tickets)) << "one that is asked of it is its successor's";
  Ticket taken;
  ASSERT_TRUE(bench.ring.take_asked(0, taken));
  bench.publish(taken);
  EXPECT_FALSE(reclaim(bench, &tickets)) << "what is settled stays";
  EXPECT_EQ(bench.next(), NextBatch::kBatch);
  EXPECT_FALSE(reclaim(bench, &tickets)) << "what is delivered stays";
  EXPECT_EQ(bench.free_slots(), 2);
  bench.slots->give(bench.item.ticket.slot);
}

TEST(TicketRing, ADeadWorkersPastTicketIsFree) {
  Bench bench(3, 9);
  std::vector<Ticket> tickets;
  bench.ring.begin();
  Ticket ticket = bench.take();
  bench.ring.begin();
  EXPECT_FALSE(reclaim(bench, &tickets));
  EXPECT_EQ(bench.free_slots(), 3);
  // It has changed the word, and not looked at the base.
  ticket = bench.take();
  bench.ring.begin();
  EXPECT_TRUE(bench.slots->table().settle(static_cast<uint32_t>(ticket.slot), ticket.number));
  EXPECT_FALSE(reclaim(bench, &tickets));
  EXPECT_EQ(bench.free_slots(), 3);
  EXPECT_TRUE(tickets.empty());
}

// Also if later tickets have the entry of the skipped one.
TEST(TicketRing, TheSlotOfASkipWhoseWorkerDiedIsFree) {
  for (const bool is_overwritten : {false, true}) {
    Bench bench(3, -1);
    std::vector<Ticket> tickets;
    bench.ring.begin();
    const Ticket ticket = bench.take();
    const auto slot = static_cast<uint32_t>(ticket.slot);
    const SlotTable& table = bench.slots->table();
    bench.slots->control().record(slot).outcome = Outcome::kSkip;
    EXPECT_TRUE(table.settle(slot, ticket.number));
    table.skip(ticket.number, slot);
    EXPECT_EQ(bench.next(), NextBatch::kLate);
    for (uint64_t n = 0; is_overwritten && n < table.entries(); ++n) {
      bench.publish(bench.take());
      ASSERT_EQ(bench.next(), NextBatch::kBatch);
      bench.slots->give(bench.item.ticket.slot);
    }
    EXPECT_EQ(bench.free_slots(), 2);
    EXPECT_FALSE(reclaim(bench, &tickets));
    EXPECT_EQ(bench.free_slots(), 3);
  }
}

TEST(TicketRing, AFailureWhoseWorkerDiedBeforeItSaidSoEndsTheRound) {
  Bench bench(3, 9);
  std::vector<Ticket> tickets;
  bench.ring.begin();
  const Ticket ticket = bench.take();
  const auto slot = static_cast<uint32_t>(ticket.slot);
  LoopRecord& loop = bench.slots->control().loop(0);
  loop.failure = failure_of(3, "no");
  loop.failed_number = ticket.number;
  bench.slots->control().record(slot).loop = 0;
  bench.slots->control().record(slot).outcome = Outcome::kFailure;
  EXPECT_TRUE(bench.slots->table().settle(slot, ticket.number));
  EXPECT_FALSE(reclaim(bench, &tickets));
  EXPECT_EQ(bench.ring.await_turn(0, Deadline(0)), TicketRing::TicketTake::kNone);
  ASSERT_EQ(bench.next(), NextBatch::kFailure);
  EXPECT_STREQ(bench.item.failure->message, "no");
}

TEST(TicketRing, WhatADeadWorkerSaysOfItselfIsForgotten) {
  Bench bench(3, 9);
  std::vector<Ticket> tickets;
  bench.ring.begin();
  LoopRecord& loop = bench.slots->control().loop(0);
  FeedShared& shared = bench.slots->control().shared();
  loop.number = 7;
  loop.is_asleep = 1;
  loop.reports[0].state = LoopRecord::Report::kWritten;
  loop.reports[1].state = LoopRecord::Report::kComplete;
  for (Event* event : {&shared.room, &shared.work, &shared.settled}) event->sleepers = 1;
  EXPECT_FALSE(reclaim(bench, &tickets));
  EXPECT_EQ(loop.number, 0U);
  EXPECT_EQ(loop.is_asleep, 0U);
  EXPECT_EQ(loop.reports[0].state, LoopRecord::Report::kFree);
  EXPECT_EQ(loop.reports[1].state, LoopRecord::Report::kComplete);
  for (const Event* event : {&shared.room, &shared.work, &shared.settled})
    EXPECT_FALSE(event->has_sleepers());
}

TEST(TicketRing, ASuccessorBeginsWithTheStateOfTheLastSettledTicketOfItsWorker) {
  Bench bench(6, 9, 2);
  std::vector<Ticket> tickets;
  KnownState known;
  const auto take_of = [&](int32_t worker) {
    Ticket ticket{.slot = bench.slots->try_take(Slots::kFirstLoop + static_cast<uint32_t>(worker))};
    EXPECT_EQ(bench.ring.take(worker, ticket), TicketRing::TicketTake::kTicket);
    return ticket;
  };
  const auto text_of_successor = [&](const Ticket& ticket) {
    KnownState successor;
    successor.is_lost = true;
    EXPECT_TRUE(bench.ring.start_state(ticket, 0, successor));
    return text_of(successor);
  };
  bench.ring.begin();
  const Ticket first = take_of(0);
  EXPECT_TRUE(reclaim(bench, &tickets));
  EXPECT_EQ(text_of_successor(first), "lost start");
  bench.publish(first, known, "one");
  const Ticket other = take_of(1);
  const Ticket third = take_of(0);
  EXPECT_TRUE(reclaim(bench, &tickets));
  EXPECT_EQ(text_of_successor(third), "lost one");
  bench.publish(other, known, "of the other");
  bench.publish(third, known, "two");
  EXPECT_FALSE(reclaim(bench, &tickets));
  EXPECT_EQ(text_of_successor(third), "lost two") << "that of no other worker";
  ASSERT_EQ(bench.next(), NextBatch::kBatch);
  ASSERT_EQ(bench.next(), NextBatch::kBatch);
  ASSERT_EQ(bench.next(), NextBatch::kBatch);
  EXPECT_FALSE(reclaim(bench, &tickets));
  EXPECT_EQ(text_of_successor(third), "lost two") << "also when it is delivered";
}

}  // namespace
}  // namespace tenon::impl
