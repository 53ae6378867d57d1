// SPDX-License-Identifier: Apache-2.0
//
// The laws of the record of a message. Threads stand for processes: a record is all that they share.
#include "ipc/message_table.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>
#include <vector>

namespace tenon::impl {
namespace {

class Messages : public testing::Test {
 protected:
  MessageRecord record_{};
  uint32_t begin(uint32_t opens, int64_t until_ns = 0) {
    MessageFacts facts;
    facts.opens = opens;
    facts.until_ns = until_ns;
    facts.site = "serve.py:12";
    return begin_message(record_, facts);
  }
  MessageStatus open(uint32_t generation, int64_t now_ns = 1) {
    bool is_last = false;
    return open_message(record_, generation, now_ns, &is_last);
  }
};

TEST_F(Messages, ARecordThatWasNeverUsedIsOfNoMessage) {
  EXPECT_EQ(open(0), MessageStatus::kNone);
  EXPECT_EQ(open(1), MessageStatus::kUnknown);
}

TEST_F(Messages, AsManyProcessesOpenItAsMay) {
  const uint32_t generation = begin(2);
  bool is_last = false;
  EXPECT_EQ(open_message(record_, generation, 1, &is_last), MessageStatus::kLive);
  EXPECT_FALSE(is_last);
  EXPECT_EQ(open_message(record_, generation, 1, &is_last), MessageStatus::kLive);
  EXPECT_TRUE(is_last);
  EXPECT_EQ(open(generation), MessageStatus::kOpened);
  const uint32_t any = begin(MessageWord::kNoLimit);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(open(any), MessageStatus::kLive);
}

TEST_F(Messages, AReasonStaysUntilTheRecordIsUsedAgain) {
  const uint32_t first = begin(1, 10);
  EXPECT_EQ(open(first, 10), MessageStatus::kExpired);
  EXPECT_FALSE(end_message(record_, first, MessageStatus::kRevoked));
  EXPECT_EQ(status_of(record_, first), MessageStatus::kExpired);
  const uint32_t second = begin(1);
  EXPECT_NE(first, second);
  EXPECT_EQ(open(first), MessageStatus::kUnknown);
  EXPECT_TRUE(end_message(record_, second, MessageStatus::kRevoked));
  EXPECT_EQ(open(second), MessageStatus::kRevoked);
  EXPECT_EQ(site_of(record_), "serve.py:12");
}

// Oracle: of the threads that open and the one that revokes, each open that succeeds takes one of the opens.
// All opens are taken, or the message was revoked. No thread opens a message of another round.
TEST_F(Messages, NoOpenIsCountedTwiceOrLostBesideItsEnd) {
  constexpr int kThreads = 4;
  std::mt19937 random(20261129);
  for (int round = 0; round < 400; ++round) {
    const uint32_t opens = 1 + random() % (kThreads + 1);
    const bool is_revoked = random() % 2 != 0;
    const uint32_t generation = begin(opens);
    std::atomic<uint32_t> opened{0}, last{0};
    std::atomic<bool> has_revoked{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        bool is_last = false;
        if (open_message(record_, generation, 1, &is_last) == MessageStatus::kLive) ++opened;
        if (is_last) ++last;
        EXPECT_EQ(open(generation - 1), MessageStatus::kUnknown);
      });
    }
    if (is_revoked) has_revoked = end_message(record_, generation, MessageStatus::kRevoked);
    for (std::thread& thread : threads) thread.join();
    ASSERT_LE(opened, opens);
    const bool is_opened = opened == opens;
    ASSERT_EQ(last == 1, is_opened);
    ASSERT_FALSE(is_opened && has_revoked);
    if (!is_revoked) {
      ASSERT_EQ(opened, std::min<uint32_t>(opens, kThreads));
    }
    const MessageStatus wanted = is_opened     ? MessageStatus::kOpened
                                 : has_revoked ? MessageStatus::kRevoked
                                               : MessageStatus::kLive;
    ASSERT_EQ(status_of(record_, generation), wanted);
    (void)end_message(record_, generation, MessageStatus::kRevoked);
  }
}

}  // namespace
}  // namespace tenon::impl
