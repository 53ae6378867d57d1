// SPDX-License-Identifier: Apache-2.0
//
// What tests of feeds have in common.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/comes_true_testing.h"
#include "base/error.h"
#include "data/feed.h"

namespace tenon::impl {

// The message of the failure that is next, or what comes instead of one.
inline std::string failure_of(Feed& feed) {
  Ref<Batch> batch;
  try {
    (void)feed.next(kWatchdogNs, batch);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kOp);
    return e.what();
  }
  return batch ? concat("batch ", batch->ticket().index) : "the end";
}

}  // namespace tenon::impl
