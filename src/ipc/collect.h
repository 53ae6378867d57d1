// SPDX-License-Identifier: Apache-2.0
//
// Releases what dead processes held, before another process needs it. The memory itself needs no cleaning:
// the kernel frees it at the end of the last process that has it open.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ipc/inspect.h"

namespace tenon::impl {

struct Collected {
  SegmentReport before;
  std::vector<PlaceReport> places;  // that were freed
  uint32_t leases = 0;              // of these places, held or waiting
  uint32_t handles = 0;             // sent by these places, as far as the senders are known
  std::string failure;              // why nothing could be released; "": no failure
};

// In all segments that inspect() finds. Fails with kSystem (no file descriptor is left).
std::vector<Collected> collect();

// An object of the document that docs/inspect.md describes.
void write_json(Json& json, const Collected& result);

}  // namespace tenon::impl
