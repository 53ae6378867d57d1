// SPDX-License-Identifier: Apache-2.0
//
// What the processes of a segment share of messages: a record for each message that has not ended. A message
// is a handle of a shared array, or a message of a tensor pool.
//
// The record of a handle names the block of the array, and keeps it while the message is live and a process
// keeps the message (fate_of). Each process can tell this from the record alone, so an open or the death of
// the sender takes effect at once, and the death of a keeper when some process has reaped it. The record of
// a message of a pool does not list the blocks, which may lie in several segments: the bytes of the message
// do, and its sender uses them as long as it is live.
//
// The generation of a record, its keeper, its opens and its end are one word. Each change of it is one
// exchange of a word that was looked at, and the change is decided from that word. So a process may be
// killed or stopped after any step, and no process ends a message that another one has begun to keep
// meanwhile. A process that opens a message uses its blocks first, and then counts the open: so it has both
// or none.
//
// The keeper is a process that keeps the message beside its sender. The word names its place. A place is
// freed when no word names it any more (Participant), so the word needs no generation of the place.
//
// Only its sender begins messages in a record. Another process takes the record when the sender has gone or
// has given it away, by one exchange of the field `sender`.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

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

// The generation of a record, whether a process has opened the message, the keeper, the opens that are left,
// and the status, in one word.
struct MessageWord {
  static constexpr uint32_t kNoLimit = 0xffff;  // of opens
  static constexpr uint32_t kNoKeeper = 0;
  static constexpr uint64_t make(uint32_t generation, uint32_t opens) noexcept {
    return uint64_t{generation} << 32 | uint64_t{opens} << kOpensAt |
           static_cast<uint64_t>(MessageStatus::kLive);
  }
  static constexpr uint32_t generation(uint64_t word) noexcept { return static_cast<uint32_t>(word >> 32); }
  // One more than the number of the participant; kNoKeeper: none.
  static constexpr uint32_t keeper(uint64_t word) noexcept {
    return static_cast<uint32_t>(word >> kKeeperAt) & kKeeperMask;
  }
  static constexpr uint32_t opens(uint64_t word) noexcept {
    return static_cast<uint32_t>(word >> kOpensAt) & kOpensMask;
  }
  static constexpr MessageStatus status(uint64_t word) noexcept {
    return static_cast<MessageStatus>(word & kStatusMask);
  }
  static constexpr bool is_live(uint64_t word) noexcept { return status(word) == MessageStatus::kLive; }
  static constexpr bool is_opened(uint64_t word) noexcept { return (word >> kOpenedAt & 1) != 0; }
  static constexpr uint64_t with_keeper(uint64_t word, uint32_t keeper) noexcept {
    return (word & ~(uint64_t{kKeeperMask} << kKeeperAt)) | uint64_t{keeper} << kKeeperAt;
  }
  static constexpr uint64_t with_opens(uint64_t word, uint32_t opens) noexcept {
    return (word & ~(uint64_t{kOpensMask} << kOpensAt)) | uint64_t{opens & kOpensMask} << kOpensAt;
  }
  static constexpr uint64_t as_opened(uint64_t word) noexcept { return word | uint64_t{1} << kOpenedAt; }
  static constexpr uint64_t with_status(uint64_t word, MessageStatus status) noexcept {
    return (word & ~uint64_t{kStatusMask}) | static_cast<uint64_t>(status);
  }

 private:
  static constexpr unsigned kOpensAt = 3, kKeeperAt = 19, kOpenedAt = 29;
  static constexpr uint32_t kStatusMask = 7, kOpensMask = 0xffff, kKeeperMask = 0x3ff;
  static_assert(kParticipants <= kKeeperMask);
};

constexpr size_t kSiteWords = 8;
constexpr uint32_t kNoBlock = UINT32_MAX;

enum MessageFlags : uint32_t {
  kHandedOverMessage = 1,  // the sender has kept nothing, and one process may open it
  kCountedHandle = 2,      // only so many processes may open it
  kSharedRecord = 4,       // several handles without limits have, or had, the record
};

struct alignas(64) MessageRecord {
  std::atomic<uint64_t> word;
  // The process for which the record is (Sender); 0: none.
  std::atomic<uint64_t> sender;
  // Written by the sender. until_ns: how long a message of a pool lives, or how long the sender keeps a
  // handle, on the clock of now_ns(); 0: no limit.
  std::atomic<int64_t> until_ns;
  std::atomic<int64_t> since_ns;
  std::atomic<uint64_t> nbytes;            // of its blocks
  std::atomic<uint32_t> block;             // that a handle keeps, or kNoBlock
  std::atomic<uint32_t> flags;             // MessageFlags
  std::atomic<uint64_t> site[kSiteWords];  // the line that has sent it up to a NUL, then the tag up to a NUL
};
static_assert(sizeof(MessageRecord) == kMessageStride);

