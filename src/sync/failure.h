// SPDX-License-Identifier: Apache-2.0
//
// Why an op failed and why bytes hold no value. Shared by the op, the memory that it failed to write, and
// every op that was skipped because of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <new>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/fork_mark.h"
#include "base/ref.h"
#include "base/spin_lock.h"

namespace tenon::impl {

// Counted. References: ops, memory without a value, callers that got it as an error, and once Failures.
// Constant after creation, except whether a caller has seen it.
class Failure {
 public:
  // op and site may be null. payload: the exception object of the language of the body; drop is called with
  // it once, from any thread.
  Failure(Code code, int32_t op_code, std::string message, const char* op, const char* site,
          void* payload = nullptr, void (*drop)(void*) = nullptr)
      : code(code),
        op_code(op_code),
        message(std::move(message)),
        op(op != nullptr ? op : ""),
        site(site != nullptr ? site : ""),
        payload_(payload),
        drop_(drop) {}

  // Returns without_memory() if there is no memory; then the payload has been dropped.
  static Ref<Failure> make(Code code, std::string_view message, const char* op, const char* site,
                           int32_t op_code = 0, void* payload = nullptr,
                           void (*drop)(void*) = nullptr) noexcept {
    try {
      return Ref<Failure>::adopt(new Failure(code, op_code, std::string(message), op, site, payload, drop));
    } catch (const std::bad_alloc&) {
      if (drop != nullptr) drop(payload);
      return without_memory();
    }
  }
  // One for the process. The engine creates it at its start, when there is memory.
  static const Ref<Failure>& without_memory() noexcept {
    static const auto* const one = new Ref<Failure>(Ref<Failure>::adopt(new Failure(
        Code::kNoMemory, 0, "there was no memory to note its name, and why it failed", nullptr, nullptr)));
    return *one;
  }

  const Code code;
  const int32_t op_code;
  const std::string message;
  const std::string op;    // its name
  const std::string site;  // where it was pushed; may be empty

  // The payload if it was given with this drop; else null.
  void* payload_with(void (*drop)(void*)) const noexcept { return drop_ == drop ? payload_ : nullptr; }

  // "op 'fill' failed (train.py:12): ..."
  std::string text() const {
    return concat("op '", op, "' failed", site.empty() ? "" : concat(" (pushed at ", site, ")"), ": ",
                  message);
  }

  // A caller gets it as an error, so it is not reported. False: it was marked before.
  bool mark_seen() const noexcept { return !is_seen_.exchange(true, std::memory_order_relaxed); }

  void retain() noexcept { refs_.increment(); }
  // The last release reports a failure that began with an op and that no caller has seen. Any thread.
  void release() noexcept;

 private:
  friend class Failures;
  ~Failure() = default;

  void* const payload_;  // may be null
  void (*const drop_)(void*);
  const ForkMark process_;  // a forked child does not report failures of its parent
  RefCount refs_;
  mutable std::atomic<bool> is_seen_{true};  // false after Failures::note(), until a caller sees it
  std::atomic<bool> is_listed_{false};       // Failures has one of the references
};

// Called with a reference to a failure that no caller has seen or can see. On any thread, also on one that
// holds locks: it must not wait.
using FailureHook = void (*)(Failure* owned);
void set_failure_hook(FailureHook hook) noexcept;

// The failures that began with an op, in their order. Callers that wait for all ops take them from here, and
// those that no caller sees are reported. Its own references do not count as callers that could see them.
// One for the process, never destroyed. Threads: any.
class Failures {
 public:
  static Failures& instance() noexcept;

  // Lists the failure of an op that fails now.
  void note(const Ref<Failure>& failure) noexcept;
  // Removes the oldest failure from the list; null: none. It counts as seen.
  Ref<Failure> take() noexcept;

  // The caller waits for all ops and takes the failures afterwards. Until end_wait() none is reported; those
  // that are listed at its end are left to take() or report_rest().
  void begin_wait() noexcept;
  void end_wait() noexcept;

  // Reports each listed failure that no caller has seen: at the end of the process.
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

  // One of two references to a listed failure was released. The failure may be deleted already.
  void note_released(const Failure* failure) noexcept;
  Ref<Failure> remove_first() noexcept;

  // Guarded by lock_.
  SpinLock lock_;
  std::deque<Entry> entries_;
  int waiters_ = 0;
};

// The error of a caller that wants a value that a failed op should have written.
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
