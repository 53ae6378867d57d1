// SPDX-License-Identifier: Apache-2.0
#include "base/ref.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace tenon::impl {
namespace {

// Not atomic on purpose: ThreadSanitizer reports it unless the counter orders all uses before the end.
struct Counted {
  explicit Counted(int* deaths) : deaths(deaths) {}
  void retain() noexcept { refs.increment(); }
  void release() noexcept {
    if (!refs.decrement()) return;
    *deaths += uses > 0 ? 1 : 0;
    delete this;
  }
  RefCount refs;
  int* deaths;
  std::atomic<int> uses{0};
};

TEST(Ref, LastReleaseDestroysOnce) {
  int deaths = 0;
  auto first = Ref<Counted>::adopt(new Counted(&deaths));
  first->uses = 1;
  Ref<Counted> second = first;
  first = {};
  EXPECT_EQ(deaths, 0);
  second = {};
  EXPECT_EQ(deaths, 1);
}

TEST(Ref, MovesAndDetachKeepTheCount) {
  int deaths = 0;
  auto first = Ref<Counted>::adopt(new Counted(&deaths));
  first->uses = 1;
  Ref<Counted> second = std::move(first);
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move)
  Counted* const raw = second.detach();
  EXPECT_EQ(deaths, 0);
  raw->release();
  EXPECT_EQ(deaths, 1);
}

TEST(Ref, UsesInOtherThreadsComeBeforeDestruction) {
  for (int round = 0; round < 200; ++round) {
    int deaths = 0;
    auto shared = Ref<Counted>::adopt(new Counted(&deaths));
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([ref = shared] { ref->uses.fetch_add(1, std::memory_order_relaxed); });
    }
    shared = {};
    for (std::thread& thread : threads) thread.join();
    threads.clear();
    EXPECT_EQ(deaths, 1);
  }
}

TEST(RefCount, NeverRisesFromZero) {
  RefCount refs;
  EXPECT_TRUE(refs.increment_if_alive());
  EXPECT_FALSE(refs.decrement());
  EXPECT_TRUE(refs.decrement());
  EXPECT_FALSE(refs.increment_if_alive());
}

}  // namespace
}  // namespace tenon::impl
