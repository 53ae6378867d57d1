// SPDX-License-Identifier: Apache-2.0
#include "trace/chrome.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace tenon::impl::trace {
namespace {

// Numbers of the "processes" of the file.
constexpr uint64_t kThreads = 1;
constexpr uint64_t kLeases = 2;
constexpr uint64_t kStreams = 3;
constexpr uint64_t kFirstFeed = 10;
// Numbers of the lanes of a feed.
constexpr uint64_t kConsumer = 1;
constexpr uint64_t kFirstWorker = 2;
constexpr uint64_t kFirstSlot = 1'000'000;

struct TimelineLane {
  uint64_t process;
  uint64_t thread;
  friend auto operator<=>(const TimelineLane&, const TimelineLane&) = default;
};

Json::Number microseconds(int64_t ns) {
  char text[40];
  std::snprintf(text, sizeof text, "%lld.%03lld", static_cast<long long>(ns / 1000),
                static_cast<long long>(ns % 1000));
  return {text};
}

// Empty: the thread has ended.
std::string name_of_thread(uint64_t thread) {
  std::ifstream file(concat("/proc/self/task/", thread, "/comm"));
  std::string name;
  std::getline(file, name);
  return name;
}

const char* outcome_text(SpanOutcome outcome) noexcept {
  switch (outcome) {
    case SpanOutcome::kOpen: return "unfinished";
    case SpanOutcome::kDone: return "done";
    case SpanOutcome::kFailed: return "failed";
    case SpanOutcome::kSkipped: return "skipped";
    case SpanOutcome::kCancelled: return "cancelled";
  }
  return "";
}

class Writer {
 public:
  Writer(const Recording& recording, const std::function<bool(std::string_view)>& put)
      : recording_(recording), put_(put) {}

  void write() {
    append("{\"traceEvents\": [");
    place_leases();
    place_on_streams();
    for (const Record& record : recording_) write_record(record);
    write_names();
    Json about;
    about.value([&] {
      about.member("program", "tenon")
          .member("pid", getpid())
          .member("capacity", recording_.capacity)
          .member("lost", recording_.lost)
          .member("kept", "the first events, up to capacity")
          .member("seconds", microseconds((recording_.ended_ns - recording_.began_ns) / 1'000'000))
          .member("began_monotonic_ns", recording_.began_ns);
    });
    append("\n], \"displayTimeUnit\": \"ms\", \"otherData\": " + about.take() + "}\n");
    if (!has_failed_) (void)put_(text_);
  }

 private:
  void append(std::string_view text) {
    text_ += text;
    if (text_.size() < kPart) return;
    has_failed_ = has_failed_ || !put_(text_);
    text_.clear();
  }

  template <class Body>
  void event(Body body) {
    Json json;
    json.value([&] { body(json); });
    append(is_first_ ? "\n" : ",\n");
    is_first_ = false;
    append(json.take());
  }

  int64_t from_begin(int64_t at_ns) const { return std::max<int64_t>(at_ns - recording_.began_ns, 0); }
  // A time of a record; the end of the trace if the record has not reached it.
  int64_t or_end(int64_t at_ns) const { return at_ns != 0 ? at_ns : recording_.ended_ns; }

  void common(Json& json, const char* phase, std::string_view name, const char* category, TimelineLane lane,
              int64_t at_ns) {
    json.member("ph", phase)
        .member("name", name)
        .member("cat", category)
        .member("pid", lane.process)
        .member("tid", lane.thread)
        .member("ts", microseconds(from_begin(at_ns)));
    lanes_.insert(lane);
  }

  // An event in a lane from one time to another. arguments(json) writes members.
  template <class Arguments>
  void slice(std::string_view name, const char* category, TimelineLane lane, int64_t from_ns, int64_t to_ns,
             SpanOutcome outcome, Arguments arguments) {
    event([&](Json& json) {
      common(json, "X", name, category, lane, from_ns);
      json.member("dur", microseconds(std::max<int64_t>(from_begin(to_ns) - from_begin(from_ns), 0)));
      if (outcome == SpanOutcome::kFailed || outcome == SpanOutcome::kSkipped)
        json.member("cname", "terrible");
      json.member("args", [&] { arguments(json); });
    });
  }

