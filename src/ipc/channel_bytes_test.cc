// SPDX-License-Identifier: Apache-2.0
//
// Channels of bytes: items of different sizes share one budget. Oracle: the kernel says how many bytes the
// file of the channel has, and each item shows its number in each of its bytes.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <fstream>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/repeats_testing.h"
#include "ipc/channel.h"

namespace tenon::impl {
namespace {

const uint64_t kP = os::page_nbytes();
constexpr int64_t kPatienceNs = 600'000'000'000;

Ref<Channel> make(uint64_t pages, uint32_t slots = 4, ChannelMode mode = ChannelMode::kQueue,
                  WhenFull when_full = WhenFull::kWait, uint64_t largest_pages = 0) {
  ChannelPlan plan{slots, mode, when_full};
  plan.budget_nbytes = pages * kP;
  plan.largest_nbytes = largest_pages * kP;
  return Channel::create_bytes(plan, {});
}

uint64_t file_pages(const Channel& channel) {
  os::FileFacts facts;
  EXPECT_TRUE(os::facts_of(Segments::instance().writable_segment_of(channel.memory()).file(), &facts));
  return facts.committed_nbytes / kP;
}
// Of the slots alone.
class SlotPages {
 public:
  explicit SlotPages(const Channel& channel) : channel_(channel), before_(file_pages(channel)) {}
  uint64_t now() const { return file_pages(channel_) - before_; }

