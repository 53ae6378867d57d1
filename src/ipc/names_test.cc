// SPDX-License-Identifier: Apache-2.0
//
// The end of the last process that keeps a name. The tests keep a name as a process does whose descriptors
// cannot be seen any more: they have the lock of the name, and no memory.
#include "ipc/names.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "base/error.h"
#include "ipc/segments.h"
#include "tenon/share.hpp"

namespace tenon::impl {
namespace {

namespace api = tenon::api0;
using namespace std::chrono_literals;

constexpr SegmentId kGone{{1, 2}};

NameHold keep_without_memory(const std::string& name) {
  NameLock lock(name, NameLock::Make::kYes);
  return lock.keep(kGone, -1);
}

// Releases the name after a while.
class EndingKeeper {
 public:
  explicit EndingKeeper(const std::string& name) : hold_(keep_without_memory(name)) {}
  ~EndingKeeper() { thread_.join(); }

 private:
  NameHold hold_;
  std::thread thread_{[this] {
    std::this_thread::sleep_for(20ms);
    hold_ = NameHold();
  }};
};

TEST(Names, AreFreeAsSoonAsTheLastProcessThatKeepsThemHasEnded) {
  const std::string name = "tenon.test.names.ending";
  const EndingKeeper keeper(name);
  const api::Array made = api::zeros_shared({4}, api::dtype_of<uint8_t>(), {.name = name});
  EXPECT_EQ(api::attach(name).data(), made.data());
}

TEST(Names, OfAProcessThatHasEndedAreNotFound) {
  const std::string name = "tenon.test.names.ended";
  const EndingKeeper keeper(name);
  try {
    (void)api::attach(name);
    ADD_FAILURE() << "no process has the memory";
  } catch (const api::Error& error) {
    EXPECT_NE(std::string(error.what()).find("no process of this user shares"), std::string::npos)
        << error.what();
  }
}

TEST(Names, OfAProcessThatCannotBeSeenAreRefusedWithTheCause) {
  const std::string name = "tenon.test.names.unseen";
  const NameHold hold = keep_without_memory(name);
  try {
    (void)api::zeros_shared({4}, api::dtype_of<uint8_t>(), {.name = name});
    ADD_FAILURE() << "another process keeps the name";
  } catch (const api::Error& error) {
    EXPECT_NE(std::string(error.what()).find("is /proc restricted?"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tenon::impl
