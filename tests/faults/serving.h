// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tenon::faults {

// A scenario of faults_test.cc: a feed is served to this process, which attaches to it.
void serve_feed();

}  // namespace tenon::faults
