// SPDX-License-Identifier: Apache-2.0
//
// Consumers in other processes. Each is forked before its feed is made, so it has nothing of it but the name.
#include "data/attached_feed.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "data/feed_peers_testing.h"
#include "data/served_feed_testing.h"
#include "ipc/segments.h"

namespace tenon::impl {
namespace {

using serving::begin_first;
using serving::keeper_of;
using serving::loop_over;
using serving::Peer;
using serving::Served;
using serving::take;
using serving::take_loop;
using serving::unique_name;

TEST(AttachedFeed, ConsumersOfSeveralProcessesShareAQueue) {
  TENON_SKIP_UNDER_TSAN();
  const std::string name = unique_name();
  const auto body = [&] {
    AttachedFeed feed(name);
    const int first = take_loop(feed);
    return first > 100 ? first : first + take_loop(feed);
  };
  Peer a(body), b(body);
  Served served(40, -1, 0, name);
  served.feed->serve({.consumers = 2});
  a.go();
  b.go();
  ASSERT_EQ(served.wait(), ServeWhat::kGathered);
  for (int epoch = 0; epoch < 2; ++epoch) {
    served.feed->serve_next();
    ASSERT_EQ(served.wait(), ServeWhat::kEpochEnded);
  }
  const int of_a = a.join(), of_b = b.join();
  EXPECT_EQ(of_a + of_b, 80) << of_a;
}

TEST(AttachedFeed, EachConsumerOfABroadcastGetsAllBatches) {
  TENON_SKIP_UNDER_TSAN();
  const std::string name = unique_name();
  const auto body = [&] {
    AttachedFeed feed(name);
    for (int epoch = 0; epoch < 3; ++epoch) {
      if (const int n = take_loop(feed); n != 90) return n;
    }
    return 0;
  };
  Peer a(body), b(body);
  Served served(90, -1, 0, name);
  served.feed->serve({.mode = ServedMode::kBroadcast, .consumers = 2});
  a.go();
  b.go();
  ASSERT_EQ(served.wait(), ServeWhat::kGathered);
  for (int epoch = 0; epoch < 3; ++epoch) {
    served.feed->serve_next();
    ASSERT_EQ(served.wait(), ServeWhat::kEpochEnded);
  }
  EXPECT_EQ(a.join(), 0);
  EXPECT_EQ(b.join(), 0);
}

// A consumer that keeps a batch while others go on.
TEST(AttachedFeed, ASlotThatIsReadIsNotFilledAgain) {
  TENON_SKIP_UNDER_TSAN();
  const std::string name = unique_name();
  Peer keeper([&] {
    AttachedFeed feed(name);
    feed.begin();
    Ref<Batch> kept, batch;
    if (!feed.next(60 * kSecond, kept) || !kept) return 1;
    int n = 1;
    while (feed.next(60 * kSecond, batch) && batch) ++n;
    const auto content = *reinterpret_cast<const uint64_t*>(kept->array(0)->data());
    return n == 90 && content == kept->ticket().index ? 0 : 2;
  });
  Peer other(loop_over(name));
  Served served(90, -1, 0, name);
  served.feed->serve({.mode = ServedMode::kBroadcast, .consumers = 2});
  keeper.go();
  other.go();
  ASSERT_NO_FATAL_FAILURE(begin_first(served));
  ASSERT_EQ(served.wait(), ServeWhat::kEpochEnded);
  EXPECT_EQ(keeper.join(), 0);
  EXPECT_EQ(other.join(), 90);
}

TEST(AttachedFeed, AKilledConsumerOfABroadcastHoldsUpNobody) {
  TENON_SKIP_UNDER_TSAN();
  const std::string name = unique_name();
  Peer victim(keeper_of(name, 1));
  Peer other(loop_over(name));
  Served served(90, -1, 0, name);
  served.feed->serve({.mode = ServedMode::kBroadcast, .consumers = 2});
  victim.go();
  other.go();
  ASSERT_NO_FATAL_FAILURE(begin_first(served));
  std::thread killer([&] {
    victim.hear();
    victim.kill();
  });
  EXPECT_EQ(served.wait(), ServeWhat::kEpochEnded);
  killer.join();
  EXPECT_EQ(other.join(), 90);
}

// The server notes the state after each batch before its slot is filled again.
TEST(AttachedFeed, TheServerKnowsTheStatesOfWhatWasReceived) {
  TENON_SKIP_UNDER_TSAN();
  for (const ServedMode mode : {ServedMode::kQueue, ServedMode::kBroadcast}) {
    const std::string name = unique_name();
    Peer consumer([&] {
      AttachedFeed feed(name);
      for (int epoch = 0; epoch < 2; ++epoch) {
        if (const int n = take_loop(feed); n != 60) return n;
      }
      return 0;
    });
    Served served(60, -1, 0, name, true);
    served.feed->serve({.mode = mode, .consumers = 1});
    consumer.go();
    ASSERT_EQ(served.wait(), ServeWhat::kGathered);
    for (uint64_t epoch = 0; epoch < 2; ++epoch) {
      served.feed->serve_next();
      ASSERT_EQ(served.wait(), ServeWhat::kEpochEnded);
      const FeedPosition position = served.feed->state();
      ASSERT_EQ(position.states.size(), 2U);
      for (uint64_t worker = 0; worker < 2; ++worker) {
        ASSERT_TRUE(position.states[worker].bytes);
        uint64_t content = 0;
        std::memcpy(&content, position.states[worker].bytes->data(), sizeof content);
        EXPECT_EQ(content, epoch << 32 | (58 + worker));
      }
    }
    EXPECT_EQ(consumer.join(), 0);
  }
}

// The slot of a batch with a state that a dead consumer had is filled again.
TEST(AttachedFeed, WhatADeadConsumerHadIsNoted) {
  TENON_SKIP_UNDER_TSAN();
  const std::string name = unique_name();
  Peer victim(keeper_of(name, 3));
  Peer other(loop_over(name));
  Served served(60, -1, 0, name, true);
  served.feed->serve({.consumers = 1});
  victim.go();
  ASSERT_NO_FATAL_FAILURE(begin_first(served));
  std::thread killer([&] {
    victim.hear();
    victim.kill();
    other.go();
  });
  ASSERT_EQ(served.wait(), ServeWhat::kEpochEnded);
  killer.join();
  EXPECT_EQ(other.join(), 57);
}

TEST(AttachedFeed, NobodyWritesToABatchOfABroadcast) {
  TENON_SKIP_UNDER_TSAN();
  const std::string name = unique_name();
  Peer writer([&] {
    AttachedFeed feed(name);
    feed.begin();
    Ref<Batch> batch;
    if (!feed.next(60 * kSecond, batch) || !batch) return 1;
    (void)signal(SIGSEGV, SIG_DFL);  // AddressSanitizer ends the process in another way
    *reinterpret_cast<volatile uint64_t*>(batch->array(0)->data()) = 1;
    return 2;
  });
  Served served(90, -1, 0, name);
  served.feed->serve({.mode = ServedMode::kBroadcast, .consumers = 1});
  writer.go();
  ASSERT_NO_FATAL_FAILURE(begin_first(served));
  EXPECT_EQ(writer.join(), -SIGSEGV);
}

TEST(AttachedFeed, OfAKilledConsumerOnlyItsOwnBatchIsLost) {
  TENON_SKIP_UNDER_TSAN();
  const std::string name = unique_name();
  Peer victim(keeper_of(name, 1));
  Peer other(loop_over(name));
  Served served(40, -1, 0, name);
  served.feed->serve({.consumers = 1});
  victim.go();
  ASSERT_NO_FATAL_FAILURE(begin_first(served));
  victim.hear();
  victim.kill();
  other.go();
  ASSERT_EQ(served.wait(), ServeWhat::kEpochEnded);
  EXPECT_EQ(other.join(), 39);
  served.feed->serve_end();
  EXPECT_EQ(served.feed->statistics().slots_held, 0);
}

TEST(AttachedFeed, AConsumerThatHoldsAllItMayWaits) {
  TENON_SKIP_UNDER_TSAN();
  const std::string name = unique_name();
  Peer consumer([&] {
    AttachedFeed feed(name);
    feed.begin();
    std::vector<Ref<Batch>> held;
    for (int i = 0; i < 3; ++i) {
      Ref<Batch> batch;
      if (!feed.next(60 * kSecond, batch) || !batch) return 1;
      held.push_back(std::move(batch));
    }
    Ref<Batch> batch;
    if (feed.next(100'000'000, batch)) return 2;
    held.erase(held.begin());
    if (!feed.next(60 * kSecond, batch) || !batch || batch->ticket().index != 3) return 3;
    return 0;
  });
  Served served(40, -1, 0, name);  // 5 slots, 2 workers
  served.feed->serve({.consumers = 1});
  consumer.go();
  ASSERT_NO_FATAL_FAILURE(begin_first(served));
  EXPECT_EQ(consumer.join(), 0);
}

TEST(AttachedFeed, WhatIsReadyComesBeforeTheDeathOfTheServer) {
  TENON_SKIP_UNDER_TSAN();
  const std::string name = unique_name();
  Peer server([&] {
    Served served(40, -1, 0, name);
    served.feed->serve({.consumers = 1});
    Peer::say();
    if (served.wait() != ServeWhat::kGathered) return 1;
    served.feed->serve_next();
    while (served.feed->serve_wait(0).unread < 3) std::this_thread::yield();
    Peer::say();
    pause();
    return 0;
  });
  server.go();
  server.hear();
  AttachedFeed feed(name);
  feed.begin();
  server.hear();
  server.kill();
  Ref<Batch> batch;
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(feed.next(60 * kSecond, batch));
    ASSERT_TRUE(batch);
    EXPECT_EQ(batch->ticket().index, i);
    batch = {};
  }
  try {
    for (int i = 0; i < 3; ++i) (void)feed.next(60 * kSecond, batch);
    ADD_FAILURE() << "the server has ended";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kOwnerDied) << e.what();
  }
}

