// SPDX-License-Identifier: Apache-2.0
#include "data/ticket_queue.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "base/error.h"

namespace tenon::impl {
namespace {

TicketFailure failure_of(int32_t code, const std::string& message) {
  TicketFailure failure;
  failure.code = code;
  failure.set_message(message.c_str());
  return failure;
}

using NextBatch = TicketQueue::NextBatch;

// A queue and its slots, driven by one thread.
struct Bench {
  Bench(int32_t slot_count, int64_t batches)
      : slots(Slots::create({slot_count, static_cast<size_t>(sysconf(_SC_PAGESIZE))})),
        queue(slots, Order(batches < 0 ? Order::kNoEnd : static_cast<uint64_t>(batches))) {}

  Ticket take() {
    Ticket ticket{.slot = slots->try_take()};
    EXPECT_GE(ticket.slot, 0);
    EXPECT_EQ(queue.take(0, true, ticket), TicketQueue::TicketTake::kTicket);
    return ticket;
  }
  void publish(const Ticket& ticket) { queue.publish(ticket, 1); }
  NextBatch next() { return queue.next(0, item); }
  int32_t free_slots() {
    std::vector<int32_t> taken;
    for (int32_t slot = slots->try_take(); slot >= 0; slot = slots->try_take()) taken.push_back(slot);
    for (const int32_t slot : taken) slots->give(slot);
    return static_cast<int32_t>(taken.size());
  }

