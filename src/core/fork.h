// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tenon {

// Registers the handlers that keep the contract over fork(). Once for the process.
void handle_forks();

}  // namespace tenon
