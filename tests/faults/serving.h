// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tenon::faults {

// A scenario of faults_test.cc: a feed is served to this process, which attaches to it.
void serve_feed();
// Another one: a tensor pool is served, and offered, to this process.
void serve_pool();

}  // namespace tenon::faults
