// SPDX-License-Identifier: Apache-2.0
#include "device/submitted_work.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/blocked_signals.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/futex.h"
#include "base/one_per_process.h"
#include "device/completions.h"
#include "device/device.h"

namespace tenon::impl::device {
namespace {

constexpr int32_t kType = TENON_CUDA;
constexpr uint32_t kMostRecorded = 4;    // whose events have not come
constexpr int64_t kAgainNs = 2'000'000;  // after a failure, and twice as long after each further one
constexpr int kMostDoublings = 7;
constexpr int64_t kInCaptureNs = 100'000'000;

constexpr const char* kDoing = "ask for the end of all work";

void synchronise(const std::vector<Device*>& devices) {
  for (Device* const device : devices) {
    if (const Status s = device->synchronise_all()) throw device->error_of(s, kDoing);
  }
}

}  // namespace

// Calls that wait for one event of each device. Of the thread of Completions.
struct SubmittedWork::Recorded {
  struct Part : Completion {
    Recorded* whole = nullptr;
  };
  std::vector<Part> parts;
  size_t left = 0;
  Status status = kOk;  // of a part that has failed
  AfterWork* calls = nullptr;

  void record(const std::vector<Device*>& devices) {
    parts = std::vector<Part>(devices.size());
    left = parts.size();
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i].event = devices[i]->make_event(nullptr);
      parts[i].whole = this;
      parts[i].done = [](Completion* self, Status s) { static_cast<Part*>(self)->whole->end_part(s); };
      if (const Status s = devices[i]->record_all(*parts[i].event)) throw devices[i]->error_of(s, kDoing);
    }
  }
  void end_part(Status part_status) noexcept {
    if (part_status != kOk) status = part_status;
    if (--left == 0) instance().end(this);
  }
};

SubmittedWork& SubmittedWork::instance() noexcept { return one_per_process<SubmittedWork>(); }

void SubmittedWork::prepare() {
  // pairs with: SubmittedWork::prepare, "its thread runs"
  if (is_prepared_.load(std::memory_order_acquire)) return;
  const bool is_alone = !Device::for_host(kType).driver().has_context_events();
  const std::scoped_lock lock(asking_);
  if (is_prepared_.load(std::memory_order_relaxed)) return;
  bool has_thread = true;
  if (is_alone) {
    try {
      const BlockedSignals blocked;
      std::thread([this] { run(); }).detach();
    } catch (const std::exception&) {
      has_thread = false;
    }
  } else {
    has_thread = Completions::instance().prepare();
  }
  if (!has_thread) throw_error(Code::kSystem, "cannot start the thread that waits for work of devices");
  is_alone_ = is_alone;
  // pairs with: SubmittedWork::then, "its thread runs"
  is_prepared_.store(true, std::memory_order_release);
}

bool SubmittedWork::then(AfterWork* after) noexcept {
  // pairs with: SubmittedWork::prepare, "its thread runs"
  if (!is_prepared_.load(std::memory_order_acquire)) return false;
  pending_.fetch_add(1, std::memory_order_relaxed);
  {
    const std::scoped_lock lock(lock_);
    after->next = std::exchange(new_, after);
  }
  wake();
  return true;
}

void SubmittedWork::wake() noexcept {
  if (!is_alone_) {
    Completions::instance().wake();
    return;
  }
  turns_.fetch_add(1, std::memory_order_relaxed);
  futex_wake_all(turns_);
}

void SubmittedWork::begin_capture() noexcept {
  const std::scoped_lock lock(asking_);
  captures_.fetch_add(1, std::memory_order_relaxed);
}

void SubmittedWork::end_capture() noexcept {
  {
    const std::scoped_lock lock(asking_);
    // None: this is a forked child, and the parent has begun the capture.
    if (captures_.load(std::memory_order_relaxed) == 0) return;
    captures_.fetch_sub(1, std::memory_order_relaxed);
  }
  // pairs with: SubmittedWork::prepare, "its thread runs"
  if (is_prepared_.load(std::memory_order_acquire)) wake();
}

