// SPDX-License-Identifier: Apache-2.0
//
// What a feed says to the thread that serves it to other processes: Feed::serve() and the functions after it.
#pragma once

#include <cstdint>
#include <string_view>

#include "data/ticket_ring.h"
#include "ipc/served_state.h"

namespace tenon::impl {

struct ServeOptions {
  ServedMode mode = ServedMode::kQueue;
  int32_t consumers = 0;       // with which the first epoch begins
  std::string_view note = {};  // for consumers; of the program
};

enum class ServeWhat : int32_t {
  kNothing,     // the time has passed
  kGathered,    // as many consumers as wanted are there: serve_next() begins the first epoch
  kEpochEnded,  // serve_next() begins the next one
  kOver,        // serve_end() or close() was called
};

struct ServeReport {
  ServeWhat what = ServeWhat::kNothing;
  int32_t consumers = 0;
  int32_t unread = 0;        // batches that wait for a consumer
  bool is_filled = false;    // these are the last ones of the epoch
  bool has_failure = false;  // with kEpochEnded: Feed::failure() says why
  uint64_t batches = 0;      // for consumers, so far
};

// Of all consumers in other processes.
struct ServeCounts {
  int32_t consumers = 0;
  int32_t held = 0;  // slots whose batches they have
  uint64_t batches = 0, nbytes = 0;
  uint64_t starved_ns = 0;
};

// Where a consumer wants to begin.
struct ServeWanted {
  FeedPosition position;  // ignored_index: the consumer has said so
  int32_t rank = 0, world_size = 0;
};

}  // namespace tenon::impl
