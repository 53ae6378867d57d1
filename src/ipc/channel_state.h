// SPDX-License-Identifier: Apache-2.0
//
// The beginning of a channel's memory, in the first block of its segment. After it come the states of the
// slots, their entries (slot_table.h), then the description of the fields. The second block of the segment
// contains the slots.
#pragma once

#include "ipc/layout.h"
#include "ipc/slot_table.h"

namespace tenon::impl {

constexpr uint64_t kChannelMark = 0x414E4E4148434E54;  // "TNCHANNA"

constexpr uint32_t kKnownDead = 32;

// A member has had no other role yet. As it may be about to send, consumers are told of its death.
enum ChannelRole : uint32_t { kProducer = 1, kConsumer = 2, kMember = 4 };
constexpr ChannelRole kRoles[] = {kProducer, kConsumer, kMember};

// The roles of a participant in the channel. Written under the mutex by its process, or by one that notices
// its death. If a process has closed all openings of a role and could not lock the mutex, the next process
// that finds nothing to do ends the role.
struct ChannelEnd {
  std::atomic<uint32_t> generation;  // of the participant's place, as long as it has a role
  std::atomic<uint32_t> roles;
  std::atomic<uint32_t> pid;
  std::atomic<uint32_t> producers;  // openings of its process that have the role
  std::atomic<uint32_t> consumers;
  std::atomic<uint32_t> members;
  std::atomic<uint32_t> has_used;  // 1: it has been a producer or consumer, so it is no member any more
  std::atomic<uint64_t> cursor;  // of a consumer: all of its openings have received the items up to this one
  std::atomic<uint64_t> death;   // of a producer or member: the number of its death; 0: none

  std::atomic<uint32_t>& openings(ChannelRole role) noexcept {
    return role == kProducer ? producers : role == kConsumer ? consumers : members;
  }
};

struct ChannelState {
  std::atomic<uint64_t> mark;  // written last
  uint32_t slots;
  uint32_t mode;
  uint32_t when_full;
  uint32_t reserved;
  uint64_t description_nbytes;
  // Robust (timed_lock.h). Held by a process that takes or gives up a role, notices a death, or gives back
  // what a dead process had. Guards the ends, and the members up to with_roles. No slot is passed under it.
  alignas(64) pthread_mutex_t mutex;
  std::atomic<uint64_t> deaths;
  std::atomic<uint32_t> dead_pids[kKnownDead];  // of death n at n % kKnownDead
  std::atomic<uint64_t> closings;               // how often the channel has lost its last producer
  // The places whose ends may have a role: a bit is set before the role, and stays after the role has ended
  // until the next process looks for deaths.
  Mask with_roles;
  SlotCounters counters;
  std::atomic<uint64_t> received;
  std::atomic<uint64_t> dropped;
  std::atomic<uint64_t> last_received;  // of a broadcast: the last item that some consumer has received
  alignas(64) SharedEvent items;        // signaled when there may be something to receive
  // The slot of an item that was sent recently, usually of the last item. Written before the signal. A
  // consumer that waits gets it with the cache line of the event.
  std::atomic<uint32_t> recent_slot;
  alignas(64) SharedEvent room;  // signaled when there may be a free slot
  ChannelEnd ends[kParticipants];

  // What follows this struct.
  static constexpr uint64_t nbytes_before_description(uint64_t slots) noexcept {
    return sizeof(ChannelState) + slots * (sizeof(SlotState) + sizeof(SlotEntry));
  }
  SlotState* slot_states() noexcept { return reinterpret_cast<SlotState*>(this + 1); }
  // n: the number of slots, from a checked copy.
  SlotEntry* entries(uint64_t n) noexcept { return reinterpret_cast<SlotEntry*>(slot_states() + n); }
};

}  // namespace tenon::impl