 private:
  const Channel& channel_;
  const uint64_t before_;
};

Ref<Item> try_loan(Channel& channel, uint64_t nbytes) { return channel.loan(Deadline(0), nullptr, nbytes); }
Ref<Item> receive(Channel& channel) { return channel.receive(Deadline(0), nullptr); }

void fill(Item& item, int value) {
  const Ref<Array> bytes = item.array(0);
  std::memset(bytes->data(), value, bytes->desc().nbytes);
}
void put(Channel& channel, uint64_t nbytes, int value) {
  const Ref<Item> item = channel.loan(Deadline(kPatienceNs), nullptr, nbytes);
  fill(*item, value);
  channel.send(*item);
}
// The value of all bytes of the item; -1: they differ.
int value_of(Item& item) {
  const Ref<Array> bytes = item.array(0);
  const auto* const data = reinterpret_cast<const unsigned char*>(bytes->data());
  const uint64_t n = bytes->desc().nbytes;
  return std::all_of(data, data + n, [&](unsigned char byte) { return byte == data[0]; }) && n != 0 ? data[0]
                                                                                                    : -1;
}
std::optional<Code> code_of_call(auto call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return {};
}

TEST(ChannelBytes, EachItemHasAsManyBytesAsItNeeds) {
  const Ref<Channel> channel = make(100);
  const SlotPages pages(*channel);
  EXPECT_EQ(pages.now(), 0U) << "memory is taken when an item is written";
  int value = 0;
  for (const uint64_t nbytes : {uint64_t{1}, kP - 1, kP, kP + 1, 50 * kP, uint64_t{3}}) {
    put(*channel, nbytes, ++value);
    const Ref<Item> item = receive(*channel);
    EXPECT_EQ(item->array(0)->desc().nbytes, nbytes);
    EXPECT_EQ(value_of(*item), value);
  }
  const Ref<Item> empty = try_loan(*channel, 0);
  channel->send(*empty);
  EXPECT_EQ(receive(*channel)->array(0)->desc().nbytes, 0U);
}

TEST(ChannelBytes, ItemsShareTheBudget) {
  const Ref<Channel> channel = make(8);
  const SlotPages pages(*channel);
  put(*channel, 4 * kP, 1);
  put(*channel, 3 * kP + 1, 2);
  EXPECT_FALSE(try_loan(*channel, 1)) << "three pages and a byte take four";
  Ref<Item> first = receive(*channel);
  EXPECT_FALSE(try_loan(*channel, 1)) << "a received item keeps its memory";
  first = {};
  put(*channel, 4 * kP, 3);
  EXPECT_EQ(pages.now(), 8U);
  EXPECT_EQ(value_of(*receive(*channel)), 2);
  EXPECT_EQ(value_of(*receive(*channel)), 3);
}

TEST(ChannelBytes, AnItemTakesTheMemoryOfSlotsThatNoProcessHas) {
  const Ref<Channel> channel = make(8, 8);
  const SlotPages pages(*channel);
  for (int i = 1; i <= 8; ++i) put(*channel, kP, i);
  for (int i = 1; i <= 8; ++i) EXPECT_EQ(value_of(*receive(*channel)), i);
  EXPECT_EQ(pages.now(), 8U) << "they keep it for the next items";
  put(*channel, 8 * kP, 9);
  EXPECT_EQ(pages.now(), 8U);
  EXPECT_EQ(value_of(*receive(*channel)), 9);
  std::vector<Ref<Item>> loans;  // and as many small ones as there are slots
  for (int i = 1; i <= 8; ++i) {
    loans.push_back(try_loan(*channel, kP));
    ASSERT_TRUE(loans.back()) << i;
  }
  EXPECT_LE(pages.now(), 8U);
}

TEST(ChannelBytes, ASlotIsUsedAgainWithItsMemory) {
  const Ref<Channel> channel = make(20);
  const SlotPages pages(*channel);
  for (int i = 1; i <= 20; ++i) {
    put(*channel, 5 * kP, i);
    EXPECT_EQ(value_of(*receive(*channel)), i);
    EXPECT_EQ(pages.now(), 5U);
  }
}

TEST(ChannelBytes, AnItemLargerThanTheLargestIsRefusedAtOnce) {
  const Ref<Channel> channel = make(8, 4, ChannelMode::kQueue, WhenFull::kWait, 2);
  EXPECT_EQ(code_of_call([&] { (void)channel->loan(Deadline(kPatienceNs), nullptr, 2 * kP + 1); }),
            Code::kValue);
  EXPECT_EQ(channel->statistics().in_use, 0U);
  EXPECT_TRUE(try_loan(*channel, 2 * kP));
  EXPECT_EQ(code_of_call([] { (void)make(2, 4, ChannelMode::kQueue, WhenFull::kWait, 3); }), Code::kValue);
  SharedOptions populated;
  populated.is_populated = true;
  ChannelPlan plan{4, ChannelMode::kQueue, WhenFull::kWait};
  plan.budget_nbytes = plan.largest_nbytes = kP;
  EXPECT_EQ(code_of_call([&] { (void)Channel::create_bytes(plan, populated); }), Code::kValue);
}

TEST(ChannelBytes, ALoanChangesItsSizeAndKeepsItsBytes) {
  const Ref<Channel> channel = make(8);
  put(*channel, 3 * kP, 1);
  Ref<Item> item = try_loan(*channel, kP);
  const Ref<Array> first = item->array(0);
  std::memset(first->data(), 7, kP);
  item->set_nbytes(5 * kP);
  EXPECT_EQ(first->data(), item->array(0)->data());
  EXPECT_EQ(code_of_call([&] { item->set_nbytes(5 * kP + 1); }), Code::kNoMemory);
  EXPECT_EQ(code_of_call([&] { item->set_nbytes(8 * kP + 1); }), Code::kValue);
  EXPECT_EQ(item->nbytes(), 5 * kP) << "a change in vain changes nothing";
  item->set_nbytes(kP - 1);
  channel->send(*item);
  EXPECT_EQ(code_of_call([&] { item->set_nbytes(1); }), Code::kValue) << "it was sent";
  EXPECT_EQ(value_of(*receive(*channel)), 1);
  const Ref<Item> received = receive(*channel);
  EXPECT_EQ(received->array(0)->desc().nbytes, kP - 1);
  EXPECT_EQ(value_of(*received), 7);
  EXPECT_EQ(code_of_call([&] { received->set_nbytes(1); }), Code::kValue);
}

TEST(ChannelBytes, TheOldestItemsAreDroppedUntilALargeOneFitsAndOnlyThen) {
  const Ref<Channel> channel = make(8, 8, ChannelMode::kQueue, WhenFull::kDropOldest);
  for (int i = 1; i <= 8; ++i) put(*channel, kP, i);
  Ref<Item> kept = receive(*channel);
  EXPECT_FALSE(try_loan(*channel, 8 * kP)) << "one page is held";
  EXPECT_EQ(channel->statistics().dropped, 0U);
  put(*channel, 5 * kP, 9);
  EXPECT_EQ(channel->statistics().dropped, 5U);
  for (const int value : {7, 8, 9}) EXPECT_EQ(value_of(*receive(*channel)), value);
}

TEST(ChannelBytes, ALoanThatWaitsForBytesIsWokenByTheirRelease) {
  const Ref<Channel> channel = make(8);
  put(*channel, 3 * kP, 1);
  put(*channel, 5 * kP, 2);
  std::thread consumer([&] {
    for (int i = 1; i <= 2; ++i) EXPECT_EQ(value_of(*channel->receive(Deadline(kPatienceNs), nullptr)), i);
  });
  put(*channel, 8 * kP, 3);
  consumer.join();
  EXPECT_EQ(value_of(*receive(*channel)), 3);
}

TEST(ChannelBytes, TheTextOfATimeoutSaysHowManyBytesAreInUse) {
  const Ref<Channel> channel = make(8);
  const Ref<Item> item = try_loan(*channel, 8 * kP);
  try {
    (void)channel->loan(Deadline(1'000'000), nullptr, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kTimeout);
    const std::string text = concat(8 * kP, " of ", 8 * kP, " bytes in use");
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

TEST(ChannelBytes, EachConsumerOfABroadcastReadsTheItemsInOrder) {
  const Ref<Channel> channel = make(8, 4, ChannelMode::kBroadcast);
  const Ref<Channel> other = Channel::of(Ref<Array>::share(&channel->memory()));
  EXPECT_FALSE(receive(*channel));
  EXPECT_FALSE(receive(*other));
  for (int i = 1; i <= 50; ++i) {
    put(*channel, static_cast<uint64_t>(1 + i % 8) * kP, i);
    EXPECT_EQ(value_of(*receive(*channel)), i);
    EXPECT_EQ(value_of(*receive(*other)), i);
  }
}

TEST(ChannelBytes, AProducerOfTheLatestItemNeverWaits) {
  const Ref<Channel> channel = make(24, 3, ChannelMode::kLatest, WhenFull::kWait, 8);
  Ref<Item> kept;
  for (int i = 1; i <= 50; ++i) {
    const Ref<Item> item = try_loan(*channel, static_cast<uint64_t>(1 + i % 8) * kP);
    ASSERT_TRUE(item) << i;
    fill(*item, i);
    channel->send(*item);
    if (i % 3 != 0) continue;
    kept = {};
    kept = receive(*channel);
    EXPECT_EQ(value_of(*kept), i);
  }
}

TEST(ChannelBytes, AnItemFitsBesideTheNewestOneThatStays) {
  for (const uint64_t largest : {0, 4}) {
    const Ref<Channel> channel = make(8, 4, ChannelMode::kLatest, WhenFull::kWait, largest);
    const uint64_t most = channel->plan().largest_nbytes;
    EXPECT_EQ(most, (largest == 0 ? 2 : largest) * kP);
    for (int i = 1; i <= 3; ++i) {
      const Ref<Item> item = try_loan(*channel, most);
      ASSERT_TRUE(item) << i;
      channel->send(*item);
    }
  }
  EXPECT_EQ(code_of_call([] { (void)make(8, 4, ChannelMode::kLatest, WhenFull::kWait, 5); }), Code::kValue);
}

TEST(ChannelBytes, ADroppedLoanIsFreeAlthoughItsArraysExist) {
  const Ref<Channel> channel = make(8);
  const Ref<Item> item = try_loan(*channel, 8 * kP);
  const Ref<Array> bytes = item->array(0);
  channel->drop(*item);
  EXPECT_EQ(code_of_call([&] { channel->drop(*item); }), Code::kValue);
  EXPECT_EQ(code_of_call([&] { channel->send(*item); }), Code::kValue);
  EXPECT_EQ(code_of_call([&] { (void)item->array(0); }), Code::kLeaseConflict);
  put(*channel, 8 * kP, 2);
  EXPECT_EQ(value_of(*receive(*channel)), 2);
  EXPECT_EQ(channel->statistics().in_use, 0U);
}

TEST(ChannelBytes, AnItemThatIsSmallerThanItsLoanLeavesTheRestToOthers) {
  const Ref<Channel> channel = make(8);
  Ref<Item> item = try_loan(*channel, 7 * kP);
  item->set_nbytes(kP);
  fill(*item, 1);
  channel->send(*item);
  const Ref<Item> second = try_loan(*channel, 6 * kP);
  ASSERT_TRUE(second);
  fill(*second, 2);
  channel->send(*second);
  EXPECT_EQ(value_of(*receive(*channel)), 1);
  EXPECT_EQ(value_of(*receive(*channel)), 2);
}

// Each flag of the mapping at an address, as the kernel names it.
std::string flags_of_mapping(const void* address) {
  std::ifstream file("/proc/self/smaps");
  bool is_here = false;
  for (std::string line; std::getline(file, line);) {
    unsigned long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      const auto at = reinterpret_cast<uintptr_t>(address);
      is_here = begin <= at && at < end;
    }
    if (is_here && line.starts_with("VmFlags:")) return line + " ";
  }
  return {};
}

// A core dump reads all pages of a shared mapping, and the kernel commits those that have no memory.
TEST(ChannelBytes, ACoreDumpTakesNoMemoryForSlots) {
  const Ref<Channel> channel = make(8);
  const Ref<Item> item = try_loan(*channel, kP);
  const auto is_dumped = [at = item->array(0)->data()] {
    return flags_of_mapping(at).find(" dd ") == std::string::npos;
  };
  EXPECT_FALSE(is_dumped());
  const pid_t child = fork();
  if (child == 0) _exit(is_dumped() ? 1 : 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0) << "of a forked child";
}

TEST(ChannelBytes, SlotsHaveNoMemoryAlsoWhereAllMappingsAreLocked) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers make mlockall() do nothing";
#endif
  const pid_t child = fork();
  if (child == 0) {
    if (mlockall(MCL_FUTURE) != 0) _exit(0);  // not permitted
    const Ref<Channel> channel = make(1 << 14, 16);
    if (file_pages(*channel) >= 1 << 12) _exit(1);  // the slots have 64 times as many
    put(*channel, kP, 3);
    _exit(value_of(*receive(*channel)) == 3 ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// Law: an item fits if it does so beside what slots may keep; it does not if the items alone leave no room.
TEST(ChannelBytes, WhatFitsDependsOnTheItemsAlone) {
  const int n = repeats(20'000, 2000);
  constexpr uint64_t kBudget = 64;
  constexpr uint32_t kSlots = 16;
  std::mt19937_64 random(7);
  const Ref<Channel> channel = make(kBudget, kSlots);
  const SlotPages pages(*channel);
  std::deque<uint64_t> sent;  // pages
  std::vector<std::pair<Ref<Item>, uint64_t>> held;
  const auto most = [](uint64_t size) { return std::max(size + size / 4, kBudget / kSlots); };
  for (int i = 0; i < n; ++i) {
    const uint64_t size = random() % 8 == 0 ? 1 + random() % kBudget : 1 + random() % 4;
    uint64_t items = 0, most_items = 0;
    const auto add = [&](uint64_t one) {
      items += one;
      most_items += most(one);
    };
    for (const uint64_t one : sent) add(one);
    for (const auto& [item, one] : held) add(one);
    const Ref<Item> loan = try_loan(*channel, size * kP);
    const bool has_slot = sent.size() + held.size() < kSlots;
    if (!has_slot || items + size > kBudget) {
      ASSERT_FALSE(loan) << i;
    } else if (most_items + size <= kBudget) {
      ASSERT_TRUE(loan) << i << ": " << size << " pages beside " << items;
    }
    ASSERT_LE(pages.now(), kBudget);
    if (loan && random() % 8 != 0) {
      fill(*loan, static_cast<int>(size));
      channel->send(*loan);
      sent.push_back(size);
    }
    if (!sent.empty() && random() % 2 == 0) {
      Ref<Item> item = receive(*channel);
      ASSERT_EQ(item->array(0)->desc().nbytes, sent.front() * kP);
      ASSERT_EQ(value_of(*item), static_cast<int>(sent.front()));
      held.emplace_back(std::move(item), sent.front());
      sent.pop_front();
    }
    while (held.size() > random() % 6) {
      const size_t at = random() % held.size();
      ASSERT_EQ(value_of(*held[at].first), static_cast<int>(held[at].second))
          << "an item that is held changed";
      held.erase(held.begin() + static_cast<ptrdiff_t>(at));
    }
  }
}

TEST(ChannelBytes, TwoProducersOfLargeItemsBothGoOn) {
  const Ref<Channel> channel = make(8, 4);
  const int n = repeats(5000, 500);
  std::vector<std::thread> producers;
  for (int p = 0; p < 2; ++p) {
    producers.emplace_back([&, p] {
      std::mt19937 random(static_cast<unsigned>(p));
      for (int i = 0; i < n; ++i) put(*channel, (1 + random() % 8) * kP, 1 + p);
    });
  }
  for (int i = 0; i < 2 * n; ++i) {
    EXPECT_GT(value_of(*channel->receive(Deadline(kPatienceNs), nullptr)), 0);
    EXPECT_LE(file_pages(*channel), 8U + 64U);
  }
  for (std::thread& producer : producers) producer.join();
}

// A forked producer is stopped before each of its stores in turn. Beside it, others use what it has not
// reserved. It is killed: what it has sent arrives, and all bytes and slots can be used.
TEST(ChannelBytes, AProducerThatDiesAtAnyStoreLeavesWhatItHasSentAndNothingElse) {
  constexpr uint64_t kBudget = 8;
  for (long at = 1;; ++at) {
    SCOPED_TRACE(at);
    const Ref<Channel> channel = make(kBudget, 3);
    int status = 0;
    pid_t child = fork();  // the place of children has memory after the first one
    if (child == 0) _exit(channel->loan(Deadline(0), nullptr, kP) ? 0 : 1);
    ASSERT_EQ(waitpid(child, &status, 0), child);
    try {
      EXPECT_FALSE(receive(*channel));
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == Code::kOwnerDied || error.code() == Code::kClosed);
    }
    const SlotPages pages(*channel);
    put(*channel, 3 * kP, 1);
    put(*channel, 2 * kP, 2);
    EXPECT_EQ(value_of(*receive(*channel)), 1);  // its slot is free, and has three pages
    child = fork();
    if (child == 0) {
      (void)stop_at_store(at);
      const Ref<Item> item = channel->loan(Deadline(0), nullptr, kP);
      if (item) {
        item->set_nbytes(6 * kP);
        fill(*item, 3);
        channel->send(*item);
      }
      (void)stop_at_store(0);
      _exit(item ? 0 : 1);
    }
    ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
    const bool has_stopped = WIFSTOPPED(status);
    if (has_stopped) {
      ASSERT_LE(pages.now(), kBudget);
      kill(child, SIGKILL);
      ASSERT_EQ(waitpid(child, &status, 0), child);
    } else {
      EXPECT_EQ(WEXITSTATUS(status), 0);
      EXPECT_GT(at, 10) << "as many stores as a loan and a send have";
    }
    EXPECT_EQ(value_of(*receive(*channel)), 2);
    std::vector<int> values;
    for (int i = 0; i < 3; ++i) {
      try {
        const Ref<Item> item = receive(*channel);
        if (item) values.push_back(value_of(*item));
      } catch (const Error& error) {
        EXPECT_TRUE(error.code() == Code::kOwnerDied || error.code() == Code::kClosed);
      }
    }
    if (!has_stopped) {
      EXPECT_EQ(values, std::vector<int>{3});
    }
    if (!values.empty()) {
      EXPECT_EQ(values, std::vector<int>{3});
    }
    put(*channel, kBudget * kP, 4);
    EXPECT_EQ(value_of(*receive(*channel)), 4);
    std::vector<Ref<Item>> all;
    for (int i = 0; i < 3; ++i) {
      all.push_back(try_loan(*channel, 2 * kP));
      EXPECT_TRUE(all.back());
    }
    EXPECT_LE(pages.now(), kBudget);
    if (!has_stopped) break;
  }
}

}  // namespace
}  // namespace tenon::impl
