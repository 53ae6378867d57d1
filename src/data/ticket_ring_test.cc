// SPDX-License-Identifier: Apache-2.0
#include "data/ticket_ring.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/repeats_testing.h"
#include "data/ticket_testing.h"

namespace tenon::impl {
namespace {

TicketRing::TicketTake await_turn(TicketRing& ring) { return ring.await_turn(0, Deadline(-1)); }

TEST(TicketRing, BatchesComeInOrderOfIndexWhateverTheOrderOfFilling) {
  Bench bench(4, 3);
  bench.ring.begin();
  const auto first = bench.take();
  const auto second = bench.take();
  const auto third = bench.take();
  EXPECT_EQ(third.index, 2u);
  bench.publish(third);
  EXPECT_EQ(bench.next(), NextBatch::kLate);
  bench.publish(first);
  ASSERT_EQ(bench.next(), NextBatch::kBatch);
  EXPECT_EQ(bench.item.ticket.index, 0u);
  EXPECT_EQ(bench.item.ticket.slot, first.slot);
  EXPECT_EQ(bench.next(), NextBatch::kLate);
  bench.publish(second);
  ASSERT_EQ(bench.next(), NextBatch::kBatch);
  EXPECT_EQ(bench.item.ticket.slot, second.slot);
  ASSERT_EQ(bench.next(), NextBatch::kBatch);
  EXPECT_EQ(bench.item.ticket.slot, third.slot);
  EXPECT_EQ(bench.next(), NextBatch::kEnd);
  EXPECT_EQ(bench.next(), NextBatch::kEnd);
}

TEST(TicketRing, EpochsCountFromZeroAndBeginAnew) {
  Bench bench(2, 1);
  EXPECT_EQ(bench.next(), NextBatch::kEnd);
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    bench.ring.begin();
    const Ticket job = bench.take();
    EXPECT_EQ(job.epoch, epoch);
    EXPECT_EQ(job.index, 0u);
    bench.publish(job);
    ASSERT_EQ(bench.next(), NextBatch::kBatch);
    bench.slots->give(bench.item.ticket.slot);
    EXPECT_EQ(bench.next(), NextBatch::kEnd);
  }
}

TEST(TicketRing, EndingAnEpochFreesWhatWasNotDelivered) {
  Bench bench(4, -1);
  bench.ring.begin();
  bench.publish(bench.take());
  bench.publish(bench.take());
  const auto late = bench.take();
  ASSERT_EQ(bench.next(), NextBatch::kBatch);
  EXPECT_EQ(bench.free_slots(), 1);
  bench.ring.end();
  EXPECT_EQ(bench.next(), NextBatch::kEnd);
  EXPECT_EQ(bench.free_slots(), 2);
  bench.ring.begin();
  bench.publish(late);  // of the epoch before
  EXPECT_EQ(bench.free_slots(), 3);
  EXPECT_EQ(bench.next(), NextBatch::kLate);
  EXPECT_EQ(bench.ring.snapshot().ready, 0);
}

TEST(TicketRing, AFailureComesAtItsPlaceAndEndsTheEpoch) {
  Bench bench(4, -1);
  bench.ring.begin();
  const auto first = bench.take();
  const auto failing = bench.take();
  const auto later = bench.take();
  bench.ring.fail(failing, 0, failure_of(7, "no more"));
  bench.publish(later);
  EXPECT_EQ(bench.next(), NextBatch::kLate);
  bench.publish(first);
  ASSERT_EQ(bench.next(), NextBatch::kBatch);
  EXPECT_EQ(bench.item.ticket.index, 0u);
  ASSERT_EQ(bench.next(), NextBatch::kFailure);
  EXPECT_EQ(bench.item.ticket.index, 1u);
  EXPECT_EQ(bench.item.failure->code, 7);
  EXPECT_STREQ(bench.item.failure->message, "no more");
  EXPECT_EQ(bench.next(), NextBatch::kEnd);
  EXPECT_EQ(bench.free_slots(), 3);
  bench.ring.begin();
  EXPECT_EQ(bench.take().index, 0u);
  EXPECT_EQ(bench.next(), NextBatch::kLate);
}

// A loop has room for the text of one failure.
TEST(TicketRing, OfTwoFailuresOfALoopTheConsumerIsToldTheFirst) {
  for (const bool is_first_late : {false, true}) {
    Bench bench(4, -1);
    for (int round = 0; round < 2; ++round) {
      bench.ring.begin();
      const Ticket tickets[2] = {bench.take(), bench.take()};
      for (const int i : {is_first_late ? 1 : 0, is_first_late ? 0 : 1})
        bench.ring.fail(tickets[i], 3, failure_of(i, concat("batch ", i, " of round ", round)));
      ASSERT_EQ(bench.next(), NextBatch::kFailure);
      EXPECT_EQ(bench.item.ticket.index, 0u);
      EXPECT_EQ(bench.item.failure->message, concat("batch 0 of round ", round));
    }
  }
}

TEST(TicketRing, AfterAFailureNoLaterTicketIsGiven) {
  Bench bench(4, -1);
  bench.ring.begin();
  const auto failing = bench.take();
  bench.ring.fail(failing, 0, failure_of(1, ""));
  bool took = true;
  std::thread worker([&] {
    Ticket ticket{.slot = bench.slots->try_take()};
    took = bench.ring.take(0, ticket) == TicketRing::TicketTake::kTicket ||
           bench.ring.await_turn(0, Deadline(-1)) != TicketRing::TicketTake::kStopped;
  });
  bench.ring.stop();
  worker.join();
  EXPECT_FALSE(took);
}

TEST(TicketRing, ALongMessageIsCut) {
  Bench bench(2, -1);
  bench.ring.begin();
  const auto failing = bench.take();
  bench.ring.fail(failing, 0, failure_of(1, std::string(10'000, 'x')));
  ASSERT_EQ(bench.next(), NextBatch::kFailure);
  EXPECT_EQ(bench.item.failure->message, std::string(kMessageSize - 1, 'x'));
}

TEST(TicketRing, StopWakesWorkersAndConsumers) {
  Bench bench(2, -1);
  NextBatch outcome = NextBatch::kBatch;
  bench.ring.begin();
  const auto busy = bench.take();
  std::thread consumer([&] { outcome = bench.ring.next(-1, bench.item); });
  bench.ring.stop();
  consumer.join();
  EXPECT_EQ(outcome, NextBatch::kStopped);
  Ticket ticket{.slot = bench.slots->try_take()};
  EXPECT_EQ(bench.ring.take(0, ticket), TicketRing::TicketTake::kStopped);
  bench.slots->give(ticket.slot);
  bench.publish(busy);
  EXPECT_EQ(bench.free_slots(), 2);
  EXPECT_THROW(bench.ring.begin(), Error);
}

TEST(TicketRing, ASnapshotTellsWhoIsBusyWithWhat) {
  Bench bench(4, -1);
  bench.ring.begin();
  const auto oldest = bench.take();
  bench.publish(bench.take());
  bench.take();
  EXPECT_EQ(bench.next(), NextBatch::kLate);
  const TicketRing::Snapshot now = bench.ring.snapshot();
  EXPECT_EQ(now.filling, 2);
  EXPECT_EQ(now.ready, 1);
  ASSERT_TRUE(now.wanted.has_value());
  EXPECT_EQ(now.wanted->index, 0u);
  ASSERT_TRUE(now.longest.has_value());
  EXPECT_EQ(now.longest->ticket.index, oldest.index);
}

// Oracle: each index must reach exactly one of the consumers, each consumer sees them rising.
TEST(TicketRing, SeveralConsumersShareTheBatches) {
  constexpr uint64_t kBatches = 20'000;
  Bench bench(4, kBatches);
  bench.ring.begin();
  std::vector<std::thread> threads;
  for (int32_t worker = 0; worker < 2; ++worker) {
    threads.emplace_back([&bench, worker] {
      while (true) {
        Ticket ticket{.slot = bench.slots->take()};
        if (ticket.slot < 0) return;
        const TicketRing::TicketTake taken = bench.ring.take(worker, ticket);
        if (taken == TicketRing::TicketTake::kTicket) {
          bench.ring.publish(ticket);
          continue;
        }
        bench.slots->give(ticket.slot);
        if (taken == TicketRing::TicketTake::kStopped) return;
        (void)bench.ring.await_turn(worker, Deadline(-1));
      }
    });
  }
  std::vector<int> seen(kBatches);
  std::atomic<int> disorder{0};
  std::vector<std::thread> consumers;
  for (int c = 0; c < 2; ++c) {
    consumers.emplace_back([&] {
      TicketRing::Delivery item;
      uint64_t least = 0;
      while (bench.ring.next(-1, item) == NextBatch::kBatch) {
        if (item.ticket.index < least) ++disorder;
        least = item.ticket.index + 1;
        ++seen[item.ticket.index];  // a data race if two got the same
        bench.slots->give(item.ticket.slot);
      }
    });
  }
  for (std::thread& consumer : consumers) consumer.join();
  bench.ring.stop();
  bench.slots->wake();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(disorder, 0);
  EXPECT_EQ(seen, std::vector<int>(kBatches, 1));
}

TEST(TicketRing, AFailureOfABatchThatWasNotBegunEndsItsEpochOnly) {
  Bench bench(2, 2);
  TicketFailure failure = failure_of(-1, "an earlier call hangs");
  bench.ring.begin();
  ASSERT_TRUE(bench.ring.fail_wanted(failure));
  ASSERT_EQ(bench.next(), NextBatch::kFailure);
  bench.ring.begin();
  ASSERT_EQ(bench.next(), NextBatch::kLate) << "the failure of the epoch before";
  bench.publish(bench.take());
  ASSERT_EQ(bench.next(), NextBatch::kBatch);
  EXPECT_EQ(bench.item.ticket.epoch, 1u);
  bench.slots->give(bench.item.ticket.slot);
}

using TicketTake = TicketRing::TicketTake;

// What a thread does that has begun to take a ticket, and then does not run for a while.
struct Stopped {
  explicit Stopped(Bench& of)
      : bench(of), slot(of.slots->try_take()), turn(of.slots->table().next_number()) {}
  bool go_on() { return bench.slots->table().take_number(static_cast<uint32_t>(slot), turn); }

  Bench& bench;
  int32_t slot;
  SlotTable::Turn turn;
};

TEST(TicketRing, AWorkerThatStopsBeforeItHasItsTicketStopsNoOther) {
  Bench bench(4, 3);
  bench.ring.begin();
  Stopped stopped(bench);
  for (uint64_t i = 0; i < 3; ++i) {
    bench.publish(bench.take());
    ASSERT_EQ(bench.next(), NextBatch::kBatch);
    EXPECT_EQ(bench.item.ticket.index, i);
    bench.slots->give(bench.item.ticket.slot);
  }
  EXPECT_EQ(bench.next(), NextBatch::kEnd);
  EXPECT_FALSE(stopped.go_on()) << "another worker has this ticket";
  bench.slots->give(stopped.slot);
  EXPECT_EQ(bench.free_slots(), 4);
}

TEST(TicketRing, AWorkerThatStopsInItsFillStopsNoOther) {
  Bench bench(4, 4);
  bench.ring.begin();
  const Ticket first = bench.take(), stopped = bench.take(), third = bench.take();
  bench.publish(third);
  bench.publish(first);
  ASSERT_EQ(bench.next(), NextBatch::kBatch);
  bench.slots->give(bench.item.ticket.slot);
  bench.publish(bench.take());
  EXPECT_EQ(bench.next(), NextBatch::kLate);
  bench.publish(stopped);
  for (uint64_t i = 1; i < 4; ++i) {
    ASSERT_EQ(bench.next(), NextBatch::kBatch);
    EXPECT_EQ(bench.item.ticket.index, i);
  }
}

// It has read the last number of the first epoch, and takes the next one in the second.
TEST(TicketRing, AWorkerThatIsLateGetsATicketOfNoEpoch) {
  Bench bench(3, 2);
  bench.ring.begin();
  Stopped late(bench);
  bench.ring.begin();
  EXPECT_TRUE(late.go_on());
  const Ticket ticket{.slot = late.slot, .number = late.turn.number};
  EXPECT_TRUE(bench.ring.is_past(ticket));
  bench.publish(bench.take());
  bench.publish(ticket);
  EXPECT_EQ(bench.free_slots(), 2);
  ASSERT_EQ(bench.next(), NextBatch::kBatch);
  EXPECT_EQ(bench.item.ticket.epoch, 1u);
  EXPECT_EQ(bench.item.ticket.index, 0u);
}

TEST(TicketRing, AFailureOrAnEndKeepsItsSlotUntilTheConsumerIsTold) {
  Bench bench(4, 3);
  bench.ring.begin();
  bench.publish(bench.take());
  ASSERT_EQ(bench.next(), NextBatch::kBatch);
  bench.ring.finish(bench.take());
  EXPECT_EQ(bench.free_slots(), 2);
  EXPECT_EQ(bench.next(), NextBatch::kEnd);
  EXPECT_EQ(bench.free_slots(), 3);
}

TEST(TicketRing, ASkipHasNoSlotSoWorkersGoOnAheadOfTheConsumer) {
  Bench bench(2, -1);
  bench.ring.begin();
  const Ticket first = bench.take();
  Ticket last = bench.take();
  const auto entries = static_cast<int>(bench.slots->table().entries());
  for (int i = 2; i < entries; ++i) {
    bench.ring.skip(last);
    last = bench.take();
  }
  bench.ring.skip(last);
  Ticket none{.slot = last.slot};
  EXPECT_EQ(bench.ring.take(0, none), TicketRing::TicketTake::kNone) << "the table has no entry for it";
  EXPECT_EQ(bench.next(), NextBatch::kLate);
  bench.publish(first);
  ASSERT_EQ(bench.next(), NextBatch::kBatch);
  EXPECT_EQ(bench.item.ticket.index, 0u);
  EXPECT_EQ(bench.next(), NextBatch::kLate);
  EXPECT_EQ(bench.ring.snapshot().skipped, static_cast<uint64_t>(entries) - 1);
  const Ticket next = bench.take();
  EXPECT_EQ(next.index, static_cast<uint64_t>(entries));
  bench.publish(next);
  ASSERT_EQ(bench.next(), NextBatch::kBatch);
  EXPECT_EQ(bench.item.ticket.index, static_cast<uint64_t>(entries));
}

// The stores of skip(), one more each time.
TEST(TicketRing, ASkipWhoseWorkerStopsAtAnyStoreIsPassed) {
  for (int stores = 1; stores <= 3; ++stores) {
    Bench bench(2, -1);
    const SlotTable& table = bench.slots->table();
    bench.ring.begin();
    const Ticket skipped = bench.take();
    const auto slot = static_cast<uint32_t>(skipped.slot);
    ASSERT_TRUE(table.settle(slot, skipped.number));
    if (stores >= 2) table.skip(skipped.number, slot);
    if (stores >= 3) {
      ASSERT_TRUE(table.take(Slots::kFirstLoop, slot, SlotWord::ready(skipped.number), 0));
    }
    bench.publish(bench.take());
    ASSERT_EQ(bench.next(), NextBatch::kBatch) << stores;
    EXPECT_EQ(bench.item.ticket.index, 1u);
    EXPECT_EQ(bench.free_slots(), stores == 1 ? 1 : 0);
    EXPECT_FALSE(bench.ring.reclaim(0, [](const Ticket&) {}));
    EXPECT_EQ(bench.free_slots(), 1) << "its worker has died";
  }
}

TEST(TicketRing, AWorkerWaitsForAnEntryUntilTheConsumerPassesOne) {
  Bench bench(2, -1);
  bench.ring.begin();
  const Ticket first = bench.take();
  for (uint64_t i = 1; i < bench.slots->table().entries(); ++i) bench.ring.skip(bench.take());
  std::thread worker([&] { EXPECT_EQ(await_turn(bench.ring), TicketRing::TicketTake::kTicket); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  bench.publish(first);
  EXPECT_EQ(bench.next(), NextBatch::kBatch);
  worker.join();
}

// Also to a consumer that comes to it later than the first one.
TEST(TicketRing, ATicketThatIsGivenUpAndSkippedIsASkip) {
  Bench bench(4, 3);
  bench.ring.begin();
  const Ticket hung = bench.take();
  bench.publish(bench.take());
  ASSERT_TRUE(bench.ring.give_up(0, true, failure_of(1, "hung")));
  EXPECT_EQ(bench.ring.look_at(hung.number).kind, Tickets::Look::kSkip);
  ASSERT_EQ(bench.next(), NextBatch::kBatch);
  EXPECT_EQ(bench.item.ticket.number, hung.number + 1);
  EXPECT_EQ(bench.free_slots(), 2);
  bench.publish(hung);
  EXPECT_EQ(bench.free_slots(), 3) << "it has returned";
}

TEST(TicketRing, ASkipWithAStateKeepsItsSlotForTheState) {
  Bench bench(4, 3, 1);
  bench.ring.begin();
  bench.publish(bench.take());
  ASSERT_EQ(bench.next(), NextBatch::kBatch);
  const Ticket skipped = bench.take();
  bench.write_state(skipped, "abc");
  bench.ring.skip(skipped, kHasState);
  EXPECT_EQ(bench.free_slots(), 2);
  EXPECT_EQ(text_of(bench.ring.position().states[0]), "abc");
  EXPECT_EQ(bench.free_slots(), 3);
}

// What is filled ahead of the consumer is undone by the next begin(), and only that.
TEST(TicketRing, AWorkerBeginsARoundWithTheStateOfTheLastDeliveredBatch) {
  Bench bench(4, -1, 1);
  KnownState known;
  const auto start = [&](const Ticket& ticket) {
    EXPECT_TRUE(bench.ring.start_state(ticket, 0, known));
    return text_of(known);
  };
  bench.ring.begin();
  Ticket ticket = bench.take();
  EXPECT_EQ(start(ticket), "start");
  bench.publish(ticket, known, "after the first batch");
  ticket = bench.take();
  EXPECT_EQ(start(ticket), "after the first batch");
  bench.publish(ticket, known, "ahead");
  ASSERT_EQ(bench.next(), NextBatch::kBatch);
  bench.slots->give(bench.item.ticket.slot);
  const FeedPosition position = bench.ring.position();
  EXPECT_EQ(text_of(position.states[0]), "after the first batch");
  bench.ring.begin();
  ticket = bench.take();
  EXPECT_EQ(start(ticket), "lost after the first batch");
  bench.publish(ticket, known, "of the second round");
  ASSERT_EQ(bench.next(), NextBatch::kBatch);
  bench.slots->give(bench.item.ticket.slot);
  bench.ring.begin();
  ticket = bench.take();
  EXPECT_EQ(start(ticket), "of the second round") << "all was delivered";
  bench.ring.seek(position);
  bench.ring.begin();
  bench.publish(ticket, known, "late");
  EXPECT_EQ(start(bench.take()), "lost after the first batch");
  const auto other = std::make_shared<const std::vector<std::byte>>(3, std::byte{'x'});
  for (int i = 0; i < 2; ++i) {  // of another feed, perhaps
    bench.ring.seek({.states = {{other, 0}}});
    bench.ring.begin();
    EXPECT_EQ(start(bench.take()), "lost xxx");
    known.is_lost = false;
  }
  bench.ring.seek(0, 0);
  bench.ring.begin();
  EXPECT_EQ(start(bench.take()), "lost start");
}

// Its worker stops between the word and the signal.
TEST(TicketRing, TheEndOfAnEpochWakesEachConsumer) {
  Bench bench(2, 1);
  bench.ring.begin();
  const Ticket last = bench.take();
  NextBatch found = NextBatch::kLate;
  std::thread other([&] {
    TicketRing::Delivery item;
    found = bench.ring.next(-1, item);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  (void)bench.slots->table().settle(static_cast<uint32_t>(last.slot), last.number);
  EXPECT_EQ(bench.next(), NextBatch::kEnd);  // without an outcome it is passed as a skip
  other.join();
  EXPECT_EQ(found, NextBatch::kEnd);
}

TEST(TicketRing, WhatHasFailedForTheConsumerIsPastForItsWorker) {
  Bench bench(3, 3);
  bench.ring.begin();
  const Ticket first = bench.take(), second = bench.take();
  ASSERT_TRUE(bench.ring.fail_wanted(failure_of(7, "it hangs")));
  EXPECT_TRUE(bench.ring.is_past(first));
  EXPECT_TRUE(bench.ring.is_past(second));
}

SlotsPlan plan_with_spare() {
  SlotsPlan plan{2, static_cast<size_t>(sysconf(_SC_PAGESIZE))};
  plan.spares = 1;
  return plan;
}

// A ticket whose worker hangs, and a spare slot for it.
struct Hung : Bench {
  Hung() : Bench(plan_with_spare(), 3) {
    ring.begin();
    ticket = take();
    again = ticket;
    again.slot = slots->take_spare();
  }
  Ticket ticket, again;
};

// Its thread has returned and given its slot back, after it was found to hang.
TEST(TicketRing, AnAbandonedTicketGoesOnAlsoIfItsThreadHasReturnedMeanwhile) {
  Hung bench;
  bench.slots->give_spare(bench.ticket.slot);
  ASSERT_TRUE(bench.ring.abandon(bench.ticket, bench.again, Slots::kFirstLoop + 1));
  bench.publish(bench.again);
  ASSERT_EQ(bench.next(), NextBatch::kBatch);
  EXPECT_EQ(bench.item.ticket.slot, bench.again.slot);
}

TEST(TicketRing, AnAbandonedTicketGoesOnInAnotherSlotAndWhatComesLateIsDropped) {
  Hung bench;
  ASSERT_TRUE(bench.ring.abandon(bench.ticket, bench.again, Slots::kFirstLoop + 1));
  EXPECT_TRUE(bench.ring.is_past(bench.ticket));
  EXPECT_FALSE(bench.ring.is_past(bench.again));
  EXPECT_EQ(bench.ring.snapshot().filling, 1);
  EXPECT_EQ(bench.free_slots(), 1);
  bench.ring.fail(bench.ticket, 0, failure_of(1, "late"));
  EXPECT_EQ(bench.free_slots(), 2) << "its slot is free, once; a feed makes it spare (Workers::return_late)";
  EXPECT_EQ(bench.next(), NextBatch::kLate);
  bench.publish(bench.again);
  ASSERT_EQ(bench.next(), NextBatch::kBatch);
  EXPECT_EQ(bench.item.ticket.slot, bench.again.slot);
  bench.publish(bench.take());
  ASSERT_EQ(bench.next(), NextBatch::kBatch);
  EXPECT_EQ(bench.item.ticket.index, 1u);
}

TEST(TicketRing, ATicketThatIsSettledIsNotAbandoned) {
  Hung bench;
  bench.publish(bench.ticket);
  EXPECT_FALSE(bench.ring.abandon(bench.ticket, bench.again, Slots::kFirstLoop + 1));
  EXPECT_EQ(bench.free_slots(), 1) << "the spare slot is the caller's";
  ASSERT_EQ(bench.next(), NextBatch::kBatch);
  EXPECT_EQ(bench.item.ticket.slot, bench.ticket.slot);
}

TEST(TicketRing, WhatIsGivenUpEndsNoEpochWhenItComesLate) {
  for (const bool fails : {false, true}) {
    Bench bench(2, -1);
    bench.ring.begin();
    const Ticket hung = bench.take();
    ASSERT_TRUE(bench.ring.give_up(0, true, failure_of(1, "")));
    EXPECT_EQ(bench.ring.snapshot().filling, 1) << "its worker has not returned";
    fails ? bench.ring.fail(hung, 0, failure_of(1, "late")) : bench.ring.finish(hung);
    EXPECT_EQ(bench.free_slots(), 2);
    bench.publish(bench.take());
    ASSERT_EQ(bench.next(), NextBatch::kBatch);
    EXPECT_EQ(bench.item.ticket.index, 1u);
  }
}

TEST(TicketRing, WhatFailsAfterItWasGivenUpKeepsNoTextOfALaterFailure) {
  Bench bench(2, -1);
  bench.ring.begin();
  const Ticket hung = bench.take();
  ASSERT_TRUE(bench.ring.give_up(0, true, failure_of(1, "")));
  bench.ring.fail(hung, 0, failure_of(1, "late"));
  bench.ring.fail(bench.take(), 0, failure_of(2, "told"));
  ASSERT_EQ(bench.next(), NextBatch::kFailure);
  EXPECT_STREQ(bench.item.failure->message, "told");
}

TEST(TicketRing, WhatIsGivenUpFailsAtItsPlace) {
  Bench bench(2, -1);
  bench.ring.begin();
  const Ticket hung = bench.take();
  ASSERT_TRUE(bench.ring.give_up(0, false, failure_of(3, "hangs")));
  Ticket none{.slot = bench.slots->try_take()};
  EXPECT_EQ(bench.ring.take(0, none), TicketTake::kNone);
  bench.slots->give(none.slot);
  bench.publish(hung);
  ASSERT_EQ(bench.next(), NextBatch::kFailure);
  EXPECT_EQ(bench.item.failure->code, 3);
  EXPECT_EQ(bench.item.ticket.index, 0u);
  EXPECT_EQ(bench.free_slots(), 2);
}

TEST(TicketRing, ABatchIsTheWorkersWhoseTurnItIs) {
  Bench bench(4, -1, 2);
  bench.ring.seek(0, 1);
  bench.ring.begin();
  EXPECT_EQ(bench.ring.await_turn(0, Deadline(0)), TicketTake::kNone);
  Ticket ticket{.slot = bench.slots->try_take()};
  EXPECT_EQ(bench.ring.take(0, ticket), TicketTake::kNone);
  std::thread other([&] { EXPECT_EQ(bench.ring.await_turn(0, Deadline(-1)), TicketTake::kTicket); });
  EXPECT_EQ(bench.ring.take(1, ticket), TicketTake::kTicket);
  other.join();
  EXPECT_EQ(ticket.index, 1u);
}

// Oracle: a worker writes epoch and index of its ticket into the slot. The consumer, which begins a new epoch
// after a few batches, must get those of its epoch alone, each once and in order. At the end all slots are
// free.
TEST(TicketRing, NothingOfARoundIsDeliveredInAnother) {
  const int rounds = repeats(1'000'000, 20'000, 5'000);
  Bench bench(4, -1);
  std::vector<std::thread> threads;
  for (int32_t worker = 0; worker < 2; ++worker) {
    threads.emplace_back([&bench, worker] {
      for (uint32_t n = 0; bench.ring.await_turn(worker, Deadline(-1)) == TicketTake::kTicket; ++n) {
        Ticket ticket{.slot = bench.slots->take(Slots::kFirstLoop + static_cast<uint32_t>(worker))};
        if (ticket.slot < 0) return;
        if (bench.ring.take(worker, ticket) != TicketTake::kTicket) {
          bench.slots->give(ticket.slot);
          continue;
        }
        const uint64_t content[2] = {ticket.epoch, ticket.index};
        std::memcpy(bench.slots->data(ticket.slot), content, sizeof content);
        n % 7 == 6 ? bench.ring.skip(ticket) : bench.ring.publish(ticket);
      }
    });
  }
  int wrong = 0;
  for (int round = 0; round < rounds && wrong == 0; ++round) {
    bench.ring.begin();
    uint64_t least = 0;
    for (int i = 0; i < round % 4; ++i) {
      if (bench.ring.next(-1, bench.item) != NextBatch::kBatch) ++wrong;
      const Ticket& ticket = bench.item.ticket;
      uint64_t content[2];
      std::memcpy(content, bench.slots->data(ticket.slot), sizeof content);
      if (content[0] != static_cast<uint64_t>(round) || content[1] != ticket.index ||
          ticket.epoch != static_cast<uint64_t>(round) || ticket.index < least) {
        ++wrong;
      }
      least = ticket.index + 1;
      bench.slots->give(ticket.slot);
    }
    if (round % 3 == 0) bench.ring.end();
  }
  EXPECT_EQ(wrong, 0);
  bench.ring.stop();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(bench.free_slots(), 4);
}

}  // namespace
}  // namespace tenon::impl
