// SPDX-License-Identifier: Apache-2.0
//
// Reports on the shared memory that processes of this user have open: its segments, their users, and the
// leases that they hold and wait for. The observer only reads the files. It takes no place and no lock, and
// does not wait. So the numbers may be from different moments, and each number is checked before it is used.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/os.h"
#include "ipc/layout.h"

namespace tenon::impl {

// A process that has a memory file open, or whose number is in a memory file.
struct ProcessReport {
  uint32_t pid = 0;
  std::string command;
  bool is_alive = false;
  bool is_stopped = false;  // by a signal or a debugger
};

// A place that is not free.
struct PlaceReport {
  uint32_t index = 0;
  bool is_reserved = false;  // for a forked child that has not taken it
  ProcessReport process;     // if it is reserved: the parent
  int64_t age_ns = -1;       // -1: unknown

  bool is_live() const noexcept { return !is_reserved && process.is_alive; }
  bool is_dead() const noexcept { return !is_reserved && !process.is_alive; }
};

struct LeaseReport {
  uint32_t block = 0;
  uint32_t place = 0;
  uint32_t pid = 0;
  Access access = Access::kRead;
  bool is_granted = false;  // else it waits
  uint64_t begin = 0;       // bytes of the block
  uint64_t end = 0;
  uint64_t ticket = 0;
  int64_t age_ns = -1;
  uint32_t task = 0;
};

// Unopened handles of one sender.
struct SentReport {
  uint32_t place = 0;
  uint32_t pid = 0;  // 0: no process has the place
  uint32_t count = 0;
  bool is_lost = false;  // the process has ended
};

// The death of a writer whose bytes were not healed.
struct DeathReport {
  uint32_t pid = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  bool is_joined = false;
};

struct ArenaReport {
  std::string damage;  // "": none
  std::vector<std::string> layouts;
  std::optional<std::string> active;
  uint64_t generation = 0;
};

struct ArrayReport {
  uint32_t block = 0;
  uint64_t begin = 0;  // in the data
  uint64_t nbytes = 0;
  std::string dtype;  // "": the segment does not contain it
  std::vector<int64_t> shape;
  uint64_t version = 0;
  std::vector<uint32_t> users;   // numbers of processes
  std::vector<uint32_t> places;  // of the same
  std::vector<SentReport> sent;
  std::vector<DeathReport> deaths;
  std::optional<ArenaReport> arena;
};

struct ChannelReport {
  struct SlotReport {
    uint64_t sequence = 0;          // of the item in it; 0: none
    uint64_t nbytes = 0;            // of a channel: of the item in it, or of the memory of a loan
    std::vector<uint32_t> holders;  // numbers of processes
  };
  struct Consumer {
    uint32_t pid = 0;
    std::optional<uint64_t> cursor;  // the last item that it has received
    bool is_viewer = false;          // it receives only the newest item, and has no cursor
  };
  std::string damage;
  uint32_t mode = 0;       // TENON_CHANNEL_*
  uint32_t when_full = 0;  // TENON_WHEN_FULL_*
  std::vector<std::string> fields;
  std::vector<SlotReport> slots;
  uint64_t sent = 0;
  uint64_t received = 0;
  uint64_t dropped = 0;
  uint64_t deaths = 0;
  // Of a channel; a feed has none of them.
  struct Room {
    uint64_t refused = 0;
    uint64_t nbytes = 0;
    uint64_t used_nbytes = 0;
    uint64_t committed_nbytes = 0;
    uint64_t largest_sent_nbytes = 0;
  };
  std::optional<Room> room;
  bool has_objects = false;
  std::vector<uint32_t> producers;
  std::vector<Consumer> consumers;
};

// PoolCounts, copied.
struct PoolReport {
  uint64_t sent = 0, sent_nbytes = 0;
  uint64_t opened = 0, expired = 0, revoked = 0, receivers_gone = 0;
  uint64_t inlined = 0, inlined_nbytes = 0;
  uint64_t refused = 0;
  uint64_t waits = 0, waited_ns = 0;
};

// A message of a tensor pool that has not ended.
struct MessageReport {
  uint32_t record = 0;
  uint64_t nbytes = 0;
  int64_t opens_left = -1;      // -1: no limit
  int64_t age_ns = -1;          // -1: unknown
  int64_t left_ns = -1;         // of its time limit; -1: none
  uint32_t keeper = 0;          // the process that keeps it; 0: unknown
  bool is_lost = false;         // it has ended, and no other process keeps the message
  std::string site;             // the line that has sent it; "": unknown
  std::string tag;              // its beginning; "": none
  bool is_opened = false;       // some process has opened it
  bool is_handed_over = false;  // the sender has kept nothing
};

struct SegmentReport {
  std::string file;    // the name of the memory file
  std::string damage;  // "": none; else only the members above `created_ns` are valid
  std::string id;      // "": unknown
  std::string name;
  uint64_t nbytes = 0;
  uint64_t committed_nbytes = 0;         // the allocated memory
  std::vector<ProcessReport> processes;  // that have it open
  uint32_t opened_of_pid = 0;            // the process through which it was opened,
  int opened_fd = -1;                    // and its descriptor there
  int64_t created_ns = 0;                // since 1970
  const char* kind = "unknown";          // "pool", "tensor pool", "array", "arena", "channel"
  ProcessReport creator;
  std::vector<PlaceReport> places;
  std::vector<ArrayReport> arrays;
  std::vector<LeaseReport> leases;
  std::optional<ChannelReport> channel;
  std::vector<MessageReport> messages;  // the oldest first
  std::optional<PoolReport> pool;
};

// A memory file that processes of this user have open.
struct MemoryFile {
  os::Found descriptor;  // one of the descriptors of the processes
  os::File file;         // opened for reading; empty: it cannot be opened
  os::FileFacts facts;   // of file
  std::vector<ProcessReport> processes;

  // Fails with kValue: the file does not contain these bytes.
  void read(uint64_t at, void* to, size_t nbytes) const;
};

// Calls visit for each memory file whose name begins with prefix. Fails with kSystem (no file descriptor is
// left).
void visit_memory_files(const std::string& prefix, const std::function<void(const MemoryFile&)>& visit);

// The control part of a feed in the memory file of a segment.
struct FeedPart {
  uint64_t at = 0;  // in the file
  uint32_t slots = 0;
};
// nullopt: it has none, or is damaged.
std::optional<FeedPart> find_feed(const MemoryFile& memory) noexcept;

// All segments, ordered by name. Fails with kSystem (no file descriptor is left).
std::vector<SegmentReport> inspect();

// Objects of the document that docs/inspect.md describes.
void write_json(Json& json, const ProcessReport& process);
void write_json(Json& json, const SegmentReport& segment);

}  // namespace tenon::impl