TEST(AttachedFeed, AFailureIsToldWithItsText) {
  TENON_SKIP_UNDER_TSAN();
  const std::string name = unique_name();
  Peer consumer([&] {
    AttachedFeed feed(name);
    feed.begin();
    Ref<Batch> batch;
    try {
      while (feed.next(60 * kSecond, batch) && batch) {
      }
    } catch (const Error& e) {
      const bool is_told =
          e.code() == Code::kOp && std::string(e.what()).find("no batch 7") != std::string::npos;
      return is_told && feed.failure().index == 7 ? 0 : 1;
    }
    return 2;
  });
  Served served(40, 7, 0, name);
  served.feed->serve({.consumers = 1});
  consumer.go();
  ASSERT_NO_FATAL_FAILURE(begin_first(served));
  EXPECT_EQ(served.wait(), ServeWhat::kEpochEnded);
  EXPECT_EQ(consumer.join(), 0);
}

Code code_of(const std::function<void()>& attempt, std::string* text = nullptr) {
  try {
    attempt();
  } catch (const Error& e) {
    if (text != nullptr) *text = e.what();
    return e.code();
  }
  return Code::kInternal;
}

TEST(AttachedFeed, TheTextSaysThatConsumersHoldAllSlots) {
  TENON_SKIP_UNDER_TSAN();
  const std::string name = unique_name();
  Peer consumer([&] {
    AttachedFeed feed(name);
    feed.begin();
    Ref<Batch> late;
    if (feed.next(1, late) || feed.waiting_text().find("has not begun to serve") == std::string::npos)
      return 1;
    std::vector<Ref<Batch>> held;
    Peer::say();
    for (int i = 0; i < 3; ++i) held.push_back(take(feed));
    if (feed.next(50'000'000, late)) return 2;
    const bool is_told = feed.waiting_text().find("all 3 batches that may be out") != std::string::npos;
    return is_told && feed.describe().held == 3 ? 0 : 3;
  });
  Served served(40, -1, 0, name);
  served.feed->serve({.consumers = 1});
  consumer.go();
  consumer.hear();
  ASSERT_NO_FATAL_FAILURE(begin_first(served));
  EXPECT_EQ(consumer.join(), 0);
}

