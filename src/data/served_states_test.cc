// SPDX-License-Identifier: Apache-2.0
//
// The states of a generator whose batches other processes receive. They are the caller of ServedEnds.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "data/ticket_testing.h"
#include "ipc/served_ends.h"

namespace tenon::impl {
namespace {

SlotsPlan plan_of(const std::string& name) {
  static int n = 0;
  SlotsPlan plan{6, static_cast<size_t>(sysconf(_SC_PAGESIZE))};
  plan.is_shared = plan.has_processes = true;
  plan.shared_name = concat(name, "-", getpid(), "-", ++n);
  return plan;
}

void begin_round(Bench& bench) {
  ASSERT_TRUE(bench.ring.begin_served([](uint64_t) { return true; }, [](const Tickets::Round&) {}));
}

// The server has not noted it yet.
TEST(ServedStates, ASuccessorBeginsWithTheStateOfWhatAnotherProcessHasReceived) {
  for (const bool is_released : {false, true}) {
    Bench bench(plan_of("successor"), 9, 1, kHasStates);
    bench.slots->served()->mode = ServedMode::kQueue;
    bench.ring.begin_serving();
    begin_round(bench);
    std::vector<Ticket> tickets;
    KnownState known, start;
    const Ticket first = bench.take();
    ASSERT_TRUE(bench.ring.start_state(first, 0, start));
    bench.publish(first, known, "one");
    const ServedEnds ends = bench.slots->served_ends();
    const uint32_t p = bench.slots->self();
    ASSERT_TRUE(ends.take(p, static_cast<uint32_t>(first.slot), first.number));
    if (is_released) ends.release(p, static_cast<uint32_t>(first.slot), first.number);
    const Ticket second = bench.take();
    ASSERT_TRUE(bench.ring.reclaim(0, [&](const Ticket& ticket) { tickets.push_back(ticket); }));
    KnownState successor;
    EXPECT_TRUE(bench.ring.start_state(second, 0, successor));
    EXPECT_EQ(text_of(successor), "lost one");
    KnownState of_the_round;
    EXPECT_TRUE(bench.ring.read_start(0, of_the_round));
    EXPECT_EQ(text_of(of_the_round), "start") << "which consumers read";
    if (!is_released) ends.release(p, static_cast<uint32_t>(first.slot), first.number);
  }
}

// What was received before the next serving began is noted, whenever it was.
TEST(ServedStates, AServingThatBeginsWhileConsumersReceiveNotesThatToo) {
  Bench bench(plan_of("anew"), -1, 1, kHasStates);
  bench.slots->served()->mode = ServedMode::kQueue;
  bench.ring.begin_serving();
  begin_round(bench);
  const ServedEnds ends = bench.slots->served_ends();
  const uint32_t p = bench.slots->self();
  KnownState known;
  constexpr int kTimes = 3000;
  std::atomic<int64_t> given{0};
  std::atomic<bool> is_lost{false};
  std::atomic<uint32_t> slot_of[kTimes];
  std::atomic<uint64_t> number_of[kTimes];
  std::thread consumer([&] {
    for (int i = 0; i < kTimes; ++i) {
      while (given.load() <= i && !is_lost.load()) std::this_thread::yield();
      if (is_lost.load()) return;
      EXPECT_TRUE(ends.take(p, slot_of[i], number_of[i]));
      ends.release(p, slot_of[i], number_of[i]);
    }
  });
  Ticket last;
  for (int i = 0; i < kTimes; ++i) {
    const Deadline deadline(10 * kSecond);
    while (!bench.slots->has_free() && !deadline.has_passed()) bench.ring.begin_serving();
    if (!bench.slots->has_free()) {
      ADD_FAILURE() << "a slot is lost, at item " << i;
      is_lost.store(true);
      break;
    }
    last = bench.take();
    bench.publish(last, known, std::to_string(i));
    slot_of[i] = static_cast<uint32_t>(last.slot);
    number_of[i] = last.number;
    given.store(i + 1);
    bench.ring.begin_serving();
  }
  consumer.join();
  if (is_lost.load()) return;
  bench.ring.begin_serving();
  EXPECT_EQ(text_of(bench.ring.position().states[0]), std::to_string(kTimes - 1));
  EXPECT_EQ(observe(bench.slots->served()->noted), last.number);
  EXPECT_EQ(bench.free_slots(), 6);
}

// Also while a consumer receives.
TEST(ServedStates, APositionAndItsStatesBelongTogether) {
  Bench bench(plan_of("position"), -1, 1, kHasStates);
  bench.slots->served()->mode = ServedMode::kQueue;
  bench.ring.begin_serving();
  begin_round(bench);
  std::atomic<bool> is_over{false};
  std::thread consumer([&] {
    const ServedEnds ends = bench.slots->served_ends();
    const uint32_t p = bench.slots->self();
    KnownState known;
    for (int i = 0; i < 3000; ++i) {
      while (!bench.slots->has_free()) std::this_thread::yield();
      const Ticket ticket = bench.take();
      bench.publish(ticket, known, std::to_string(ticket.place));
      EXPECT_TRUE(ends.take(p, static_cast<uint32_t>(ticket.slot), ticket.number));
      ends.release(p, static_cast<uint32_t>(ticket.slot), ticket.number);
    }
    is_over.store(true);
  });
  int wrong = 0;
  while (!is_over.load()) {
    const FeedPosition position = bench.ring.position();
    const std::string state = text_of(position.states[0]);
    wrong += state == (position.place == 0 ? "start" : std::to_string(position.place - 1)) ? 0 : 1;
  }
  consumer.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(bench.ring.position().place, 3000U);
  EXPECT_EQ(bench.free_slots(), 6);
}

// The server passes a skip before it has noted what a consumer has received before that.
TEST(ServedStates, ASkipIsNotedBehindWhatWasReceivedBefore) {
  Bench bench(plan_of("skip"), 9, 1, kHasStates);
  bench.slots->served()->mode = ServedMode::kQueue;
  bench.ring.begin_serving();
  begin_round(bench);
  KnownState known;
  const Ticket first = bench.take(), skipped = bench.take();
  bench.publish(first, known, "one");
  bench.write_state(skipped, "two");
  bench.ring.skip(skipped, kHasState);
  const ServedEnds ends = bench.slots->served_ends();
  const uint32_t p = bench.slots->self();
  ASSERT_TRUE(ends.take(p, static_cast<uint32_t>(first.slot), first.number));
  ends.release(p, static_cast<uint32_t>(first.slot), first.number);
  EXPECT_FALSE(bench.ring.give_up(0, true, failure_of(1, "none is pending")))
      << "it looks, and notes nothing";
  EXPECT_EQ(bench.slots->table().passed(), skipped.number);
  EXPECT_EQ(text_of(bench.ring.position().states[0]), "two");
  EXPECT_EQ(bench.free_slots(), 6);
}

// A state from elsewhere is not that of what the last serving has left.
TEST(ServedStates, WhatIsNotedAtTheLastMomentChangesNoStartThatWasSet) {
  for (const bool has_start : {false, true}) {
    Bench bench(plan_of("start"), 9, 1, kHasStates);
    bench.slots->served()->mode = ServedMode::kQueue;
    bench.ring.begin_serving();
    begin_round(bench);
    KnownState known;
    const Ticket ticket = bench.take();
    bench.publish(ticket, known, "one");
    FeedPosition position;
    const char elsewhere[] = "elsewhere";
    const auto* const bytes = reinterpret_cast<const std::byte*>(elsewhere);
    position.states = {{std::make_shared<const std::vector<std::byte>>(bytes, bytes + 9)}};
    if (has_start) bench.ring.seek(position);
    const ServedEnds ends = bench.slots->served_ends();
    const uint32_t p = bench.slots->self();
    // The last consumer receives and ends after the server's first look.
    const auto may = [&](uint64_t) {
      EXPECT_TRUE(ends.take(p, static_cast<uint32_t>(ticket.slot), ticket.number));
      ends.release(p, static_cast<uint32_t>(ticket.slot), ticket.number);
      return true;
    };
    ASSERT_TRUE(bench.ring.begin_served(may, [](const Tickets::Round&) {}));
    KnownState start;
    EXPECT_TRUE(bench.ring.read_start(0, start));
    EXPECT_EQ(text_of(start), has_start ? "lost elsewhere" : "lost one");
    EXPECT_EQ(bench.free_slots(), 6);
  }
}

// As long as consumers in other processes receive what it has left.
TEST(ServedStates, AServedRoundIsNoneForTheFeedsOwnConsumer) {
  Bench bench(plan_of("own"), 9);
  bench.slots->served()->mode = ServedMode::kQueue;
  bench.ring.begin_serving();
  begin_round(bench);
  const Ticket ticket = bench.take();
  bench.publish(ticket);
  EXPECT_EQ(bench.next(), NextBatch::kEnd);
  EXPECT_EQ(bench.ring.peek(), NextBatch::kEnd);
  bench.ring.end();
  const ServedEnds ends = bench.slots->served_ends();
  const uint32_t p = bench.slots->self();
  ASSERT_TRUE(ends.take(p, static_cast<uint32_t>(ticket.slot), ticket.number));
  ends.release(p, static_cast<uint32_t>(ticket.slot), ticket.number);
  EXPECT_THROW(bench.ring.begin(), Error) << "it is being served";
  bench.ring.end_serving();
  bench.ring.begin();
  bench.publish(bench.take());
  EXPECT_EQ(bench.next(), NextBatch::kBatch);
  bench.slots->give(bench.item.ticket.slot);
}

}  // namespace
}  // namespace tenon::impl
