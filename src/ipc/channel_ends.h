// SPDX-License-Identifier: Apache-2.0
//
// The processes in a channel: their roles, how these end, and how the deaths of producers and members are
// counted. There is no lock: a process changes its own end, and an end of a dead process is changed under the
// lock of its place (participant.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "ipc/channel_state.h"
#include "ipc/participant.h"

namespace tenon::impl {

// The ends of a channel, seen by this process. A value that refers to the channel's memory. Threads: any.
class ChannelEnds {
 public:
  ChannelEnds() = default;
  ChannelEnds(const Control& control, ChannelState& state) noexcept : control_(control), state_(&state) {}

  // The process that has the place lives.
  bool is_alive(uint32_t place) const noexcept;
  // The kernel has marked its life: it is ending, or has ended.
  bool is_marked(uint32_t place) const noexcept {
    return control_.has_place(place) && is_dead(look(life_word(control_.life(place))));
  }
  // The number of processes with one of these roles.
  uint32_t count(uint32_t roles) const noexcept;
  // How many producers have ended.
  uint64_t closings() const noexcept { return ClosingsWord::count(observe(state_->closings)); }
  // The same, if there is none now and more have ended than the number known; else 0. awaits_crashed: also 0
  // if the last one has died.
  uint64_t ended_after(uint64_t known, bool awaits_crashed) const noexcept;
  // Of a broadcast: the last item that no consumer is to receive any more. All consumers have received it; if
  // there are none now, one that has left had received it.
  uint64_t received_by_all() const noexcept;
  // Names the stopped processes that have a role or clean up after one that had, for messages. file: of the
  // segment.
  std::string stopped_text(const os::File& file) const;

  // Sets the roles of this process, which has the place. The threads of a process call it one at a time.
  void set_roles(uint32_t place, uint32_t roles) noexcept;
  // The number of the process whose death has this number, from 1 on; 0: not known.
  uint32_t pid_of_death(uint64_t number) const noexcept;
  // Reaps the processes that have died; asks the kernel only about those that it has marked. If another
  // thread or process is reaping one, waits a short while for it, unless waited_for, of the caller, says that
  // a wait for the same one was in vain: its reaper is stopped. True: there were some.
  bool reap_dead(std::atomic<uint64_t>& waited_for) const noexcept;
  // Calls visit(place, end) with each end that may have a role, a slot or an item.
  template <class Visit>
  void visit_ends(Visit visit) const {
    visit_bits(state_->users, [&](uint32_t p) { visit(p, state_->ends[p]); });
  }
  // Wakes sleeping producers and consumers.
  void wake_all() noexcept;

  // Gives back the slots of the process that had the place, counts its death if it had a role, and ends its
  // roles. May be repeated after the death of the caller. slots: their number. Requires the lock of the
  // place. The memory may be damaged.
  void clear(uint32_t place, uint32_t slots) noexcept;

 private:
  void note_closing(bool has_died) noexcept;
  bool await_reaper(uint32_t place, std::atomic<uint64_t>& waited_for) const noexcept;
  void count_death(uint32_t place) noexcept;
  void help(uint64_t number) noexcept;
  std::atomic<uint64_t>& entry(uint64_t number) const noexcept {
    return state_->entries_of_deaths[number % kKnownDead];
  }

  Control control_;
  ChannelState* state_ = nullptr;
};

}  // namespace tenon::impl
