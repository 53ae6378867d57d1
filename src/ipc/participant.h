// SPDX-License-Identifier: Apache-2.0
//
// A process as a participant of a segment. Its place shows the other processes that it lives and what it
// holds.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "base/os.h"
#include "ipc/layout.h"
#include "ipc/message_table.h"
#include "ipc/mutex_owner.h"
#include "ipc/place_locks.h"
#include "sync/request.h"

namespace tenon::impl {

struct ChannelState;
struct ServedState;

// The control part of a segment, and the state of its channel or feed, as this process has mapped them.
struct Control {
  std::byte* base = nullptr;
  uint32_t blocks = 0;
  PlaceLocks* places = nullptr;  // null: this is a copy that is only read
  uint64_t places_at = 0;
  uint32_t channel_slots = 0;  // 0: it contains no channel
  uint32_t feed_slots = 0;     // 0: it contains no feed
  uint64_t state_at = 0;       // of the channel or feed

  // Maps it. Fails with kNoMemory, kSystem.
  static Control map(const os::File& file, const Header& header, PlaceLocks* places);
  // The size of the mapping.
  static uint64_t nbytes_of(const Header& header) noexcept;

  Life& life(uint32_t i) const noexcept { return reinterpret_cast<Life*>(base + kLivesAt)[i]; }
  Place& place(uint32_t i) const noexcept {
    return *reinterpret_cast<Place*>(base + places_at + i * kPlaceStride);
  }
  std::atomic<uint32_t>& blocks_used() const noexcept {
    return *reinterpret_cast<std::atomic<uint32_t>*>(base + kBlocksUsedAt);
  }
  // The blocks from this number on were never used.
  uint32_t used_blocks() const noexcept { return std::min(look(blocks_used()), blocks); }
  std::atomic<uint32_t>& places_used() const noexcept {
    return *reinterpret_cast<std::atomic<uint32_t>*>(base + kPlacesUsedAt);
  }
  // The places from this number on were never used. They, and perhaps their lives, have no memory.
  uint32_t used_places() const noexcept { return std::min(look(places_used()), kParticipants); }
  bool has_place(uint32_t i) const noexcept {
    // pairs with: Participant::take_place, "memory of a place"
    return i < used_places() && look(life(i).has_place) != 0;
  }
  Block& block(uint32_t i) const noexcept {
    return *reinterpret_cast<Block*>(base + kBlocksAt + i * kBlockStride);
  }
  std::atomic<uint32_t>& messages_used() const noexcept {
    return *reinterpret_cast<std::atomic<uint32_t>*>(base + kMessagesUsedAt);
  }
  // The records from this number on were never used, and may have no memory.
  uint32_t used_messages() const noexcept { return std::min(look(messages_used()), kMostMessages); }
  // Changes when a participant has made a forked child a user of the blocks that it uses.
  std::atomic<uint32_t>& forks() const noexcept {
    return *reinterpret_cast<std::atomic<uint32_t>*>(base + kForksAt);
  }
  std::atomic<uint32_t>& has_state() const noexcept {
    return *reinterpret_cast<std::atomic<uint32_t>*>(base + kHasStateAt);
  }
  // Null: there is none, or no process has used it yet.
  ChannelState* channel() const noexcept {
    if (channel_slots == 0 || look(has_state()) == 0) return nullptr;
    return reinterpret_cast<ChannelState*>(base + state_at);
  }
  // Null: there is none, or it is not complete.
  ServedState* served() const noexcept {
    if (feed_slots == 0 || look(has_state()) == 0) return nullptr;
    return reinterpret_cast<ServedState*>(base + state_at);
  }
  MessageRecord& message(uint32_t i) const noexcept {
    return reinterpret_cast<MessageRecord*>(base + messages_at(blocks))[i];
  }
};

// The word of a mutex that the kernel marks when the holder ends. A thread can sleep on it until then.
std::atomic<uint32_t>& life_word(Life& life) noexcept;
// The word is marked: the process is ending, or has ended. A process whose word is not marked almost
// certainly lives. Exceptions: the kernel marks at most 2,048 mutexes of one thread. In a forked child, the
// word is also marked when the first thread of the child ends.
bool is_dead(uint32_t life_word) noexcept;
// The same, for paths that run often. Asks the kernel only if the word is marked.
bool is_alive(const Control& control, uint32_t participant) noexcept;
// A process has the place, and lives.
inline bool has_living(const Control& control, uint32_t place) noexcept {
  return control.has_place(place) && look(control.place(place).state) == PlaceState::kLive &&
         is_alive(control, place);
}
// Tells the kernel that a thread will sleep on the word. Returns the value to sleep on.
uint32_t note_sleeper(std::atomic<uint32_t>& life_word) noexcept;

// The name of the participant's process, as its place says.
std::string command_of(const Place& place);

// If this participant has died: drops what it held in all blocks, in the channel and in the feed, wakes the
// waiting processes, and frees its place. True: this call did it. Any thread of any process may call it; a
// second call does nothing. Always asks the kernel.
bool reap(const Control& control, uint32_t participant) noexcept;
// Reaps all participants that have died.
void reap_all(const Control& control) noexcept;
// Only those whose deaths the kernel has marked. Asks the kernel only about these.
void reap_marked(const Control& control) noexcept;

// Some participant uses the block. True also if that is not known.
bool has_users(const Control& control, const Block& block) noexcept;

// Wakes the waiting processes after something was released.
inline void note_change(Block& block) noexcept {
  (void)add(block.changes, 1u);
  if (!is_empty(block.waiting)) os::wake_all(block.changes);
}

void signal_event(SharedEvent& event) noexcept;

// This process in one segment. Threads: any.
class Participant {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // Takes a place. Fails with kSystem (all places are taken), kNoMemory.
  Participant(const Control& control, const os::File& file, MutexOwner& mutex_owner);
  Participant(const Participant&) = delete;
  Participant& operator=(const Participant&) = delete;

