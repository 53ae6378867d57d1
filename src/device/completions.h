// SPDX-License-Identifier: Apache-2.0
//
// The thread that learns when work on streams has ended.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/ref.h"
#include "base/spin_lock.h"
#include "device/device.h"

namespace tenon::impl::device {

// A call when an event has come. Lies in its owner, which keeps it until the call.
struct Completion {
  Ref<Event> event;  // recorded
  void (*done)(Completion* self, Status status) = nullptr;
  // The owner is ready for the call. While it is not, those that were added later are not called either.
  std::atomic<bool> is_armed{true};

  // Of Completions.
  Completion* next = nullptr;
  Completion* previous = nullptr;
};

// One for each process. It asks the driver for the oldest events in turn, less often the longer they take.
// Calls are made by its one thread and must not wait. An event on which the stream of another one has waited
// is told of before that one, if it was added before. Threads: any.
class Completions {
 public:
  static Completions& instance() noexcept;

  Completions() noexcept = default;
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  // Starts the thread at the first call. False: no thread can be had, and nothing has happened.
  bool add(Completion* completion) noexcept;
  // The same without a completion.
  bool prepare() noexcept;
  // SubmittedWork has something for the thread. Requires prepare().
  void wake() noexcept;

  // Added and not yet called.
  uint64_t pending() const noexcept { return pending_.load(std::memory_order_relaxed); }
  // The thread makes a call: what it has taken from a queue may not be released yet.
  // pairs with: Completions::tell, "what the end of the work has released"
  bool is_telling() const noexcept { return is_telling_.load(std::memory_order_acquire); }

 private:
  bool start() noexcept;
  void run() noexcept;
  bool take_new() noexcept;
  bool tell() noexcept;
  void unlink(Completion* completion) noexcept;

  SpinLock lock_;
  // Guarded by lock_.
  bool is_started_ = false;
  Completion* new_ = nullptr;  // the last first

  // Of the thread. In the order in which they came.
  Completion* first_ = nullptr;
  Completion* last_ = nullptr;
  int64_t came_ns_ = 0;  // when the last one came

  // Shared.
  std::atomic<uint32_t> turns_{0};      // moves when one has been added
  std::atomic<bool> is_asleep_{false};  // without a limit
  std::atomic<bool> is_telling_{false};
  std::atomic<uint64_t> pending_{0};  // a plain counter
};

}  // namespace tenon::impl::device
