// SPDX-License-Identifier: Apache-2.0
//
// Searches the functions that a loaded library exports, for the message of a failed look-up.
#pragma once

#include <string>
#include <string_view>

namespace tenon::impl {

// library: a handle of dlopen. A piece of an error message: "; did you mean 'fill'?", a hint at a C++
// symbol that lacks extern "C", or nothing.
std::string similar_symbols_text(void* library, std::string_view name);

}  // namespace tenon::impl
