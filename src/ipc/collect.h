// SPDX-License-Identifier: Apache-2.0
//
// Releases what dead processes held, before another process needs it. There is never much to do: the kernel
// frees the memory itself with the last process that has it open.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ipc/inspect.h"

namespace tenon::impl {

struct Collected {
  SegmentReport before;
  std::vector<PlaceReport> places;  // that were given back
  uint32_t leases = 0;              // of these, held or awaited
  uint32_t handles = 0;             // that these had sent, as far as it is known of each
  std::string failure;              // why nothing could be done; "": nothing was in the way
};

// In all segments that inspect() finds. Takes the locks of the living for as short as any access does. Fails
// with kSystem (no file descriptor is left).
std::vector<Collected> collect();

// An object of the document that docs/inspect.md describes.
void write_json(Json& json, const Collected& result);

}  // namespace tenon::impl
