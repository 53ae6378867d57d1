// SPDX-License-Identifier: Apache-2.0
//
// What another process has written where it says how a served feed is laid out: its head, or its schema. A
// consumer that attaches reads no byte outside of the feed, or it refuses the feed with an Error. The first
// byte of the input chooses one of both.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "base/error.h"
#include "data/attached_feed.h"
#include "data/failure_text.h"
#include "data/served_feed_testing.h"
#include "ipc/segments.h"

namespace tenon::impl {
namespace {

struct Seed {
  serving::Served served{20, -1, 0, serving::unique_name(), true};
  Ref<Array> control;
  std::span<uint8_t> head, schema;

  Seed() {
    served.feed->serve({.consumers = 1, .note = "a note"});
    control = Segments::instance().attach(served.name, true);
    auto* const base = reinterpret_cast<uint8_t*>(control->data());
    uint8_t* const at = base + ServedState::end_at(Segments::feed_segment_of(*control).control().feed_slots);
    FeedHead copy{};
    std::memcpy(&copy, at, sizeof copy);
    head = {at, sizeof copy};
    schema = {base + copy.parts.schema_at, copy.parts.schema_nbytes};
  }
};
Seed& seed() {
  static auto* const one = new Seed;
  return *one;
}

// Combines the input with the valid bytes (exclusive or), and restores these at its end.
class Overlay {
 public:
  Overlay(std::span<uint8_t> good, std::span<const uint8_t> bytes)
      : at_(good), was_(good.begin(), good.end()) {
    for (size_t i = 0; i < std::min(good.size(), bytes.size()); ++i) good[i] ^= bytes[i];
  }
  Overlay(const Overlay&) = delete;
  Overlay& operator=(const Overlay&) = delete;
  ~Overlay() { std::ranges::copy(was_, at_.begin()); }

 private:
  const std::span<uint8_t> at_;
  const std::vector<uint8_t> was_;
};

// The bytes at both ends of each part.
void read_parts(const AttachedSlots& slots) {
  const FeedControl& control = slots.control();
  const FeedHead& head = control.head();
  const auto last = static_cast<uint32_t>(head.most) - 1;
  (void)control.table().word(last);
  (void)control.table().slot_of(head.entries() - 1);
  (void)look(control.record(last).number);
  (void)look(control.loop(head.loops).failed_number);
  for (int32_t i = 0; i < head.workers; ++i) {
    for (const auto& word : control.start_words(i)) (void)look(word);
    for (const auto& word : control.noted_words(i)) (void)look(word);
  }
  for (const int32_t slot : {0, head.most - 1}) {
    (void)*static_cast<volatile int64_t*>(head.layout.shapes(slots.data(slot)));
    (void)static_cast<volatile uint8_t*>(
        reinterpret_cast<uint8_t*>(slots.data(slot)))[head.layout.slot_nbytes - 1];
  }
  (void)failure_text(Ticket(), TicketFailure(), head);
}

}  // namespace

void fuzz_one(const uint8_t* data, size_t size) {
  if (size == 0) return;
  const Overlay overlay(data[0] % 2 == 0 ? seed().head : seed().schema, {data + 1, size - 1});
  try {
    AttachedFeed feed(seed().served.name);
    read_parts(feed.slots());
    feed.begin();
    Ref<Batch> batch;
    if (feed.next(0, batch)) std::abort();  // the feed has not begun
    (void)feed.waiting_text();
    (void)feed.note();
  } catch (const Error&) {
    return;
  }
}

}  // namespace tenon::impl

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tenon::impl::fuzz_one(data, size);
  return 0;
}