  // The same for an event that is not part of a lane: id connects its two ends.
  template <class Arguments>
  void loose(std::string_view name, const char* category, TimelineLane lane, uint64_t id, int64_t from_ns,
             int64_t to_ns, Arguments arguments) {
    event([&](Json& json) {
      common(json, "b", name, category, lane, from_ns);
      json.member("id", concat("op ", id));
      json.member("args", [&] { arguments(json); });
    });
    event([&](Json& json) {
      common(json, "e", name, category, lane, std::max(from_ns, to_ns));
      json.member("id", concat("op ", id));
    });
  }

  static void note(Json& json, const Record& record) {
    json.member("outcome", outcome_text(record.outcome));
    if (record.note[0] != '\0') json.member("error", record.note);
  }
  static void site(Json& json, const Record& record) {
    if (record.site[0] != '\0') json.member("site", record.site);
  }
  static void batch(Json& json, const Record& record) {
    json.member("epoch", record.epoch).member("batch", record.index);
  }

  void about_op(Json& json, const Record& record) {
    json.member("op", record.index);
    if (record.text[0] != '\0') json.member("arrays", record.text);
    site(json, record);
    json.member("pushed_us", microseconds(from_begin(record.at_ns[kBegun])));
    const int64_t ready = record.at_ns[kReady], running = record.at_ns[kRunning];
    if (ready != 0) {
      json.member("ready_us", microseconds(from_begin(ready)));
      json.member("waited_for_arrays_us", microseconds(ready - record.at_ns[kBegun]));
      if (running != 0) json.member("waited_for_thread_us", microseconds(running - ready));
    }
    note(json, record);
  }

  void write_op(const Record& record) {
    const TimelineLane pusher{kThreads, record.thread};
    const int64_t ended = or_end(record.at_ns[kEnded]);
    const int64_t running = record.at_ns[kRunning];
    const int64_t returned = record.at_ns[kReturned];
    const bool has_slice = running != 0 || record.outcome != SpanOutcome::kOpen;
    loose(record.name, "op waits", pusher, record.index, record.at_ns[kBegun], running != 0 ? running : ended,
          [&](Json& json) {
            if (!has_slice) about_op(json, record);
          });
    if (!has_slice) return;
    const TimelineLane lane{kThreads, record.runner};
    slice(record.name, "op", lane, running != 0 ? running : ended, returned != 0 ? returned : ended,
          record.outcome, [&](Json& json) { about_op(json, record); });
    if (returned == 0) return;
    if (const auto work = on_streams_.find(&record); work != on_streams_.end()) {
      return slice(record.name, "device", {kStreams, work->second.lane}, work->second.begun_ns, ended,
                   record.outcome, [&](Json& json) { json.member("op", record.index); });
    }
    loose(concat(record.name, ", after its return"), "op completes", lane, record.index, returned, ended,
          [](Json&) {});
  }

  void write_lease(const Record& record) {
    const TimelineLane lane{kLeases, lease_lanes_.at(&record)};
    const int64_t granted = record.at_ns[kReady];
    const int64_t ended = or_end(record.at_ns[kEnded]);
    const auto arguments = [&](Json& json) {
      json.member("array", record.text);
      site(json, record);
      json.member("thread", record.thread);
      note(json, record);
    };
    slice(concat("waits to ", infinitive(record.access)), "lease waits", lane, record.at_ns[kBegun],
          granted != 0 ? granted : ended, granted != 0 ? SpanOutcome::kDone : record.outcome, arguments);
    if (granted == 0) return;
    slice(infinitive(record.access), "lease", lane, granted, ended, record.outcome, arguments);
  }

