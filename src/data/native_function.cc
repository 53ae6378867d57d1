// SPDX-License-Identifier: Apache-2.0
#include "data/native_function.h"

#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/fork_mark.h"
#include "data/library.h"

namespace tenon::impl {

// One call at a time: a mutex that fails if its own thread locks it again.
struct NativeFunction::OneCall {
  const ForkMark process;
  std::mutex mutex;
  std::atomic<std::thread::id> holder{};  // compared only with the id of the thread that reads it

  // Held as long as this object.
  struct Turn {
    Turn(OneCall& one_call, const std::string& function) : call(one_call) {
      if (call.holder.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
        throw_error(Code::kValue, "'", function,
                    "' is called from inside of itself, but runs one call at a time: load it as thread-safe "
                    "(threadsafe=True) if that is meant");
      }
      call.mutex.lock();
      call.holder.store(std::this_thread::get_id(), std::memory_order_relaxed);
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() {
      call.holder.store(std::thread::id(), std::memory_order_relaxed);
      call.mutex.unlock();
    }
    OneCall& call;
  };
};

NativeFunction::NativeFunction(void* address, Prototype prototype, bool is_threadsafe)
    : prototype_(std::move(prototype)),
      call_(address, prototype_),
      is_threadsafe_(is_threadsafe),
      one_call_(new OneCall) {}

NativeFunction::~NativeFunction() {
  OneCall* const call = one_call_.load(std::memory_order_relaxed);
  if (!call->process.is_child()) delete call;
}

// The object of the parent stays as it is in a forked child: its mutex may be locked for ever.
NativeFunction::OneCall& NativeFunction::one_call() {
  // pairs with: NativeFunction::one_call, "a child's own object is complete"
  OneCall* now = one_call_.load(std::memory_order_acquire);
  if (!now->process.is_child()) return *now;
  auto* const fresh = new OneCall;
  // pairs with: NativeFunction::one_call, "a child's own object is complete"
  if (one_call_.compare_exchange_strong(now, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;
  return *now;
}

Ref<NativeFunction> NativeFunction::load(const char* path, std::string_view text, bool is_threadsafe) {
  Prototype prototype = parse_prototype(text);
  void* const address = find_symbol(open_library(path), path, prototype.name);
  return Ref<NativeFunction>::adopt(new NativeFunction(address, std::move(prototype), is_threadsafe));
}

Ref<NativeFunction> NativeFunction::create(void* address, std::string_view text, bool is_threadsafe) {
  Prototype prototype = parse_prototype(text);
  if (address == nullptr) throw_error(Code::kValue, "the address of '", prototype.name, "' is NULL");
  return Ref<NativeFunction>::adopt(new NativeFunction(address, std::move(prototype), is_threadsafe));
}

tenon_value NativeFunction::call(const tenon_value* arguments) {
  if (is_threadsafe_) return call_(arguments);
  const OneCall::Turn turn(one_call(), prototype_.name);
  return call_(arguments);
}

}  // namespace tenon::impl
