// SPDX-License-Identifier: Apache-2.0
//
// Why an op has no result, and since when bytes hold no value: shared by the op, the memory that it failed to
// write and every op that was skipped because of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <new>
#include <string>

#include "base/error.h"
#include "base/fork_mark.h"
#include "base/ref.h"
#include "base/spin_lock.h"

namespace tenon::impl {

// Counted: by ops, by the memory without a value, by those that were told of it, and once by Failures.
// Constant after creation, but for whether it was seen.
class Failure {
 public:
  // payload: what the language of the body threw; drop is called with it once, from any thread.
  Failure(Code code, int32_t op_code, std::string message, std::string op, std::string site, void* payload,
          void (*drop)(void*)) noexcept
      : code(code),
        op_code(op_code),
        message(std::move(message)),
        op(std::move(op)),
        site(std::move(site)),
        payload_(payload),
        drop_(drop) {}

  // name and site may be null. Without memory one that says so.
  static Ref<Failure> make(Code code, const char* message, const char* name, const char* site) noexcept {
    try {
      return Ref<Failure>::adopt(new Failure(code, 0, message, name != nullptr ? name : "",
                                             site != nullptr ? site : "", nullptr, nullptr));
    } catch (const std::bad_alloc&) {
      return without_memory();
    }
  }
  // One for the process, made before memory is short (Engine).
  static const Ref<Failure>& without_memory() noexcept {
    static const auto* const one = new Ref<Failure>(Ref<Failure>::adopt(
        new Failure(Code::kNoMemory, 0, "there was no memory to note its name, and why it failed", "", "",
                    nullptr, nullptr)));
    return *one;
  }

  const Code code;
  const int32_t op_code;
  const std::string message;
  const std::string op;    // its name
  const std::string site;  // where it was pushed; may be empty

  // The payload if it came with this drop; else null.
  void* payload_with(void (*drop)(void*)) const noexcept { return drop_ == drop ? payload_ : nullptr; }

  // "op 'fill' failed (train.py:12): ..."
  std::string text() const {
    return concat("op '", op, "' failed", site.empty() ? "" : concat(" (pushed at ", site, ")"), ": ",
                  message);
  }

  // A caller is told of it: it is not reported any more. False: it was marked before.
  bool mark_seen() const noexcept { return !is_seen_.exchange(true, std::memory_order_relaxed); }

  void retain() noexcept { refs_.increment(); }
  // The last release reports one that an op began and that no caller has seen. Any thread.
  void release() noexcept;

 private:
  friend class Failures;
  ~Failure() = default;

  void* const payload_;  // may be null
  void (*const drop_)(void*);
  const ForkMark process_;  // a forked child does not report what its parent does
  RefCount refs_;
  mutable std::atomic<bool> is_seen_{true};  // false from when it begins with an op until a caller sees it
  std::atomic<bool> is_listed_{false};       // Failures has one of the references
};

// Gets a reference to a failure that no caller has seen and that none can see any more. Any thread, also one
// that holds locks of its own: it may not wait.
using FailureHook = void (*)(Failure* owned);
void set_failure_hook(FailureHook hook) noexcept;

// The failures that began with an op of their own, for those that wait for all ops, and the report of those
// that no caller sees. Its own references do not count as callers that could see them.
// One for the process, never destroyed. Threads: any.
class Failures {
 public:
  static Failures& instance() noexcept;

  // Of an op that fails now.
  void note(const Ref<Failure>& failure) noexcept;
  // The oldest one that was not taken; null: none. It counts as seen.
  Ref<Failure> take() noexcept;

  // The caller waits for all ops and takes the failures afterwards: until end_wait() none is reported, and
  // those that are listed then are left to take() or report_rest().
  void begin_wait() noexcept;
  void end_wait() noexcept;

  // Reports each that is listed and that no caller has seen: before the process ends.
  void report_rest() noexcept;

  void lock_for_fork() noexcept { lock_.lock(); }
  void unlock_after_fork() noexcept { lock_.unlock(); }
  void start_anew_after_fork() noexcept { waiters_ = 0; }

 private:
  friend class Failure;
  struct Entry {
    Ref<Failure> failure;
    bool is_left_to_taker;
  };

  // Of two references to a listed failure one was released. The failure may be gone.
  void note_released(const Failure* failure) noexcept;
  Ref<Failure> remove_first() noexcept;

  // Guarded by lock_.
  SpinLock lock_;
  std::deque<Entry> entries_;
  int waiters_ = 0;
};

// The error of a caller that wants a value which a failed op was to make.
class OpFailure : public Error {
 public:
  explicit OpFailure(const Ref<Failure>& failure)
      : Error(Code::kOp, failure->text(), failure->op_code), failure_(failure) {
    failure->mark_seen();
  }

  const Ref<Failure>& failure() const noexcept { return failure_; }

 private:
  Ref<Failure> failure_;
};

}  // namespace tenon::impl
