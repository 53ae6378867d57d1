// SPDX-License-Identifier: Apache-2.0
//
// What the thread that fills for a worker has, and how a fill went. Workers has the functions.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "data/feed_control.h"
#include "data/filling.h"
#include "data/ticket.h"

namespace tenon::impl {

class Workers;

// Whether a loop is run by a thread that the generator has started.
enum class Started {
  kNo,       // by one of the feed, which may ask a worker process
  kAwaited,  // it has not joined yet
  kJoined,
  kEnded,  // it has left before the feed was closed: a thread of the feed lets each batch of the loop fail
};

// What one thread runs.
struct FillLoop {
  // In place of the time when a fill began.
  static constexpr int64_t kIdle = 0, kAbandoned = -1, kFree = -2;
  // An odd time is that of a thread outside of a fill, an even one that of a fill.
  static constexpr int64_t outside(int64_t ns) noexcept { return ns | 1; }
  static constexpr int64_t in_fill(int64_t ns) noexcept { return ns & ~int64_t{1}; }
  static constexpr bool is_outside(int64_t since_ns) noexcept {
    return since_ns > kIdle && since_ns % 2 != 0;
  }

  Workers* workers = nullptr;
  int32_t number = 0;
  // Of the thread that runs it; of the one that abandons it from then on.
  int32_t worker = 0;
  Job job;
  bool has_job = false;
  bool is_replaced = false;   // its first thread has ended
  bool has_ended = false;     // the fill that was begun has, without a result: so has its thread
  std::vector<void*> fields;  // addresses for the request
  std::vector<int64_t*> shapes;
  std::optional<Filling> filling;

  // Guarded by Workers::mutex_.
  Started started = Started::kNo;
  bool is_starting = false;  // the function that starts its thread has not returned

  // Shared.
  LoopRecord* record = nullptr;
  std::atomic<uint32_t> thread{0};

  // When the fill began that the thread runs. Of a thread that the generator has started also when it was
  // expected or answered, until it takes the next fill: kIdle is one that waits for a fill. The thread ends
  // this, or another one abandons the loop.
  std::atomic<int64_t>& since_ns() const noexcept { return record->since_ns; }
};

}  // namespace tenon::impl