TEST(AttachedFeed, ALoopThatWasLeftGoesOn) {
  TENON_SKIP_UNDER_TSAN();
  const std::string name = unique_name();
  Peer consumer([&] {
    AttachedFeed feed(name);
    feed.begin();
    for (uint64_t i = 0; i < 4; ++i) {
      if (take(feed)->ticket().index != i) return 1;
    }
    bool is_gap = true;
    const FeedPosition left = feed.state(&is_gap);
    if (left.epoch != 0 || left.place != 4 || is_gap) return 2;
    if (take_loop(feed) != 16) return 3;
    const FeedPosition end = feed.state(&is_gap);
    if (end.epoch != 1 || end.place != 0 || is_gap) return 4;
    return take_loop(feed) == 20 ? 0 : 5;
  });
  Served served(20, -1, 0, name);
  served.feed->serve({.consumers = 1});
  consumer.go();
  ASSERT_EQ(served.wait(), ServeWhat::kGathered);
  for (int epoch = 0; epoch < 2; ++epoch) {
    served.feed->serve_next();
    ASSERT_EQ(served.wait(), ServeWhat::kEpochEnded);
  }
  EXPECT_EQ(consumer.join(), 0);
}

TEST(AttachedFeed, AfterTheEndOfTheServingTheRestComesThenLoopsAreRefused) {
  TENON_SKIP_UNDER_TSAN();
  const std::string name = unique_name();
  Peer consumer([&] {
    AttachedFeed feed(name);
    feed.begin();
    if (take(feed)->ticket().index != 0) return 1;
    Peer::say();
    while (feed.describe().phase != ServedPhase::kOver) std::this_thread::yield();
    for (uint64_t i = 1; i < 4; ++i) {
      if (take(feed)->ticket().index != i) return 2;
    }
    if (take(feed)) return 3;  // the loop has ended
    std::string text;
    if (code_of([&] { feed.begin(); }, &text) != Code::kClosed) return 4;
    return text.find("is not served any more by process") != std::string::npos ? 0 : 5;
  });
  Served served(20, -1, 0, name);
  served.feed->serve({.consumers = 1});
  consumer.go();
  ASSERT_NO_FATAL_FAILURE(begin_first(served));
  consumer.hear();
  while (served.feed->serve_wait(0).unread < 3) std::this_thread::yield();
  served.feed->serve_end();
  EXPECT_EQ(consumer.join(), 0);
}

