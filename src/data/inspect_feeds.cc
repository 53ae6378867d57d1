// SPDX-License-Identifier: Apache-2.0
#include "data/inspect_feeds.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/error.h"
#include "base/os.h"
#include "data/feed_control.h"
#include "data/slots.h"

namespace tenon::impl {
namespace {

// part: of a feed in a segment, else zeros.
uint64_t head_at(const FeedPart& part) noexcept {
  return part.slots == 0 ? 0 : part.at + ServedState::end_at(part.slots);
}

FeedHead read_head(const MemoryFile& memory, const FeedPart& part) {
  FeedHead head{};
  const uint64_t at = head_at(part);
  memory.read(at, &head, offsetof(FeedHead, version) + sizeof head.version);
  if (head.magic == kFeedMagic && head.version == kFeedVersion) memory.read(at, &head, sizeof head);
  check_head(head, memory.facts.nbytes - part.at);
  if (head.parts.is_served() != (part.slots != 0) || (part.slots != 0 && head.parts.head_at != at - part.at))
    throw_error(Code::kValue, "it has ", head.most, " slots, and its file says ", part.slots);
  return head;
}

// Of one in a segment: whether workers write to its loops.
bool has_processes(const MemoryFile& memory, const FeedPart& part) noexcept {
  FeedHead head{};
  if (!os::read_at(memory.file, head_at(part), &head, offsetof(FeedHead, flags) + sizeof head.flags))
    return true;                                      // it is damaged
  return head.magic != 0 && head.has(kHasProcesses);  // 0: it is being made
}

FeedReport::WorkerReport worker_in(const LoopRecord& loop, bool is_over) {
  FeedReport::WorkerReport worker;
  worker.asked = loop.begun.load(std::memory_order_relaxed);
  worker.answered = loop.ended.load(std::memory_order_relaxed);
  if (worker.answered != 0) worker.last_fill_ns = loop.last_fill_ns.load(std::memory_order_relaxed);
  if (is_over) {
    worker.state = "over";
  } else if (loop.number.load(std::memory_order_relaxed) != 0) {
    worker.state = "busy";
    worker.epoch = loop.epoch.load(std::memory_order_relaxed);
    worker.index = loop.index.load(std::memory_order_relaxed);
  } else {
    worker.state = loop.is_asleep.load(std::memory_order_relaxed) != 0 ? "asleep" : "awake";
  }
  return worker;
}

void read_feed(const MemoryFile& memory, const FeedPart& part, FeedReport* feed) {
  const FeedHead head = read_head(memory, part);
  feed->process = {head.pid, os::command_of(head.pid),
                   head.start != 0 && os::start_of(head.pid) == head.start, os::is_stopped(head.pid)};
  std::erase_if(feed->processes, [&](const ProcessReport& process) { return process.pid == head.pid; });
  feed->rows = head.rows;
  feed->slots = head.slots;
  feed->slot_nbytes = head.layout.slot_nbytes;
  uint32_t is_over = 0;
  memory.read(part.at + head.parts.shared_at + offsetof(SlotPoolState, is_over), &is_over, sizeof is_over);
  std::vector<FeedReport::WorkerReport> workers;
  for (int32_t i = 0; i < head.workers; ++i) {
    LoopRecord loop{};
    memory.read(part.at + head.parts.loops_at + static_cast<uint64_t>(i) * sizeof loop, &loop,
                offsetof(LoopRecord, times));
    workers.push_back(worker_in(loop, is_over != 0));
    workers.back().number = i;
  }
  feed->is_over = is_over != 0;  // not before all has been read
  feed->workers = std::move(workers);
}

}  // namespace

std::vector<FeedReport> inspect_feeds() {
  std::vector<FeedReport> feeds;
  const auto add = [&](const MemoryFile& memory, const FeedPart& part) {
    FeedReport feed;
    feed.inode = memory.facts.inode;
    feed.nbytes = memory.facts.nbytes;
    feed.processes = memory.processes;
    try {
      if (!memory.file) throw_error(Code::kValue, "it cannot be opened");
      read_feed(memory, part, &feed);
    } catch (const Error& e) {
      feed.damage = e.what();
    }
    feeds.push_back(std::move(feed));
  };
  visit_memory_files("tenon", [&](const MemoryFile& memory) {
    const std::string& name = memory.descriptor.name;
    if (name.starts_with(kFeedFilePrefix)) return add(memory, {});
    if (!name.starts_with(kFilePrefix) || !memory.file) return;
    const std::optional<FeedPart> part = find_feed(memory);
    if (part && has_processes(memory, *part)) add(memory, *part);
  });
  std::ranges::sort(feeds, {},
                    [](const FeedReport& feed) { return std::pair(feed.process.pid, feed.inode); });
  return feeds;
}

static void write_json(Json& json, const FeedReport::WorkerReport& worker) {
  json.value([&] {
    json.member("worker", worker.number)
        .member("asked", worker.asked)
        .member("answered", worker.answered)
        .member("state", worker.state)
        .member("epoch", worker.epoch)
        .member("index", worker.index)
        .member("last_fill_ns", worker.last_fill_ns);
  });
}

void write_json(Json& json, const FeedReport& feed) {
  json.value([&] {
    json.member("file", feed.inode)
        .member("damaged", not_empty(feed.damage))
        .member("pid", unless(0, feed.process.pid))
        .member("command", not_empty(feed.process.command))
        .member("alive", feed.process.is_alive)
        .member("nbytes", feed.nbytes)
        .member("rows", feed.rows)
        .member("slots", feed.slots)
        .member("slot_nbytes", feed.slot_nbytes)
        .member("over", feed.is_over)
        .member("workers", feed.workers)
        .member("processes", feed.processes);
  });
}

}  // namespace tenon::impl