// What has happened to the messages of a pool. Only its creator adds to them, under the lock of Segments.
struct PoolCounts {
  std::atomic<uint64_t> sent;
  std::atomic<uint64_t> sent_nbytes;
  // Messages that have ended, by the reason.
  std::atomic<uint64_t> opened;
  std::atomic<uint64_t> expired;
  std::atomic<uint64_t> revoked;
  std::atomic<uint64_t> receivers_gone;
  // Messages whose arrays went with the bytes because there was no room, and the bytes of these arrays.
  std::atomic<uint64_t> inlined;
  std::atomic<uint64_t> inlined_nbytes;
  std::atomic<uint64_t> refused;  // calls that failed because there was no room
  std::atomic<uint64_t> waits;    // of threads, for room
  std::atomic<uint64_t> waited_ns;
};
// No process relies on the order of these stores, or on any of them.
inline void count(std::atomic<uint64_t>& counter, uint64_t n = 1) noexcept {
  counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

struct alignas(64) PoolHead {
  std::atomic<uint64_t> key[4];       // random
  std::atomic<uint32_t> ended;        // changes when another process than the creator has ended a message
  std::atomic<uint32_t> is_over;      // the creator sends no further messages
  std::atomic<uint32_t> pinned_unit;  // processes pin units of so many bytes; 0: none
  std::atomic<uint32_t> reserved;
  SharedEvent room;  // memory may have become free
  PoolCounts counts;
};
static_assert(sizeof(PoolHead) <= kPage);

// A message of a segment.
struct MessageId {
  uint32_t record = UINT32_MAX;  // UINT32_MAX: of a handle that keeps nothing
  uint32_t generation = 0;
  friend bool operator==(const MessageId&, const MessageId&) = default;
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
  std::string_view tag = {};
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
// Ends a live message, also if another process keeps it. False: it has ended. Only its sender and its keeper
// call it.
bool end_message(MessageRecord& record, uint32_t generation, MessageStatus why) noexcept;
// How many processes may still open a live message. False: it has ended.
bool set_opens(MessageRecord& record, uint32_t generation, uint32_t opens) noexcept;
// One more process may open the message of a record whose opens have a number. False: it has ended.
bool add_open(MessageRecord& record) noexcept;
// How many handles the word of a live one stands for.
uint32_t count_of_handles(const MessageRecord& record, uint64_t word) noexcept;
std::string site_of(const MessageRecord& record);
std::string tag_of(const MessageRecord& record);  // its beginning; "": it has none

// A process as a participant that sends messages: its number, and the generation of its place.
struct Sender {
  static constexpr uint64_t make(uint32_t participant, uint32_t generation) noexcept {
    return uint64_t{generation} << 32 | (participant + 1);
  }
  static constexpr uint32_t participant(uint64_t sender) noexcept {
    return static_cast<uint32_t>(sender) - 1;
  }
  static constexpr uint32_t generation(uint64_t sender) noexcept {
    return static_cast<uint32_t>(sender >> 32);
  }
};

// ------------------------------------------------------------------------- with the processes that live

struct Control;

// The process that is named so (Sender) has its place.
bool lives(const Control& control, uint64_t sender) noexcept;
// Names a keeper. Its place is not free, because reap() removes the name first. A number that is of no
// place names nobody.
bool has_keeper(const Control& control, uint64_t word) noexcept;
// One that lives, or is being reaped.
bool has_living_keeper(const Control& control, uint64_t word) noexcept;
// kLive: a process keeps the message of a record whose word is live, or has died and was not reaped yet.
// Else why the message must end: its sender and its keeper have gone, or its limit has passed. The limit of
// a message of a pool is that of all processes; the limit of a handle is its sender's, and its keeper keeps
// it longer. has_left: a sender that leaves its place now.
MessageStatus fate_of(const Control& control, const MessageRecord& record, uint64_t word,
                      uint64_t has_left = 0) noexcept;
// As status_of(). Ends a message that no process keeps any more.
MessageStatus look_at_message(const Control& control, MessageRecord& record, uint32_t generation) noexcept;
// kNo: the message has ended, or a living process keeps it beside its sender. kLater: such a process is
// ending.
enum class Kept { kYes, kNo, kLater };
// This participant, which must use the blocks of a live message, keeps it, too.
Kept keep_message(const Control& control, MessageRecord& record, uint32_t generation,
                  uint32_t participant) noexcept;
// Calls keep() until the result is not kLater, one second at most: a process that has much memory ends
// slowly.
bool keep_patiently(const std::function<Kept()>& keep);
// The participant keeps it no more. If no process keeps it then, it ends.
void drop_message(const Control& control, MessageRecord& record, uint32_t generation, uint32_t participant,
                  MessageStatus why) noexcept;
// A participant leaves its place, or has died: it keeps no message any more.
void leave_messages(const Control& control, uint32_t participant) noexcept;

}  // namespace tenon::impl
