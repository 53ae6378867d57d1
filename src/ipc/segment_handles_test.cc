// SPDX-License-Identifier: Apache-2.0
//
// The laws of the records of handles: what keeps a block, and for how long.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "ipc/handle.h"
#include "ipc/participant.h"
#include "ipc/segments.h"
#include "ipc/stand_in_testing.h"

namespace tenon::impl {
namespace {

constexpr uint64_t kNbytes = 4096;

std::string hex_of(const Array& array) {
  const std::string handle = Segments::instance().handle_of(array);
  const auto* const bytes = reinterpret_cast<const std::byte*>(handle.data());
  return hex({bytes, bytes + handle.size()});
}

class HandleRecords : public testing::Test {
 protected:
  StandIn a_{4};  // the creator
  StandIn b_{a_}, c_{a_};

  // A handle of a block that only the handle keeps.
  MessageId sent_by(StandIn& sender, uint32_t block) {
    EXPECT_TRUE(sender.use(block));
    a_.leave(block);
    const MessageId handle = sender.segment().send(block);
    sender.leave(block);
    return handle;
  }
};

TEST_F(HandleRecords, AHandleKeepsABlockUntilItIsOpened) {
  const uint32_t block = a_.take(kNbytes);
  const MessageId handle = a_.segment().send(block);
  a_.leave(block);
  EXPECT_FALSE(a_.segment().free_if_unused(block));
  ASSERT_TRUE(b_.use(block));
  EXPECT_EQ(b_.segment().receive(handle), MessageStatus::kLive);
  EXPECT_EQ(b_.segment().receive(handle), MessageStatus::kOpened);
  b_.leave(block);
  EXPECT_TRUE(a_.segment().free_if_unused(block));
}

TEST_F(HandleRecords, EveryHandleOfManyCounts) {
  const uint32_t block = a_.take(kNbytes);
  std::vector<MessageId> handles;
  for (uint32_t i = 0; i < 100; ++i) handles.push_back(a_.segment().send(block));
  a_.leave(block);
  for (const MessageId& handle : handles) {
    EXPECT_FALSE(a_.segment().free_if_unused(block));
    EXPECT_EQ(b_.segment().receive(handle), MessageStatus::kLive);
  }
  EXPECT_TRUE(a_.segment().free_if_unused(block));
}

TEST_F(HandleRecords, HandlesEndWithTheirSender) {
  for (const uint32_t count : {1, 48}) {
    const uint32_t block = a_.take(kNbytes);
    StandIn d{a_};
    ASSERT_TRUE(d.use(block));
    a_.leave(block);
    for (uint32_t i = 0; i < count; ++i) (void)d.segment().send(block);
    d.leave(block);
    EXPECT_TRUE(d.segment().has_sent());
    EXPECT_FALSE(a_.segment().has_sent());
    EXPECT_FALSE(a_.segment().free_if_unused(block));
    d.die();
    reap_all(a_.segment().control());
    EXPECT_TRUE(a_.segment().free_if_unused(block)) << count << " handles";
  }
}

TEST_F(HandleRecords, AHandleOfOneBlockKeepsNoOther) {
  const uint32_t block = a_.take(kNbytes), other = a_.take(kNbytes);
  const MessageId first = a_.segment().send(block), second = a_.segment().send(block);
  const MessageId of_other = a_.segment().send(other);
  a_.leave(block);
  a_.leave(other);
  EXPECT_EQ(b_.segment().receive(second), MessageStatus::kLive);  // the one that the block names
  EXPECT_FALSE(a_.segment().free_if_unused(block));
  EXPECT_EQ(b_.segment().receive(of_other), MessageStatus::kLive);
  EXPECT_TRUE(a_.segment().free_if_unused(other));
  EXPECT_EQ(b_.segment().receive(first), MessageStatus::kLive);
  EXPECT_TRUE(a_.segment().free_if_unused(block));
}

// More than there are records: handles without limits share them.
TEST_F(HandleRecords, HandlesHaveNoGreatestNumber) {
  const uint32_t block = a_.take(kNbytes), other = a_.take(kNbytes);
  std::vector<MessageId> handles;
  for (uint32_t i = 0; i < kMostMessages + 100; ++i) handles.push_back(a_.segment().send(block));
  EXPECT_THROW((void)a_.segment().send(other), Error) << "no record is of this one";
  EXPECT_THROW(a_.segment().limit(handles.back(), {{}, now_ns() + 1'000'000'000}), Error);
  EXPECT_THROW((void)a_.segment().set_opens(handles.back(), 2), Error);
  a_.leave(block);
  for (const MessageId& handle : handles) {
    ASSERT_FALSE(a_.segment().free_if_unused(block));
    ASSERT_EQ(b_.segment().receive(handle), MessageStatus::kLive);
  }
  EXPECT_TRUE(a_.segment().free_if_unused(block));
  EXPECT_LT(a_.segment().send(other).record, kMostMessages);
}

// The records of processes that have gone, and those that a process gives away, are used again.
TEST_F(HandleRecords, RecordsOfManyProcessesAreUsedAgain) {
  const uint32_t block = a_.take(kNbytes);
  constexpr uint32_t kEach = 1000;
  for (int round = 0; round < 8; ++round) {
    StandIn d{a_};
    ASSERT_TRUE(d.use(block));
    std::vector<MessageId> handles;
    for (uint32_t i = 0; i < kEach; ++i) handles.push_back(d.segment().send(block));
    if (round % 2 == 0) {
      d.leave(block);
      d.die();
      continue;
    }
    for (const MessageId& handle : handles) (void)a_.segment().receive(handle);
    (void)d.segment().end_limited();
    d.leave(block);
    for (uint32_t i = 0; i < kEach; ++i) handles[i] = a_.segment().send(block);
    for (const MessageId& handle : handles) {
      ASSERT_EQ(a_.segment().receive(handle), MessageStatus::kLive);
    }
    (void)a_.segment().end_limited();
  }
  a_.leave(block);
  reap_all(a_.segment().control());
  EXPECT_TRUE(a_.segment().free_if_unused(block));
}

// Processes that send and open handles at once never get one record for two messages.
TEST_F(HandleRecords, ProcessesThatSendAtOnceHaveRecordsOfTheirOwn) {
  const uint32_t block = a_.take(kNbytes);
  ASSERT_TRUE(b_.use(block) && c_.use(block));
  std::atomic<uint32_t> opened{0};
  std::vector<std::thread> threads;
  constexpr uint32_t kRounds = 3000;
  for (StandIn* stand_in : {&a_, &b_, &c_}) {
    for (int t = 0; t < 2; ++t) {
      threads.emplace_back([&, stand_in] {
        std::vector<MessageId> handles;
        for (uint32_t i = 0; i < kRounds; ++i) {
          handles.push_back(stand_in->segment().send(block));
          if (handles.size() < 1 + i % 50) continue;
          for (const MessageId& handle : handles)
            opened += a_.segment().receive(handle) == MessageStatus::kLive ? 1 : 0;
          handles.clear();
          if (i % 7 == 0) (void)stand_in->segment().end_limited();
        }
        for (const MessageId& handle : handles)
          opened += a_.segment().receive(handle) == MessageStatus::kLive ? 1 : 0;
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(opened, 6 * kRounds);
  for (StandIn* stand_in : {&a_, &b_, &c_}) {
    EXPECT_FALSE(stand_in->segment().has_sent());
    stand_in->leave(block);
  }
  EXPECT_TRUE(a_.segment().free_if_unused(block));
}

// A process keeps a handle for a time beside its sender, which lives. Its limit ends only what it keeps.
TEST_F(HandleRecords, TheLimitOfAProcessThatTakesAHandleOverIsNotTheSenders) {
  const uint32_t block = a_.take(kNbytes);
  const MessageId handle = sent_by(b_, block);
  EXPECT_EQ(c_.segment().take_over(handle, now_ns() - 1), Kept::kYes);
  EXPECT_TRUE(b_.segment().has_sent());
  EXPECT_FALSE(a_.segment().free_if_unused(block)) << "the sender keeps it";
  EXPECT_EQ(c_.segment().take_over(handle, 0), Kept::kYes);
  b_.segment().limit(handle, {{}, now_ns() + 3'600'000'000'000});
  store(b_.segment().message(handle.record).until_ns, now_ns());  // it has passed
  EXPECT_FALSE(a_.segment().free_if_unused(block)) << "the other process keeps it";
  c_.die();
  reap_all(a_.segment().control());
  EXPECT_EQ(a_.segment().status_of(handle), MessageStatus::kExpired);
  EXPECT_TRUE(a_.segment().free_if_unused(block));
}

TEST_F(HandleRecords, OneProcessKeepsAHandleBesideItsSender) {
  const uint32_t block = a_.take(kNbytes);
  const MessageId handle = a_.segment().send(block);
  a_.leave(block);
  EXPECT_EQ(b_.segment().take_over(handle, 0), Kept::kYes);
  EXPECT_EQ(b_.segment().take_over(handle, 0), Kept::kYes) << "again";
  EXPECT_EQ(c_.segment().take_over(handle, 0), Kept::kNo) << "the first one lives";
  EXPECT_TRUE(b_.segment().has_sent());
  EXPECT_FALSE(c_.segment().has_sent());
  b_.die();
  EXPECT_TRUE(keep_patiently([&] { return c_.segment().take_over(handle, 0); })) << "the first one is dead";
  EXPECT_TRUE(c_.segment().has_sent());
  EXPECT_EQ(c_.segment().revoke(block), 1U);
  EXPECT_EQ(c_.segment().take_over(handle, 0), Kept::kNo) << "it has ended";
}

// Oracle: the next message of the record has its own keeper, limits and opens.
TEST_F(HandleRecords, WhatKeepsAHandleDoesNotKeepTheNextOneOfItsRecord) {
  const uint32_t block = a_.take(kNbytes);
  const MessageId handle = a_.segment().send(block);
  EXPECT_EQ(b_.segment().take_over(handle, now_ns() + 3'600'000'000'000), Kept::kYes);
  EXPECT_EQ(a_.segment().revoke(block), 1U);
  MessageId next;
  do {
    next = a_.segment().send(block);
    if (next.record != handle.record) (void)a_.segment().receive(next);
  } while (next.record != handle.record);
  EXPECT_FALSE(b_.segment().has_sent());
  EXPECT_EQ(b_.segment().take_over(handle, 0), Kept::kNo);
  EXPECT_EQ(c_.segment().take_over(next, 0), Kept::kYes);
  b_.die();
  reap_all(a_.segment().control());
  EXPECT_EQ(a_.segment().status_of(next), MessageStatus::kLive);
  EXPECT_TRUE(c_.segment().has_sent());
  EXPECT_EQ(a_.segment().receive(next), MessageStatus::kLive);
  EXPECT_FALSE(c_.segment().has_sent());
  a_.leave(block);
  EXPECT_TRUE(a_.segment().free_if_unused(block));
}

// Oracle: a handle that take_over() has said to be kept is live as long as the process that said it lives,
// and nobody opens or revokes it. Beside the end of the sender, looks at the handle, and the end of an
// earlier keeper; each in a thread of its own, as the processes that they stand for.
TEST_F(HandleRecords, NoEndOfOthersIsLaterThanAPromiseToKeep) {
  constexpr int kRounds = 150;
  int kept = 0;
  for (int round = 0; round < kRounds; ++round) {
    const uint32_t block = a_.take(64);
    StandIn sender{a_}, first{a_};
    const MessageId handle = sent_by(sender, block);
    if (round % 2 == 0) {
      ASSERT_EQ(first.segment().take_over(handle, round % 4 == 0 ? now_ns() : 0), Kept::kYes);
    }
    std::atomic<int> ready{0};
    const auto at_once = [&] {
      ready.fetch_add(1);
      while (ready.load() < 4) relax_processor();
    };
    bool is_kept = false;
    std::thread dies([&] {
      at_once();
      sender.die();
      first.die();
    });
    std::thread looks([&] {
      at_once();
      for (int i = 0; i < 50; ++i) (void)a_.segment().status_of(handle);
    });
    std::thread reaps([&] {
      at_once();
      for (int i = 0; i < 5; ++i) reap_all(c_.segment().control());
    });
    at_once();
    for (int i = 0; i < round % 64; ++i) relax_processor();
    is_kept = keep_patiently([&] { return b_.segment().take_over(handle, 0); });
    for (std::thread* thread : {&dies, &looks, &reaps}) thread->join();
    reap_all(a_.segment().control());
    kept += is_kept ? 1 : 0;
    ASSERT_EQ(a_.segment().status_of(handle) == MessageStatus::kLive, is_kept) << round;
    ASSERT_EQ(b_.segment().has_sent(), is_kept);
    ASSERT_EQ(b_.segment().revoke(block), is_kept ? 1U : 0U);
    ASSERT_TRUE(a_.segment().free_if_unused(block));
  }
  EXPECT_GT(kept, 0);
  std::cout << kept << " of " << kRounds << " kept\n";
}

TEST_F(HandleRecords, ASenderIsNoKeeperOfItsHandle) {
  const uint32_t block = a_.take(kNbytes);
  const MessageId handle = a_.segment().send(block);
  a_.leave(block);
  EXPECT_EQ(a_.segment().take_over(handle, 0), Kept::kYes);
  EXPECT_EQ(b_.segment().take_over(handle, 0), Kept::kYes) << "for its end";
  EXPECT_EQ(b_.segment().revoke(block), 1U);
  EXPECT_EQ(a_.segment().take_over(handle, 0), Kept::kNo);
}

TEST_F(HandleRecords, AKeeperThatIsNoProcessKeepsNothing) {
  const uint32_t block = a_.take(kNbytes);
  StandIn sender{a_};
  const MessageId handle = sent_by(sender, block);
  std::atomic<uint64_t>& word = a_.segment().message(handle.record).word;
  word = MessageWord::with_keeper(word, 1023);
  sender.die();
  reap_all(a_.segment().control());
  EXPECT_EQ(a_.segment().status_of(handle), MessageStatus::kSenderGone);
  EXPECT_TRUE(a_.segment().free_if_unused(block));
}

// The creator is stopped while it looks whether a block is unused, and finds that it is not.
TEST(Handles, AnOpenThatWaitsForALookHoldsUpNoOther) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  Segments& segments = Segments::instance();
  const auto make = [&] { return segments.create(DType(TENON_UINT, 8), std::vector<int64_t>{100}, 0, {}); };
  const pid_t creator = fork();
  if (creator == 0) {
    alarm(600);
    const Ref<Array> one = make(), other = make();
    Lines(ends[0], ends[1]).say(hex_of(*one) + " " + hex_of(*other));
    while (true) pause();
  }
  std::string line;
  ASSERT_TRUE(Lines(ends[0], ends[1]).hear(&line));
  ASSERT_EQ(kill(creator, SIGSTOP), 0);
  const size_t blank = line.find(' ');
  const std::vector<std::byte> sent = bytes_of(line.substr(0, blank));
  const Ref<Array> other = segments.open(bytes_of(line.substr(blank + 1)));
  const ArrayHandle handle = ArrayHandle::decode(sent);
  Block* block = nullptr;
  segments.visit([&](Segment& segment) {
    if (segment.header().id == handle.segment) block = &segment.block(handle.block);
  });
  ASSERT_NE(block, nullptr);
  int rounds = 0;
  for (Ref<Array> opened; !opened && rounds < 5; ++rounds) {  // the open waits for 1 s: this may be too late
    announce(block->state, BlockState::kClosing);
    std::atomic<bool> has_begun{false};
    std::thread opener([&] {
      has_begun = true;
      try {
        opened = segments.open(sent);
      } catch (const Error&) {
      }
    });
    while (!has_begun) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    (void)make();
    publish(block->state, BlockState::kUsed);
    opener.join();
  }
  EXPECT_LT(rounds, 5);
  kill(creator, SIGKILL);
  EXPECT_EQ(waitpid(creator, nullptr, 0), creator);
  for (const int end : ends) close(end);
}

// A place that was reserved for a child for too long is now of the child of another process.
TEST_F(HandleRecords, AChildThatComesLateTakesNoPlaceOfAnotherChild) {
  StandIn parent{a_}, other{a_};
  const auto fork = [](StandIn& of) {
    of.segment().lock_messages();
    const Participant::Reserved child = of.segment().before_fork();
    of.segment().after_fork();
    return child;
  };
  const Participant::Reserved late = fork(parent);
  parent.segment().participant().free_reserved(late);
  const Participant::Reserved child = fork(other);
  ASSERT_EQ(child.index, late.index);
  parent.segment().participant().become_child(true);
  EXPECT_EQ(parent.index(), Participant::kNone);
  EXPECT_EQ(look(a_.segment().control().place(child.index).state), PlaceState::kReserved);
}

// A process forks, and leaves the block at once, again and again. The place of the child is far before its
// own.
TEST_F(HandleRecords, ABlockThatAProcessPassesToItsChildHasAUserAllTheTime) {
  const uint32_t block = a_.take(kNbytes);
  PlaceLocks& places = *b_.segment().control().places;
  std::vector<uint32_t> taken;
  for (uint32_t i = 3; i < kParticipants - 1; ++i) {
    if (places.try_lock(i)) taken.push_back(i);
  }
  StandIn parent{a_};
  ASSERT_EQ(parent.index(), kParticipants - 1);
  ASSERT_TRUE(parent.use(block));
  a_.leave(block);
  places.unlock(taken.front());
  std::atomic<bool> ends{false};
  uint64_t looks = 0;
  std::thread looker([&] {
    for (; !ends && !HasFailure(); ++looks) {
      EXPECT_TRUE(has_users(a_.segment().control(), a_.segment().block(block)));
    }
  });
  for (int i = 0; i < 30'000 && !HasFailure(); ++i) {
    parent.segment().lock_messages();
    const Participant::Reserved child = parent.segment().before_fork();
    parent.segment().after_fork();
    ASSERT_EQ(child.index, taken.front());
    parent.leave(block);
    ASSERT_TRUE(parent.use(block));
    parent.segment().participant().free_reserved(child);
  }
  ends = true;
  looker.join();
  for (size_t i = 1; i < taken.size(); ++i) places.unlock(taken[i]);
  EXPECT_GT(looks, 1000U);
}

}  // namespace
}  // namespace tenon::impl