TEST(AttachedFeed, ABatchKeepsItsBytesAndTheNameAfterTheEndOfTheFeed) {
  TENON_SKIP_UNDER_TSAN();
  const std::string name = unique_name();
  Peer consumer([&] {
    Ref<Batch> batch;
    {
      AttachedFeed feed(name);
      feed.begin();
      batch = take(feed);
    }
    Peer::say();
    while (getppid() != 1 && batch->array(0)->data()[0] == std::byte(0)) pause();
    return 0;
  });
  {
    Served served(20, -1, 0, name);
    served.feed->serve({.consumers = 1});
    consumer.go();
    ASSERT_NO_FATAL_FAILURE(begin_first(served));
    consumer.hear();
  }
  {
    Served again(20, -1, 0, name);
    std::string text;
    EXPECT_EQ(code_of([&] { again.feed->serve({}); }, &text), Code::kValue) << "the batch keeps the name";
    consumer.kill();
    EXPECT_NO_THROW(again.feed->serve({})) << text;
  }
}

TEST(AttachedFeed, AForkedChildReleasesNothing) {
  TENON_SKIP_UNDER_TSAN();
  const std::string name = unique_name();
  Peer consumer([&] {
    AttachedFeed feed(name);
    feed.begin();
    Ref<Batch> batch = take(feed);
    const pid_t child = fork();
    if (child == 0) {
      batch = {};
      const bool is_refused = code_of([&] { (void)take(feed); }) == Code::kClosed;
      feed.close();
      _exit(is_refused ? 0 : 1);
    }
    int status = -1;
    (void)waitpid(child, &status, 0);
    if (status != 0) return 1;
    if (feed.describe().held != 1) return 2;
    if (take(feed)->ticket().index != 1) return 3;
    batch = {};
    return feed.describe().held == 0 ? 0 : 4;
  });
  Served served(20, -1, 0, name);
  served.feed->serve({.consumers = 1});
  consumer.go();
  ASSERT_NO_FATAL_FAILURE(begin_first(served));
  EXPECT_EQ(consumer.join(), 0);
}