  // This thread can free the place.
  bool can_leave() const noexcept;
  // Frees the place. Requires can_leave(), and that no grant is in use.
  void leave() noexcept;

  // kNone: this is a forked child for which there was no place.
  uint32_t index() const noexcept { return index_; }
  Place& place() const noexcept { return control_.place(index_); }
  // The number of a grant is one more than its index, so that none has the number kNoGrant.
  Grant& grant(GrantId id) const noexcept { return place().grants[id - 1]; }

  // Takes a free grant of this process; kNoGrant: none is free.
  GrantId take_grant() noexcept;
  // The same, for a death, which stays in the grant until it is healed. kNoGrant also if there are many
  // deaths.
  GrantId take_grant_for_death() noexcept;
  void give_grant(GrantId id) noexcept;
  // A request begins to wait for a free grant.
  void begin_grant_wait() noexcept {
    // pairs with: Participant::give_grant, "a thread that waits for a grant"
    grant_waits_.fetch_add(1, std::memory_order_seq_cst);
  }
  void end_grant_wait() noexcept { grant_waits_.fetch_sub(1, std::memory_order_relaxed); }
  // A futex and its value. It changes when a grant becomes free and a request waits for one.
  os::Sleep grants_given() const noexcept {
    // pairs with: Participant::give_grant, "a grant that is free"
    return {&grants_given_, grants_given_.load(std::memory_order_acquire)};
  }
  bool has_grant_waits() const noexcept { return grant_waits_.load(std::memory_order_relaxed) != 0; }
  // So many grants are in use that readers of the same bytes should share one.
  bool is_short_of_grants() const noexcept;
  // The number of parts and views that wait for a grant or rely on it.
  std::atomic<uint32_t>& references(GrantId id) noexcept { return references_[id - 1]; }
  // Adds a reference to a grant that may be free. False: it is free.
  bool refer_to(GrantId id) noexcept;

  // For forks: reserves a place for the child, which the child takes in become_child(). The child has no
  // place if none was free or if it has no open file description of its own.
  struct Reserved {
    uint32_t index = kNone;
    uint32_t generation = 0;  // of the place
  };
  Reserved reserve_for_child(const os::File& file) noexcept;
  void become_child(bool has_own_file) noexcept;
  // Frees the place of a child that will never take it. Does nothing if the child has taken it.
  void free_reserved(const Reserved& reserved) noexcept;

 private:
  void join(const os::File& file);
  uint32_t take_any_place(const os::File& file);
  bool take_place(uint32_t i, const os::File& file);
  bool come_to_life() noexcept;
  void write_place() noexcept;
  void keep_deaths() noexcept;
  bool take_back_deaths() noexcept;

  const Control control_;
  MutexOwner* mutex_owner_;   // null in a forked child
  uint32_t life_holder_ = 0;  // in a forked child: the thread that holds the mutex of the life
  uint32_t index_ = kNone;
  Reserved child_;
  std::array<std::atomic<uint64_t>, (kGrants + 63) / 64> taken_{};
  // The grants of taken_ that hold deaths, or did.
  std::array<std::atomic<uint64_t>, (kGrants + 63) / 64> deaths_{};
  std::atomic<uint32_t> grant_waits_{0};   // threads
  std::atomic<uint32_t> grants_given_{0};  // a futex: see grants_given()
  std::array<std::atomic<uint32_t>, kGrants> references_{};
};

}  // namespace tenon::impl
