// SPDX-License-Identifier: Apache-2.0
//
// Why an op has no result, and since when bytes hold no value: shared by the op, the memory that it failed to
// write and every op that was skipped because of it.
#pragma once

#include <cstdint>
#include <new>
#include <string>

#include "base/error.h"
#include "base/ref.h"

namespace tenon::impl {

// Counted; constant after creation.
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

  void retain() noexcept { refs_.increment(); }
  void release() noexcept {
    if (!refs_.decrement()) return;
    if (drop_ != nullptr) drop_(payload_);
    delete this;
  }

 private:
  ~Failure() = default;

  void* const payload_;  // may be null
  void (*const drop_)(void*);
  RefCount refs_;
};

}  // namespace tenon::impl

namespace tenon::impl {

// The error of a caller that wants a value which a failed op was to make.
class OpFailure : public Error {
 public:
  explicit OpFailure(const Ref<Failure>& failure)
      : Error(Code::kOp, failure->text(), failure->op_code), failure_(failure) {}

  const Ref<Failure>& failure() const noexcept { return failure_; }

 private:
  Ref<Failure> failure_;
};

}  // namespace tenon::impl