TEST(AttachedFeed, ABroadcastIsReadOnly) {
  TENON_SKIP_UNDER_TSAN();
  const std::string name = unique_name();
  const auto body = [&] {
    AttachedFeed feed(name);
    feed.begin();
    Ref<Batch> batch = take(feed);
    if (!batch->array(0)->is_readonly()) return 1;
    std::byte* const data = batch->array(0)->data();
    if (const pid_t child = fork(); child == 0) {
      (void)signal(SIGSEGV, SIG_DFL);
      *static_cast<volatile std::byte*>(data) = std::byte{1};
      _exit(0);
    } else {
      int status = 0;
      (void)waitpid(child, &status, 0);
      if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV) return 2;
    }
    return take(feed)->ticket().index == 1 && !take(feed) ? 0 : 3;
  };
  Peer a(body), b(body);
  Served served(2, -1, 0, name);
  served.feed->serve({.mode = ServedMode::kBroadcast, .consumers = 2});
  a.go();
  b.go();
  ASSERT_NO_FATAL_FAILURE(begin_first(served));
  EXPECT_EQ(served.wait(), ServeWhat::kEpochEnded);
  EXPECT_EQ(a.join(), 0);
  EXPECT_EQ(b.join(), 0);
}

TEST(AttachedFeed, ItSaysWhereItWantsToBegin) {
  TENON_SKIP_UNDER_TSAN();
  const std::string name = unique_name();
  Peer consumer([&] {
    AttachedFeed feed(name);
    FeedPosition wanted;
    wanted.epoch = 3;
    wanted.place = 7;
    feed.resume(wanted, 0, 1);
    feed.begin();
    if (code_of([&] { feed.resume({}, 0, 1); }) != Code::kValue) return 1;
    const Ref<Batch> batch = take(feed);
    const AttachedFeed::Info info = feed.describe();
    if (info.first_epoch != 3 || info.first_place != 7 || info.first_number != info.last_number) return 2;
    return batch->ticket().epoch == 3 && batch->ticket().index == 7 ? 0 : 3;
  });
  Served served(20, -1, 0, name);
  served.feed->serve({.consumers = 1, .note = "a note"});
  consumer.go();
  ASSERT_EQ(served.wait(), ServeWhat::kGathered);
  const std::optional<ServeWanted> wanted = served.feed->serve_wanted(0);
  ASSERT_TRUE(wanted);
  EXPECT_EQ(wanted->position.epoch, 3U);
  EXPECT_EQ(wanted->position.place, 7U);
  EXPECT_FALSE(served.feed->serve_wanted(1));
  served.feed->seek(wanted->position.epoch, wanted->position.place);
  served.feed->serve_next();
  EXPECT_EQ(consumer.join(), 0);
}

TEST(AttachedFeed, AProcessAttachesOnce) {
  Served served(20);
  served.feed->serve({.note = "a note"});
  AttachedFeed feed(served.name);
  EXPECT_EQ(feed.note(), "a note");
  EXPECT_EQ(code_of([&] { AttachedFeed again(served.name); }), Code::kValue);
  feed.close();
  EXPECT_EQ(code_of([&] { feed.begin(); }), Code::kClosed);
  EXPECT_NO_THROW(AttachedFeed(served.name).begin());
  EXPECT_EQ(code_of([&] { AttachedFeed("no-such-feed"); }), Code::kNotFound);
}

TEST(AttachedFeed, CloseEndsAWaitOfAnotherThread) {
  Served served(20);
  served.feed->serve({.consumers = 2});
  AttachedFeed feed(served.name);
  feed.begin();
  Code code = Code::kInternal;
  std::thread waiter([&] {
    Ref<Batch> batch;
    code = code_of([&] { (void)feed.next(-1, batch); });
  });
  while (feed.waiting_text().find("for 0.0 s") == std::string::npos) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  feed.close();
  waiter.join();
  EXPECT_EQ(code, Code::kClosed);
}

