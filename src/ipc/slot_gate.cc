// SPDX-License-Identifier: Apache-2.0
#include "ipc/slot_gate.h"

#include <algorithm>

namespace tenon::impl {

Gate::Right SlotGate::right_to(Access access, const Extent& extent) const noexcept {
  const uint32_t self = segment().participant().index();
  if (self == Participant::kNone || slots_.count == 0) return Right::kNone;
  const auto begin = reinterpret_cast<uintptr_t>(slots_.data);
  const auto slot_of = [&](uintptr_t address) {
    const uint64_t slot = address <= begin ? 0 : (address - begin) / slots_.nbytes;
    return static_cast<uint32_t>(std::min<uint64_t>(slot, slots_.count - 1));
  };
  for (uint32_t i = slot_of(extent.begin); i <= slot_of(std::max(extent.begin + 1, extent.end) - 1); ++i) {
    const uint64_t word = slots_.table.word(i);
    if (SlotWord::is_held_by(word, self)) continue;
    const bool may_read = SlotWord::item(word) != 0 && has_bit(slots_.table.readers(i), self);
    if (access == Access::kWrite || !may_read) return Right::kNone;
  }
  return Right::kHeld;
}

bool SlotGate::enter(const Request& request, RequestPart& part, const Deadline&,
                     Conflict* conflict) noexcept {
  // The grant will be shared by all of these. Between them may be slots that this process does not hold.
  for (const RequestPart& e : request.parts) {
    if (e.queue != part.queue || !e.needs_grant || right_to(e.access, e.extent) == Right::kHeld) continue;
    conflict->reason = Conflict::Reason::kNotHeld;
    return false;
  }
  part.grant = kUncountedGrant;
  return true;
}

Appended SlotGate::submit(Request& request, RequestPart& part, Conflict* conflict) noexcept {
  return enter(request, part, Deadline(0), conflict) ? Appended::kGranted : Appended::kRefused;
}

}  // namespace tenon::impl
