// SPDX-License-Identifier: Apache-2.0
#include "data/native_function.h"

#include <utility>

#include "base/error.h"
#include "data/library.h"

namespace tenon::impl {

NativeFunction::NativeFunction(void* address, Prototype prototype, bool is_threadsafe)
    : prototype_(std::move(prototype)), call_(address, prototype_), is_threadsafe_(is_threadsafe) {}

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
  const OneCall::CallTurn turn(one_call_, prototype_.name);
  return call_(arguments);
}

}  // namespace tenon::impl
