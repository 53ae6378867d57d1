// SPDX-License-Identifier: Apache-2.0
//
// Texts of others for messages.
#pragma once

#include <string>
#include <string_view>

namespace tenon::impl {

// The text with "?" for bytes that are not UTF-8, and for control characters.
std::string readable(std::string_view text);

}  // namespace tenon::impl
