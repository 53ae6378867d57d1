// SPDX-License-Identifier: Apache-2.0
//
// A feed as a process sees it that has made its segment, or has attached to it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ipc/peer_testing.h"
#include "ipc/segments.h"
#include "ipc/served_testing.h"

namespace tenon::impl {

constexpr uint32_t kSlots = 4;
constexpr uint64_t kSlotNbytes = uint64_t{1} << 20;

class OpenFeed {
 public:
  static Ref<Array> create(const std::string& name, uint64_t noted = ServedState::kNoStates) {
    FeedMemoryPlan plan;
    plan.name = name;
    plan.slots = kSlots;
    plan.control_nbytes = ServedState::end_at(kSlots) + 100;
    plan.slots_nbytes = kSlots * kSlotNbytes;
    plan.prepare = [&](std::byte* base) { reinterpret_cast<ServedState*>(base)->noted = noted; };
    return Segments::instance().create_feed(plan);
  }
  explicit OpenFeed(Ref<Array> memory)
      : memory_(std::move(memory)),
        segment_(Segments::feed_segment_of(*memory_)),
        ends_(segment_.control()) {}
  // Of another process.
  explicit OpenFeed(const std::string& name) : OpenFeed(Segments::instance().attach(name, true)) {}

  const Ref<Array>& memory() const { return memory_; }
  Segment& segment() const { return segment_; }
  const ServedEnds& ends() const { return ends_; }
  ServedState& state() const { return ends_.state(); }
  const SlotTable& table() const { return ends_.table(); }
  uint32_t self() const { return segment_.participant().index(); }
  void join() const {
    ends_.begin_join(self(), false);
    ends_.end_join(self(), 0);
  }

 private:
  Ref<Array> memory_;
  Segment& segment_;
  ServedEnds ends_;
};

// The Error's code, as an int, and text of an attempt; 0: success.
template <class Attempt>
std::pair<int, std::string> failure_of(Attempt attempt) {
  try {
    attempt();
  } catch (const Error& e) {
    return {static_cast<int>(e.code()), e.what()};
  }
  return {};
}

int be_maker(const std::vector<std::string>& words);
int be_consumer(const std::vector<std::string>& words);

}  // namespace tenon::impl