  Ref<Slots> slots;
  TicketQueue queue;
  TicketQueue::Delivery item;
};

TEST(TicketQueue, BatchesComeInOrderOfIndexWhateverTheOrderOfFilling) {
  Bench bench(4, 3);
  bench.queue.begin();
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

TEST(TicketQueue, EpochsCountFromZeroAndBeginAnew) {
  Bench bench(2, 1);
  EXPECT_EQ(bench.next(), NextBatch::kEnd);
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    bench.queue.begin();
    const Ticket job = bench.take();
    EXPECT_EQ(job.epoch, epoch);
    EXPECT_EQ(job.index, 0u);
    bench.publish(job);
    ASSERT_EQ(bench.next(), NextBatch::kBatch);
    bench.slots->give(bench.item.ticket.slot);
    EXPECT_EQ(bench.next(), NextBatch::kEnd);
  }
}

TEST(TicketQueue, EndingAnEpochFreesWhatWasNotDelivered) {
  Bench bench(4, -1);
  bench.queue.begin();
  bench.publish(bench.take());
  bench.publish(bench.take());
  const auto late = bench.take();
  ASSERT_EQ(bench.next(), NextBatch::kBatch);
  EXPECT_EQ(bench.free_slots(), 1);
  bench.queue.end();
  EXPECT_EQ(bench.next(), NextBatch::kEnd);
  EXPECT_EQ(bench.free_slots(), 2);
  bench.queue.begin();
  bench.publish(late);  // of the epoch before
  EXPECT_EQ(bench.free_slots(), 3);
  EXPECT_EQ(bench.next(), NextBatch::kLate);
  EXPECT_EQ(bench.queue.snapshot().ready, 0);
}

TEST(TicketQueue, AFailureComesAtItsPlaceAndEndsTheEpoch) {
  Bench bench(4, -1);
  bench.queue.begin();
  const auto first = bench.take();
  const auto failing = bench.take();
  const auto later = bench.take();
  bench.queue.fail(failing, failure_of(7, "no more"));
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
  bench.queue.begin();
  EXPECT_EQ(bench.take().index, 0u);
  EXPECT_EQ(bench.next(), NextBatch::kLate);
}

TEST(TicketQueue, AfterAFailureNoLaterTicketIsGiven) {
  Bench bench(4, -1);
  bench.queue.begin();
  const auto failing = bench.take();
  bench.queue.fail(failing, failure_of(1, ""));
  bool took = true;
  std::thread worker([&] {
    Ticket ticket{.slot = bench.slots->try_take()};
    took = bench.queue.take(0, true, ticket) == TicketQueue::TicketTake::kTicket;
  });
  bench.queue.stop();
  worker.join();
  EXPECT_FALSE(took);
}

TEST(TicketQueue, ALongMessageIsCut) {
  Bench bench(2, -1);
  bench.queue.begin();
  const auto failing = bench.take();
  bench.queue.fail(failing, failure_of(1, std::string(10'000, 'x')));
  ASSERT_EQ(bench.next(), NextBatch::kFailure);
  EXPECT_EQ(bench.item.failure->message, std::string(kMessageSize - 1, 'x'));
}

TEST(TicketQueue, StopWakesWorkersAndConsumers) {
  Bench bench(2, -1);
  NextBatch outcome = NextBatch::kBatch;
  bench.queue.begin();
  const auto busy = bench.take();
  std::thread consumer([&] { outcome = bench.queue.next(-1, bench.item); });
  bench.queue.stop();
  consumer.join();
  EXPECT_EQ(outcome, NextBatch::kStopped);
  Ticket ticket{.slot = bench.slots->try_take()};
  EXPECT_EQ(bench.queue.take(0, true, ticket), TicketQueue::TicketTake::kStopped);
  bench.slots->give(ticket.slot);
  bench.publish(busy);
  EXPECT_EQ(bench.free_slots(), 2);
  EXPECT_THROW(bench.queue.begin(), Error);
}

TEST(TicketQueue, ASnapshotTellsWhoIsBusyWithWhat) {
  Bench bench(4, -1);
  bench.queue.begin();
  const auto oldest = bench.take();
  bench.publish(bench.take());
  bench.take();
  EXPECT_EQ(bench.next(), NextBatch::kLate);
  const TicketQueue::Snapshot now = bench.queue.snapshot();
  EXPECT_EQ(now.filling, 2);
  EXPECT_EQ(now.ready, 1);
  ASSERT_TRUE(now.wanted.has_value());
  EXPECT_EQ(now.wanted->index, 0u);
  ASSERT_TRUE(now.longest.has_value());
  EXPECT_EQ(now.longest->ticket.index, oldest.index);
}

// Oracle: each index must reach exactly one of the consumers, each consumer sees them rising.
TEST(TicketQueue, SeveralConsumersShareTheBatches) {
  constexpr uint64_t kBatches = 20'000;
  Bench bench(4, kBatches);
  bench.queue.begin();
  std::vector<std::thread> threads;
  for (int32_t worker = 0; worker < 2; ++worker) {
    threads.emplace_back([&bench, worker] {
      while (true) {
        Ticket ticket{.slot = bench.slots->take()};
        if (ticket.slot < 0) return;
        if (bench.queue.take(worker, true, ticket) != TicketQueue::TicketTake::kTicket) return;
        bench.queue.publish(ticket, 1);
      }
    });
  }
  std::vector<int> seen(kBatches);
  std::atomic<int> disorder{0};
  std::vector<std::thread> consumers;
  for (int c = 0; c < 2; ++c) {
    consumers.emplace_back([&] {
      TicketQueue::Delivery item;
      uint64_t least = 0;
      while (bench.queue.next(-1, item) == NextBatch::kBatch) {
        if (item.ticket.index < least) ++disorder;
        least = item.ticket.index + 1;
        ++seen[item.ticket.index];  // a data race if two got the same
        bench.slots->give(item.ticket.slot);
      }
    });
  }
  for (std::thread& consumer : consumers) consumer.join();
  bench.queue.stop();
  bench.slots->wake();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(disorder, 0);
  EXPECT_EQ(seen, std::vector<int>(kBatches, 1));
}

TEST(TicketQueue, AFailureOfABatchThatWasNotBegunEndsItsEpochOnly) {
  Bench bench(2, 2);
  TicketFailure failure = failure_of(-1, "an earlier call hangs");
  bench.queue.begin();
  ASSERT_TRUE(bench.queue.fail_wanted(failure));
  ASSERT_EQ(bench.next(), NextBatch::kFailure);
  bench.queue.begin();
  ASSERT_EQ(bench.next(), NextBatch::kLate) << "the failure of the epoch before";
  bench.publish(bench.take());
  ASSERT_EQ(bench.next(), NextBatch::kBatch);
  EXPECT_EQ(bench.item.ticket.epoch, 1u);
  bench.slots->give(bench.item.ticket.slot);
}

}  // namespace
}  // namespace tenon::impl
