// SPDX-License-Identifier: Apache-2.0
//
// The beginning of a channel's memory, in the first block of its segment. After it come the states of the
// slots, their entries (slot_table.h), their memories (slot_memory.h), then the description of the fields.
// The second block of the segment contains the slots. The control part is mapped together with the state
// (Control), so each process that has the segment open can give back what a dead process had.
#pragma once

#include "ipc/layout.h"
#include "ipc/slot_memory.h"
#include "ipc/slot_table.h"

namespace tenon::impl {

constexpr uint64_t kChannelMark = 0x414E4E4148434E54;  // "TNCHANNA"

constexpr uint32_t kKnownDead = 32;

// A member has had no other role yet. As it may be about to send, consumers are told of its death. A viewer
// receives only the newest item of a broadcast, and no producer waits for it.
enum ChannelRole : uint32_t { kProducer = 1, kConsumer = 2, kMember = 4, kViewer = 8 };
constexpr ChannelRole kRoles[] = {kProducer, kConsumer, kMember, kViewer};

// The values of the word of an end: the roles of the process, and how far its death was counted.
struct EndWord {
  enum Death : uint64_t {
    kAlive = 0,
    kAsks = 16,    // it is to be the death of this number, if the entry of the number names the place
    kCounted = 32  // it is
  };
  static constexpr uint64_t make(uint64_t roles, Death death, uint64_t number) noexcept {
    return number << 6 | death | roles;
  }
  static constexpr uint32_t roles(uint64_t word) noexcept { return static_cast<uint32_t>(word & 15); }
  static constexpr Death death(uint64_t word) noexcept { return static_cast<Death>(word & 48); }
  static constexpr uint64_t number(uint64_t word) noexcept { return word >> 6; }
};

// How many producers have ended, and whether the last one has died.
struct ClosingsWord {
  static constexpr uint64_t make(uint64_t count, bool has_died) noexcept {
    return count << 1 | (has_died ? 1 : 0);
  }
  static constexpr uint64_t count(uint64_t word) noexcept { return word >> 1; }
  static constexpr bool has_died(uint64_t word) noexcept { return (word & 1) != 0; }
};

// A process in the channel. Written by it, and after its death under the lock of its place. The word is 0
// when a process takes the place; the cursor is written before the role of a consumer.
struct ChannelEnd {
  std::atomic<uint64_t> word;
  std::atomic<uint64_t> cursor;  // of a consumer: all of its openings have received the items up to this one
};

// The name of a death under its number: the number, then the place, then the process.
struct DeathEntry {
  static constexpr uint64_t kPlaceBits = 9, kPidBits = 22;  // the kernel has no larger number of a process
  static_assert(kParticipants == 1 << kPlaceBits);
  static constexpr uint64_t make(uint64_t number, uint32_t place, uint32_t pid) noexcept {
    return number << (kPlaceBits + kPidBits) | uint64_t{place} << kPidBits | (pid & ((1 << kPidBits) - 1));
  }
  static constexpr uint64_t number(uint64_t entry) noexcept { return entry >> (kPlaceBits + kPidBits); }
  static constexpr uint32_t place(uint64_t entry) noexcept {
    return static_cast<uint32_t>(entry >> kPidBits) & (kParticipants - 1);
  }
  static constexpr uint32_t pid(uint64_t entry) noexcept {
    return static_cast<uint32_t>(entry & ((1 << kPidBits) - 1));
  }
};

struct ChannelState {
  std::atomic<uint64_t> mark;  // written last
  uint32_t slots;
  uint32_t mode;
  uint32_t when_full;
  uint32_t holds_bytes;  // 1: items have no fields, and each has as many bytes as it needs
  uint64_t description_nbytes;
  uint64_t capacity_nbytes;  // of each slot
  uint64_t budget_nbytes;    // of the memory of all slots
  // The number of the last death of a producer or member. An entry gives a number, as in slot_table.h.
  alignas(64) std::atomic<uint64_t> deaths;
  std::atomic<uint64_t> entries_of_deaths[kKnownDead];  // of death n at n % kKnownDead
  // How many producers have ended, at least, and how the last one has (ClosingsWord). Each is counted before
  // its role ends.
  std::atomic<uint64_t> closings;
  // The places whose processes may have roles, slots, or bits of readers: a bit is set before the first role.
  // It is cleared when the place becomes free.
  Mask users;
  SlotCounters counters;
  std::atomic<uint64_t> received;
  std::atomic<uint64_t> dropped;
  std::atomic<uint64_t> last_received;  // of a broadcast: the last item that some consumer has received
  std::atomic<uint64_t> refused;        // loans that failed because there was no room
  alignas(64) SharedEvent items;        // signaled when there may be something to receive
  // The slot of an item that was sent recently, usually of the last item. Written before the signal. A
  // consumer that waits gets it with the cache line of the event.
  std::atomic<uint32_t> recent_slot;
  std::atomic<uint64_t> largest_sent_nbytes;  // of a channel of bytes
  alignas(64) SharedEvent room;               // signaled when there may be a free slot
  ChannelEnd ends[kParticipants];

  // What follows this struct.
  static constexpr uint64_t nbytes_before_description(uint64_t slots) noexcept {
    return sizeof(ChannelState) + slots * (sizeof(SlotState) + sizeof(SlotEntry) + sizeof(SlotMemory));
  }
  SlotState* slot_states() noexcept { return reinterpret_cast<SlotState*>(this + 1); }
  // n: the number of slots, from a checked copy.
  SlotEntry* entries(uint64_t n) noexcept { return reinterpret_cast<SlotEntry*>(slot_states() + n); }
  SlotMemory* memories(uint64_t n) noexcept { return reinterpret_cast<SlotMemory*>(entries(n) + n); }
  SlotTable table(uint32_t n) noexcept { return {counters, {slot_states(), n}, {entries(n), n}}; }
};

}  // namespace tenon::impl
