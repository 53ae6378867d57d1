// SPDX-License-Identifier: Apache-2.0
//
// How a process that serves a tensor pool at a Unix socket gives its memory file to others: one packet each
// way, then the connection ends. Numbers are in the byte order of the machine.
#pragma once

#include <cstdint>
#include <cstring>

#include "ipc/layout.h"

namespace tenon::impl {

constexpr char kLinkMark[8] = {'T', 'N', 'L', 'I', 'N', 'K', '0', '1'};

enum class LinkVerb : uint32_t {
  kGet = 1,    // asks for the memory file of a tensor pool
  kOffer = 2,  // has the one of a tensor pool with it
};

struct LinkRequest {
  char mark[8];
  LinkVerb verb;
  uint32_t reserved;
  SegmentId segment;  // all 0: the pool of the socket
  int64_t now_ns;
  uint64_t reserved_too[3];
};
static_assert(sizeof(LinkRequest) == 64);

enum class LinkStatus : uint32_t {
  kGiven = 0,    // kGet: the file is with the answer; kOffer: it was taken
  kUnknown = 1,  // the process does not give this segment: it is not known to it, or has ended
  kRefused = 2,  // to a process of another user, that is not in the group
  kNoFiles = 3,  // no descriptor is left
  kVersion = 4,  // another version of these packets
  kNotPool = 5,  // what was offered is not the memory of a tensor pool, or not of this user or group
};

struct LinkAnswer {
  char mark[8];
  LinkStatus status;
  uint32_t files;  // that come with it
  SegmentId segment;
  int64_t now_ns;  // when the request was read
  uint64_t reserved[3];
  char text[448];  // why it is not kGiven, up to a NUL
};
static_assert(sizeof(LinkAnswer) == 512);

}  // namespace tenon::impl
