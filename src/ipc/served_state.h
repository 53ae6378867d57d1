// SPDX-License-Identifier: Apache-2.0
//
// The beginning of the control part of a feed that may be served: the first block of its segment. After it
// come the parts by which each process that has the segment open gives back what a dead consumer had, at
// places that follow from the number of slots alone:
//
//   pool      SlotPoolState, the beginning of what the feed's threads, workers and consumers share
//   states    SlotState of each slot
//   entries   SlotEntry of each number
//
// Then the parts of the feed itself (data/feed_control.h). The second block of the segment contains the
// slots. The control part is mapped together with the places (Control). Reapers and reports read it without a
// look at the version of feeds, so a change needs the next version of segments (kMajor, layout.h).
#pragma once

#include "ipc/layout.h"
#include "ipc/slot_pool.h"

namespace tenon::impl {

// kUnserved: no process has served the feed yet.
enum class ServedMode : uint32_t { kUnserved = 0, kQueue = 1, kBroadcast = 2 };
// kGathering: the server waits for consumers.
enum class ServedPhase : uint32_t { kUnserved = 0, kGathering = 1, kServing = 2, kOver = 3 };

// The process of a place, as a consumer. Written by it, and after its death under the lock of its place. The
// word is 0 when a process takes the place.
struct alignas(64) CursorRecord {
  enum Role : uint64_t {
    kNone = 0,
    kJoining = 1,  // it may be that of a consumer of the round that goes on
    kConsumer = 2,
    kHasWanted = 4  // with one of both, until the first round of a serving begins: it wants what is below
  };
  std::atomic<uint64_t> word;
  // Of a broadcast: all up to this number were received. Of a queue: the last one that was, for reports.
  std::atomic<uint64_t> cursor;
  std::atomic<uint64_t> ended;  // the base of the last round that it takes no more part in
  // With kHasWanted.
  std::atomic<uint64_t> epoch, place;
  std::atomic<int32_t> worker, states, rank, world_size;
  std::atomic<uint32_t> indexed, handle_nbytes;
  std::byte handle[112];  // of a shared array of bytes with the states, of one axis; states == 0: none
};

struct ServedState {
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint64_t kNoStates = UINT64_MAX;

  // Constant after the feed has its name, as the next ones.
  std::atomic<ServedMode> mode;
  std::atomic<uint32_t> tokens;  // slots that consumers may hold
  // In bytes from this struct: the fields, as Schema::encode() writes them, and what the program notes.
  uint64_t description_at, description_nbytes, note_at, note_nbytes;
  std::atomic<ServedPhase> phase;
  std::atomic<uint32_t> wants;  // consumers with which the first round begins
  // The place of the feed's process, and the generation of that place; kNone: none has served it yet.
  std::atomic<uint32_t> server, server_generation, server_pid;
  std::atomic<uint32_t> ignored_index;

  alignas(64) std::atomic<uint64_t> told;  // the base of the last round whose end some consumer was told
  // The states of all batches up to this number are noted; kNoStates: the generator has none. Noting is odd
  // while the server writes those that it has noted.
  std::atomic<uint64_t> noted, noting;
  // No ticket of the round from this one on is for consumers; 0: all are. With kProvisional, consumers wait
  // at it until it is sure.
  static constexpr uint64_t kProvisional = uint64_t{1} << 63;
  std::atomic<uint64_t> closing;
  std::atomic<uint64_t> first_number, first_epoch, first_place;  // where the serving began; 0: not yet
  std::atomic<uint64_t> first_batch;  // the number of the first batch that a consumer got; 0: none
  std::atomic<uint64_t> delivered, delivered_nbytes, starved_ns;

  alignas(64) Event ends;  // a record or the phase has changed
  // The places whose processes may have roles, slots, or bits of readers: a bit is set before the first of
  // them. It is cleared when the place becomes free.
  Mask users;
  CursorRecord records[kParticipants];

  // Room for what the feed shares, which begins with SlotPoolState.
  static constexpr uint64_t kPoolNbytes = 1024;

  // What follows this struct; n: the number of slots, from a checked copy.
  static constexpr uint64_t pool_at() noexcept { return sizeof(ServedState); }
  static constexpr uint64_t states_at() noexcept { return pool_at() + kPoolNbytes; }
  static constexpr uint64_t entries_at(uint64_t n) noexcept { return states_at() + n * sizeof(SlotState); }
  static constexpr uint64_t end_at(uint64_t n) noexcept {
    return round_up(entries_at(n) + entries_of_pool(n) * sizeof(SlotEntry), 64);
  }
  SlotPoolState& pool() noexcept { return *at<SlotPoolState>(pool_at()); }
  SlotTable table(uint32_t n) noexcept {
    return {
        pool().counters, {at<SlotState>(states_at()), n}, {at<SlotEntry>(entries_at(n)), entries_of_pool(n)}};
  }

 private:
  template <class T>
  T* at(uint64_t offset) noexcept {
    return reinterpret_cast<T*>(reinterpret_cast<std::byte*>(this) + offset);
  }
};

// Of a broadcast: the last number that all consumers have received and whose state is noted. base: of the
// round.
uint64_t floor_of(const ServedState& state, const SlotTable& table, uint64_t base) noexcept;
// Whether the slot, which has this word, may be filled again: its batch is not above the floor, and nobody
// reads it.
bool is_spare(const SlotTable& table, uint32_t slot, uint64_t word, uint64_t floor) noexcept;

static_assert(sizeof(CursorRecord) == 192 && sizeof(ServedState) % 64 == 0);
static_assert(sizeof(ServedState) <= 1024 + kParticipants * sizeof(CursorRecord));
static_assert(sizeof(SlotPoolState) <= ServedState::kPoolNbytes);

}  // namespace tenon::impl
