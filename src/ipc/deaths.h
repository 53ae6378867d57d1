// SPDX-License-Identifier: Apache-2.0
//
// The deaths of writers. A lease for writing whose process has died becomes a death in the same grant, by
// one store; it stays until its bytes hold values again. Bytes of it are taken away under a lease for writing
// of them, so by one process at a time, and no death of which bytes are held so goes meanwhile.
#pragma once

#include <cstdint>

#include "ipc/participant.h"

namespace tenon::impl {

// Bytes of a block.
struct Span {
  uint64_t begin = 0;
  uint64_t end = 0;

  bool is_empty() const noexcept { return begin >= end; }
  bool overlaps(const Span& other) const noexcept { return begin < other.end && other.begin < end; }
  bool contains(const Span& other) const noexcept { return begin <= other.begin && other.end <= end; }
};
inline Span span_of(const Grant& grant) noexcept { return {look(grant.begin), look(grant.end)}; }

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

// Of a grant of a dead process: a lease for writing becomes a death. Requires the life of that process.
void note_death(const Control& control, Place& place, Grant& grant, uint64_t word) noexcept;

// These bytes hold values. Requires that this process holds them for writing.
void heal(const Control& control, Participant& self, uint32_t block, const Span& bytes) noexcept;

// Of a block that no process uses any more.
void forget_deaths(const Control& control, uint32_t block) noexcept;

}  // namespace tenon::impl
