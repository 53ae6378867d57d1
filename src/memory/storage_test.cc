// SPDX-License-Identifier: Apache-2.0
#include "memory/storage.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "array/access.h"
#include "base/block_cache.h"
#include "base/bytes.h"
#include "base/error_testing.h"
#include "memory/known_memory.h"

namespace tenon::impl {
namespace {

Memory memory_at(std::byte* data, size_t nbytes, void* owner = nullptr, Deleter deleter = nullptr) {
  return {data, nbytes, data, nbytes, false, owner, deleter};
}

void count_death(void* owner) { static_cast<std::atomic<int>*>(owner)->fetch_add(1); }

tenon_statistics statistics() {
  tenon_statistics s{};
  KnownMemory::instance().statistics(&s);
  return s;
}

TEST(Storage, HeapMemoryIsAlignedAndZeroedOnRequest) {
  for (size_t nbytes : {size_t{0}, size_t{1}, size_t{63}, size_t{4096}, size_t{1} << 20, size_t{5} << 20}) {
    const Ref<Storage> s = Storage::allocate(nbytes, true);
    const auto address = reinterpret_cast<uintptr_t>(s->data());
    EXPECT_EQ(address % (nbytes >= (size_t{1} << 20) ? 4096 : 64), 0U) << nbytes;
    for (size_t i = 0; i < nbytes; i += 61) ASSERT_EQ(s->data()[i], std::byte{0});
  }
}

// A fork that locked every queue would cost a millisecond for each thousand of arrays.
TEST(Storage, AForkKeepsOnlyTheQueuesInUseListed) {
  (void)KnownMemory::instance();
  std::vector<Ref<Storage>> storages;
  for (int i = 0; i < 5000; ++i) {
    storages.push_back(Storage::allocate(8, true));
    const std::scoped_lock lock(storages.back()->region().lock);
  }
  EXPECT_GE(ListedQueues::count(), storages.size());
  const pid_t pid = fork();
  if (pid == 0) {
    const std::scoped_lock lock(storages.front()->region().lock);
    _exit(ListedQueues::count() == 1 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ListedQueues::count(), 0U);
}

// Programs with many small arrays pay for these, and a fork for their pages.
TEST(Storage, AnArrayNeedsOneRegionAndOneStorageOfKnownSize) {
  EXPECT_EQ(sizeof(Region), 3 * kAlignment);
  EXPECT_LE(sizeof(Storage), 96U);
}

TEST(Storage, ManyArraysReuseTheMemoryOfEarlierOnes) {
  if (!kMayReuse) GTEST_SKIP() << "a sanitizer checks each use after free";
  std::set<const void*> blocks;
  for (int round = 0; round < 3; ++round) {
    std::vector<Ref<Storage>> storages;
    for (int i = 0; i < 20'000; ++i) {
      storages.push_back(Storage::allocate(8, false));
      blocks.insert(storages.back().get());
      blocks.insert(&storages.back()->region());
    }
    storages.clear();
  }
  // The last storages to die are unlinked by the next call; some regions stay in the map for a while.
  EXPECT_LE(blocks.size(), 2U * 20'000 + 200);
}

TEST(Storage, ImpossibleSizesAreOutOfMemoryWithTheNumber) {
  std::string message;
  EXPECT_EQ(code_of([] { (void)Storage::allocate(SIZE_MAX - 10, false); }, &message), Code::kNoMemory);
  EXPECT_NE(message.find(std::to_string(SIZE_MAX - 10)), std::string::npos) << message;
}

TEST(Storage, LastReleaseRunsTheDeleterOnceFromAnyThread) {
  std::vector<std::byte> bytes(64);
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> deaths{0};
    Ref<Storage> a = Storage::adopt(memory_at(bytes.data(), 64, &deaths, count_death));
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) threads.emplace_back([copy = a] {});
    Ref<Storage> last = a;
    a = {};
    EXPECT_EQ(deaths, 0);
    last = {};
    for (std::thread& t : threads) t.join();
    threads.clear();
    EXPECT_EQ(deaths, 1);
  }
}

TEST(Storage, AThrowingDeleterIsCounted) {
  std::vector<std::byte> bytes(8);
  const uint64_t before = statistics().failed_deleters;
  (void)Storage::adopt(memory_at(bytes.data(), 8, nullptr, [](void*) { throw std::runtime_error("no"); }));
  (void)Storage::adopt(memory_at(bytes.data(), 8, nullptr, [](void*) { throw 42; }));
  EXPECT_EQ(statistics().failed_deleters, before + 2);
}

void keep(void*) {}

TEST(KnownMemory, FindsTheLivingStorageThatContainsTheBytes) {
  std::vector<std::byte> bytes(100);
  Ref<Storage> a = Storage::adopt(memory_at(bytes.data() + 10, 50, nullptr, keep));
  EXPECT_EQ(Storage::find(bytes.data() + 10, 50, Access::kRead).get(), a.get());
  EXPECT_EQ(Storage::find(bytes.data() + 59, 1, Access::kRead).get(), a.get());
  EXPECT_FALSE(Storage::find(bytes.data() + 9, 2, Access::kRead));
  EXPECT_FALSE(Storage::find(bytes.data() + 59, 2, Access::kRead));
  a = {};
  EXPECT_FALSE(Storage::find(bytes.data() + 10, 50, Access::kRead));
}

// A region stays in the map when its last storage is gone, so that the next import of the same bytes is fast.
TEST(KnownMemory, FindsMemoryThatIsImportedAgainAtTheAddressOfAnIdleRegion) {
  std::vector<std::byte> bytes(128);
  std::byte* const idle = bytes.data() + 32;
  const auto import = [](std::byte* data, size_t nbytes) {
    return Storage::adopt(memory_at(data, nbytes, nullptr, keep));
  };
  for (const auto& [begin, nbytes] : {std::pair{idle, 32}, {idle, 8}, {idle, 96}, {bytes.data(), 128}}) {
    (void)import(idle, 32);
    EXPECT_FALSE(Storage::find(idle, 32, Access::kRead));
    EXPECT_FALSE(Storage::find(idle, 96, Access::kRead));
    const Ref<Storage> again = import(begin, nbytes);
    EXPECT_EQ(Storage::find(begin, nbytes, Access::kWrite).get(), again.get()) << nbytes;
    EXPECT_EQ(Storage::find(idle, 8, Access::kWrite).get(), again.get()) << nbytes;
    EXPECT_EQ(Storage::find(idle, 96, Access::kRead).get(), nbytes >= 96 ? again.get() : nullptr);
  }
}

TEST(KnownMemory, IdleRegionsHideNoOtherMemory) {
  std::vector<std::byte> bytes(512), others(512);
  for (std::byte& other : others) (void)Storage::adopt(memory_at(&other, 1, nullptr, keep));
  const Ref<Storage> a = Storage::adopt(memory_at(bytes.data(), bytes.size(), nullptr, keep));
  for (std::byte& byte : bytes) EXPECT_EQ(Storage::find(&byte, 1, Access::kRead).get(), a.get());
}

TEST(KnownMemory, FindsNoStorageThatDoesNotKeepItsMemoryOrDoesNotAllowTheAccess) {
  std::vector<std::byte> bytes(100);
  const Ref<Storage> unowned = Storage::adopt(memory_at(bytes.data(), 50));
  EXPECT_FALSE(Storage::find(bytes.data(), 50, Access::kRead));
  Memory memory = memory_at(bytes.data() + 50, 50, nullptr, keep);
  memory.is_readonly = true;
  const Ref<Storage> readonly = Storage::adopt(memory);
  EXPECT_FALSE(Storage::find(bytes.data() + 50, 50, Access::kWrite));
  EXPECT_EQ(Storage::find(bytes.data() + 50, 50, Access::kRead).get(), readonly.get());
}

// So many that they are found by an index. Oracle: the list of the parts that live.
TEST(KnownMemory, FindsPartsOfOneMemoryAmongMany) {
  constexpr size_t kAll = 4096, kMost = 300;
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(kAll);
  std::atomic<int> deaths{0};
  std::vector<Ref<Storage>> living;
  const auto random_part = [&] {
    const size_t begin = random() % kAll, most = random() % 20 == 0 ? 500 : 16;
    return std::pair(bytes.data() + begin, std::min(1 + random() % most, kAll - begin));
  };
  for (int round = 0; round < 4; ++round) {
    while (living.size() < kMost) {
      const auto [data, nbytes] = random_part();
      Memory memory = memory_at(data, nbytes, &deaths, count_death);
      memory.extent = bytes.data();
      memory.extent_nbytes = kAll;
      living.push_back(Storage::adopt(memory));
      const auto [wanted, n] = random_part();
      const bool is_there = std::any_of(living.begin(), living.end(), [&, at = wanted, n = n](const auto& s) {
        return s->can_lend(at, n, Access::kWrite);
      });
      const Ref<Storage> found = Storage::find(wanted, n, Access::kWrite);
      ASSERT_EQ(static_cast<bool>(found), is_there);
      ASSERT_TRUE(!found || found->can_lend(wanted, n, Access::kWrite));
      if (random() % 4 == 0) living.erase(living.begin() + static_cast<ptrdiff_t>(random() % living.size()));
    }
    if (round % 2 == 0) living.erase(living.begin() + 20, living.end());
    if (round == 1) living.clear();
  }
  living.clear();
  EXPECT_FALSE(Storage::find(bytes.data(), 1, Access::kRead));
}

TEST(KnownMemory, OverlappingImportsShareARegion) {
  std::vector<std::byte> bytes(100);
  const Ref<Storage> a = Storage::adopt(memory_at(bytes.data(), 50));
  const Ref<Storage> b = Storage::adopt(memory_at(bytes.data() + 40, 50));
  const Ref<Storage> c = Storage::adopt(memory_at(bytes.data() + 90, 10));
  EXPECT_EQ(&a->region(), &b->region());
  EXPECT_NE(&a->region(), &c->region());
}

TEST(KnownMemory, TheExtentDecidesAndNotTheBytes) {
  std::vector<std::byte> bytes(100);
  const Ref<Storage> a = Storage::adopt({bytes.data(), 10, bytes.data(), 100, false, nullptr, nullptr});
  const Ref<Storage> b = Storage::adopt({bytes.data() + 50, 10, bytes.data(), 100, false, nullptr, nullptr});
  EXPECT_EQ(&a->region(), &b->region());
  EXPECT_FALSE(Storage::find(bytes.data() + 20, 5, Access::kRead));
}

TEST(KnownMemory, ABridgeJoinsRegionsOfWhichOneIsInUse) {
  std::vector<std::byte> bytes(300);
  const Ref<Storage> left = Storage::adopt(memory_at(bytes.data(), 100));
  const Ref<Storage> right = Storage::adopt(memory_at(bytes.data() + 200, 100));
  Region* const viewed = &right->region();
  const HostView view(*right, Access::kRead);
  const Ref<Storage> bridge = Storage::adopt(memory_at(bytes.data() + 50, 200));
  EXPECT_EQ(&left->region(), viewed);
  EXPECT_EQ(&bridge->region(), viewed);
  EXPECT_EQ(left->region().views().readers, 1U);
}

TEST(KnownMemory, ABridgeBetweenRegionsInUseIsRefusedAndChangesNothing) {
  std::vector<std::byte> bytes(300);
  std::atomic<int> deaths{0};
  const Ref<Storage> left = Storage::adopt(memory_at(bytes.data(), 100));
  const Ref<Storage> right = Storage::adopt(memory_at(bytes.data() + 200, 100));
  Region* const a = &left->region();
  Region* const b = &right->region();
  const HostView reader(*left, Access::kRead);
  const HostView writer(*right, Access::kWrite);
  const tenon_statistics before = statistics();
  EXPECT_THROW((void)Storage::adopt(memory_at(bytes.data() + 50, 200, &deaths, count_death)), Error);
  EXPECT_EQ(deaths, 0);
  EXPECT_EQ(&left->region(), a);
  EXPECT_EQ(&right->region(), b);
  EXPECT_EQ(statistics().storages, before.storages);
  EXPECT_EQ(statistics().regions, before.regions);
}

TEST(KnownMemory, MemoryWithoutBytesHasNoPlaceInTheMapAfterABridge) {
  std::vector<std::byte> bytes(256);
  const auto at = [&](size_t begin, size_t nbytes) {
    return Storage::adopt(memory_at(bytes.data() + begin, nbytes, nullptr, keep));
  };
  for (int i = 0; i < 50; ++i) {  // a bridge leaves regions behind, which empty storages then use again
    const Ref<Storage> left = at(0, 64);
    const Ref<Storage> right = at(128, 64);
    const Ref<Storage> bridge = at(32, 128);
    std::vector<Ref<Storage>> empty;
    for (int k = 0; k < 3; ++k) empty.push_back(at(128, 0));
    empty.clear();
    const Ref<Storage> behind = at(200, 32);
    EXPECT_EQ(&bridge->region(), &left->region());
    EXPECT_NE(&bridge->region(), &behind->region());
    EXPECT_EQ(Storage::find(bytes.data() + 130, 8, Access::kRead).get() != nullptr, true);
    EXPECT_EQ(Storage::find(bytes.data() + 204, 8, Access::kRead).get(), behind.get());
  }
}

TEST(KnownMemory, MemoryIsUnknownBeforeItsDeleterRuns) {
  static std::byte bytes[32];
  static bool was_known = true;
  (void)Storage::adopt(memory_at(bytes, 32, nullptr, [](void*) {
    was_known = static_cast<bool>(Storage::find(bytes, 1, Access::kRead));
  }));
  EXPECT_FALSE(was_known);
}

// Oracle: a list of the living imports; two of them share a region if a chain of overlaps joins them
// while both live (regions may also stay joined longer, so only that direction is checked).
TEST(KnownMemory, RandomImportsAgreeWithAList) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(1000);
  struct Import {
    size_t begin, end;
    Ref<Storage> storage;
  };
  std::vector<Import> living;
  const tenon_statistics before = statistics();
  for (int step = 0; step < 5000; ++step) {
    if (living.size() < 20 && random() % 2 == 0) {
      const size_t begin = random() % 990;
      const size_t end = begin + 1 + random() % 40 % (1000 - begin);
      living.push_back(
          {begin, end, Storage::adopt(memory_at(bytes.data() + begin, end - begin, nullptr, keep))});
    } else if (!living.empty()) {
      living.erase(living.begin() + static_cast<std::ptrdiff_t>(random() % living.size()));
    }
    for (const Import& a : living) {
      for (const Import& b : living) {
        const bool overlaps = a.begin < b.end && b.begin < a.end;
        ASSERT_TRUE(!overlaps || &a.storage->region() == &b.storage->region());
      }
    }
    const size_t probe = random() % 1000;
    const bool expected =
        std::ranges::any_of(living, [&](const Import& i) { return i.begin <= probe && probe < i.end; });
    ASSERT_EQ(static_cast<bool>(Storage::find(bytes.data() + probe, 1, Access::kRead)), expected);
    ASSERT_EQ(statistics().storages, before.storages + living.size());
  }
  living.clear();
  EXPECT_EQ(statistics().storages, before.storages);
  EXPECT_EQ(statistics().regions, before.regions);
}

// Oracle: every deleter runs once; the sanitizers watch the control blocks.
TEST(KnownMemory, ImportsAndReleasesFromManyThreads) {
  std::vector<std::byte> bytes(4096);
  std::atomic<int> made{0};
  std::atomic<int> deaths{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<Ref<Storage>> living(8);
      for (int i = 0; i < 3000; ++i) {
        const size_t at = random() % 4000;
        try {
          Ref<Storage> s =
              Storage::adopt(memory_at(bytes.data() + at, 1 + random() % 90, &deaths, count_death));
          ++made;
          const HostView view(*s, Access::kWrite);
          const Ref<Storage> same = Storage::find(bytes.data() + at, 1, Access::kRead);
          EXPECT_TRUE(same && same->can_lend(bytes.data() + at, 1, Access::kRead));
          living[random() % 8] = std::move(s);
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), Code::kLeaseConflict);  // bridged two regions in use
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, deaths);
  EXPECT_EQ(statistics().views, 0U);
}

TEST(Region, VersionMovesWithWritesAndWhileAWriterIsOpen) {
  const Ref<Storage> s = Storage::allocate(8, false);
  const uint64_t first = s->region().version();
  EXPECT_EQ(s->region().version(), first);
  HostView writer(*s, Access::kWrite);
  const uint64_t open = s->region().version();
  EXPECT_NE(open, first);
  EXPECT_NE(s->region().version(), open);
  writer.close();
  const uint64_t closed = s->region().version();
  EXPECT_EQ(s->region().version(), closed);
  const HostView reader(*s, Access::kRead);
  EXPECT_EQ(s->region().version(), closed);
}

}  // namespace
}  // namespace tenon::impl