  void write_fill(const Record& record) {
    const TimelineLane lane{kFirstFeed + record.group, kFirstWorker + static_cast<uint64_t>(record.worker)};
    feeds_[record.group] = record.name;
    const bool is_fill = record.kind == SpanKind::kFill;
    slice(is_fill ? concat("batch ", record.index) : "no free slot", is_fill ? "fill" : "blocked", lane,
          record.at_ns[kBegun], or_end(record.at_ns[kEnded]), record.outcome, [&](Json& json) {
            json.member("worker", record.worker);
            if (is_fill) {
              batch(json, record);
              json.member("slot", record.slot);
            }
            if (record.pid != 0) json.member("pid", record.pid);
            note(json, record);
          });
  }

  void write_slot(const Record& record) {
    const TimelineLane lane{kFirstFeed + record.group, kFirstSlot + static_cast<uint64_t>(record.slot)};
    const int64_t ended = or_end(record.at_ns[kEnded]);
    const int64_t filled = record.at_ns[kReady], delivered = record.at_ns[kRunning];
    const auto part = [&](const char* name, int64_t from, int64_t to) {
      slice(name, name, lane, from, to, SpanOutcome::kDone, [&](Json& json) { batch(json, record); });
    };
    part("filling", record.at_ns[kBegun], filled != 0 ? filled : ended);
    if (filled != 0) part("ready", filled, delivered != 0 ? delivered : ended);
    if (delivered != 0) part("held", delivered, ended);
  }

  void write_record(const Record& record) {
    const int64_t begun = record.at_ns[kBegun], ended = or_end(record.at_ns[kEnded]);
    switch (record.kind) {
      case SpanKind::kNone: return;
      case SpanKind::kOp: return write_op(record);
      case SpanKind::kLease: return write_lease(record);
      case SpanKind::kFill:
      case SpanKind::kBlocked: return write_fill(record);
      case SpanKind::kSlot: return write_slot(record);
      case SpanKind::kWait:
        return slice(record.name, "wait", {kThreads, record.thread}, begun, ended, SpanOutcome::kDone,
                     [&](Json& json) {
                       site(json, record);
                       note(json, record);
                     });
      case SpanKind::kStarved:
        return slice("starved", "starved", {kFirstFeed + record.group, kConsumer}, begun, ended,
                     SpanOutcome::kDone, [&](Json& json) {
                       batch(json, record);
                       json.member("thread", record.thread);
                       note(json, record);
                     });
    }
  }

  // Each array gets as many lanes as it has leases that overlap.
  void place_leases() {
    std::vector<const Record*> leases;
    for (const Record& record : recording_) {
      if (record.kind == SpanKind::kLease) leases.push_back(&record);
    }
    std::stable_sort(leases.begin(), leases.end(),
                     [](const Record* a, const Record* b) { return a->at_ns[kBegun] < b->at_ns[kBegun]; });
    struct Group {
      std::vector<int64_t> ends;  // by lane
      std::vector<std::pair<const Record*, size_t>> places;
    };
    std::map<std::pair<uint64_t, std::string>, size_t> known;
    std::vector<Group> groups;  // in the order of their first leases
    for (const Record* lease : leases) {
      const auto [at, is_new] = known.try_emplace({lease->address, lease->text}, groups.size());
      if (is_new) groups.emplace_back();
      Group& group = groups[at->second];
      size_t lane = 0;
      while (lane < group.ends.size() && group.ends[lane] > lease->at_ns[kBegun]) ++lane;
      if (lane == group.ends.size()) group.ends.push_back(0);
      group.ends[lane] = or_end(lease->at_ns[kEnded]);
      group.places.emplace_back(lease, lane);
    }
    uint64_t next = 1;
    for (const Group& group : groups) {
      for (const auto& [lease, lane] : group.places) {
        lease_lanes_[lease] = next + lane;
        lease_names_[next + lane] = concat(lease->text, lane == 0 ? "" : concat(" (", lane + 1, ")"));
      }
      next += group.ends.size();
    }
  }

