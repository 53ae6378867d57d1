// SPDX-License-Identifier: Apache-2.0
//
// The memory files of feeds in all processes of this user, as an observer sees them. The observer reads with
// pread: it maps nothing, joins nothing, takes no lock and does not wait. So the numbers may be from
// different moments, and each number is checked before it is used. Feeds with worker processes have such a
// file, or lie in the segment of a feed that may be served; feeds with threads are not reported.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "ipc/inspect.h"

namespace tenon::impl {

struct FeedReport {
  struct WorkerReport {
    int32_t number = 0;
    const char* state = "";  // "awake", "asleep", "busy", "over"
    uint32_t asked = 0, answered = 0;
    std::optional<uint64_t> epoch, index;  // of the batch of a busy worker
    std::optional<uint64_t> last_fill_ns;
  };
  uint64_t inode = 0;  // of the file
  uint64_t nbytes = 0;
  std::string damage;     // "": none; else only what is above and `processes` is known
  ProcessReport process;  // of the feed
  int64_t rows = 0;
  int32_t slots = 0;
  uint64_t slot_nbytes = 0;
  bool is_over = false;  // it is closed
  std::vector<WorkerReport> workers;
  std::vector<ProcessReport> processes;  // the others that have the file open
};

// In the order of the processes. Fails with kSystem (no file descriptor is left).
std::vector<FeedReport> inspect_feeds();

// An object of the document that docs/inspect.md describes.
void write_json(Json& json, const FeedReport& feed);

}  // namespace tenon::impl
