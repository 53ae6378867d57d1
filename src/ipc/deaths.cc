// SPDX-License-Identifier: Apache-2.0
#include "ipc/deaths.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <mutex>

#include "base/bytes.h"
#include "base/one_per_process.h"

namespace tenon::impl {
namespace {

bool is_death(uint64_t word) noexcept { return GrantState::kind(word) == GrantState::kDied; }

// Whether some death contains all of these bytes. No process removes bytes from such a death while the grant
// for the bytes is still a write lease.
bool is_noted(const Control& control, uint32_t block, const ByteRange& bytes) noexcept {
  bool is_noted = false;
  visit_grants(control, block, [&](const Grant& grant, uint64_t word) {
    is_noted |= is_death(word) && range_of(grant).contains(bytes);
  });
  return is_noted;
}

// If a dead process has more write leases on one block than there may be deaths, joins their bytes in one
// grant and frees the others. True: it did.
bool join(Place& place, Grant& into, uint64_t word) noexcept {
  ByteRange all = range_of(into);
  uint32_t deaths = 0, leases = 0;
  const auto used = used_grants(place);
  for (const Grant& grant : used) {
    const uint64_t other = look(grant.state);
    if (is_death(other) && GrantState::block(other) == GrantState::block(word)) ++deaths;
    if (other != word) continue;
    ++leases;
    const ByteRange bytes = range_of(grant);
    all = {std::min(all.begin, bytes.begin), std::max(all.end, bytes.end)};
  }
  if (leases < 2 || deaths + leases <= kDeaths) return false;
  publish(into.begin, all.begin);
  publish(into.end, all.end);
  for (Grant& other : used) {
    if (&other != &into && look(other.state) == word) publish(other.state, uint64_t{GrantState::kFree});
  }
  return true;
}

// Excludes other threads of this process.
struct HealLock {
  std::mutex lock;
};

// Moves the last bytes of a death into a grant of this process. False: no grant is free.
bool split(Participant& self, Block& block, const Grant& from, uint64_t word,
           const ByteRange& rest) noexcept {
  const GrantId id = self.take_grant_for_death();
  if (id == kNoGrant) return false;
  Grant& grant = self.grant(id);
  publish(grant.begin, rest.begin);
  publish(grant.end, rest.end);
  store(grant.thread, 0u);
  store(grant.task_or_dead_pid, from.task_or_dead_pid.load(std::memory_order_relaxed));
  store(grant.since_ns, from.since_ns.load(std::memory_order_relaxed));
  announce(grant.state, word);
  (void)add(block.death_moves, 1u);
  return true;
}

bool is_free(const Grant& grant) noexcept { return look(grant.state) == GrantState::kFree; }

// A death of the block in the place, other than this one; null: there is none.
Grant* death_of(Place& place, uint32_t block, const Grant& except) noexcept {
  for (Grant& grant : used_grants(place)) {
    const uint64_t word = look(grant.state);
    if (&grant == &except || !is_death(word) || GrantState::block(word) != block) continue;
    if (!range_of(grant).is_empty()) return &grant;
  }
  return nullptr;
}

// A request or lease for writing overlaps the bytes, so its process may be removing bytes from deaths.
// except: a place whose process has ended.
bool has_writer(const Control& control, uint32_t block, const ByteRange& bytes,
                const Place& except) noexcept {
  bool has_any = false;
  visit_grants(control, block, [&](const Grant& grant, uint64_t word) {
    if (!GrantState::is_lease(word) || GrantState::access(word) != Access::kWrite) return;
    const bool is_there = &grant >= except.grants && &grant < except.grants + kGrants;
    has_any |= !is_there && range_of(grant).overlaps(bytes);
  });
  return has_any;
}

// The state of a death that another one has replaced, as long as a process may be removing bytes from it.
constexpr uint32_t kNoBlock = UINT32_MAX;
constexpr uint64_t kReplaced = GrantState::make(kNoBlock, GrantState::kDied, Access::kWrite);

// Makes the grant a death of these bytes, those of the deaths, and those between, and frees the deaths.
// False: some process is writing to such bytes. A death that it may be looking at stays, as the next process
// in the place would use the grant for a lease. A new death is never taken back, because a death of a third
// process may not have been noted in its favor. Requires the locks of the places, which no process has.
bool replace(const Control& control, uint32_t block, std::initializer_list<Grant*> deaths, Grant& by,
             ByteRange bytes, const Place& place) noexcept {
  for (const Grant* const death : deaths) {
    const ByteRange dead = range_of(*death);
    bytes = {std::min(bytes.begin, dead.begin), std::max(bytes.end, dead.end)};
  }
  if (has_writer(control, block, bytes, place)) return false;
  publish(by.begin, bytes.begin);
  publish(by.end, bytes.end);
  store(by.thread, 0u);
  announce(by.state, GrantState::make(block, GrantState::kDied, Access::kWrite) | GrantState::kJoined);
  (void)add(control.block(block).death_moves, 1u);
  std::array<uint64_t, 2> before{};
  for (auto at = before.begin(); Grant* const death : deaths) {
    *at = look(death->state);
    (void)exchange(death->state, *at++, kReplaced);  // sets the entry to kFree if it is healed meanwhile
  }
  const bool is_quiet = !has_writer(control, block, bytes, place);
  for (auto at = before.begin(); Grant* const death : deaths) {
    publish(death->state, is_quiet ? uint64_t{GrantState::kFree} : *at);
    ++at;
  }
  return is_quiet;
}

// Joins a death with another one of its block in the other place, which may be the same, if there is one.
void join_two(const Control& control, Place& place, Grant& death, Place& other) noexcept {
  const uint32_t block = GrantState::block(look(death.state));
  if (block == kNoBlock || range_of(death).is_empty())
    return publish(death.state, uint64_t{GrantState::kFree});
  Grant* const second = death_of(other, block, death);
  if (second == nullptr) return;
  for (Place* const at : {&other, &place}) {
    Grant* const free = std::ranges::find_if(at->grants, is_free);
    if (free == std::end(at->grants)) continue;
    const auto used = static_cast<uint32_t>(free - at->grants) + 1;
    if (look(at->grants_used) < used) publish(at->grants_used, used);
    store(free->task_or_dead_pid, death.task_or_dead_pid.load(std::memory_order_relaxed));
    store(free->since_ns, death.since_ns.load(std::memory_order_relaxed));
    (void)replace(control, block, {&death, second}, *free, range_of(death), place);
    return;
  }
}

// Calls visit(place) with each place that no process has, under its lock, until it returns true.
template <class Visit>
void visit_ended_places(const Control& control, uint32_t except, Visit visit) noexcept {
  for (uint32_t p = 0; p < control.used_places(); ++p) {
    if (p == except || !control.has_place(p) || look(control.place(p).state) != PlaceState::kFree) continue;
    if (!control.places->try_lock(p)) continue;
    const bool is_over = look(control.place(p).state) == PlaceState::kFree && visit(control.place(p));
    control.places->unlock(p);
    if (is_over) return;
  }
}

}  // namespace

void note_death(const Control& control, Place& place, Grant& grant, uint64_t word) noexcept {
  const uint32_t block = GrantState::block(word);
  const ByteRange bytes = range_of(grant);
  if (bytes.is_empty() || is_noted(control, block, bytes)) {
    return publish(grant.state, uint64_t{GrantState::kFree});
  }
  const bool is_joined = join(place, grant, word);
  store(grant.thread, 0u);
  store(grant.task_or_dead_pid, std::max(place.pid.load(std::memory_order_relaxed), 1u));
  announce(grant.state, GrantState::make(block, GrantState::kDied, Access::kWrite) |
                            (is_joined ? GrantState::kJoined : uint64_t{0}));
}

void heal(const Control& control, Participant& self, uint32_t index, const ByteRange& bytes) noexcept {
  Block& block = control.block(index);
  bool has_any = false;
  uint32_t moves = 0;
  do {
    moves = observe(block.death_moves);
    visit_grants(control, index, [&](const Grant& grant, uint64_t word) {
      has_any |= is_death(word) && range_of(grant).overlaps(bytes);
    });
  } while (!has_any && observe(block.death_moves) != moves);
  if (!has_any) return;
  const std::scoped_lock lock(one_per_process<HealLock>().lock);
  do {
    moves = observe(block.death_moves);
    visit_grants(control, index, [&](Grant& grant, uint64_t word) {
      const ByteRange dead = range_of(grant);
      if (!is_death(word) || !dead.overlaps(bytes)) return;
      if (bytes.contains(dead)) {
        (void)exchange(grant.state, word, uint64_t{GrantState::kFree});
      } else if (bytes.begin <= dead.begin) {
        announce(grant.begin, bytes.end);
      } else {
        if (bytes.end < dead.end && !split(self, block, grant, word, {bytes.end, dead.end})) return;
        uint64_t end = dead.end;
        while (end > bytes.begin && !exchange(grant.end, end, bytes.begin)) {
        }
      }
    });
  } while (observe(block.death_moves) != moves);
}

bool has_room(const Place& place) noexcept {
  constexpr auto kLeast = static_cast<std::ptrdiff_t>(kGrants * 4 / 5);
  return std::ranges::count_if(place.grants, is_free) >= kLeast;
}

void join_deaths(const Control& control, uint32_t participant) noexcept {
  Place& place = control.place(participant);
  const auto join_with = [&](Place& other) {
    for (Grant& death : used_grants(place)) {
      if (has_room(place)) return;
      if (is_death(look(death.state))) join_two(control, place, death, other);
    }
  };
  join_with(place);
  visit_ended_places(control, participant, [&](Place& other) {
    join_with(other);
    return has_room(place);
  });
}

void join_one_of_many(const Control& control, uint32_t participant) noexcept {
  Place& place = control.place(participant);
  const auto was_written = [](const Grant& grant) {
    const uint64_t word = look(grant.state);
    return GrantState::kind(word) == GrantState::kGranted && GrantState::access(word) == Access::kWrite;
  };
  const auto stays = [&](const Grant& g) { return was_written(g) || is_death(look(g.state)); };
  if (!std::ranges::all_of(place.grants, stays)) return;
  visit_ended_places(control, participant, [&](Place& other) {
    for (Grant& lease : place.grants) {
      const uint32_t block = GrantState::block(look(lease.state));
      Grant* const death = was_written(lease) ? death_of(other, block, lease) : nullptr;
      if (death == nullptr) continue;
      store(lease.task_or_dead_pid, std::max(place.pid.load(std::memory_order_relaxed), 1u));
      const bool is_done = replace(control, block, {death}, lease, range_of(lease), place);
      if (is_death(look(lease.state))) (void)add(control.block(block).version, uint64_t{1});
      if (is_done) return true;
    }
    return false;
  });
}

void forget_deaths(const Control& control, uint32_t block) noexcept {
  visit_grants(control, block, [](Grant& grant, uint64_t word) {
    if (is_death(word)) (void)exchange(grant.state, word, uint64_t{GrantState::kFree});
  });
}

}  // namespace tenon::impl
