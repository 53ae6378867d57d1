// SPDX-License-Identifier: Apache-2.0
//
// The laws of channels, with real processes: this program, started again.
//   - laws that one or two processes can show;
//   - many producers and consumers at the same time, in every mode and with every policy. Oracle: the
//     consumers receive the items of each producer in order, as often as the mode says, and no item is torn.
// channel_item_test: the ends of items. channel_history_test: step by step against a model.
// channel_crash_test: kills at every store.
#include <gtest/gtest.h>
#include <poll.h>

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "ipc/channel_testing.h"
#include "ipc/layout.h"

namespace tenon::impl {
namespace {

// ------------------------------------------------------------------------------------------------ the peers

// Sends its items in order after the first order, and closes after the second one.
void produce(Lines& lines, const std::string& name, int64_t first, int64_t n) {
  const api::Channel channel = join(name);
  std::string line;
  (void)channel.loan(kPatience);
  lines.say("here");
  (void)lines.hear(&line);
  for (int64_t i = 0; i < n;) {
    try {
      api::Item item = channel.loan(kPatience);
      fill(item, first + i);
      item.send();
      ++i;
    } catch (const api::Error& e) {
      if (e.code() != TENON_ERR_LEASE_CONFLICT) throw;
      std::this_thread::yield();
    }
  }
  lines.say("sent");
  (void)lines.hear(&line);
}

// Says the number of each item. Keeps some items for a while.
void consume(Lines& lines, const std::string& name, uint64_t seed) {
  const api::Channel channel = join(name);
  std::string line;
  (void)try_receive(channel);
  lines.say("here");
  std::mt19937_64 random(seed);
  std::deque<std::pair<int64_t, api::Item>> kept;
  uint64_t last = 0;
  while (std::optional<api::Item> item = channel.receive(kPatience)) {
    const int64_t value = value_of(*item);
    if (item->sequence() <= last) lines.say("order");
    last = item->sequence();
    lines.say(std::to_string(value));
    if (random() % 4 == 0) kept.emplace_back(value, std::move(*item));
    if (kept.size() > 1 || random() % 2 == 0) {
      if (!kept.empty() && value_of(kept.front().second) != kept.front().first) lines.say("torn");
      if (!kept.empty()) kept.pop_front();
    }
  }
  lines.say("end");
}

// ------------------------------------------------------------------------------------------------- the laws

TEST(Channel, AnItemArrivesWholeInOrderAndOnce) {
  const api::Channel channel = make(3);
  for (int64_t i = 1; i <= 3; ++i) put(channel, i);
  EXPECT_EQ(try_loan(channel), TENON_ERR_TIMEOUT);
  for (int64_t i = 1; i <= 3; ++i) {
    const std::optional<api::Item> item = channel.receive(0s);
    EXPECT_EQ(value_of(*item), i);
    EXPECT_EQ(item->sequence(), static_cast<uint64_t>(i));
  }
  EXPECT_EQ(try_receive(channel), TENON_ERR_TIMEOUT);
}

TEST(Channel, ALoanThatIsDroppedIsNoItemAndItsSlotIsFree) {
  const api::Channel channel = make(1);
  try {
    const api::Item item = channel.loan(0s);
    fill(item, 1);
    throw 1;
  } catch (int) {
  }
  EXPECT_EQ(channel.statistics().sent + static_cast<uint64_t>(channel.statistics().in_use), 0U);
  put(channel, 2);
  EXPECT_EQ(take(channel), 2);
}

// A send makes room, because an item is spare now, or can be dropped.
TEST(Channel, ALoanThatWaitsIsWokenByASendThatMakesRoom) {
  for (const Case& made :
       {Case{ChannelMode::kLatest, WhenFull::kWait}, Case{ChannelMode::kQueue, WhenFull::kDropOldest},
        Case{ChannelMode::kBroadcast, WhenFull::kWait}}) {
    const int slots = made.mode == ChannelMode::kLatest ? 3 : 1;
    const api::Channel channel = make(slots, made.mode, made.when_full);
    std::vector<api::Item> loans;
    if (slots == 3) put(channel, 1);
    while (try_loan(channel) == TENON_OK) loans.push_back(channel.loan(0s));
    pollfd poller{channel.descriptor(api::Access::kWrite), POLLIN, 0};
    for (int quiet = 0; quiet < 3;) {
      quiet = poll(&poller, 1, 20) == 1 ? 0 : quiet + 1;
      EXPECT_EQ(try_loan(channel), TENON_ERR_TIMEOUT);
    }
    fill(loans.back(), 2);
    loans.back().send();
    EXPECT_EQ(poll(&poller, 1, 600'000), 1) << static_cast<int>(made.mode);
    EXPECT_EQ(try_loan(channel), TENON_OK);
  }
}

TEST(Channel, OneThatIsOpenedForReadingAloneIsUsedAsAnyOther) {
  const std::string name = new_name();
  const api::Channel channel = make(2, ChannelMode::kQueue, WhenFull::kWait, name);
  put(channel, 1);
  Peer peer({"reader", name});
  EXPECT_EQ(peer.listen(), std::vector<std::string>{"1"});
  EXPECT_EQ(peer.end(), 0);
}

TEST(Channel, ASlotIsKeptByTheLastViewOfItsItem) {
  const api::Channel channel = make(1, ChannelMode::kQueue, WhenFull::kDropOldest);
  put(channel, 1);
  std::optional<api::Item> item = channel.receive(0s);
  std::optional<api::Array> array = item->array(0);
  std::optional<api::HostView> view;
  view.emplace(*array, api::Access::kRead);
  item.reset();
  array.reset();
  EXPECT_EQ(try_loan(channel), TENON_ERR_TIMEOUT);
  view.reset();
  EXPECT_EQ(try_loan(channel), TENON_OK);
}

TEST(Channel, WhatWaitsForNothingSaysSoInTime) {
  const api::Channel channel = make(1);
  const auto waits = [](const std::function<void()>& attempt) {
    const auto began = std::chrono::steady_clock::now();
    std::string message;
    EXPECT_EQ(code_of(attempt, &message), TENON_ERR_TIMEOUT);
    EXPECT_NE(message.find("in the time given"), std::string::npos) << message;
    EXPECT_GE(std::chrono::steady_clock::now() - began, 30ms);
  };
  waits([&] { (void)channel.receive(30ms); });
  put(channel, 1);
  waits([&] { (void)channel.loan(30ms); });
}

TEST(Channel, AFullChannelRaisesWhereItIsMadeSo) {
  const api::Channel channel = make(2, ChannelMode::kQueue, WhenFull::kRaise);
  put(channel, 1);
  put(channel, 2);
  std::string message;
  EXPECT_EQ(code_of([&] { (void)channel.loan(kPatience); }, &message), TENON_ERR_LEASE_CONFLICT);
  EXPECT_NE(message.find("all 2 slots"), std::string::npos) << message;
}

TEST(Channel, TheEndOfTheLastProducerIsToldOnceToEachAndNotBeforeAllIsReceived) {
  const std::string name = new_name();
  const api::Channel reader = make(4, ChannelMode::kQueue, WhenFull::kWait, name);
  Peer one({"steered", name}), two({"steered", name});
  std::string line;
  ASSERT_TRUE(one.hear(&line) && two.hear(&line));
  for (Peer* peer : {&one, &two}) EXPECT_EQ(peer->ask("loan"), "ok");
  EXPECT_EQ(one.ask("send 1"), "ok 1");
  EXPECT_EQ(one.ask("reopen"), "ok");
  EXPECT_EQ(take(reader), 1);
  EXPECT_EQ(try_receive(reader), TENON_ERR_TIMEOUT) << "there is another one";
  EXPECT_EQ(two.ask("send 2"), "ok 2");
  EXPECT_EQ(two.ask("reopen"), "ok");
  EXPECT_EQ(take(reader), 2);
  EXPECT_EQ(try_receive(reader), TENON_ERR_CLOSED);
  EXPECT_EQ(try_receive(reader), TENON_ERR_TIMEOUT) << "once";
  EXPECT_EQ(one.ask("loan"), "ok");
  EXPECT_EQ(one.ask("send 3"), "ok 3");
  EXPECT_EQ(take(reader), 3);
  EXPECT_EQ(one.ask("reopen"), "ok");
  EXPECT_EQ(try_receive(reader), TENON_ERR_CLOSED);
}

TEST(Channel, AProducerWhoseProcessEndsWithoutClosingCountsAsDead) {
  const std::string name = new_name();
  const api::Channel reader = make(4, ChannelMode::kQueue, WhenFull::kWait, name);
  Peer peer({"steered", name});
  std::string line;
  ASSERT_TRUE(peer.hear(&line));
  EXPECT_EQ(peer.ask("loan"), "ok");
  EXPECT_EQ(peer.ask("send 1"), "ok 1");
  (void)peer.end();
  EXPECT_EQ(take(reader), 1);
  EXPECT_EQ(try_receive(reader), TENON_ERR_OWNER_DIED);
}

// A process that is about to send for the first time, as a server that has just got its first request.
TEST(Channel, TheDeathOfAMemberIsToldUnlessItHasClosedOrUsedTheChannel) {
  const std::pair<std::vector<std::string>, tenon_status> cases[] = {
      {{"join"}, TENON_ERR_OWNER_DIED},         {{}, TENON_ERR_TIMEOUT},
      {{"join", "reopen"}, TENON_ERR_TIMEOUT},  {{"join", "receive"}, TENON_ERR_TIMEOUT},
      {{"receive", "join"}, TENON_ERR_TIMEOUT}, {{"loan", "drop", "reopen"}, TENON_ERR_CLOSED},
  };
  for (const auto& [verbs, wanted] : cases) {
    const std::string name = new_name();
    const api::Channel reader = make(4, ChannelMode::kQueue, WhenFull::kWait, name);
    EXPECT_EQ(try_receive(reader), TENON_ERR_TIMEOUT);
    Peer peer({"steered", name});
    std::string line;
    ASSERT_TRUE(peer.hear(&line));
    for (const std::string& verb : verbs) (void)peer.ask(verb);
    (void)peer.end();
    EXPECT_EQ(try_receive(reader), wanted) << testing::PrintToString(verbs);
    EXPECT_EQ(try_receive(reader), TENON_ERR_TIMEOUT) << "once";
  }
}

TEST(Channel, ADeathSaysWhatTheNextReceiveDoes) {
  const std::string name = new_name();
  const api::Channel reader = make(4, ChannelMode::kQueue, WhenFull::kWait, name);
  Peer one({"steered", name}), two({"steered", name}), three({"steered", name});
  std::string line, message;
  for (Peer* peer : {&one, &two, &three}) ASSERT_TRUE(peer->hear(&line));
  const auto dies = [&](Peer& peer) {
    (void)peer.end();
    EXPECT_EQ(code_of([&] { (void)reader.receive(0s); }, &message), TENON_ERR_OWNER_DIED);
    return message;
  };
  EXPECT_EQ(three.ask("join"), "ok");
  EXPECT_NE(dies(three).find("receive again to wait for a producer"), std::string::npos) << message;
  for (Peer* peer : {&one, &two}) EXPECT_EQ(peer->ask("loan"), "ok");
  EXPECT_NE(dies(one).find("receive again to get the items of other producers"), std::string::npos)
      << message;
  EXPECT_NE(dies(two).find("the next receive reports that the channel has ended"), std::string::npos)
      << message;
  EXPECT_EQ(try_receive(reader), TENON_ERR_CLOSED);
}

// After a receive that found nothing, the next ones look at less.
TEST(Channel, APollThatFoundNothingDoesNotHideWhatHappensNext) {
  for (const ChannelMode mode : {ChannelMode::kQueue, ChannelMode::kBroadcast, ChannelMode::kLatest}) {
    const std::string name = new_name();
    const api::Channel reader = make(4, mode, WhenFull::kWait, name);
    const auto expect_nothing = [&] {
      for (int i = 0; i < 3; ++i) EXPECT_EQ(try_receive(reader), TENON_ERR_TIMEOUT);
    };
    std::string line;
    Peer one({"steered", name}), two({"steered", name});
    ASSERT_TRUE(one.hear(&line) && two.hear(&line));
    expect_nothing();
    EXPECT_EQ(one.ask("loan"), "ok");
    expect_nothing();
    EXPECT_EQ(one.ask("send 1"), "ok 1");
    EXPECT_EQ(value_of(*reader.receive(0s)), 1);
    expect_nothing();
    EXPECT_EQ(two.ask("loan"), "ok");
    expect_nothing();
    (void)two.end();
    EXPECT_EQ(try_receive(reader), TENON_ERR_OWNER_DIED);
    expect_nothing();
    EXPECT_EQ(one.ask("reopen"), "ok");
    EXPECT_EQ(try_receive(reader), TENON_ERR_CLOSED);
    expect_nothing();
    reader.close();
    EXPECT_EQ(try_receive(reader), TENON_ERR_CLOSED);
  }
}

// More items wait than a search by their numbers can find at once.
TEST(Channel, ItemsArriveInOrderBesideAnItemThatIsOlderThanAllSlots) {
  const std::string name = new_name();
  const api::Channel channel = make(3, ChannelMode::kBroadcast, WhenFull::kDropOldest, name);
  const api::Channel late = join(name);
  (void)try_receive(channel);
  for (int64_t i = 1; i <= 20; ++i) {
    put(channel, i);
    if (i % 5 != 0) continue;
    for (int64_t wanted = i - 2; wanted <= i; ++wanted) EXPECT_EQ(take(channel), wanted);
    EXPECT_EQ(try_receive(channel), TENON_ERR_TIMEOUT);
  }
}

// A process that replaces a dead producer gets the same place in the segment.
TEST(Channel, ADeathIsToldAlsoWhereTheNextProducerHasTakenThePlaceOfTheDead) {
  const std::string name = new_name();
  const api::Channel reader = make(4, ChannelMode::kQueue, WhenFull::kWait, name);
  pid_t died = 0;
  {
    Peer first({"steered", name});
    std::string line;
    ASSERT_TRUE(first.hear(&line));
    EXPECT_EQ(first.ask("loan"), "ok");
    died = first.pid();
  }
  Peer second({"steered", name});
  std::string line;
  ASSERT_TRUE(second.hear(&line));
  EXPECT_EQ(second.ask("loan"), "ok");
  EXPECT_EQ(second.ask("send 1"), "ok 1");
  EXPECT_EQ(take(reader), 1);
  try {
    (void)reader.receive(0s);
    ADD_FAILURE() << "no process was told";
  } catch (const api::Error& e) {
    EXPECT_EQ(e.code(), TENON_ERR_OWNER_DIED) << e.what();
    EXPECT_EQ(e.op_code(), died);
  }
  EXPECT_EQ(try_receive(reader), TENON_ERR_TIMEOUT) << "once";
}

TEST(Channel, EachOfSeveralDeathsIsTold) {
  const std::string name = new_name();
  const api::Channel reader = make(4, ChannelMode::kQueue, WhenFull::kWait, name);
  std::set<int> died, told;
  {
    Peer one({"steered", name}), two({"steered", name}), three({"steered", name});
    std::string line;
    for (Peer* peer : {&one, &two, &three}) {
      ASSERT_TRUE(peer->hear(&line));
      EXPECT_EQ(peer->ask("loan"), "ok");
      died.insert(peer->pid());
    }
  }
  for (int i = 0; i < 3; ++i) {
    try {
      (void)reader.receive(0s);
    } catch (const api::Error& e) {
      if (e.code() == TENON_ERR_OWNER_DIED) told.insert(e.op_code());
    }
  }
  EXPECT_EQ(told, died);
}

// A producer that raises on a full channel must not be blocked by a dead process.
TEST(Channel, ADeadConsumerDoesNotHoldABroadcastUp) {
  const std::string name = new_name();
  const api::Channel channel = make(1, ChannelMode::kBroadcast, WhenFull::kRaise, name);
  {
    Peer consumer({"steered", name});
    std::string line;
    ASSERT_TRUE(consumer.hear(&line));
    (void)consumer.ask("receive");
    put(channel, 1);
    EXPECT_EQ(try_loan(channel), TENON_ERR_LEASE_CONFLICT) << "it has not got it yet";
  }
  EXPECT_EQ(try_loan(channel), TENON_OK);
}

TEST(Channel, ALaterConsumerOfABroadcastGetsWhatNoConsumerHasReceived) {
  const std::string name = new_name();
  const api::Channel channel = make(3, ChannelMode::kBroadcast, WhenFull::kWait, name);
  (void)try_receive(channel);
  for (int64_t i = 1; i <= 2; ++i) {
    put(channel, i);
    EXPECT_EQ(take(channel), i);
  }
  put(channel, 3);
  Peer later({"steered", name});
  std::string line;
  ASSERT_TRUE(later.hear(&line));
  EXPECT_EQ(channel.statistics().ready, 1);
  EXPECT_EQ(later.ask("receive"), "ok 3 3");
  channel.close();
  const api::Channel again = join(name);
  put(again, 4);
  EXPECT_EQ(take(again), 4) << "it was closed, and comes later now";
  EXPECT_EQ(again.statistics().ready, 1) << "for the other consumer";
  EXPECT_EQ(later.ask("receive"), "ok 4 4");
  EXPECT_EQ(again.statistics().ready, 0);
}

TEST(Channel, ABroadcastThatKeepsItsItemsWaitsForAConsumer) {
  const std::string name = new_name();
  const api::Channel channel = make(2, ChannelMode::kBroadcast, WhenFull::kKeep, name);
  for (int64_t i = 1; i <= 2; ++i) put(channel, i);
  EXPECT_EQ(try_loan(channel), TENON_ERR_TIMEOUT);
  Peer first({"steered", name});
  std::string line;
  ASSERT_TRUE(first.hear(&line));
  EXPECT_EQ(first.ask("receive"), "ok 1 1");
  EXPECT_EQ(first.ask("give"), "ok");
  put(channel, 3);
  EXPECT_EQ(first.ask("reopen"), "ok");
  EXPECT_EQ(try_loan(channel), TENON_ERR_TIMEOUT) << "the consumer has left";
  EXPECT_EQ(first.ask("receive"), "ok 2 2");
  EXPECT_EQ(first.ask("receive"), "ok 3 3");
  EXPECT_EQ(channel.statistics().dropped, 0U);
}

TEST(Channel, OneOpeningThatIsClosedEndsNoOtherOneOfItsProcess) {
  const std::string name = new_name();
  const api::Channel channel = make(2, ChannelMode::kBroadcast, WhenFull::kRaise, name);
  (void)try_receive(channel);
  Peer reader({"steered", name});
  std::string line;
  ASSERT_TRUE(reader.hear(&line));
  EXPECT_EQ(reader.ask("receive"), error_of(TENON_ERR_TIMEOUT));
  put(channel, 1);
  {
    const api::Channel again = join(name);
    put(again, 2);
    EXPECT_EQ(take(again), 1);
  }
  EXPECT_EQ(reader.ask("receive"), "ok 1 1");
  EXPECT_EQ(reader.ask("receive"), "ok 2 2");
  EXPECT_EQ(reader.ask("receive"), error_of(TENON_ERR_TIMEOUT)) << "it goes on";
  EXPECT_EQ(channel.statistics().consumers, 2);
  channel.close();
  EXPECT_EQ(reader.ask("receive"), "closed");
}

TEST(Channel, EachOpeningThatReceivesIsAConsumer) {
  const std::string name = new_name();
  const api::Channel channel = make(2, ChannelMode::kBroadcast, WhenFull::kRaise, name);
  const api::Channel fast = join(name), slow = join(name);
  for (const api::Channel* one : {&fast, &slow}) EXPECT_EQ(try_receive(*one), TENON_ERR_TIMEOUT);
  put(channel, 1);
  std::optional<api::Item> kept = slow.receive(0s);
  EXPECT_EQ(take(fast), 1);
  put(channel, 2);
  EXPECT_EQ(take(fast), 2);
  EXPECT_EQ(try_loan(channel), TENON_ERR_LEASE_CONFLICT) << "one has an item in hand, and another to receive";
  EXPECT_EQ(value_of(*kept), 1);
  EXPECT_EQ(take(slow), 2);
  EXPECT_EQ(try_loan(channel), TENON_OK);
  kept.reset();
  for (const int64_t value : {3, 4}) {
    put(channel, value);
    EXPECT_EQ(take(fast), value);
  }
  EXPECT_EQ(try_loan(channel), TENON_ERR_LEASE_CONFLICT);
  slow.close();
  EXPECT_EQ(try_loan(channel), TENON_OK) << "it holds up no producer any more";

  const std::string other = new_name();
  const api::Channel latest = make(3, ChannelMode::kLatest, WhenFull::kWait, other), again = join(other);
  put(latest, 5);
  for (const api::Channel* one : {&latest, &again}) {
    EXPECT_EQ(take(*one), 5);
    EXPECT_EQ(try_receive(*one), TENON_ERR_TIMEOUT);
  }
}

TEST(Channel, AForkedChildHasEndsOfItsOwn) {
  const api::Channel channel = make(4);
  put(channel, 1);
  const pid_t pid = fork();
  if (pid == 0) {
    int failed = code_of([&] {
                   put(channel, 2);
                   put(channel, take(channel));
                 }) == TENON_OK
                     ? 0
                     : 1;
    if (channel.statistics().producers != 2 || channel.statistics().consumers != 1) failed = 2;
    channel.close();
    if (channel.statistics().producers != 1 || channel.statistics().consumers != 0) failed = 3;
    _exit(failed);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(take(channel), 2);
  EXPECT_EQ(take(channel), 1);
  EXPECT_EQ(try_receive(channel), TENON_ERR_TIMEOUT) << "this process is still a producer";
}

TEST(Channel, AForkedChildNeitherSendsNorFreesTheItemsOfItsParent) {
  const api::Channel channel = make(2);
  put(channel, 1);
  std::optional<api::Item> received = channel.receive(0s);
  std::optional<api::Item> loan = channel.loan(0s);
  const pid_t pid = fork();
  if (pid == 0) {
    int failed = code_of([&] { loan->send(); }) == TENON_ERR_VALUE ? 0 : 1;
    loan.reset();
    received.reset();
    if (channel.statistics().in_use != 2) failed = 2;
    if (try_loan(channel) != TENON_ERR_TIMEOUT) failed = 3;
    _exit(failed);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(channel.statistics().in_use, 2);
  fill(*loan, 2);
  loan->send();
  EXPECT_EQ(take(channel), 2);
}

// It has no role any more, but the slots that it holds become free with its end.
TEST(Channel, AProcessThatHasClosedFreesItsItemsWhenItEnds) {
  const std::string name = new_name();
  const api::Channel channel = make(1, ChannelMode::kQueue, WhenFull::kWait, name);
  Peer consumer({"steered", name});
  std::string line;
  ASSERT_TRUE(consumer.hear(&line));
  EXPECT_EQ(consumer.ask("receive"), error_of(TENON_ERR_TIMEOUT));
  put(channel, 1);
  EXPECT_EQ(consumer.ask("receive"), "ok 1 1");
  EXPECT_EQ(consumer.ask("reopen"), "ok");
  EXPECT_EQ(channel.statistics().consumers, 0);
  EXPECT_EQ(try_loan(channel), TENON_ERR_TIMEOUT);
  (void)consumer.end();
  EXPECT_EQ(code_of([&] { (void)channel.loan(kPatience); }), TENON_OK);
}

// A child that has a view from before the fork cannot take the slot, and must not drop the item in it.
TEST(Channel, AProcessThatCannotHaveASlotDropsNothing) {
  const api::Channel channel = make(1, ChannelMode::kQueue, WhenFull::kDropOldest);
  put(channel, 1);
  std::optional<api::Item> received = channel.receive(0s);
  std::optional<api::Array> array = received->array(0);
  std::optional<api::HostView> view;
  view.emplace(*array, api::Access::kRead);
  const auto before = [&] {
    view.reset();
    array.reset();
    received.reset();
    put(channel, 2);
  };
  EXPECT_EQ(status_of_forked(before, [&] { return try_loan(channel); }), TENON_ERR_LEASE_CONFLICT);
  EXPECT_EQ(take(channel), 2);
}

// The next process gets the place of the dead one in the segment, and must not inherit its slots.
TEST(Channel, AProcessInThePlaceOfADeadOneHoldsNoneOfItsSlots) {
  for (const ChannelMode mode : {ChannelMode::kQueue, ChannelMode::kLatest}) {
    const std::string name = new_name();
    const api::Channel channel = make(3, mode, WhenFull::kWait, name);
    std::string line;
    {
      Peer dead({"steered", name});
      ASSERT_TRUE(dead.hear(&line));
      EXPECT_EQ(dead.ask("loan"), "ok");
      put(channel, 1);
      EXPECT_EQ(dead.ask("receive"), "ok 1 1");
    }
    Peer next({"steered", name});
    ASSERT_TRUE(next.hear(&line));
    for (const char* const verb : {"loan", "loan"}) EXPECT_EQ(next.ask(verb), "ok");
    EXPECT_EQ(channel.statistics().in_use, 2);
    for (const char* const verb : {"drop", "drop"}) EXPECT_EQ(next.ask(verb), "ok");
    EXPECT_EQ(channel.statistics().in_use, 0);
  }
}

// It releases what it inherits when its parent has, and uses the same slots.
TEST(Channel, AForkedChildSendsThroughTheSlotsOfItemsThatItInherits) {
  const api::Channel channel = make(1);
  put(channel, 1);
  std::optional<api::Item> received = channel.receive(0s);
  std::optional<api::Array> array = received->array(0);
  const auto before = [&] {
    array.reset();
    received.reset();
  };
  const auto child = [&] {
    return code_of([&] {
      api::Item item = channel.loan(kPatience);
      fill(item, 2);
      item.send();
    });
  };
  EXPECT_EQ(status_of_forked(before, child), TENON_OK);
  EXPECT_EQ(take(channel), 2);
}

TEST(Channel, ThreadsOfOneProcessShareWhatComes) {
  constexpr int64_t kEach = 300, kProducers = 2, kConsumers = 3;
  const std::string name = new_name();
  const api::Channel channel = make(4, ChannelMode::kQueue, WhenFull::kWait, name);
  const api::Channel again = join(name);
  std::vector<int64_t> received[kConsumers];
  std::vector<std::thread> threads;
  for (int64_t p = 0; p < kProducers; ++p) {
    threads.emplace_back([&, p] {
      for (int64_t i = 0; i < kEach; ++i) put(p == 0 ? channel : again, p * kEach + i);
    });
  }
  for (size_t c = 0; c < kConsumers; ++c) {
    threads.emplace_back([&, c] {
      for (int64_t i = 0; i < kEach * kProducers / kConsumers; ++i) {
        received[c].push_back(take(c == 0 ? channel : again));
        // Some calls time out, and leave the event to the others.
        if (i % 8 == 0) (void)code_of([&] { (void)again.loan(1us); });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<int64_t> all;
  for (const std::vector<int64_t>& one : received) all.insert(one.begin(), one.end());
  EXPECT_EQ(all.size(), static_cast<size_t>(kEach * kProducers));
  EXPECT_EQ(*all.begin(), 0);
  EXPECT_EQ(channel.statistics().in_use, 0);
}

// Items are not leases, of which a process has a limited number.
TEST(Channel, AProcessHoldsMoreItemsThanLeases) {
  constexpr int kSlots = kGrants + 40;
  const api::Channel channel = make(kSlots);
  std::vector<std::unique_ptr<api::Lease>> leases;
  for (uint32_t i = 0; i < kGrants; ++i) {
    leases.push_back(std::make_unique<api::Lease>(channel.memory(), api::Access::kRead, 0, 0s));
    leases.back()->detach();  // else the next one would be a part of it
  }
  std::vector<api::Item> items;
  for (int i = 0; i < kSlots; ++i) items.push_back(channel.loan(0s));
  EXPECT_EQ(try_loan(channel), TENON_ERR_TIMEOUT);
  for (api::Item& item : items) {
    fill(item, 1);
    item.send();
  }
  items.clear();
  for (int i = 0; i < kSlots; ++i) items.push_back(*channel.receive(0s));
  EXPECT_EQ(channel.statistics().in_use, kSlots);
}

TEST(Channel, WhatItHoldsIsKnownToWhomAttachesIt) {
  const std::string name = new_name();
  const std::vector<api::Field> fields = {api::field<float>("image", {3, 4}),
                                          api::field<uint8_t>("label", {})};
  api::SharedOptions shared;
  shared.name = name;
  const api::Channel channel =
      api::Channel::create(fields, 5, ChannelMode::kLatest, WhenFull::kRaise, shared);
  const api::Channel again = join(name);
  const tenon_channel_options plan = tenon_channel_describe(again.get());
  EXPECT_EQ(plan.slots, 5);
  EXPECT_EQ(plan.mode, TENON_CHANNEL_LATEST);
  EXPECT_EQ(plan.when_full, TENON_WHEN_FULL_RAISE);
  ASSERT_EQ(tenon_channel_field_count(again.get()), 2);
  const tenon_field image = tenon_channel_field(again.get(), 0);
  EXPECT_EQ(std::string(image.name), "image");
  EXPECT_EQ((std::vector<int64_t>(image.shape, image.shape + image.ndim)), (std::vector<int64_t>{3, 4}));
  const api::Item item = again.loan(0s);
  EXPECT_EQ(code_of([&] { (void)item.array(0).as<int64_t, 1>(); }), TENON_ERR_TYPE) << "another schema";
  EXPECT_EQ(code_of([&] { (void)item.array("x"); }), TENON_ERR_NOT_FOUND);
  // A second channel of that name, with another schema, is refused.
  std::string message;
  EXPECT_EQ(code_of([&] { (void)make(2, ChannelMode::kQueue, WhenFull::kWait, name); }, &message),
            TENON_ERR_VALUE);
  EXPECT_NE(message.find(name), std::string::npos) << message;
}

// The bytes of a channel in other memory, whose next block is another array.
TEST(Channel, ACopyOfAChannelIsRefused) {
  const api::Channel channel = make(2);
  const auto nbytes = static_cast<int64_t>(channel.memory().desc().nbytes);
  std::vector<api::Array> others;
  for (int i = 0; i < 3; ++i) others.push_back(api::zeros_shared({4 * nbytes}, api::dtype_of<uint8_t>()));
  const api::Array own = api::Array::zeros<uint8_t>({4 * nbytes});
  others.push_back(own);
  for (const api::Array& other : others) {
    std::memcpy(other.desc().data, channel.memory().desc().data, static_cast<size_t>(nbytes));
    EXPECT_EQ(code_of([&] { (void)api::Channel::open(other); }), TENON_ERR_VALUE);
  }
}

TEST(Channel, MemoryThatHoldsNoChannelIsRefused) {
  api::SharedOptions shared;
  shared.name = new_name();
  const api::Array zeros = api::zeros_shared({100'000}, api::dtype_of<uint8_t>(), shared);
  EXPECT_EQ(code_of([&] { (void)join(shared.name); }), TENON_ERR_VALUE);
  // A channel whose description is damaged, word by word.
  const api::Channel good = make(3);
  const api::Array memory = good.memory();
  auto* const words = static_cast<uint32_t*>(memory.desc().data);
  const std::vector<std::pair<size_t, uint32_t>> damages = {{0, 1}, {2, 0},          {2, 5000}, {3, 3},
                                                            {4, 4}, {6, 0xffffffff}, {7, 1},    {2, 4}};
  for (const auto& [at, value] : damages) {
    const uint32_t before = std::exchange(words[at], value);
    EXPECT_EQ(code_of([&] { (void)api::Channel::open(memory); }), TENON_ERR_VALUE) << "word " << at;
    words[at] = before;
  }
  EXPECT_EQ(code_of([&] { (void)api::Channel::open(memory); }), TENON_OK);
}

TEST(Channel, MoreSlotsThanAreThereAreRefused) {
  for (const int slots : {0, -1, 4096, 1 << 30})
    EXPECT_EQ(code_of([&] { (void)make(slots); }), TENON_ERR_VALUE);
  EXPECT_EQ(code_of([&] { (void)make(2, ChannelMode::kLatest); }), TENON_ERR_VALUE);
}

// ----------------------------------------------------------------------------------------------- the crowds

class Crowds : public testing::TestWithParam<Case> {};

TEST_P(Crowds, GetWhatTheModeSays) {
  constexpr int64_t kProducers = 2, kConsumers = 3, kApart = 1'000'000;
  const int64_t n = repeats(20'000, 400, 100);
  const auto [mode, when_full] = GetParam();
  const uint64_t seed = new_seed();
  SCOPED_TRACE(concat("TENON_SEED=", seed));
  const std::string name = new_name();
  // More slots than all consumers keep.
  const api::Channel channel = make(8, mode, when_full, name);
  std::vector<std::unique_ptr<Peer>> producers, consumers;
  std::string line;
  for (int64_t i = 0; i < kProducers; ++i) {
    producers.push_back(std::make_unique<Peer>(
        std::vector<std::string>{"produce", name, std::to_string(i * kApart), std::to_string(n)}));
    ASSERT_TRUE(producers.back()->hear(&line));
  }
  for (int64_t i = 0; i < kConsumers; ++i) {
    consumers.push_back(std::make_unique<Peer>(
        std::vector<std::string>{"consume", name, std::to_string(seed + static_cast<uint64_t>(i))}));
    ASSERT_TRUE(consumers.back()->hear(&line));
  }
  std::vector<std::vector<std::string>> heard(kConsumers);
  std::vector<std::thread> listeners;
  for (size_t i = 0; i < kConsumers; ++i) {
    listeners.emplace_back([&, i] { heard[i] = consumers[i]->listen(); });
  }
  for (const auto& producer : producers) producer->say("go");
  for (const auto& producer : producers) {
    EXPECT_TRUE(producer->hear(&line));
    EXPECT_EQ(line, "sent");
  }
  for (const auto& producer : producers) producer->say("close");
  for (std::thread& listener : listeners) listener.join();
  for (const auto& peer : producers) EXPECT_EQ(peer->end(), 0);
  for (const auto& peer : consumers) EXPECT_EQ(peer->end(), 0);

  std::map<int64_t, int> times;
  for (const std::vector<std::string>& one : heard) {
    ASSERT_FALSE(one.empty());
    EXPECT_EQ(one.back(), "end");
    std::map<int64_t, int64_t> last;  // of each producer
    for (size_t i = 0; i + 1 < one.size(); ++i) {
      ASSERT_TRUE(one[i] != "torn" && one[i] != "order" && one[i] != std::to_string(kTorn)) << one[i];
      const int64_t number = std::stoll(one[i]), producer = number / kApart;
      if (last.contains(producer)) {
        EXPECT_GT(number, last[producer]) << "a producer's order";
      }
      last[producer] = number;
      ++times[number];
    }
    if (mode == ChannelMode::kLatest) {
      EXPECT_TRUE(last[0] == n - 1 || last[1] == kApart + n - 1) << "the newest of all";
    }
  }
  const bool drops = when_full == WhenFull::kDropOldest || mode == ChannelMode::kLatest;
  const int wanted = mode == ChannelMode::kQueue ? 1 : kConsumers;
  for (const auto& [number, count] : times) {
    EXPECT_TRUE(drops ? count <= wanted : count == wanted) << number << ": " << count;
  }
  const tenon_channel_statistics now = channel.statistics();
  EXPECT_EQ(now.sent, static_cast<uint64_t>(kProducers * n));
  EXPECT_EQ(now.in_use, 0);
  if (!drops) {
    EXPECT_EQ(times.size(), static_cast<size_t>(kProducers * n));
  }
  if (mode == ChannelMode::kQueue) {
    EXPECT_EQ(times.size() + now.dropped, static_cast<size_t>(kProducers * n));
  }
}

INSTANTIATE_TEST_SUITE_P(Channel, Crowds, testing::ValuesIn(all_cases()), name_of);

int be_peer(const std::vector<std::string>& words) {
  Lines lines(STDIN_FILENO, STDOUT_FILENO);
  if (words[0] == "steered") be_steered(lines, words[1]);
  if (words[0] == "reader") {
    const api::Channel channel = api::Channel::open(api::attach(words[1], true));
    lines.say(std::to_string(take(channel)));
    channel.close();
  }
  if (words[0] == "produce") produce(lines, words[1], std::stoll(words[2]), std::stoll(words[3]));
  if (words[0] == "consume") consume(lines, words[1], std::stoull(words[2]));
  return 0;
}

}  // namespace
}  // namespace tenon::impl

int main(int count, char** words) {
  return tenon::impl::run_tests_or_peer(count, words, tenon::impl::be_peer);
}
