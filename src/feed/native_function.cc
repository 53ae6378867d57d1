// SPDX-License-Identifier: Apache-2.0
#include "feed/native_function.h"

#include <dlfcn.h>

#include <utility>

#include "base/error.h"
#include "feed/symbols.h"

namespace tenon {
namespace {

std::string last_loader_error() {
  const char* text = dlerror();
  return text != nullptr ? text : "no reason given";
}

void* open_library(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw_error(Code::kNotFound, "cannot load library '", path != nullptr ? path : "",
                "': ", last_loader_error());
  }
  return library;
}

void* find_symbol(void* library, const char* path, const std::string& name) {
  void* const address = dlsym(library, name.c_str());
  if (address != nullptr) return address;
  const std::string where = path != nullptr ? concat("library '", path, "'") : std::string("this process");
  const std::string reason = last_loader_error();
  throw_error(Code::kNotFound, where, " has no function '", name, "'",
              path != nullptr ? similar_symbols_text(library, name) : "", " (", reason, ")");
}

}  // namespace

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
  const OneCall::Turn turn(one_call_, prototype_.name);
  return call_(arguments);
}

}  // namespace tenon
