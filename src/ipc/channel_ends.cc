// SPDX-License-Identifier: Apache-2.0
#include "ipc/channel_ends.h"

#include <algorithm>

#include "base/error.h"
#include "base/os.h"
#include "ipc/deaths.h"

namespace tenon::impl {

bool ChannelEnds::is_alive(uint32_t p) const noexcept {
  const Control& control = segment_->control();
  const ChannelEnd& end = state_->ends[p];
  return control.has_place(p) && look(control.place(p).generation) == look(end.generation) &&
         look(control.place(p).state) == PlaceState::kLive && impl::is_alive(control, p);
}

uint32_t ChannelEnds::count(ChannelRole role) const noexcept {
  uint32_t n = 0;
  visit_ends([&](uint32_t, const ChannelEnd& end) { n += (observe(end.roles) & role) != 0 ? 1 : 0; });
  return n;
}

uint64_t ChannelEnds::received_by_all() const noexcept {
  uint64_t least = observe(state_->last_received);
  visit_ends([&](uint32_t, const ChannelEnd& end) {
    if ((observe(end.roles) & kConsumer) != 0) least = std::min(least, observe(end.cursor));
  });
  return least;
}

std::string ChannelEnds::stopped_text() const {
  std::string text;
  visit_ends([&](uint32_t p, const ChannelEnd& end) {
    if (look(end.roles) == 0 || !is_alive(p) || !os::is_stopped(look(end.pid))) return;
    text += concat(text.empty() ? ": " : ", ", "process ", look(end.pid), " (",
                   command_of(segment_->control().place(p)), "), which is stopped");
  });
  return text.empty() ? text : text + ", uses it";
}

bool ChannelEnds::end_dead() noexcept {
  bool has_found = false;
  visit_ends([&](uint32_t p, ChannelEnd& end) {
    if (end_closed(end)) wake_all();  // the process may have ended before it did so
    const uint32_t roles = look(end.roles);
    if (roles == 0) {
      clear_bit(state_->with_roles, p);
      return;
    }
    if (is_alive(p)) return;
    has_found = true;
    if ((roles & (kProducer | kMember)) != 0) count_death(end);
    end_roles(end, roles);
    wake_all();
  });
  return has_found;
}

// A death gets its number before it is counted. A process may be killed between the two steps, or before it
// has ended the roles. Because of the number, the next process does not count the death again.
void ChannelEnds::count_death(ChannelEnd& end) noexcept {
  const auto finish = [this](const ChannelEnd& begun) {
    const uint64_t deaths = look(state_->deaths);
    if (look(begun.death) != deaths + 1) return;
    store(state_->dead_pids[deaths % kKnownDead], look(begun.pid));
    store(state_->deaths, deaths + 1);
  };
  if (look(end.death) == 0) {
    // Else an uncounted death could have the same number.
    visit_ends([&](uint32_t, const ChannelEnd& other) { finish(other); });
    store(end.death, look(state_->deaths) + 1);
  }
  finish(end);
}

// In this order: if the process is killed between the two stores, it still has the role, so that another
// process ends it.
void ChannelEnds::end_roles(ChannelEnd& end, uint32_t ended) noexcept {
  const uint32_t roles = look(end.roles);
  if ((roles & ended & kProducer) != 0 && count(kProducer) == 1) (void)add(state_->closings, uint64_t{1});
  publish(end.roles, roles & ~ended);
}

bool ChannelEnds::has_closed(ChannelEnd& end) noexcept {
  const uint32_t roles = look(end.roles);
  return std::ranges::any_of(
      kRoles, [&](ChannelRole role) { return (roles & role) != 0 && look(end.openings(role)) == 0; });
}

bool ChannelEnds::end_closed(ChannelEnd& end) noexcept {
  const uint32_t roles = look(end.roles);
  bool has_ended = false;
  for (const ChannelRole role : kRoles) {
    if ((roles & role) == 0 || look(end.openings(role)) != 0) continue;
    end_roles(end, role);
    has_ended = true;
  }
  return has_ended;
}

void ChannelEnds::add_role(ChannelRole role) noexcept {
  ChannelEnd& end = own();
  set_bit(state_->with_roles, segment_->participant().index());
  (void)add(end.openings(role), 1u);
  if (role == kMember) {
    if (look(end.has_used) == 0) publish(end.roles, look(end.roles) | role);
    return;
  }
  store(end.has_used, 1u);
  announce(end.roles, (look(end.roles) & ~kMember) | role);
}

void ChannelEnds::wake_all() noexcept {
  signal_event(state_->items);
  signal_event(state_->room);
}

}  // namespace tenon::impl
