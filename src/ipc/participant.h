// SPDX-License-Identifier: Apache-2.0
//
// A process' part in a segment: its place, by which the others know that it lives and what it holds.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "base/os.h"
#include "ipc/layout.h"
#include "ipc/mutex_owner.h"
#include "ipc/place_locks.h"
#include "ipc/timed_lock.h"
#include "sync/request.h"

namespace tenon::impl {

// The control part of a segment, as it is mapped here.
struct Control {
  std::byte* base = nullptr;
  uint32_t blocks = 0;
  PlaceLocks* places = nullptr;  // null: in a copy that is only read

  Life& life(uint32_t i) const noexcept { return reinterpret_cast<Life*>(base + kLivesAt)[i]; }
  Place& place(uint32_t i) const noexcept {
    return *reinterpret_cast<Place*>(base + kPlacesAt + i * kPlaceStride);
  }
  std::atomic<uint32_t>& blocks_used() const noexcept {
    return *reinterpret_cast<std::atomic<uint32_t>*>(base + kBlocksUsedAt);
  }
  bool has_place(uint32_t i) const noexcept {
    // pairs with: Participant::take_place, "memory of a place"
    return look(life(i).has_place) != 0;
  }
  Block& block(uint32_t i) const noexcept {
    return *reinterpret_cast<Block*>(base + kBlocksAt + i * kBlockStride);
  }
};

// The word of a mutex that the kernel marks when its holder ends, and on which one may sleep until then.
std::atomic<uint32_t>& life_word(Life& life) noexcept;
// It is marked: the process is ending, or has ended; of those that are not marked it is nearly certain that
// they live. The kernel marks no more than 2,048 for one thread, and a forked child lives on when the thread
// that it began with ends.
bool is_dead(uint32_t life_word) noexcept;
// The same, for paths that run often; of one that is marked the kernel is asked.
bool is_alive(const Control& control, uint32_t participant) noexcept;
// Tells the kernel that a thread will sleep on the word; the value with which to do so.
uint32_t note_sleeper(std::atomic<uint32_t>& life_word) noexcept;

// The process of a participant, as far as its place says.
struct Identity {
  uint32_t pid = 0;
  uint64_t start = 0;
  std::string command;
};
Identity identity_of(const Place& place);

// The handles of a block that this participant has sent keep it no longer: how many there were. Of those that
// were sent without a number none is dropped while another participant has sent such ones, too.
uint32_t drop_sent(Block& block, uint32_t participant) noexcept;

// If this participant has died, all of it: drops what it held, in all blocks, wakes the waiters there, and
// frees its place. True: it did, now. Any thread of any process; the second one does nothing. Asks the
// kernel, marked or not.
bool reap(const Control& control, uint32_t participant) noexcept;
// All that have died.
void reap_all(const Control& control) noexcept;

// Something was given back: the processes that wait look again.
inline void note_change(Block& block) noexcept {
  (void)add(block.changes, 1u);
  if (!is_empty(block.waiting)) os::wake_all(block.changes);
}

void signal_event(SharedEvent& event) noexcept;

// This process in one segment. Threads: any.
class Participant {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // Joins. Fails with kSystem (all places are taken), kNoMemory.
  Participant(const Control& control, const os::File& file, MutexOwner& mutex_owner);
  Participant(const Participant&) = delete;
  Participant& operator=(const Participant&) = delete;

  // This thread can give the place back.
  bool can_leave() const noexcept;
  // Gives it back. Requires can_leave(), and no grant is in use.
  void leave() noexcept;

  // kNone: in a forked child for which there was no place.
  uint32_t index() const noexcept { return index_; }
  Place& place() const noexcept { return control_.place(index_); }
  // The number of a grant is one more than its index, so that none has the number kNoGrant.
  Grant& grant(GrantId id) const noexcept { return place().grants[id - 1]; }

  // A free grant of this process' own; kNoGrant: none is free.
  GrantId take_grant() noexcept;
  // The same, for a death that stays in it until others heal it; kNoGrant also where there are many of them.
  GrantId take_grant_for_death() noexcept;
  void give_grant(GrantId id) noexcept;
  // A request waits for a free grant.
  void begin_grant_wait() noexcept {
    // pairs with: Participant::give_grant, "a thread that waits for a grant"
    grant_waits_.fetch_add(1, std::memory_order_seq_cst);
  }
  void end_grant_wait() noexcept { grant_waits_.fetch_sub(1, std::memory_order_relaxed); }
  // What moves when one is given back and a thread waits for it, with its value: a futex.
  os::Sleep grants_given() const noexcept {
    // pairs with: Participant::give_grant, "a grant that is free"
    return {&grants_given_, grants_given_.load(std::memory_order_acquire)};
  }
  bool has_grant_waits() const noexcept { return grant_waits_.load(std::memory_order_relaxed) != 0; }
  // How many parts and views rely on a grant.
  std::atomic<uint32_t>& references(GrantId id) noexcept { return references_[id - 1]; }

  // For forks: a place for the child, and what becomes of it there. A child without one has none, and one
  // that has no open file description to itself.
  struct Reserved {
    uint32_t index = kNone;
    uint32_t generation = 0;  // of the place
  };
  Reserved reserve_for_child(const os::File& file) noexcept;
  void become_child(bool has_own_file) noexcept;
  // For a child that will never come. Does nothing if it has come.
  void free_reserved(const Reserved& reserved) noexcept;

 private:
  void join(const os::File& file);
  uint32_t take_any_place(const os::File& file);
  bool take_place(uint32_t i, const os::File& file);
  bool come_to_life() noexcept;
  void write_place(PlaceState state) noexcept;
  void keep_deaths() noexcept;
  bool take_back_deaths() noexcept;

  const Control control_;
  MutexOwner* mutex_owner_;   // null: in a forked child,
  uint32_t life_holder_ = 0;  // where this thread holds the mutex of the life
  uint32_t index_ = kNone;
  uint32_t child_index_ = kNone;
  std::array<std::atomic<uint64_t>, (kGrants + 63) / 64> taken_{};
  // Of those that are taken: they hold deaths, or did.
  std::array<std::atomic<uint64_t>, (kGrants + 63) / 64> deaths_{};
  std::atomic<uint32_t> grant_waits_{0};   // threads
  std::atomic<uint32_t> grants_given_{0};  // moves when one is given back and a thread waits: a futex
  std::array<std::atomic<uint32_t>, kGrants> references_{};
};

}  // namespace tenon::impl
