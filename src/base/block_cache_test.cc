// SPDX-License-Identifier: Apache-2.0
#include "base/block_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

namespace tenon::impl {
namespace {

// Memory that bears the mark of its owner from take to give: two owners at a time would overwrite it.
struct Marked {
  void* memory;
  size_t size;
  unsigned char mark;

  static Marked take(size_t size, unsigned char mark) {
    void* const memory = BlockCache::take(size);
    std::memset(memory, mark, size);
    return {memory, size, mark};
  }
  void give() const {
    const auto* const bytes = static_cast<const unsigned char*>(memory);
    for (size_t i = 0; i < size; ++i) ASSERT_EQ(bytes[i], mark);
    BlockCache::give(memory, size);
  }
};

TEST(BlockCache, BlocksOfAllSizesBelongToOneOwnerAtATime) {
  std::vector<Marked> held;
  for (int round = 0; round < 5; ++round) {
    for (size_t size = 1; size < 1200; size += 37) {
      held.push_back(Marked::take(size, static_cast<unsigned char>(held.size())));
    }
    for (const Marked& block : held) block.give();
    held.clear();
  }
}

TEST(BlockCache, BlocksGoFromThreadToThreadAndOutliveThreads) {
  constexpr int kThreads = 3, kBlocks = 20'000;
  std::vector<std::atomic<Marked*>> slots(64);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kBlocks; ++i) {
        auto* fresh = new Marked(
            Marked::take(static_cast<size_t>(40 + i % 700), static_cast<unsigned char>(t * 85 + i)));
        Marked* const old = slots[static_cast<size_t>(i * 7 + t) % slots.size()].exchange(fresh);
        if (old == nullptr) continue;
        old->give();
        delete old;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& slot : slots) {
    if (Marked* const rest = slot.load()) {
      rest->give();
      delete rest;
    }
  }
}

}  // namespace
}  // namespace tenon::impl
