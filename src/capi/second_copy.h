// SPDX-License-Identifier: Apache-2.0
//
// Copies of the library in one process. Leases of one copy do not exclude those of another, so the copy that
// was loaded first works, and every entry point of another one fails. Copies find each other by a note in the
// file: file names, SONAMEs and the scope of symbols (RTLD_LOCAL) do not matter. Copies in another namespace
// of the loader (dlmopen) are not seen.
#pragma once

namespace tenon::impl::capi {

// Set when the library is loaded.
extern const bool is_second_copy;

// Fails with kSystem; the message names the files of both copies.
[[noreturn]] void refuse_second_copy();

}  // namespace tenon::impl::capi
