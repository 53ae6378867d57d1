// SPDX-License-Identifier: Apache-2.0
//
// Calls after all work that this process has submitted to its GPUs so far, by whatever library and on
// whatever stream. For host memory that another library may still copy from or to: nobody tells which stream
// it uses.
//
// Not seen: work in contexts other than the primary one of each device.
//
// While a stream is captured to a graph, the driver cannot tell of all streams at once, and the question
// makes the capture invalid. The capture of a stream that is ordered with the legacy stream is seen. No call
// of the driver tells of others, such as those of PyTorch, so they are announced: begin_capture().
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>

#include "base/spin_lock.h"

namespace tenon::impl::device {

// A call that is to be made. Lies in its owner, which keeps it until then.
struct AfterWork {
  void (*call)(AfterWork* self) noexcept = nullptr;
  AfterWork* next = nullptr;  // of SubmittedWork
};

// One for each process. The thread of Completions records the events, and makes the calls, which must not
// wait. Where the driver has no events of whole contexts (before CUDA 12.5), a thread of its own sleeps until
// all work is done. A call is made only after the driver has said that the work is done: after an error, it
// is asked again. Threads: any.
class SubmittedWork {
 public:
  static SubmittedWork& instance() noexcept;

  SubmittedWork() noexcept = default;
  SubmittedWork(const SubmittedWork&) = delete;
  SubmittedWork& operator=(const SubmittedWork&) = delete;

  // Starts the thread, once. Opens a device if no library of the process has opened one. Fails with kSystem
  // and as Device::of({TENON_CUDA, 0}).
  void prepare();
  // Makes the call after the work that was submitted before. Does not wait, allocates nothing, and does not
  // call the driver. After exit() has begun, no call is made. False: prepare() has not succeeded in this
  // process (which may be a forked child), and nothing has happened.
  bool then(AfterWork* after) noexcept;

  // Until end_capture(), the driver is not asked, and no call is made. Counted. Waits for a question that is
  // being asked: on a driver without events of contexts, until all work is done.
  void begin_capture() noexcept;
  void end_capture() noexcept;

  // So many calls are to be made.
  uint64_t pending() const noexcept { return pending_.load(std::memory_order_relaxed); }
  // What the calls that are to be made wait for; "": there are none.
  std::string describe();

  // Of the thread of Completions. Records events for what has come. False: there was nothing, or it failed.
  bool begin() noexcept;
  // begin() must be called again after this time; 0: only after a wake().
  int64_t again_in_ns() const noexcept;

 private:
  struct Recorded;
  template <class Question>
  bool ask(Question question) noexcept;
  bool take() noexcept;
  void hold(AfterWork* calls) noexcept;
  void note_failure(const std::exception& error) noexcept;
  void make(AfterWork* calls) noexcept;
  void end(Recorded* recorded) noexcept;
  void wake() noexcept;
  void run() noexcept;

  SpinLock lock_;
  // Guarded by lock_.
  AfterWork* new_ = nullptr;
  char problem_[256] = "";  // why the last question was not answered; "": it was
  // Held while the driver is asked.
  std::mutex asking_;
  // Of the thread.
  AfterWork* held_ = nullptr;  // for which nothing is recorded yet
  uint32_t n_recorded_ = 0;    // that are recorded
  int64_t again_ns_ = 0;       // not before, after a failure
  int failures_ = 0;           // in a row
  // Constant from prepare() on.
  bool is_alone_ = false;  // with a thread of its own
  // Shared.
  std::atomic<bool> is_prepared_{false};
  std::atomic<uint32_t> captures_{0};  // changes while asking_ is held
  std::atomic<uint32_t> turns_{0};     // of the thread of its own: moves when something has come
  std::atomic<uint64_t> pending_{0};   // a plain counter
};

}  // namespace tenon::impl::device