// The server may be stopped while it writes a round.
TEST(AttachedFeed, AServerThatIsStoppedInARoundHoldsUpNoCallWithoutLimit) {
  Served served(20);
  served.feed->serve({.consumers = 1});
  AttachedFeed feed(served.name);
  FeedShared& shared = feed.slots().control().shared();
  announce(shared.round.version, observe(shared.round.version) + 1);
  std::promise<void> has_begun;
  std::thread beginner([&] {
    feed.begin();
    has_begun.set_value();
  });
  const bool is_in_time =
      has_begun.get_future().wait_for(std::chrono::seconds(5)) == std::future_status::ready;
  Ref<Batch> batch;
  if (is_in_time) {
    EXPECT_EQ(feed.describe().consumers, 1U);
    EXPECT_FALSE(feed.next(20'000'000, batch));
    EXPECT_EQ(code_of([&] { feed.resume({}, 0, 1); }), Code::kValue) << "a loop has begun";
  }
  announce(shared.round.version, observe(shared.round.version) + 1);
  shared.settled.signal_all();
  beginner.join();
  ASSERT_TRUE(is_in_time);
  EXPECT_FALSE(feed.next(20'000'000, batch));
  ASSERT_NO_FATAL_FAILURE(begin_first(served));
  EXPECT_EQ(take(feed)->ticket().index, 0U);
}

TEST(AttachedFeed, ALoopIsNotBegunWhileAnotherThreadWaits) {
  Served served(20);
  served.feed->serve({.consumers = 2});
  AttachedFeed feed(served.name);
  feed.begin();
  std::thread waiter([&] {
    Ref<Batch> batch;
    EXPECT_EQ(code_of([&] { (void)feed.next(-1, batch); }), Code::kClosed);
  });
  std::string text;
  while (code_of([&] { feed.begin(); }, &text) != Code::kValue) std::this_thread::yield();
  EXPECT_NE(text.find("another thread waits for a batch"), std::string::npos) << text;
  feed.close();
  waiter.join();
}

// Of a batch that is ready: what another process may have written.
void expect_damage(const std::function<void(const AttachedSlots& slots, uint32_t slot)>& damage) {
  Served served(3);
  served.feed->serve({.consumers = 1});
  AttachedFeed feed(served.name);
  feed.begin();
  ASSERT_NO_FATAL_FAILURE(begin_first(served));
  while (served.feed->serve_wait(0).unread < 3) std::this_thread::yield();
  const SlotTable table = feed.slots().control().table();
  damage(feed.slots(), table.slot_of(table.passed() + 1));
  Ref<Batch> batch;
  std::string text;
  EXPECT_EQ(code_of([&] { (void)feed.next(kSecond, batch); }, &text), Code::kValue);
  EXPECT_NE(text.find("is damaged"), std::string::npos) << text;
}

TEST(AttachedFeed, WhatALiarWritesIsFound) {
  expect_damage([](const AttachedSlots& slots, uint32_t slot) {
    store(slots.control().record(slot).number, uint64_t{999});
  });
  for (const int64_t rows : {int64_t{-1}, serving::kRows + 1, INT64_MAX}) {
    expect_damage([rows](const AttachedSlots& slots, uint32_t slot) {
      *slots.control().head().layout.shapes(slots.data(static_cast<int32_t>(slot))) = rows;
    });
  }
}

TEST(AttachedFeed, ConsumersThatWaitTogetherStarveNoLongerThanThat) {
  TENON_SKIP_UNDER_TSAN();
  const std::string name = unique_name();
  const auto body = [&] {
    AttachedFeed feed(name);
    feed.begin();
    Peer::say();
    while (feed.describe().consumers < 3) std::this_thread::yield();
    Ref<Batch> batch;
    return feed.next(500'000'000, batch) ? 1 : 0;
  };
  Peer a(body), b(body), c(body);
  Served served(20, -1, 0, name);
  served.feed->serve({.consumers = 4});
  for (Peer* const peer : {&a, &b, &c}) {
    peer->go();
    peer->hear();
  }
  const int64_t began = now_ns();
  for (Peer* const peer : {&a, &b, &c}) EXPECT_EQ(peer->join(), 0);
  EXPECT_GE(served.feed->serve_counts().starved_ns, 400'000'000U);
  EXPECT_LE(served.feed->serve_counts().starved_ns, static_cast<uint64_t>(now_ns() - began + 100'000'000));
}

}  // namespace
}  // namespace tenon::impl
