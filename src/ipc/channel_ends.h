// SPDX-License-Identifier: Apache-2.0
//
// The roles that processes have in a channel: how they end, and how the deaths of producers
// and members are counted.
#pragma once

#include <cstdint>
#include <string>

#include "ipc/channel_state.h"
#include "ipc/segment.h"

namespace tenon::impl {

// The ends of a channel, seen by this process. A value that refers to the channel's memory.
// Threads: any. Functions that change the ends require the channel's mutex.
class ChannelEnds {
 public:
  ChannelEnds() = default;
  ChannelEnds(Segment& segment, ChannelState& state) noexcept : segment_(&segment), state_(&state) {}

  // Requires that this process has a place in the segment.
  ChannelEnd& own() const noexcept { return state_->ends[segment_->participant().index()]; }
  // The process that took its role in this place lives.
  bool is_alive(uint32_t place) const noexcept;
  // The number of processes with this role.
  uint32_t count(ChannelRole role) const noexcept;
  // Of a broadcast: the last item that no consumer is to receive any more. All consumers have received it; if
  // there are none now, one that has left had received it.
  uint64_t received_by_all() const noexcept;
  // Names the stopped processes that have a role, for messages.
  std::string stopped_text() const;

  // Ends the roles of processes that have died, and counts the deaths of producers and
  // members. True: there were some.
  bool end_dead() noexcept;
  // The process has closed all openings of a role that it still has.
  static bool has_closed(ChannelEnd& end) noexcept;
  // Ends the roles for which the process has closed all openings. False: there were none.
  bool end_closed(ChannelEnd& end) noexcept;
  // Gives the role to the end of this process.
  void add_role(ChannelRole role) noexcept;
  // Calls visit(place, end) with each end that may have a role. Does not require the mutex.
  template <class Visit>
  void visit_ends(Visit visit) const {
    visit_bits(state_->with_roles, [&](uint32_t p) { visit(p, state_->ends[p]); });
  }
  // Wakes sleeping producers and consumers. Does not require the mutex.
  void wake_all() noexcept;

 private:
  void count_death(ChannelEnd& end) noexcept;
  void end_roles(ChannelEnd& end, uint32_t ended) noexcept;

  Segment* segment_ = nullptr;
  ChannelState* state_ = nullptr;
};

}  // namespace tenon::impl