  // A stream runs its work in order, so work begins when it is submitted, or when the work before it ends.
  void place_on_streams() {
    std::vector<const Record*> submitted;
    for (const Record& record : recording_) {
      if (record.kind == SpanKind::kOp && record.stream[0] != '\0' && record.at_ns[kReturned] != 0)
        submitted.push_back(&record);
    }
    // A body may return late, after that of an op behind it; the ends come in order.
    const auto place = [&](const Record* record) {
      return std::pair(or_end(record->at_ns[kEnded]), record->at_ns[kReturned]);
    };
    std::stable_sort(submitted.begin(), submitted.end(),
                     [&](const Record* a, const Record* b) { return place(a) < place(b); });
    struct Stream {
      uint64_t lane;
      int64_t ended_ns = 0;
    };
    std::map<std::string_view, Stream> streams;
    for (const Record* record : submitted) {
      const auto [at, is_new] = streams.try_emplace(record->stream, Stream{stream_names_.size() + 1});
      if (is_new) stream_names_.emplace_back(record->stream);
      Stream& stream = at->second;
      on_streams_[record] = {stream.lane, std::max(record->at_ns[kReturned], stream.ended_ns)};
      stream.ended_ns = std::max(stream.ended_ns, or_end(record->at_ns[kEnded]));
    }
  }

  // The name or the position of a lane in viewers: member is "name" or "sort_index".
  template <class T>
  void label(const char* what, TimelineLane lane, const char* member, const T& value) {
    event([&](Json& json) {
      json.member("ph", "M")
          .member("name", what)
          .member("pid", lane.process)
          .member("tid", lane.thread)
          .member("args", [&] { json.member(member, value); });
    });
  }

  std::string name_of(TimelineLane lane) {
    if (lane.process == kLeases) return lease_names_[lane.thread];
    if (lane.process == kStreams) return stream_names_[lane.thread - 1];
    if (lane.process >= kFirstFeed) {
      if (lane.thread == kConsumer) return "consumer";
      if (lane.thread >= kFirstSlot) return concat("slot ", lane.thread - kFirstSlot);
      return concat("worker ", lane.thread - kFirstWorker);
    }
    if (lane.thread == static_cast<uint64_t>(getpid())) return "main thread";
    const std::string known = name_of_thread(lane.thread);
    return concat("thread ", lane.thread, known.empty() ? "" : concat(" (", known, ")"));
  }

  std::string name_of_process(uint64_t process) {
    if (process == kThreads) return concat("threads of process ", getpid());
    if (process == kLeases) return "leases";
    if (process == kStreams) return "streams of devices";
    const auto feed = static_cast<uint32_t>(process - kFirstFeed);
    const std::string& generator = feeds_[feed];
    return concat("feed ", feed, generator.empty() ? "" : concat(" of '", generator, "'"));
  }

  void write_names() {
    uint64_t before = 0;
    for (const TimelineLane lane : lanes_) {
      if (lane.process != before) {
        before = lane.process;
        label("process_name", {lane.process, 0}, "name", name_of_process(lane.process));
        label("process_sort_index", {lane.process, 0}, "sort_index", lane.process);
      }
      label("thread_name", lane, "name", name_of(lane));
      label("thread_sort_index", lane, "sort_index", lane.thread);
    }
  }

  static constexpr size_t kPart = size_t{1} << 16;

  const Recording& recording_;
  const std::function<bool(std::string_view)>& put_;
  std::string text_;
  bool is_first_ = true;
  bool has_failed_ = false;
  std::set<TimelineLane> lanes_;
  std::map<uint32_t, std::string> feeds_;
  std::map<const Record*, uint64_t> lease_lanes_;
  std::map<uint64_t, std::string> lease_names_;
  struct OnStream {
    uint64_t lane;
    int64_t begun_ns;
  };
  std::map<const Record*, OnStream> on_streams_;
  std::vector<std::string> stream_names_;  // of lane 1, 2, ...
};

}  // namespace

void write_chrome(const Recording& recording, const std::function<bool(std::string_view)>& put) {
  Writer(recording, put).write();
}

}  // namespace tenon::impl::trace
