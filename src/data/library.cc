// SPDX-License-Identifier: Apache-2.0
#include "data/library.h"

#include <dlfcn.h>

#include "base/error.h"
#include "data/symbols.h"

namespace tenon::impl {
namespace {

std::string last_loader_error() {
  const char* text = dlerror();
  return text != nullptr ? text : "no reason given";
}

}  // namespace

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

}  // namespace tenon::impl
