// SPDX-License-Identifier: Apache-2.0
//
// Shared libraries that users name.
#pragma once

#include <string>

namespace tenon::impl {

// A handle of dlopen; of the whole process if path is null. The library is never unloaded, because the end of
// the use of its code cannot be known. Fails with kNotFound and the loader's text.
void* open_library(const char* path);

// A symbol of that handle. Fails with kNotFound, with names that are similar.
void* find_symbol(void* library, const char* path, const std::string& name);

}  // namespace tenon::impl
