// SPDX-License-Identifier: Apache-2.0
//
// The numbers of src/data/request_ring.h, for the test of what reads a feed's memory file in Python.
#include <cstddef>
#include <cstdint>

#include "data/request_ring.h"

using namespace tenon::impl;

extern "C" __attribute__((visibility("default"))) uint64_t feed_layout(const char** name, int32_t i) {
  static constexpr struct {
    const char* name;
    uint64_t value;
  } kNumbers[] = {
      {"MAGIC", kFeedMagic},
      {"VERSION", kFeedVersion},
      {"DEPTH", kRingEntries},
      {"PID", offsetof(FeedHead, pid)},
      {"START", offsetof(FeedHead, start)},
      {"NBYTES", offsetof(FeedHead, nbytes)},
      {"WORKERS", offsetof(FeedHead, workers)},
      {"SLOTS", offsetof(FeedHead, slots)},
      {"FIELDS", offsetof(FeedHead, fields)},
      {"ROWS", offsetof(FeedHead, rows)},
      {"SLOTS_AT", offsetof(FeedHead, slots_at)},
      {"SLOT_NBYTES", offsetof(FeedHead, layout) + offsetof(SlotLayout, slot_nbytes)},
      {"HEAD_NBYTES", sizeof(FeedHead)},
      {"FIELD_NBYTES", sizeof(FieldPlace)},
      {"MAILBOXES_AT_3", rings_at(3)},
      {"BOX_NBYTES", sizeof(RequestRing)},
      {"ASKED", offsetof(RequestRing, asked)},
      {"IS_OVER", offsetof(RequestRing, is_over)},
      {"REQUESTS", offsetof(RequestRing, requests)},
      {"REQUEST_NBYTES", sizeof(RingRequest)},
      {"REQUEST_INDEX", offsetof(RingRequest, index)},
      {"ANSWERED", offsetof(RequestRing, answered)},
      {"IS_WORKER_ASLEEP", offsetof(RequestRing, is_worker_asleep)},
      {"ANSWERS", offsetof(RequestRing, answers)},
      {"ANSWER_NBYTES", sizeof(RingAnswer)},
      {"ANSWER_FILL_NS", offsetof(RingAnswer, fill_ns)},
  };
  if (i < 0 || static_cast<size_t>(i) >= sizeof kNumbers / sizeof *kNumbers) {
    *name = nullptr;
    return 0;
  }
  *name = kNumbers[i].name;
  return kNumbers[i].value;
}
