// SPDX-License-Identifier: Apache-2.0
//
// What lies at the beginning of a channel's memory. Behind it come the states of the slots, then the
// description of the fields. The slots are the blocks of the segment from the second one on.
#pragma once

#include "ipc/layout.h"

namespace tenon::impl {

constexpr uint64_t kChannelMark = 0x324E4E4148434E54;  // "TNCHANN2"

constexpr uint32_t kKnownDead = 32;

enum ChannelRole : uint32_t { kProducer = 1, kConsumer = 2 };

// What a participant is to the channel. Written by itself, or by one that finds it dead, under the mutex. But
// a role without an opening is ended by the next process that has the mutex.
struct ChannelEnd {
  std::atomic<uint32_t> generation;  // of the participant's place, as long as it has a role
  std::atomic<uint32_t> roles;
  std::atomic<uint32_t> pid;
  std::atomic<uint32_t> producers;  // openings of its process that have the role
  std::atomic<uint32_t> consumers;
  std::atomic<uint64_t> cursor;  // of a consumer: the last item that it has got
  std::atomic<uint64_t> death;   // of a producer: the number of its death; 0: it has none yet

  std::atomic<uint32_t>& openings(ChannelRole role) noexcept {
    return role == kProducer ? producers : consumers;
  }
};

struct alignas(64) ChannelSlot {
  std::atomic<uint64_t> sequence;  // of the item that it holds; 0: none
};

struct ChannelState {
  std::atomic<uint64_t> mark;  // written last
  uint32_t slots;
  uint32_t mode;
  uint32_t when_full;
  uint32_t reserved;
  uint64_t description_nbytes;
  pthread_mutex_t mutex;  // robust (timed_lock.h); guards all that follows and the states of the slots
  std::atomic<uint64_t> last_sequence;
  std::atomic<uint64_t> received;
  std::atomic<uint64_t> dropped;
  std::atomic<uint64_t> deaths;
  std::atomic<uint32_t> dead_pids[kKnownDead];  // of death number n in n % kKnownDead
  std::atomic<uint64_t> closings;               // how often the last producer has gone
  alignas(64) SharedEvent items;                // signaled when there may be something to receive
  alignas(64) SharedEvent room;                 // signaled when there may be a free slot
  ChannelEnd ends[kParticipants];
};

}  // namespace tenon::impl
