// SPDX-License-Identifier: Apache-2.0
//
// What was seen of shared memory, and what was tidied up, as the JSON documents that docs/inspect.md
// describes.
#include "base/json.h"
#include "ipc/collect.h"
#include "ipc/inspect.h"
#include "tenon/share.h"

namespace tenon::impl {
namespace {

constexpr int kFormat = 1;

void put_pids(Json& json, const std::vector<uint32_t>& pids) {
  json.array([&] {
    for (const uint32_t pid : pids) json.number(pid);
  });
}

void put_texts(Json& json, const std::vector<std::string>& texts) {
  json.array([&] {
    for (const std::string& text : texts) json.text(text);
  });
}

void put_age(Json& json, int64_t age_ns) {
  json.member("age_ns");
  age_ns < 0 ? json.null() : json.number(age_ns);
}

void put_members(Json& json, const ProcessReport& process) {
  json.member("pid").number(process.pid);
  json.member("command").text_or_null(process.command);
  json.member("alive").boolean(process.is_alive);
  json.member("stopped").boolean(process.is_stopped);
}

void put(Json& json, const PlaceReport& place) {
  json.object([&] {
    json.member("place").number(place.index);
    json.member("state");
    switch (place.state) {
      case PlaceReport::State::kLive: json.text("live"); break;
      case PlaceReport::State::kDead: json.text("dead"); break;
      case PlaceReport::State::kReserved: json.text("reserved"); break;
    }
    put_members(json, place.process);
    put_age(json, place.age_ns);
  });
}

void put(Json& json, const LeaseReport& lease) {
  json.object([&] {
    json.member("block").number(lease.block);
    json.member("pid").number(lease.pid);
    json.member("place").number(lease.place);
    json.member("mode").text(infinitive(lease.access));
    json.member("state").text(lease.is_granted ? "granted" : "waiting");
    json.member("begin").number(lease.begin);
    json.member("end").number(lease.end);
    json.member("ticket").number(lease.ticket);
    put_age(json, lease.age_ns);
    json.member("task").number(lease.task);
  });
}

void put(Json& json, const ArenaReport& arena) {
  json.object([&] {
    json.member("damaged").text_or_null(arena.damage);
    json.member("layouts");
    put_texts(json, arena.layouts);
    json.member("active");
    arena.active ? json.text(*arena.active) : json.null();
    json.member("generation").number(arena.generation);
  });
}

void put(Json& json, const ArrayReport& array) {
  json.object([&] {
    json.member("block").number(array.block);
    json.member("begin").number(array.begin);
    json.member("nbytes").number(array.nbytes);
    json.member("dtype").text_or_null(array.dtype);
    json.member("shape");
    if (array.dtype.empty()) {
      json.null();
    } else {
      json.array([&] {
        for (const int64_t n : array.shape) json.number(n);
      });
    }
    json.member("version").number(array.version);
    json.member("users");
    put_pids(json, array.users);
    json.member("handles").array([&] {
      for (const SentReport& sent : array.sent) {
        json.object([&] {
          json.member("pid");
          sent.pid == 0 ? json.null() : json.number(sent.pid);
          json.member("place").number(sent.place);
          json.member("count").number(sent.count);
        });
      }
    });
    json.member("more_handles").number(array.sent_more);
    json.member("deaths").array([&] {
      for (const DeathReport& death : array.deaths) {
        json.object([&] {
          json.member("pid").number(death.pid);
          json.member("begin").number(death.begin);
          json.member("end").number(death.end);
          json.member("several").boolean(death.is_joined);
        });
      }
    });
    json.member("arena");
    array.arena ? put(json, *array.arena) : json.null();
  });
}

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
    default: return "unknown";
  }
}

void put(Json& json, const ChannelReport& channel) {
  json.object([&] {
    json.member("damaged").text_or_null(channel.damage);
    json.member("mode").text(mode_name(channel.mode));
    json.member("when_full").text(when_full_name(channel.when_full));
    json.member("fields");
    put_texts(json, channel.fields);
    json.member("sent").number(channel.sent);
    json.member("received").number(channel.received);
    json.member("dropped").number(channel.dropped);
    json.member("deaths").number(channel.deaths);
    json.member("slots").array([&] {
      for (const ChannelReport::Slot& slot : channel.slots) {
        json.object([&] {
          json.member("state").text(slot.sequence != 0 ? "ready" : slot.holders.empty() ? "free" : "held");
          json.member("sequence").number(slot.sequence);
          json.member("holders");
          put_pids(json, slot.holders);
        });
      }
    });
    json.member("producers");
    put_pids(json, channel.producers);
    json.member("consumers").array([&] {
      for (const ChannelReport::Consumer& consumer : channel.consumers) {
        json.object([&] {
          json.member("pid").number(consumer.pid);
          json.member("cursor").number(consumer.cursor);
        });
      }
    });
  });
}

const char* kind_name(SegmentReport::Kind kind) {
  switch (kind) {
    case SegmentReport::Kind::kPool: return "pool";
    case SegmentReport::Kind::kArray: return "array";
    case SegmentReport::Kind::kArena: return "arena";
    case SegmentReport::Kind::kChannel: return "channel";
    case SegmentReport::Kind::kUnknown: break;
  }
  return "unknown";
}

void put(Json& json, const ProcessReport& process) {
  json.object([&] { put_members(json, process); });
}

template <class Item>
void put_all(Json& json, std::string_view name, const std::vector<Item>& items) {
  json.member(name).array([&] {
    for (const Item& item : items) put(json, item);
  });
}

void put(Json& json, const SegmentReport& segment) {
  json.object([&] {
    json.member("id").text_or_null(segment.id);
    json.member("name").text_or_null(segment.name);
    json.member("kind").text(kind_name(segment.kind));
    json.member("damaged").text_or_null(segment.damage);
    json.member("file").text(segment.file);
    json.member("nbytes").number(segment.nbytes);
    json.member("committed_nbytes").number(segment.committed_nbytes);
    json.member("created_ns");
    segment.created_ns == 0 ? json.null() : json.number(segment.created_ns);
    json.member("creator");
    segment.creator.pid == 0 ? json.null() : put(json, segment.creator);
    put_all(json, "processes", segment.processes);
    put_all(json, "participants", segment.places);
    put_all(json, "arrays", segment.arrays);
    put_all(json, "leases", segment.leases);
    json.member("channel");
    segment.channel ? put(json, *segment.channel) : json.null();
  });
}

void put(Json& json, const Collected& result) {
  const SegmentReport& segment = result.before;
  json.object([&] {
    json.member("id").text_or_null(segment.id);
    json.member("name").text_or_null(segment.name);
    json.member("kind").text(kind_name(segment.kind));
    json.member("damaged").text_or_null(segment.damage);
    json.member("file").text(segment.file);
    json.member("committed_nbytes").number(segment.committed_nbytes);
    put_all(json, "processes", segment.processes);
    put_all(json, "participants", result.places);
    json.member("leases").number(result.leases);
    json.member("handles").number(result.handles);
    json.member("failure").text_or_null(result.failure);
  });
}

// The items of the member "segments" of a document.
template <class Item>
std::string document(const std::vector<Item>& segments) {
  Json json;
  json.object([&] {
    json.member("format").number(kFormat);
    json.member("segments").array([&] {
      for (const Item& segment : segments) put(json, segment);
    });
  });
  return json.take();
}

}  // namespace

std::string json_of(const std::vector<SegmentReport>& segments) { return document(segments); }
std::string json_of(const std::vector<Collected>& segments) { return document(segments); }

}  // namespace tenon::impl
