// SPDX-License-Identifier: Apache-2.0
//
// The memory of slots out of one budget. Oracle: the kernel says how many bytes the file has, and the words
// how many each slot reserves.
#include "ipc/slot_memory.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <new>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/repeats_testing.h"

namespace tenon::impl {
namespace {

constexpr uint32_t kSlots = 3;
constexpr uint32_t kA = 1, kB = 2;  // places

// The file and the words, which forked children share.
struct Shared {
  struct Words {
    SlotCounters counters{};
    std::array<SlotState, kSlots> slots{};
    std::array<SlotEntry, kSlots> entries{};
    std::array<SlotMemory, kSlots> memories{};
  };

  explicit Shared(uint64_t budget_pages, uint64_t capacity = 5 * os::page_nbytes())
      : file(os::create_memory("tenon-test", kSlots * capacity, false)) {
    void* const words_at =
        mmap(nullptr, sizeof(Words), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(words_at, MAP_FAILED);
    words = new (words_at) Words;
    data = os::map(file, 0, kSlots * capacity, true, os::page_nbytes());
    table = {words->counters, words->slots, words->entries};
    memories = {file, {0, data, capacity, budget_pages * os::page_nbytes()}, words->memories, table};
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() {
    os::unmap(data, kSlots * memories.capacity_nbytes());
    munmap(words, sizeof(Words));
  }

  uint64_t pages() const {
    os::FileFacts facts;
    EXPECT_TRUE(os::facts_of(file, &facts));
    return facts.committed_nbytes / os::page_nbytes();
  }
  uint64_t reserved_pages() const {
    uint64_t n = 0;
    for (uint32_t i = 0; i < kSlots; ++i) n += memories.reserved(i);
    return n / os::page_nbytes();
  }
  bool grow(uint32_t slot, uint64_t pages) const { return memories.grow(slot, pages * os::page_nbytes()); }
  // What a producer does that takes the slot; where there is no room, it takes the pages of free slots.
  bool lend(uint32_t p, uint32_t slot, uint64_t pages) const {
    if (!table.take_free(p, slot)) return false;
    bool is_done = grow(slot, pages);
    for (uint32_t i = 0; i < kSlots && !is_done; ++i) {
      if (i == slot || memories.reserved(i) == 0 || !table.take_free(p, i)) continue;
      EXPECT_TRUE(memories.shrink(i, 0));
      table.release(i);
      is_done = grow(slot, pages);
    }
    if (!is_done) table.release(slot);
    return is_done;
  }
  // After the end of each process, all of the budget can be used.
  void expect_all_can_be_used() const {
    EXPECT_LE(pages(), memories.budget_nbytes() / os::page_nbytes());
    ASSERT_TRUE(lend(kA, 0, memories.budget_nbytes() / os::page_nbytes()));
    EXPECT_EQ(pages(), memories.budget_nbytes() / os::page_nbytes());
    EXPECT_EQ(reserved_pages(), pages());
    table.release(0);
  }

  os::File file;
  Words* words = nullptr;
  std::byte* data = nullptr;
  SlotTable table;
  SlotMemories memories;
};

TEST(SlotMemory, AGrownSlotHasItsPagesAndTheOthersHaveNone) {
  const Shared shared(6);
  EXPECT_EQ(shared.pages(), 0U);
  ASSERT_TRUE(shared.grow(1, 2));
  EXPECT_EQ(shared.pages(), 2U);
  EXPECT_EQ(shared.memories.committed(1), 2 * os::page_nbytes());
  EXPECT_TRUE(shared.grow(1, 1)) << "it has more";
  EXPECT_EQ(shared.pages(), 2U);
  EXPECT_TRUE(shared.memories.shrink(1, 0));
  EXPECT_EQ(shared.pages() + shared.reserved_pages(), 0U);
}

TEST(SlotMemory, NoSlotGrowsBeyondItsCapacityOrTheBudget) {
  const Shared shared(5, 4 * os::page_nbytes());
  EXPECT_FALSE(shared.grow(0, 5)) << "a slot has four pages";
  ASSERT_TRUE(shared.grow(0, 3));
  EXPECT_FALSE(shared.grow(1, 3));
  EXPECT_EQ(shared.reserved_pages(), 3U) << "a growth that was refused reserves nothing";
  EXPECT_TRUE(shared.grow(1, 2));
  EXPECT_TRUE(shared.memories.shrink(0, 0));
  EXPECT_TRUE(shared.grow(2, 3));
  EXPECT_EQ(shared.pages(), 5U);
}

TEST(SlotMemory, ASlotIsShrunkToItsFirstPages) {
  const Shared shared(5);
  ASSERT_TRUE(shared.grow(1, 5));
  shared.data[5 * os::page_nbytes()] = std::byte{1};
  EXPECT_TRUE(shared.memories.shrink(1, 2 * os::page_nbytes()));
  EXPECT_EQ(shared.pages(), 2U);
  EXPECT_EQ(shared.reserved_pages(), 2U);
  EXPECT_EQ(shared.data[5 * os::page_nbytes()], std::byte{1});
  EXPECT_TRUE(shared.memories.shrink(1, 3 * os::page_nbytes())) << "it has less";
  EXPECT_EQ(shared.pages(), 2U);
}

TEST(SlotMemory, SlotsThatShareAPageKeepTheirBytes) {
  const Shared shared(12, 256);
  ASSERT_TRUE(shared.memories.grow(0, 256));
  shared.data[255] = std::byte{1};
  ASSERT_TRUE(shared.memories.grow(1, 256));
  EXPECT_EQ(shared.data[255], std::byte{1});
  EXPECT_EQ(shared.pages(), 1U);
}

TEST(SlotMemory, ASlotWithoutMemoryStaysAsItWas) {
  Shared shared(5);
  ASSERT_TRUE(shared.grow(0, 1));
  shared.file = os::File();
  EXPECT_THROW((void)shared.grow(0, 3), Error);
  EXPECT_EQ(shared.memories.reserved(0), os::page_nbytes());
  EXPECT_EQ(shared.memories.committed(0), os::page_nbytes());
}

TEST(SlotMemory, ASlotGetsItsMemoryAlsoIfOtherCodeHasClosedTheDescriptor) {
  Shared shared(5, 5 * os::page_nbytes() / 2);
  const int other = dup(shared.file.fd());
  shared.file = std::move(shared.file).keep();
  close(shared.file.fd());
  ASSERT_TRUE(shared.file.is_lost());
  ASSERT_TRUE(shared.memories.grow(1, os::page_nbytes()));
  os::FileFacts facts;
  EXPECT_TRUE(os::facts_of(os::File(other), &facts));
  EXPECT_EQ(facts.committed_nbytes, 2 * os::page_nbytes()) << "it begins in the middle of a page";
}

// A killed process may have taken pages that it did not note. A growth in vain must not give up their bytes.
TEST(SlotMemory, AGrowthInVainKeepsWhatTheSlotHadReserved) {
  const Shared shared(3);
  ASSERT_TRUE(shared.grow(0, 2));
  shared.words->memories[0].committed = 0;  // as if its process had been killed
  ASSERT_TRUE(shared.grow(1, 1));
  EXPECT_FALSE(shared.grow(0, 3));
  EXPECT_EQ(shared.memories.reserved(0), 2 * os::page_nbytes());
  EXPECT_TRUE(shared.grow(0, 2));
}

// Oracle: at each moment at most the budget is there, and each thread has the pages of its slot.
TEST(SlotMemory, ThreadsThatGrowAtOnceKeepTheBudget) {
  const Shared shared(5);
  const int n = repeats(20'000, 2000);
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (uint32_t p = kA; p <= kB; ++p) {
    threads.emplace_back([&, p] {
      std::mt19937 random(p);
      ++ready;
      while (ready.load() != 2) std::this_thread::yield();
      for (int i = 0; i < n; ++i) {
        const uint32_t slot = static_cast<uint32_t>(random() % kSlots);
        const uint64_t pages = 1 + random() % 4;
        if (!shared.lend(p, slot, pages)) continue;
        EXPECT_LE(shared.pages(), 5U);
        std::memset(shared.data + slot * shared.memories.capacity_nbytes(), 1, pages * os::page_nbytes());
        shared.table.release(slot);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  shared.expect_all_can_be_used();
}

// A child that grows slot 1, and takes the pages of slot 2 for that, is stopped before each of its stores in
// turn. Slot 1 is one that a killed process has left: it has pages that it did not note.
struct StoppedGrowth {
  explicit StoppedGrowth(long at) {
    EXPECT_TRUE(shared.grow(1, 2));
    shared.words->memories[1].committed = 0;
    EXPECT_TRUE(shared.grow(2, 2));
    child = fork();
    if (child == 0) {
      (void)stop_at_store(at);
      const bool is_full = !shared.lend(kB, 1, 4);
      const bool is_kept = shared.pages() <= 5 && (is_full || shared.memories.shrink(1, 0));
      (void)stop_at_store(0);
      _exit(is_kept ? 0 : 1);
    }
    EXPECT_EQ(waitpid(child, &status, WUNTRACED), child);
    has_stopped = WIFSTOPPED(status);
    EXPECT_TRUE(has_stopped || at > 8) << "as many stores as a growth and a shrink of another slot have";
    expect_budget();
  }
  void expect_budget() const {
    EXPECT_LE(shared.pages(), 5U);
    EXPECT_LE(shared.pages(), shared.reserved_pages());
  }
  // Another process uses the rest of the budget.
  bool take_rest() const {
    const uint64_t left = 5 - std::min<uint64_t>(shared.reserved_pages(), 5);
    const bool is_done = left == 0 || shared.lend(kA, 0, left);
    expect_budget();
    return is_done;
  }

  const Shared shared{5};
  pid_t child = -1;
  int status = 0;
  bool has_stopped = false;
};

TEST(SlotMemory, AProcessThatStopsOrDiesAtAnyStoreBlocksItsOwnBytesAlone) {
  for (long at = 1;; ++at) {
    SCOPED_TRACE(at);
    StoppedGrowth stopped(at);
    if (!stopped.has_stopped) break;
    EXPECT_TRUE(stopped.take_rest());
    kill(stopped.child, SIGKILL);
    ASSERT_EQ(waitpid(stopped.child, &stopped.status, 0), stopped.child);
    stopped.shared.table.release(0);
    (void)stopped.shared.table.reclaim(kB);
    stopped.shared.expect_all_can_be_used();
  }
}

TEST(SlotMemory, AProcessThatGoesOnAfterAnyStoreKeepsTheBudget) {
  for (long at = 1;; ++at) {
    SCOPED_TRACE(at);
    StoppedGrowth stopped(at);
    if (!stopped.has_stopped) break;
    EXPECT_TRUE(stopped.take_rest());
    kill(stopped.child, SIGCONT);
    ASSERT_EQ(waitpid(stopped.child, &stopped.status, 0), stopped.child);
    EXPECT_TRUE(WIFEXITED(stopped.status) && WEXITSTATUS(stopped.status) == 0) << "more than the budget";
    stopped.expect_budget();
    stopped.shared.table.release(0);
    (void)stopped.shared.table.reclaim(kB);
    stopped.shared.expect_all_can_be_used();
  }
}

}  // namespace
}  // namespace tenon::impl
