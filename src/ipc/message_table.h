// SPDX-License-Identifier: Apache-2.0
//
// What the processes of a tensor pool share of its messages: a record for each message that has not ended,
// behind the blocks of the pool's segment. A record does not list the blocks: the bytes of the message do,
// and the sender remembers them.
//
// A record has one word that all of its changes go through, so a process may be killed or stopped after any
// store. A process that opens a message uses its blocks first, and then counts the open: so it has both or
// none.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "ipc/layout.h"

namespace tenon::impl {

// Why a message has ended, as TENON_GONE_*, or kLive.
enum class MessageStatus : uint8_t {
  kNone = 0,  // the record was never used
  kOpened = 1,
  kExpired = 2,
  kRevoked = 3,
  kSenderGone = 4,
  kReceiversGone = 5,
  kUnknown = 6,  // another message has the record
  kLive = 7,
};

// The generation of a record, the opens that are left, and its status, in one word.
struct MessageWord {
  static constexpr uint32_t kNoLimit = 0xffff;  // of opens
  static constexpr uint64_t make(uint32_t generation, uint32_t opens, MessageStatus status) noexcept {
    return uint64_t{generation} << 32 | uint64_t{opens} << 8 | static_cast<uint64_t>(status);
  }
  static constexpr uint32_t generation(uint64_t word) noexcept { return static_cast<uint32_t>(word >> 32); }
  static constexpr uint32_t opens(uint64_t word) noexcept {
    return static_cast<uint32_t>(word >> 8) & 0xffff;
  }
  static constexpr MessageStatus status(uint64_t word) noexcept {
    return static_cast<MessageStatus>(word & 0xff);
  }
};

constexpr size_t kSiteWords = 9;

struct alignas(64) MessageRecord {
  std::atomic<uint64_t> word;
  // Written by the creator of the pool while the message is not live.
  std::atomic<int64_t> until_ns;  // on the clock of now_ns(); 0: no limit
  std::atomic<int64_t> since_ns;
  std::atomic<uint64_t> nbytes;  // of its blocks
  // The participant that keeps the message instead of the creator, and the generation of its place. 0: none.
  std::atomic<uint64_t> keeper;
  std::atomic<uint32_t> is_handed_over;  // the sender has kept nothing, and one process may open it
  std::atomic<uint32_t> reserved;
  std::atomic<uint64_t> site[kSiteWords];  // bytes up to a NUL
};
static_assert(sizeof(MessageRecord) == 128);

struct alignas(64) PoolHead {
  std::atomic<uint64_t> key[4];        // random
  std::atomic<uint32_t> ended;         // changes when another process than the creator has ended a message
  std::atomic<uint32_t> records_used;  // the records from this number on were never used
  std::atomic<uint32_t> is_over;       // the creator sends no further messages
  std::atomic<uint32_t> pinned_unit;   // processes pin units of so many bytes; 0: none
  SharedEvent room;                    // memory may have become free
};
static_assert(sizeof(PoolHead) <= kPage);

constexpr uint32_t kMostMessages = 4096;

// The offsets of the parts, after the blocks.
constexpr uint64_t pool_head_at(uint32_t blocks) noexcept { return control_end(blocks); }
constexpr uint64_t messages_at(uint32_t blocks) noexcept { return pool_head_at(blocks) + kPage; }
// The end of the control part of a segment with so many records; 0: it is not a tensor pool.
constexpr uint64_t control_end(uint32_t blocks, uint32_t messages) noexcept {
  return messages == 0 ? control_end(blocks)
                       : round_up(messages_at(blocks) + messages * sizeof(MessageRecord), kPage);
}

struct MessageFacts {
  uint32_t opens = 1;  // kNoLimit: any number
  int64_t until_ns = 0;
  int64_t since_ns = 0;
  uint64_t nbytes = 0;
  bool is_handed_over = false;
  const char* site = nullptr;
};

// Begins a message in a record that has none. Returns its generation. Only the creator of the pool calls it,
// one thread at a time.
uint32_t begin_message(MessageRecord& record, const MessageFacts& facts) noexcept;
// kLive, or why the message has ended.
MessageStatus status_of(const MessageRecord& record, uint32_t generation) noexcept;
// Counts an open. kLive: this process has the message; *is_last: it has ended with this. Else why it cannot
// be opened. Any process, after it has begun to use the blocks.
MessageStatus open_message(MessageRecord& record, uint32_t generation, int64_t now_ns,
                           bool* is_last) noexcept;
// Ends a live message. False: it has ended. Any process.
bool end_message(MessageRecord& record, uint32_t generation, MessageStatus why) noexcept;
// Names the process that keeps a live message, which must use its blocks. False: it has ended.
bool keep_message(MessageRecord& record, uint32_t generation, uint64_t keeper) noexcept;
std::string site_of(const MessageRecord& record);

struct Keeper {
  static constexpr uint64_t make(uint32_t participant, uint32_t generation) noexcept {
    return uint64_t{generation} << 32 | (participant + 1);
  }
  static constexpr uint32_t participant(uint64_t keeper) noexcept {
    return static_cast<uint32_t>(keeper) - 1;
  }
  static constexpr uint32_t generation(uint64_t keeper) noexcept {
    return static_cast<uint32_t>(keeper >> 32);
  }
};

}  // namespace tenon::impl
