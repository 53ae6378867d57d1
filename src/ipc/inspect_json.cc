// SPDX-License-Identifier: Apache-2.0
//
// The reports as objects of the JSON documents that docs/inspect.md describes.
#include "base/json.h"
#include "ipc/collect.h"
#include "ipc/inspect.h"
#include "tenon/share.h"

namespace tenon::impl {
namespace {

const char* mode_name(uint32_t mode) {
  switch (mode) {
    case TENON_CHANNEL_QUEUE: return "queue";
    case TENON_CHANNEL_BROADCAST: return "broadcast";
    case TENON_CHANNEL_LATEST: return "latest";
    default: return "unknown";
  }
}

const char* when_full_name(uint32_t when_full) {
  switch (when_full) {
    case TENON_WHEN_FULL_WAIT: return "wait";
    case TENON_WHEN_FULL_DROP_OLDEST: return "drop_oldest";
    case TENON_WHEN_FULL_RAISE: return "raise";
    case TENON_WHEN_FULL_KEEP: return "keep";
    default: return "unknown";
  }
}

void write_members(Json& json, const ProcessReport& process) {
  json.member("pid", process.pid)
      .member("command", not_empty(process.command))
      .member("alive", process.is_alive)
      .member("stopped", process.is_stopped);
}

}  // namespace

// Json finds these overloads by argument-dependent lookup.

void write_json(Json& json, const ProcessReport& process) {
  json.value([&] { write_members(json, process); });
}

static void write_json(Json& json, const PlaceReport& place) {
  const char* const state = place.is_reserved ? "reserved" : place.is_live() ? "live" : "dead";
  json.value([&] {
    json.member("place", place.index).member("state", state);
    write_members(json, place.process);
    json.member("age_ns", unless(-1, place.age_ns));
  });
}

static void write_json(Json& json, const LeaseReport& lease) {
  json.value([&] {
    json.member("block", lease.block)
        .member("pid", lease.pid)
        .member("place", lease.place)
        .member("mode", infinitive(lease.access))
        .member("state", lease.is_granted ? "granted" : "waiting")
        .member("begin", lease.begin)
        .member("end", lease.end)
        .member("ticket", lease.ticket)
        .member("age_ns", unless(-1, lease.age_ns))
        .member("task", lease.task);
  });
}

static void write_json(Json& json, const ArenaReport& arena) {
  json.value([&] {
    json.member("damaged", not_empty(arena.damage))
        .member("layouts", arena.layouts)
        .member("active", arena.active)
        .member("generation", arena.generation);
  });
}

static void write_json(Json& json, const SentReport& sent) {
  json.value([&] {
    json.member("pid", unless(0, sent.pid))
        .member("place", sent.place)
        .member("count", sent.count)
        .member("lost", sent.is_lost);
  });
}

static void write_json(Json& json, const DeathReport& death) {
  json.value([&] {
    json.member("pid", death.pid)
        .member("begin", death.begin)
        .member("end", death.end)
        .member("several", death.is_joined);
  });
}

static void write_json(Json& json, const ArrayReport& array) {
  json.value([&] {
    json.member("block", array.block)
        .member("begin", array.begin)
        .member("nbytes", array.nbytes)
        .member("dtype", not_empty(array.dtype))
        .member("shape", array.dtype.empty() ? std::nullopt : std::optional(array.shape))
        .member("version", array.version)
        .member("users", array.users)
        .member("places", array.places)
        .member("handles", array.sent)
        .member("more_handles", 0)  // all are in the list
        .member("deaths", array.deaths)
        .member("arena", array.arena);
  });
}

static void write_json(Json& json, const ChannelReport::SlotReport& slot) {
  const char* const state = slot.sequence != 0 ? "ready" : slot.holders.empty() ? "free" : "held";
  json.value([&] {
    json.member("state", state)
        .member("sequence", slot.sequence)
        .member("nbytes", slot.nbytes)
        .member("holders", slot.holders);
  });
}

static void write_json(Json& json, const ChannelReport::Consumer& consumer) {
  json.value([&] {
    json.member("pid", consumer.pid)
        .member("cursor", consumer.cursor)
        .member("receives", consumer.is_viewer ? "latest" : "every");
  });
}

static void write_json(Json& json, const ChannelReport::Room& room) {
  json.value([&] {
    json.member("refused", room.refused)
        .member("nbytes", room.nbytes)
        .member("used_nbytes", room.used_nbytes)
        .member("committed_nbytes", room.committed_nbytes)
        .member("largest_sent_nbytes", room.largest_sent_nbytes);
  });
}

static void write_json(Json& json, const ChannelReport& channel) {
  json.value([&] {
    json.member("damaged", not_empty(channel.damage))
        .member("mode", mode_name(channel.mode))
        .member("when_full", when_full_name(channel.when_full))
        .member("fields", channel.fields)
        .member("sent", channel.sent)
        .member("received", channel.received)
        .member("dropped", channel.dropped)
        .member("deaths", channel.deaths)
        .member("objects", channel.has_objects)
        .member("room", channel.room)
        .member("slots", channel.slots)
        .member("producers", channel.producers)
        .member("consumers", channel.consumers);
  });
}

static void write_json(Json& json, const MessageReport& message) {
  json.value([&] {
    json.member("record", message.record)
        .member("nbytes", message.nbytes)
        .member("opens_left", unless(-1, message.opens_left))
        .member("age_ns", unless(-1, message.age_ns))
        .member("left_ns", unless(-1, message.left_ns))
        .member("pid", unless(0, message.keeper))
        .member("lost", message.is_lost)
        .member("site", not_empty(message.site))
        .member("tag", not_empty(message.tag))
        .member("opened", message.is_opened)
        .member("handed_over", message.is_handed_over);
  });
}

static void write_json(Json& json, const PoolReport& pool) {
  json.value([&] {
    json.member("sent", pool.sent)
        .member("sent_nbytes", pool.sent_nbytes)
        .member("opened", pool.opened)
        .member("expired", pool.expired)
        .member("revoked", pool.revoked)
        .member("receivers_gone", pool.receivers_gone)
        .member("inline", pool.inlined)
        .member("inline_nbytes", pool.inlined_nbytes)
        .member("refused", pool.refused)
        .member("waits", pool.waits)
        .member("waited_ns", pool.waited_ns);
  });
}

// The members with which each segment begins.
static Json& write_title(Json& json, const SegmentReport& segment) {
  return json.member("id", not_empty(segment.id))
      .member("name", not_empty(segment.name))
      .member("kind", segment.kind)
      .member("damaged", not_empty(segment.damage))
      .member("file", segment.file);
}

void write_json(Json& json, const SegmentReport& segment) {
  json.value([&] {
    write_title(json, segment)
        .member("nbytes", segment.nbytes)
        .member("committed_nbytes", segment.committed_nbytes)
        .member("created_ns", unless(0, segment.created_ns))
        .member("creator", segment.creator.pid == 0 ? std::nullopt : std::optional(segment.creator))
        .member("processes", segment.processes)
        .member("participants", segment.places)
        .member("arrays", segment.arrays)
        .member("leases", segment.leases)
        .member("channel", segment.channel)
        .member("messages", segment.messages)
        .member("totals", segment.pool);
  });
}

void write_json(Json& json, const Collected& result) {
  json.value([&] {
    write_title(json, result.before)
        .member("committed_nbytes", result.before.committed_nbytes)
        .member("processes", result.before.processes)
        .member("participants", result.places)
        .member("leases", result.leases)
        .member("handles", result.handles)
        .member("failure", not_empty(result.failure));
  });
}

}  // namespace tenon::impl
