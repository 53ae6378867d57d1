// SPDX-License-Identifier: Apache-2.0
#include "data/inspect_feeds.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/error.h"
#include "base/os.h"
#include "data/request_ring.h"
#include "data/slots.h"

namespace tenon::impl {
namespace {

// A file with more than these is damaged: a sparse file of any size cannot keep the observer busy.
constexpr int32_t kMostRings = 4096;

RingsHead read_head(const MemoryFile& memory) {
  RingsHead head{};
  memory.read(0, &head, offsetof(RingsHead, version) + sizeof head.version);
  if (head.magic == 0) throw_error(Code::kValue, "it is being made");
  if (head.magic != kFeedMagic) {
    throw_error(Code::kValue, "it begins with ", head.magic, " and not with ", kFeedMagic,
                ": it is not the memory of a feed");
  }
  if (head.version != kFeedVersion) {
    throw_error(Code::kValue, "its layout has version ", head.version, ", this library reads version ",
                kFeedVersion);
  }
  memory.read(0, &head, sizeof head);
  if (head.rings < 1 || head.rings > kMostRings || head.fields < 1 || head.slots < 1) {
    throw_error(Code::kValue, "it has ", head.rings, " workers, ", head.slots, " slots and ", head.fields,
                " fields");
  }
  const uint64_t nbytes = memory.facts.nbytes;
  const size_t control = control_nbytes(static_cast<size_t>(head.fields), static_cast<size_t>(head.rings));
  if (control > std::min(head.slots_at, nbytes)) {
    throw_error(Code::kValue, head.rings, " workers do not fit into ", nbytes, " bytes with slots at ",
                head.slots_at);
  }
  return head;
}

FeedReport::WorkerReport worker_in(const RequestRing& ring) {
  FeedReport::WorkerReport worker;
  worker.asked = ring.asked.load(std::memory_order_relaxed);
  worker.answered = ring.answered.load(std::memory_order_relaxed);
  if (worker.answered != 0) worker.last_fill_ns = ring.answers[(worker.answered - 1) % kRingEntries].fill_ns;
  if (ring.is_over.load(std::memory_order_relaxed) != 0) {
    worker.state = "over";
  } else if (worker.asked != worker.answered) {
    const Ticket& request = ring.requests[worker.answered % kRingEntries];
    worker.state = "busy";
    worker.epoch = request.epoch;
    worker.index = request.index;
  } else {
    worker.state = ring.is_worker_asleep.load(std::memory_order_relaxed) != 0 ? "asleep" : "awake";
  }
  return worker;
}

void read_feed(const MemoryFile& memory, FeedReport* feed) {
  const RingsHead head = read_head(memory);
  const auto fields = static_cast<size_t>(head.fields);
  feed->process = {head.pid, os::command_of(head.pid),
                   head.start != 0 && os::start_of(head.pid) == head.start, os::is_stopped(head.pid)};
  std::erase_if(feed->processes, [&](const ProcessReport& process) { return process.pid == head.pid; });
  feed->rows = head.rows;
  feed->slots = head.slots;
  feed->slot_nbytes = head.layout.slot_nbytes;
  bool is_over = true;
  std::vector<FeedReport::WorkerReport> workers;
  for (int32_t i = 0; i < head.rings; ++i) {
    RequestRing ring{};
    memory.read(rings_at(fields) + static_cast<size_t>(i) * sizeof ring, &ring, sizeof ring);
    workers.push_back(worker_in(ring));
    workers.back().number = i;
    is_over &= ring.is_over.load(std::memory_order_relaxed) != 0;
  }
  feed->is_over = is_over;  // not before all has been read
  feed->workers = std::move(workers);
}

}  // namespace

std::vector<FeedReport> inspect_feeds() {
  std::vector<FeedReport> feeds;
  visit_memory_files(kFeedFilePrefix, [&](const MemoryFile& memory) {
    FeedReport feed;
    feed.inode = memory.facts.inode;
    feed.nbytes = memory.facts.nbytes;
    feed.processes = memory.processes;
    try {
      if (!memory.file) throw_error(Code::kValue, "it cannot be opened");
      read_feed(memory, &feed);
    } catch (const Error& e) {
      feed.damage = e.what();
    }
    feeds.push_back(std::move(feed));
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
