// SPDX-License-Identifier: Apache-2.0
//
// The states of a generator as one array of bytes, which one process hands to another: for each worker the
// number of its bytes, or kStart, then the bytes and as many zeros as make them a multiple of 8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "data/ticket_ring.h"

namespace tenon::impl {

inline std::vector<std::byte> pack_states(const std::vector<WorkerState>& states) {
  constexpr uint64_t kStart = UINT64_MAX;
  std::vector<std::byte> packed;
  for (const WorkerState& state : states) {
    const uint64_t nbytes = state.bytes ? state.bytes->size() : kStart;
    const auto* const begin = reinterpret_cast<const std::byte*>(&nbytes);
    packed.insert(packed.end(), begin, begin + sizeof nbytes);
    if (!state.bytes) continue;
    packed.insert(packed.end(), state.bytes->begin(), state.bytes->end());
    packed.resize((packed.size() + 7) / 8 * 8);
  }
  return packed;
}

// Fails with kValue.
inline std::vector<WorkerState> unpack_states(std::span<const std::byte> packed, size_t workers) {
  constexpr uint64_t kStart = UINT64_MAX;
  const auto fail = [] { throw_error(Code::kValue, "the states of the generator are damaged"); };
  if (workers > packed.size() / sizeof(uint64_t)) fail();
  std::vector<WorkerState> states(workers);
  for (WorkerState& state : states) {
    uint64_t nbytes = 0;
    if (packed.size() < sizeof nbytes) fail();
    std::memcpy(&nbytes, packed.data(), sizeof nbytes);
    packed = packed.subspan(sizeof nbytes);
    if (nbytes == kStart) continue;
    if (nbytes > packed.size()) fail();
    state.bytes = std::make_shared<const std::vector<std::byte>>(
        packed.begin(), packed.begin() + static_cast<ptrdiff_t>(nbytes));
    packed = packed.subspan(std::min<size_t>((nbytes + 7) / 8 * 8, packed.size()));
  }
  return states;
}

}  // namespace tenon::impl
