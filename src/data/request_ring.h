// SPDX-License-Identifier: Apache-2.0
//
// What a feed's process and its worker processes write to each other: the control part of a feed's memory
// file. A head, then a request ring for each worker; behind them the slots.
//
// A ring holds two requests, so that a worker has the next one when it ends one. The feed writes requests and
// their count, the worker answers and theirs. A side that waits polls for a while, announces that it sleeps,
// and sleeps on the count of the other side.
//
// `tenon ls` of any version reads it from other processes (inspect_feeds.h), so a change of the layout needs
// another kFeedVersion.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "data/feed_control.h"
#include "data/slot_layout.h"
#include "data/ticket.h"
#include "data/ticket_failure.h"
#include "tenon/tenon.h"

namespace tenon::impl {

inline constexpr uint32_t kRingEntries = 2;  // open requests
inline constexpr size_t kControlPage = 4096;

struct RingAnswer {
  int32_t code;
  uint64_t fill_ns;
  int64_t began_ns;            // of now_ns(), which is the same in all processes
  char message[kMessageSize];  // ends with NUL
};

// What a generator gets for a request: fields and shapes are the addresses in the slot, by field.
inline tenon_fill_request fill_request_of(const Ticket& ticket, const SlotLayout& layout, std::byte* slot,
                                          void* const* fields, int64_t* const* shapes) noexcept {
  tenon_fill_request request{};
  request.struct_size = sizeof request;
  request.fields = fields;
  request.shapes = shapes;
  request.index = ticket.index;
  request.epoch = ticket.epoch;
  request.seed = ticket.seed;
  request.epoch_seed = ticket.epoch_seed;
  request.flags = ticket.flags;
  request.restore_nbytes = ticket.restore_nbytes;
  request.attachment = layout.attachment(slot);
  request.attachment_size = layout.attachment_nbytes;
  request.attachment_nbytes = &layout.attached(slot);
  request.notes = &layout.notes(slot);
  request.state = layout.state(slot);
  request.state_size = layout.state_nbytes;
  request.state_nbytes = &layout.stated(slot);
  return request;
}

// Of one worker. Request and answer number n lie at n % kRingEntries.
struct RequestRing {
  // Written by the feed.
  alignas(64) std::atomic<uint32_t> asked;  // requests so far; the worker sleeps on it
  std::atomic<uint32_t> is_feed_asleep;
  std::atomic<uint32_t> is_over;
  Ticket requests[kRingEntries];
  // Written by the worker; by the feed too when the worker has ended.
  alignas(64) std::atomic<uint32_t> changes;  // answers and ends of the worker; the feed sleeps on it
  std::atomic<uint32_t> answered;             // requests so far
  std::atomic<uint32_t> is_worker_asleep;
  RingAnswer answers[kRingEntries];
};

struct FieldPlace {
  uint64_t offset;
  int32_t ndim;
};

struct RingsHead {
  uint32_t magic, version;
  uint32_t pid;     // of the feed's process
  uint64_t start;   // and when it began
  uint64_t nbytes;  // of the file
  int32_t rings, slots, fields;
  int64_t rows;
  uint64_t slots_at;
  bool has_sparse_slots;
  SlotLayout layout;
  FieldPlace places[1];  // of each field
};

// Where the parts lie; from the numbers of rings and fields.
constexpr size_t rings_at(size_t fields) {
  return (sizeof(RingsHead) + fields * sizeof(FieldPlace) + 63) / 64 * 64;
}
constexpr size_t control_nbytes(size_t fields, size_t rings) {
  return (rings_at(fields) + rings * sizeof(RequestRing) + kControlPage - 1) / kControlPage * kControlPage;
}
inline RequestRing& ring_of(std::byte* control, size_t fields, size_t ring) noexcept {
  return reinterpret_cast<RequestRing*>(control + rings_at(fields))[ring];
}

}  // namespace tenon::impl
