// SPDX-License-Identifier: Apache-2.0
//
// The deaths of writers. After the death of a process, each of its write leases becomes a death in the same
// grant, by one store. The death stays until its bytes hold values again. Bytes are removed from a death
// under a write lease of these bytes, so by one process at a time.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "ipc/participant.h"

namespace tenon::impl {

inline ByteRange range_of(const Grant& grant) noexcept { return {look(grant.begin), look(grant.end)}; }

// Calls visit(grant, word) with each grant of a block that is not free, in all places.
template <class Visit>
void visit_grants(const Control& control, uint32_t block, Visit visit) {
  visit_bits(control.block(block).present, [&](uint32_t p) {
    if (!control.has_place(p)) return;
    for (Grant& grant : used_grants(control.place(p))) {
      const uint64_t word = observe(grant.state);
      if (GrantState::kind(word) != GrantState::kFree && GrantState::block(word) == block) visit(grant, word);
    }
  });
}

// Turns a write lease of a dead process into a death. Requires the lock of the place.
void note_death(const Control& control, Place& place, Grant& grant, uint64_t word) noexcept;

// Removes bytes that hold values from all deaths. Requires that this process has a write lease of the bytes.
void heal(const Control& control, Participant& self, uint32_t block, const ByteRange& bytes) noexcept;

// The deaths in the place leave room for another process.
bool has_room(const Place& place) noexcept;

// For a place whose process has ended: joins its deaths with others of the same blocks, until it has room. A
// joined death also has the bytes between the two. Requires the lock of the place.
void join_deaths(const Control& control, uint32_t participant) noexcept;

// Before the leases of a dead process become deaths: if they will take all grants of the place, joins one of
// them with a death in another place. So join_deaths() finds a free grant. Requires the lock of the place.
void join_one_of_many(const Control& control, uint32_t participant) noexcept;

// Removes all deaths of a block that no process uses any more.
void forget_deaths(const Control& control, uint32_t block) noexcept;

}  // namespace tenon::impl
