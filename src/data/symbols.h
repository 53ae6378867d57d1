// SPDX-License-Identifier: Apache-2.0
//
// Looks through the functions that a loaded library exports, to help after a failed look-up.
#pragma once

#include <string>
#include <string_view>

namespace tenon::impl {

// library: a handle of dlopen. A piece of an error message: "; did you mean 'fill'?", a hint at a C++
// symbol that lacks extern "C", or nothing.
std::string similar_symbols_text(void* library, std::string_view name);

}  // namespace tenon::impl
