// SPDX-License-Identifier: Apache-2.0
//
// What the processes of a segment share of messages: a record for each message that has not ended. A message
// is a handle of a shared array, or a message of a tensor pool.
//
// The record of a handle names the block of the array, and keeps it while the message is live and a process
// keeps the message (is_kept). Each process can tell this from the record alone, so an open or a death takes
// effect at once. The record of a message of a pool does not list the blocks, which may lie in several
// segments: the bytes of the message do, and its sender uses them as long as it is live.
//
// The generation of a record, its opens and its end are one word, so a process may be killed or stopped after
// any store. A process that opens a message uses its blocks first, and then counts the open: so it has both
// or none. Only its sender begins messages in a record. Another process takes the record when the sender has
// gone or has given it away, by one exchange of the field `sender`.
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

constexpr size_t kSiteWords = 8;
constexpr uint32_t kNoBlock = UINT32_MAX;

enum MessageFlags : uint32_t {
  kHandedOverMessage = 1,  // the sender has kept nothing, and one process may open it
  kCountedHandle = 2,      // only so many processes may open it
};

struct alignas(64) MessageRecord {
  std::atomic<uint64_t> word;
  // The process for which the record is (Keeper); 0: none.
  std::atomic<uint64_t> sender;
  // Written by the sender. until_ns: how long the sender keeps it, on the clock of now_ns(); 0: no limit.
  std::atomic<int64_t> until_ns;
  std::atomic<int64_t> since_ns;
  std::atomic<uint64_t> nbytes;  // of its blocks
  // The process that keeps the message, too (Keeper), and how long. 0: none; no limit.
  std::atomic<uint64_t> keeper;
  std::atomic<int64_t> keeper_until_ns;
  std::atomic<uint32_t> block;             // that a handle keeps, or kNoBlock
  std::atomic<uint32_t> flags;             // MessageFlags
  std::atomic<uint64_t> site[kSiteWords];  // bytes up to a NUL
};
static_assert(sizeof(MessageRecord) == kMessageStride);

struct alignas(64) PoolHead {
  std::atomic<uint64_t> key[4];       // random
  std::atomic<uint32_t> ended;        // changes when another process than the creator has ended a message
  std::atomic<uint32_t> is_over;      // the creator sends no further messages
  std::atomic<uint32_t> pinned_unit;  // processes pin units of so many bytes; 0: none
  std::atomic<uint32_t> reserved;
  SharedEvent room;  // memory may have become free
};
static_assert(sizeof(PoolHead) <= kPage);

// A message of a segment.
struct MessageId {
  uint32_t record = UINT32_MAX;  // UINT32_MAX: of a handle that keeps nothing
  uint32_t generation = 0;
};

struct MessageFacts {
  uint64_t sender = 0;
  uint32_t block = kNoBlock;
  uint32_t opens = 1;  // kNoLimit: any number
  int64_t until_ns = 0;
  int64_t since_ns = 0;
  uint64_t nbytes = 0;
  uint32_t flags = 0;
  const char* site = nullptr;
};

// Begins a message in a record that has none. Returns its generation. Only the process for which the record
// is calls it, one thread at a time.
uint32_t begin_message(MessageRecord& record, const MessageFacts& facts) noexcept;
// kLive, or why the message has ended.
MessageStatus status_of(const MessageRecord& record, uint32_t generation) noexcept;
// Counts an open. kLive: this process has the message; *is_last: it has ended with this. Else why it cannot
// be opened. Any process, after it has begun to use the blocks.
MessageStatus open_message(MessageRecord& record, uint32_t generation, int64_t now_ns,
                           bool* is_last) noexcept;
// Ends a live message. False: it has ended. Any process.
bool end_message(MessageRecord& record, uint32_t generation, MessageStatus why) noexcept;
// Names a process that keeps a live message, too, and must use its blocks. False: it has ended.
bool keep_message(MessageRecord& record, uint32_t generation, uint64_t keeper, int64_t until_ns = 0) noexcept;
// It keeps the message no more.
void drop_message(MessageRecord& record, uint64_t keeper) noexcept;
// How many processes may still open a live message. False: it has ended.
bool set_opens(MessageRecord& record, uint32_t generation, uint32_t opens) noexcept;
// One more process may open the message of a record whose opens have a number. False: it has ended.
bool add_open(MessageRecord& record) noexcept;
// How many handles the word of a live one stands for.
uint32_t count_of_handles(const MessageRecord& record, uint64_t word) noexcept;
std::string site_of(const MessageRecord& record);

// A process as a participant that sends or keeps messages: its number, and the generation of its place.
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
