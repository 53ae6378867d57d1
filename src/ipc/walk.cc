// SPDX-License-Identifier: Apache-2.0
#include "ipc/walk.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "ipc/awaited.h"
#include "ipc/deaths.h"
#include "ipc/segments.h"

namespace tenon::impl {
namespace {

using GrantKind = GrantState::Kind;

// A thread of some process, or a task on it.
struct ProcessActor {
  uint32_t pid = 0;
  uint64_t start = 0;
  uint32_t thread = 0;
  uint32_t task = 0;
  friend bool operator==(const ProcessActor&, const ProcessActor&) = default;
};

struct GrantAt {
  const Control* control;
  uint32_t participant;
  GrantId id;
  friend bool operator==(const GrantAt&, const GrantAt&) = default;
};

ProcessActor actor_of(const Place& place, const Grant& grant) noexcept {
  return {place.pid.load(std::memory_order_relaxed), place.start.load(std::memory_order_relaxed),
          grant.thread.load(std::memory_order_relaxed),
          grant.task_or_dead_pid.load(std::memory_order_relaxed)};
}

template <class Visit>
void visit_leases(const Control& control, uint32_t participant, Visit visit) {
  if (!control.has_place(participant)) return;
  const Place& place = control.place(participant);
  const auto used = used_grants(place);
  for (uint32_t i = 0; i < used.size(); ++i) {
    const uint64_t state = look(used[i].state);
    const GrantKind kind = GrantState::kind(state);
    if (kind == GrantKind::kWaiting || kind == GrantKind::kGranted)
      visit(GrantId{i + 1}, place, used[i], state);
  }
}

// A waiting grant and one that blocks it. The edge exists as long as both grants have these tickets.
struct Edge {
  GrantAt waiting;
  uint64_t waiting_ticket;
  GrantAt blocking;
  uint64_t blocking_ticket;
  friend bool operator==(const Edge&, const Edge&) = default;
};

// Calls visit(edge, owner) for each grant of another process that blocks a request.
template <class Visit>
void visit_edges(const GrantAt& request, Visit visit) {
  const Control& control = *request.control;
  const Grant& own = control.place(request.participant).grants[request.id - 1];
  const uint64_t state = look(own.state);
  if (GrantState::kind(state) != GrantKind::kWaiting) return;
  const uint32_t block = GrantState::block(state);
  if (block >= control.blocks) return;
  const uint64_t own_ticket = look(own.ticket);
  const ByteRange bytes = range_of(own);
  visit_bits(control.block(block).present, [&](uint32_t p) {
    if (p == request.participant) return;
    visit_leases(control, p, [&](GrantId id, const Place& place, const Grant& other, uint64_t word) {
      if (GrantState::block(word) != block) return;
      if (!in_conflict(GrantState::access(state), GrantState::access(word))) return;
      const uint64_t ticket = look(other.ticket);
      if (GrantState::kind(word) != GrantKind::kGranted && ticket > own_ticket) return;
      if (!range_of(other).overlaps(bytes)) return;
      const ProcessActor owner = actor_of(place, other);
      // The same tickets as before: so all that was read belongs to the same two requests.
      const bool is_same = look(other.ticket) == ticket && look(own.ticket) == own_ticket &&
                           GrantState::is_lease(look(other.state)) && look(own.state) == state;
      if (is_same) visit(Edge{request, own_ticket, {&control, p, id}, ticket}, owner);
    });
  });
}

// All requests of this actor that wait, in these segments.
std::vector<GrantAt> requests_of(const ProcessActor& actor, const std::vector<const Segment*>& segments) {
  std::vector<GrantAt> found;
  for (const Segment* segment : segments) {
    const Control& control = segment->control();
    for (uint32_t p = 0; p < control.used_places(); ++p) {
      if (!control.has_place(p)) continue;
      if (control.place(p).pid.load(std::memory_order_relaxed) != actor.pid) continue;
      visit_leases(control, p, [&](GrantId id, const Place& place, const Grant& grant, uint64_t state) {
        const bool is_wait = GrantState::kind(state) == GrantKind::kWaiting && !GrantState::is_brief(state);
        if (is_wait && actor_of(place, grant) == actor) {
          found.push_back({&control, p, id});
        }
      });
    }
  }
  return found;
}

// True: a path leads back to the actor of the request. Adds the edges that it meets to `met`. With `among`,
// it follows only these edges.
bool walk(const GrantAt& from, const std::vector<const Segment*>& segments, const std::vector<Edge>* among,
          std::vector<Edge>* met) {
  const Place& place = from.control->place(from.participant);
  const ProcessActor self = actor_of(place, place.grants[from.id - 1]);
  if (self.thread == 0) return false;
  std::vector<ProcessActor> seen;
  std::vector<GrantAt> next{from};
  while (!next.empty()) {
    const GrantAt request = next.back();
    next.pop_back();
    std::vector<ProcessActor> owners;
    visit_edges(request, [&](const Edge& edge, const ProcessActor& owner) {
      if (owner.thread == 0) return;
      if (among != nullptr && std::find(among->begin(), among->end(), edge) == among->end()) return;
      met->push_back(edge);
      if (std::find(seen.begin(), seen.end(), owner) != seen.end()) return;
      seen.push_back(owner);
      owners.push_back(owner);
    });
    for (const ProcessActor& owner : owners) {
      if (owner == self) return true;
      for (const GrantAt& further : requests_of(owner, segments)) next.push_back(further);
    }
  }
  return false;
}

}  // namespace

bool is_waiting_for_itself(Segment& segment, GrantId grant) noexcept {
  try {
    const GrantAt from{&segment.control(), segment.participant().index(), grant};
    std::vector<const Segment*> segments;
    const auto locked = lock_open(segment, &segments);
    // Two walks: leases that are released and taken again during the first one can show a cycle that never
    // existed at one time. An edge that both walks meet existed at the time between them.
    std::vector<Edge> first, second;
    return walk(from, segments, nullptr, &first) && walk(from, segments, &first, &second);
  } catch (const std::bad_alloc&) {
    return false;  // the wait ends with its timeout
  }
}

void describe(const Place& place, const Grant& grant, Holder* holder) noexcept {
  const uint64_t state = grant.state.load(std::memory_order_relaxed);
  holder->kind = HolderKind::kProcess;
  holder->access = GrantState::access(state);
  holder->is_granted = GrantState::kind(state) == GrantKind::kGranted;
  holder->is_stopped = holder->is_ending = false;
  holder->thread = holder->dead_pid = 0;
  holder->pid = place.pid.load(std::memory_order_relaxed);
  holder->since_ms = grant.since_ns.load(std::memory_order_relaxed) / 1'000'000;
  static_assert(sizeof holder->name > sizeof place.command);
  std::memcpy(holder->name, place.command, sizeof place.command);
  holder->name[sizeof place.command] = '\0';
  holder->site[0] = '\0';
  read_note(place, grant, state, holder->note, sizeof holder->note);
}

}  // namespace tenon::impl
