// SPDX-License-Identifier: Apache-2.0
//
// The layout of a segment: one sealed memory file, mapped by several processes.
//
//   header          constant after creation; any process may have written it, so it is copied, then checked
//   lives           one robust mutex for each participant, which wakes other processes when its process
//                   begins to end; the lock of the place (place_locks.h) shows that the process has ended
//   blocks          one for each storage: its lock, and the participants that use it
//   places          what each participant holds and waits for; written by it, or by the process that reaps it
//   pool head       of a tensor pool (message_table.h)
//   messages        one record for each message: a handle of an array, or a message of a tensor pool
//                   (message_table.h)
//   data            the bytes; of a channel or a feed, first its state (channel_state.h, served_state.h)
//
// All numbers are offsets, never addresses. After every store, the state is one from which other processes
// can continue, because the process may be killed or stopped after any store. No thread waits for a lock of
// another process.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/access.h"
#include "base/bytes.h"

namespace tenon::impl {

constexpr char kMagic[8] = {'T', 'E', 'N', 'O', 'N', 'S', 'E', 'G'};
constexpr uint16_t kMajor = 8;  // a segment with another one cannot be read
constexpr uint16_t kMinor = 0;  // a later version only adds fields at the end

constexpr uint32_t kParticipants = 512;
constexpr uint32_t kGrants = 160;  // leases of one process on one segment at a time
constexpr uint32_t kMostBlocks = 16384;
constexpr uint32_t kMostAxes = 64;
constexpr size_t kMostNameBytes = 100;

// The prefix of the names of all memory files of segments.
constexpr const char* kFilePrefix = "tenon:";

struct SegmentId {
  uint64_t words[2] = {0, 0};
  friend bool operator==(const SegmentId&, const SegmentId&) = default;
  friend auto operator<=>(const SegmentId&, const SegmentId&) = default;
};
std::string text_of(const SegmentId& id);  // 32 hexadecimal digits

// The array that a named segment holds, in C order.
struct NamedArray {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
  int32_t ndim;
  uint64_t flags;  // TENON_SUBBYTE_PADDED
  int64_t shape[kMostAxes];
};

// Of Header::required: the data are a device::SharedMemoryRecord, and the bytes of the only block lie on that
// device. They exist as long as the creator's process.
constexpr uint64_t kOnDevice = 1;

struct Header {
  char magic[8];
  uint32_t byte_order;  // kByteOrder in the byte order of the creator's machine
  uint16_t pointer_nbytes;
  uint16_t mutex_nbytes;
  uint16_t major;
  uint16_t minor;
  uint32_t header_nbytes;
  uint64_t required;  // bits of features that a reader must know
  uint64_t optional;
  SegmentId id;
  uint64_t total_nbytes;
  uint64_t lives_at;
  uint64_t places_at;
  uint64_t blocks_at;
  uint64_t data_at;
  uint64_t page_nbytes;  // of the memory file
  uint32_t participants;
  uint32_t grants;
  uint32_t blocks;
  uint32_t creator_pid;
  uint64_t creator_start;
  int64_t created_ns;  // since 1970
  uint32_t has_named_array;
  uint32_t is_tensor_pool;
  uint32_t channel_slots;  // of the channel that it contains; 0: none
  uint32_t feed_slots;     // of the feed whose control part is its first block; 0: none
  uint32_t feed_pages;     // of that control part, kPage bytes each
  uint32_t reserved;
  NamedArray array;
  char name[128];     // "" for a pool
  uint64_t checksum;  // of all fields above; last
};
static_assert(sizeof(Header) <= 4096);
constexpr uint32_t kByteOrder = 0x01020304;

uint64_t checksum_of(const Header& header) noexcept;

// Checks a private copy of the header of a file of this size. Fails with kValue, which names the wrong field.
void check(const Header& header, size_t file_nbytes);

// ----------------------------------------------------------------------------------------------------

struct alignas(64) Life {
  pthread_mutex_t mutex;
  std::atomic<uint32_t> has_place;  // the memory of the place is there
};
static_assert(sizeof(Life) == 64);

enum class PlaceState : uint32_t { kFree = 0, kReserved = 1, kLive = 2 };

// The state of a grant in one word, so that one store changes all of it: the block, the kind and the access.
struct GrantState {
  enum Kind : uint64_t {
    kFree = 0,
    kArriving = 1,  // it has no ticket yet: requests that conflict wait for it
    kWaiting = 2,
    kGranted = 3,
    kDied = 4,  // a writer died: the bytes may be half written
  };
  static constexpr uint64_t kJoined = 16;  // the bytes of several deaths
  static constexpr uint64_t kBrief = 32;   // it does not wait, so it is in no cycle of waits
  static constexpr uint64_t make(uint32_t block, Kind kind, Access access) noexcept {
    return uint64_t{block} << 8 | (access == Access::kWrite ? 8 : 0) | kind;
  }
  static constexpr uint32_t block(uint64_t word) noexcept { return static_cast<uint32_t>(word >> 8); }
  static constexpr Kind kind(uint64_t word) noexcept { return static_cast<Kind>(word & 7); }
  static constexpr Access access(uint64_t word) noexcept {
    return (word & 8) != 0 ? Access::kWrite : Access::kRead;
  }
  static constexpr bool is_joined(uint64_t word) noexcept { return (word & kJoined) != 0; }
  static constexpr bool is_brief(uint64_t word) noexcept { return (word & kBrief) != 0; }
  // A lease, or a request for one.
  static constexpr bool is_lease(uint64_t word) noexcept {
    return kind(word) == kArriving || kind(word) == kWaiting || kind(word) == kGranted;
  }
};

// The right to use some bytes of a block, which a participant has or waits for; or the death of a participant
// that had this right for writing. A death stays in the place when another process takes the place. All
// fields but the state are written while the grant is free, and the ticket while it is kArriving. The bytes
// of a death only become fewer, under a write lease of the bytes that are removed, so only one process
// removes them.
struct Grant {
  std::atomic<uint64_t> state;
  std::atomic<uint64_t> begin;  // bytes of the block
  std::atomic<uint64_t> end;
  std::atomic<uint64_t> ticket;  // in the order of requests for the block
  std::atomic<int64_t> since_ns;
  std::atomic<uint32_t> thread;  // its owner; 0: none
  // The asyncio task on that thread, 0: none; for a death, the number of the dead process.
  std::atomic<uint32_t> task_or_dead_pid;
};
static_assert(sizeof(Grant) == 48);

// The text about one lease of the process, for the processes that wait for the lease. Only the process writes
// it.
constexpr size_t kNoteWords = 48;
struct Note {
  std::atomic<uint64_t> lease;             // the lease; 0: none, or the text is being written
  std::atomic<uint64_t> text[kNoteWords];  // bytes up to a NUL
};

struct alignas(64) Place {
  std::atomic<PlaceState> state;
  std::atomic<uint32_t> pid;
  std::atomic<uint64_t> start;
  std::atomic<uint64_t> pid_namespace;
  std::atomic<int64_t> since_ns;
  std::atomic<uint32_t> grants_used;  // all grants from this index on are free
  std::atomic<uint32_t> generation;   // changes when another process takes the place
  char command[16];
  Grant grants[kGrants];
  Note note;
};
static_assert(sizeof(Place) <= 8192);
constexpr size_t kPlaceStride = 8192;

using Mask = std::atomic<uint64_t>[kParticipants / 64];

// A futex, and the participants that may sleep on it.
struct SharedEvent {
  std::atomic<uint32_t> signals;
  std::atomic<uint32_t> reserved;
  Mask waiting;
};

// kClosing: its creator, or the cleaner after it (cleaner.h), checks whether a process uses it, or returns
// its memory to the system.
enum class BlockState : uint32_t { kFree = 0, kUsed = 1, kClosing = 2 };

constexpr uint32_t kDeaths = 3;  // of one process on one block; further ones are joined

struct alignas(64) Block {
  std::atomic<uint32_t> changes;  // a futex; changes when waiting requests should try again
  std::atomic<BlockState> state;
  std::atomic<uint32_t> generation;     // changes when another storage gets the block
  std::atomic<uint32_t> death_moves;    // changes when another grant has taken over bytes of a death
  std::atomic<uint32_t> arrivals_seen;  // changes when a request waits for others that have no ticket yet
  // One more than the number of a record that may have an unopened handle of this block; 0: there was none.
  std::atomic<uint32_t> sent;
  std::atomic<uint64_t> begin;  // in the data
  std::atomic<uint64_t> nbytes;
  std::atomic<uint64_t> next_ticket;
  std::atomic<uint64_t> version;
  Mask users;    // participants that have the storage
  Mask present;  // places that may have grants on this block
  Mask waiting;  // participants that may have waiting grants on this block
};
constexpr size_t kBlockStride = 256;
static_assert(sizeof(Block) == kBlockStride);

// The offsets of the parts. Each begins and ends on a page, the data begin on a huge page. The memory of
// lives, of the blocks of an allocator, of places and of messages is allocated when they are first used, so
// no process reads those that were never used.
constexpr uint64_t kLivesAt = round_up(sizeof(Header), kPage);
// In the page of the header, after it: the blocks from this number on were never used,
constexpr uint64_t kBlocksUsedAt = kLivesAt - 64;
constexpr uint64_t kPlacesUsedAt = kBlocksUsedAt + 8;    // and the places,
constexpr uint64_t kMessagesUsedAt = kPlacesUsedAt + 8;  // and the records of messages.
constexpr uint64_t kForksAt = kMessagesUsedAt + 8;       // The number of forks of processes that use it.
constexpr uint64_t kHasStateAt = kForksAt + 8;           // 1: the state of the channel or feed has memory.
static_assert(sizeof(Header) <= kBlocksUsedAt);
constexpr uint64_t kBlocksAt = kLivesAt + kParticipants * sizeof(Life);
static_assert(kBlocksAt % kPage == 0);
constexpr uint64_t places_at(uint32_t blocks) noexcept {
  return round_up(kBlocksAt + blocks * kBlockStride, kPage);
}
constexpr uint64_t pool_head_at(uint32_t blocks) noexcept {
  return places_at(blocks) + kParticipants * kPlaceStride;
}
constexpr uint32_t kMostMessages = 16'384;
constexpr size_t kMessageStride = 128;
constexpr uint64_t messages_at(uint32_t blocks) noexcept { return pool_head_at(blocks) + kPage; }
constexpr uint64_t control_end(uint32_t blocks) noexcept {
  return messages_at(blocks) + kMostMessages * kMessageStride;
}
static_assert(kMostMessages * kMessageStride % kPage == 0);
constexpr uint32_t kLivesInPage = kPage / sizeof(Life);
// So many blocks of an allocator get their memory at once.
constexpr uint32_t kBlockStep = 64;
static_assert(kBlockStep * kBlockStride % kPage == 0);

// ------------------------------------------------------------------------------------------- stores

#ifdef TENON_FAULT_INJECTION
// Counts the stores to shared memory; a test can kill the process at one of them.
void note_store() noexcept;
// The process stops itself (SIGSTOP) before its n-th store from now on. 0: never. True: an earlier request to
// stop has not taken effect.
bool stop_at_store(long number) noexcept;
#else
inline void note_store() noexcept {}
#endif

template <class T>
void store(std::atomic<T>& word, T value) noexcept {
  note_store();
  word.store(value, std::memory_order_relaxed);
}
// A thread that reads the word with look() sees all earlier stores of this thread.
template <class T>
void publish(std::atomic<T>& word, T value) noexcept {
  note_store();
  // pairs with: look, "a word that others look at"
  word.store(value, std::memory_order_release);
}
// The same, sequentially consistent with observe() and with the read-modify-write functions below: if two
// threads each announce a word and then observe the other thread's word, at least one sees the other's value.
template <class T>
void announce(std::atomic<T>& word, T value) noexcept {
  note_store();
  // pairs with: observe, "a word that others observe"
  word.store(value, std::memory_order_seq_cst);
}
template <class T>
T observe(const std::atomic<T>& word) noexcept {
  // pairs with: announce, "a word that others observe"
  return word.load(std::memory_order_seq_cst);
}
template <class T>
T look(const std::atomic<T>& word) noexcept {
  // pairs with: publish, "a word that others look at"
  return word.load(std::memory_order_acquire);
}
// True: the word had the value `expected`, and now has `value`. False: `expected` is set to the value of the
// word.
template <class T>
bool exchange(std::atomic<T>& word, T& expected, T value) noexcept {
  note_store();
  // pairs with: look, "a word that others look at"
  return word.compare_exchange_strong(expected, value, std::memory_order_seq_cst);
}
template <class T>
T add(std::atomic<T>& word, T value) noexcept {
  note_store();
  // pairs with: look, "a word that others look at"
  return word.fetch_add(value, std::memory_order_seq_cst);
}
// The word has at least this value from now on.
// False: it was not less.
inline bool raise_to(std::atomic<uint64_t>& word, uint64_t value) noexcept {
  uint64_t now = observe(word);
  while (now < value) {
    if (exchange(word, now, value)) return true;
  }
  return false;
}

inline void set_bit(Mask& mask, uint32_t i) noexcept {
  note_store();
  // pairs with: look, "a word that others look at"
  mask[i / 64].fetch_or(uint64_t{1} << (i % 64), std::memory_order_seq_cst);
}
inline void clear_bit(Mask& mask, uint32_t i) noexcept {
  note_store();
  // pairs with: look, "a word that others look at"
  mask[i / 64].fetch_and(~(uint64_t{1} << (i % 64)), std::memory_order_seq_cst);
}
inline bool has_bit(const Mask& mask, uint32_t i) noexcept {
  return (look(mask[i / 64]) >> (i % 64) & 1) != 0;
}
inline bool is_empty(const Mask& mask) noexcept {
  for (const auto& word : mask) {
    if (observe(word) != 0) return false;
  }
  return true;
}
// Calls visit(number) for each bit that is set.
template <class Visit>
void visit_bits(const Mask& mask, Visit visit) {
  for (uint32_t w = 0; w < kParticipants / 64; ++w) {
    for (uint64_t left = observe(mask[w]); left != 0; left &= left - 1) {
      visit(w * 64 + static_cast<uint32_t>(__builtin_ctzll(left)));
    }
  }
}
// The grants of a place up to the last one that was ever taken. S: Place or const Place.
template <class S>
auto used_grants(S& place) noexcept {
  return std::span(place.grants, std::min(look(place.grants_used), kGrants));
}

}  // namespace tenon::impl
