// SPDX-License-Identifier: Apache-2.0
//
// A function of a shared library together with its prototype. The caller makes the arguments: data/bind.h for
// generators, the extension for direct calls.
#pragma once

#include <atomic>
#include <string_view>

#include "base/ref.h"
#include "data/native_call.h"
#include "data/prototype.h"

namespace tenon::impl {

// Counted, immutable. The library is never unloaded.
// Threads: every function may be called from any thread; without is_threadsafe() one call of the process
// runs at a time, and others wait. A forked child starts with no call running.
class NativeFunction {
 public:
  // path == nullptr: a symbol that is already in the process. Fails with kNotFound (library, symbol;
  // with the loader's text and similar names), kValue (prototype), kSystem (see NativeCall).
  static Ref<NativeFunction> load(const char* path, std::string_view prototype, bool is_threadsafe);
  // Fails with kValue (prototype, null address), kSystem.
  static Ref<NativeFunction> create(void* address, std::string_view prototype, bool is_threadsafe);

  const Prototype& prototype() const noexcept { return prototype_; }
  bool is_threadsafe() const noexcept { return is_threadsafe_; }

  // arguments: one for each parameter. Fails with kValue when one that is not thread-safe calls itself.
  tenon_value call(const tenon_value* arguments);

  void retain() noexcept { refs_.increment(); }
  void release() noexcept {
    if (refs_.decrement()) delete this;
  }

 private:
  struct OneCall;

  NativeFunction(void* address, Prototype prototype, bool is_threadsafe);
  ~NativeFunction();
  OneCall& one_call();

  const Prototype prototype_;
  const NativeCall call_;
  const bool is_threadsafe_;
  std::atomic<OneCall*> one_call_;  // of this process: a forked child makes another one
  RefCount refs_;
};

}  // namespace tenon::impl
