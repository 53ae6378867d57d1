// SPDX-License-Identifier: Apache-2.0
#include "ipc/deaths.h"

#include <algorithm>
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
  visit_grants(control, index, [&](const Grant& grant, uint64_t word) {
    has_any |= is_death(word) && range_of(grant).overlaps(bytes);
  });
  if (!has_any) return;
  const std::scoped_lock lock(one_per_process<HealLock>().lock);
  uint32_t moves = 0;
  do {
    moves = look(block.death_moves);
    visit_grants(control, index, [&](Grant& grant, uint64_t word) {
      const ByteRange dead = range_of(grant);
      if (!is_death(word) || !dead.overlaps(bytes)) return;
      if (bytes.contains(dead)) {
        (void)exchange(grant.state, word, uint64_t{GrantState::kFree});
      } else if (bytes.begin <= dead.begin) {
        publish(grant.begin, bytes.end);
      } else {
        if (bytes.end < dead.end && !split(self, block, grant, word, {bytes.end, dead.end})) return;
        uint64_t end = dead.end;
        while (end > bytes.begin && !exchange(grant.end, end, bytes.begin)) {
        }
      }
    });
  } while (look(block.death_moves) != moves);
}

void forget_deaths(const Control& control, uint32_t block) noexcept {
  visit_grants(control, block, [](Grant& grant, uint64_t word) {
    if (is_death(word)) (void)exchange(grant.state, word, uint64_t{GrantState::kFree});
  });
}

}  // namespace tenon::impl
