// SPDX-License-Identifier: Apache-2.0
//
// Whether a text is JSON (RFC 8259). What it says is read by plug-ins themselves.
#pragma once

#include <string_view>

namespace tenon::impl {

// One object and nothing else, nested at most 100 deep. Bytes beyond ASCII are taken for UTF-8.
bool is_json_object(std::string_view text) noexcept;

}  // namespace tenon::impl