std::string SubmittedWork::describe() {
  const uint64_t n = pending();
  if (n == 0) return "";
  char problem[sizeof problem_];
  {
    const std::scoped_lock lock(lock_);
    std::memcpy(problem, problem_, sizeof problem);
  }
  const bool is_capture = captures_.load(std::memory_order_relaxed) != 0;
  const bool has_failed = problem[0] != '\0';
  return concat("; ", n, " arrays of this process wait for ",
                is_capture ? "the end of the capture of a graph" : "work that it has submitted to its GPUs",
                has_failed ? " (" : "", problem, has_failed ? ")" : "");
}

// ------------------------------------------------------------------------------------------ its thread

void SubmittedWork::hold(AfterWork* calls) noexcept {
  while (calls != nullptr) {
    AfterWork* const one = std::exchange(calls, calls->next);
    one->next = std::exchange(held_, one);
  }
}

// Adds what has come to held_. False: nothing is to be asked now.
bool SubmittedWork::take() noexcept {
  AfterWork* taken = nullptr;
  {
    const std::scoped_lock lock(lock_);
    taken = std::exchange(new_, nullptr);
  }
  hold(taken);
  return held_ != nullptr && captures_.load(std::memory_order_relaxed) == 0 && now_ns() >= again_ns_;
}

int64_t SubmittedWork::again_in_ns() const noexcept {
  if (held_ == nullptr) return 0;
  if (captures_.load(std::memory_order_relaxed) != 0) return kInCaptureNs;
  return std::max<int64_t>(again_ns_ - now_ns(), 1);
}

void SubmittedWork::note_failure(const std::exception& error) noexcept {
  {
    const std::scoped_lock lock(lock_);
    std::strncpy(problem_, error.what(), sizeof problem_ - 1);
  }
  again_ns_ = now_ns() + (kAgainNs << failures_);
  failures_ = std::min(failures_ + 1, kMostDoublings);
}

// False: it must be asked again.
template <class Question>
bool SubmittedWork::ask(Question question) noexcept {
  const std::scoped_lock lock(asking_);
  if (captures_.load(std::memory_order_relaxed) != 0) return false;
  try {
    question(Device::all_open(kType));
    return true;
  } catch (const std::exception& e) {
    note_failure(e);
    return false;
  }
}

void SubmittedWork::make(AfterWork* calls) noexcept {
  if (std::exchange(failures_, 0) != 0) {
    const std::scoped_lock lock(lock_);
    problem_[0] = '\0';
  }
  while (calls != nullptr) {
    AfterWork* const one = std::exchange(calls, calls->next);
    pending_.fetch_sub(1, std::memory_order_relaxed);
    one->call(one);  // may end it
  }
}

bool SubmittedWork::begin() noexcept {
  if (!take() || n_recorded_ == kMostRecorded) return false;
  std::unique_ptr<Recorded> recorded;
  const auto record = [&](const std::vector<Device*>& devices) {
    recorded = std::make_unique<Recorded>();
    recorded->record(devices);
  };
  if (!ask(record)) return false;
  recorded->calls = std::exchange(held_, nullptr);
  Recorded* const whole = recorded.release();
  ++n_recorded_;
  if (whole->parts.empty()) {
    end(whole);
    return true;
  }
  // The thread that would make its calls is this one.
  for (Recorded::Part& part : whole->parts) (void)Completions::instance().add(&part);
  return true;
}

void SubmittedWork::end(Recorded* recorded) noexcept {
  const std::unique_ptr<Recorded> ended(recorded);
  --n_recorded_;
  if (recorded->status == kOk) {
    make(recorded->calls);
    return;
  }
  hold(recorded->calls);
  try {
    throw error_of(driver_of(kType), recorded->status, kDoing);
  } catch (const std::exception& e) {
    note_failure(e);
  }
}

void SubmittedWork::run() noexcept {
  pthread_setname_np(pthread_self(), "tenon-context");
  while (true) {
    const uint32_t turn = turns_.load(std::memory_order_relaxed);
    if (!take()) {
      if (const int64_t wait_ns = again_in_ns()) {
        (void)futex_wait_for(turns_, turn, wait_ns);
      } else {
        (void)futex_wait(turns_, turn);
      }
      continue;
    }
    const BeforeExit before;
    if (!before) return;
    if (ask(synchronise)) make(std::exchange(held_, nullptr));
  }
}

}  // namespace tenon::impl::device
