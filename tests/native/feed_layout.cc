// SPDX-License-Identifier: Apache-2.0
//
// The numbers of src/data/mailbox.h, for the test of what reads a feed's memory file in Python.
#include <cstddef>
#include <cstdint>

#include "data/mailbox.h"

using namespace tenon::impl;

extern "C" __attribute__((visibility("default"))) uint64_t feed_layout(const char** name, int32_t i) {
  static constexpr struct {
    const char* name;
    uint64_t value;
  } kNumbers[] = {
      {"MAGIC", kFeedMagic},
      {"VERSION", kFeedVersion},
      {"DEPTH", kDepth},
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
      {"MAILBOXES_AT_3", mailboxes_at(3)},
      {"BOX_NBYTES", sizeof(Mailbox)},
      {"ASKED", offsetof(Mailbox, asked)},
      {"IS_OVER", offsetof(Mailbox, is_over)},
      {"REQUESTS", offsetof(Mailbox, requests)},
      {"REQUEST_NBYTES", sizeof(MailRequest)},
      {"REQUEST_INDEX", offsetof(MailRequest, index)},
      {"ANSWERED", offsetof(Mailbox, answered)},
      {"IS_WORKER_ASLEEP", offsetof(Mailbox, is_worker_asleep)},
      {"ANSWERS", offsetof(Mailbox, answers)},
      {"ANSWER_NBYTES", sizeof(MailAnswer)},
      {"ANSWER_FILL_NS", offsetof(MailAnswer, fill_ns)},
  };
  if (i < 0 || static_cast<size_t>(i) >= sizeof kNumbers / sizeof *kNumbers) {
    *name = nullptr;
    return 0;
  }
  *name = kNumbers[i].name;
  return kNumbers[i].value;
}
