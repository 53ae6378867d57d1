// SPDX-License-Identifier: Apache-2.0
#include "data/slots.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/denied_testing.h"
#include "base/error.h"
#include "base/os.h"

namespace tenon::impl {
namespace {

const auto kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));

TEST(Slots, EachSlotIsTakenOnceAndLiesOnItsOwnPages) {
  const Ref<Slots> slots = Slots::create({5, 3 * kPage});
  std::set<int32_t> taken;
  for (int i = 0; i < 5; ++i) taken.insert(slots->take());
  EXPECT_EQ(taken, (std::set<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(slots->try_take(), Slots::kNone);
  for (const int32_t slot : taken) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(slots->data(slot)) % kPage, 0u);
    std::memset(slots->data(slot), slot, slots->slot_nbytes());
  }
  for (const int32_t slot : taken) EXPECT_EQ(slots->data(slot)[3 * kPage - 1], std::byte(slot));
}

// Else a sanitizer of threads cannot know that two of its threads order their accesses by the same word.
TEST(Slots, OfAServedFeedTheProcessOfTheFeedSeesEachWordAtOneAddress) {
  SlotsPlan plan{3, kPage};
  plan.is_shared = true;
  plan.shared_name = concat("slots-", getpid());
  const Ref<Slots> slots = Slots::create(plan);
  ASSERT_NE(slots->served(), nullptr);
  EXPECT_EQ(slots->control().served(), slots->served());
  // The slots are where processes that map the file look for them.
  const FeedHead& head = slots->control().head();
  EXPECT_EQ(slots->file_at(), head.file_at + head.slots_at);
  std::memset(slots->data(1), 7, kPage);
  std::byte last{};
  ASSERT_TRUE(os::read_at(slots->file(), head.file_at + head.slots_at + 2 * kPage - 1, &last, 1));
  EXPECT_EQ(last, std::byte{7});
}

TEST(Slots, TheLastFreedIsTakenFirst) {
  const Ref<Slots> slots = Slots::create({3, kPage});
  for (int i = 0; i < 3; ++i) slots->take();
  for (const int32_t slot : {1, 0, 2}) slots->give(slot);
  EXPECT_EQ(slots->take(), 2);
  EXPECT_EQ(slots->take(), 0);
  EXPECT_EQ(slots->take(), 1);
}

TEST(Slots, ALoanKeepsTheMemoryAfterItsFeed) {
  Ref<Slots> slots = Slots::create({2, kPage});
  const int32_t slot = slots->take();
  std::byte* const data = slots->data(slot);
  void* const loan = slots->lend(slot);
  EXPECT_EQ(slots->lent(), 1);
  slots = {};
  std::memset(data, 7, kPage);
  EXPECT_EQ(data[kPage - 1], std::byte{7});
  Slots::end_loan(loan);
}

TEST(Slots, AnEndedLoanIsFreeAgain) {
  const Ref<Slots> slots = Slots::create({1, kPage});
  for (int i = 0; i < 3; ++i) {
    void* const loan = slots->lend(slots->take());
    EXPECT_EQ(slots->try_take(), Slots::kNone);
    Slots::end_loan(loan);
    EXPECT_EQ(slots->lent(), 0);
  }
}

TEST(Slots, WakeEndsEveryWait) {
  const Ref<Slots> slots = Slots::create({1, kPage});
  slots->take();
  std::vector<std::thread> waiting;
  for (int i = 0; i < 3; ++i) waiting.emplace_back([&] { EXPECT_EQ(slots->take(), Slots::kOver); });
  slots->wake();
  for (std::thread& thread : waiting) thread.join();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(slots->try_take(), Slots::kOver);
}

TEST(Slots, ASpareSlotAndOneThatIsNotMadeYetAreNotFree) {
  SlotsPlan plan{1, kPage};
  plan.most = 2;
  plan.spares = 1;
  const Ref<Slots> slots = Slots::create(plan);
  const int32_t first = slots->take();
  EXPECT_EQ(slots->try_take(), Slots::kNone);
  const int32_t spare = slots->take_spare();
  EXPECT_NE(spare, first);
  slots->give_spare(spare);
  EXPECT_EQ(slots->try_take(), Slots::kNone);
  EXPECT_FALSE(slots->has_free());
  std::thread waiting([&] { EXPECT_GE(slots->take(), 0); });
  ASSERT_TRUE(slots->grow());
  waiting.join();
  EXPECT_EQ(slots->try_take(), Slots::kNone);
}

TEST(Slots, MoreSlotsThanAFeedMayHaveAreAnError) {
  for (const int32_t count : {0, 32768}) {
    try {
      Slots::create({count, kPage});
      ADD_FAILURE() << "created " << count << " slots";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kValue);
    }
  }
  SlotsPlan plan{20'000, kPage};
  plan.most = 16 * plan.count;
  plan.is_sparse = true;
  EXPECT_EQ(Slots::create(plan)->most(), 32767);
}

TEST(Slots, MoreMemoryThanThereIsIsAnError) {
  for (const size_t slot_nbytes : {size_t{1} << 45, size_t{1} << 62}) {
    try {
      Slots::create({1000, slot_nbytes});
      ADD_FAILURE() << "created 1000 slots of " << slot_nbytes << " bytes";
    } catch (const Error& e) {
      EXPECT_TRUE(e.code() == Code::kNoMemory || e.code() == Code::kValue);
      EXPECT_NE(std::string(e.what()).find(std::to_string(slot_nbytes)), std::string::npos) << e.what();
    }
  }
}

TEST(Slots, MemoryThatOtherSlotsHaveNotTakenYetIsNotPromisedAgain) {
  const auto make = [](size_t slot_nbytes) {
    try {
      return Slots::create({1, slot_nbytes});
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kNoMemory);
      return Ref<Slots>();
    }
  };
  size_t nbytes = kPage;
  while (make(2 * nbytes)) nbytes *= 2;
  for (const size_t more : {nbytes / 2, nbytes / 4}) nbytes += make(nbytes + more) ? more : 0;
  const Ref<Slots> first = make(nbytes);
  ASSERT_TRUE(first);
  EXPECT_FALSE(make(nbytes)) << "together much more than there is";
}

TEST(Slots, ASlotTakesItsMemoryWhenItIsFirstUsed) {
  for (const bool is_shared : {false, true}) {
    constexpr size_t kPages = 3;
    SlotsPlan plan{4, kPages * kPage};
    plan.is_shared = is_shared;
    const Ref<Slots> slots = Slots::create(plan);
    const auto resident = [&](int32_t slot) {
      unsigned char pages[kPages] = {};
      EXPECT_EQ(mincore(slots->data(slot), sizeof pages * kPage, pages), 0);
      return std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; });
    };
    for (int32_t slot = 0; slot < 4; ++slot) EXPECT_EQ(resident(slot), 0) << slot;
    const int32_t taken = slots->take();
    slots->take_memory(taken);
    for (int32_t slot = 0; slot < 4; ++slot) EXPECT_EQ(resident(slot), slot == taken ? 3 : 0) << slot;
    slots->data(taken)[0] = std::byte{7};
    slots->give(taken);
    EXPECT_EQ(slots->take(), taken);
    slots->take_memory(taken);  // its content stays
    EXPECT_EQ(slots->data(taken)[0], std::byte{7});
  }
}

// Slots that worker processes fill.
SlotsPlan plan_with_control(int32_t count, size_t slot_nbytes) {
  SlotsPlan plan{count, slot_nbytes};
  plan.is_shared = true;
  plan.has_processes = true;
  return plan;
}

TEST(Slots, MemoryIsTakenAheadOfItsUseOnce) {
  const Ref<Slots> slots = Slots::create(plan_with_control(2, 3 * kPage));
  const auto pages = [&] {
    struct stat status{};
    EXPECT_EQ(fstat(slots->file().fd(), &status), 0);
    return static_cast<size_t>(status.st_blocks) * 512 / kPage;
  };
  const size_t control = slots->control().head().parts.nbytes / kPage;
  EXPECT_EQ(pages(), control);
  slots->try_take_memory(0);
  EXPECT_EQ(pages(), control + 3);
  EXPECT_EXIT(
      {
        deny(SYS_fallocate, ENOSPC);
        slots->take_memory(0);
        _exit(0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(Slots, ALargeSlotIsNotTakenAhead) {
  const Ref<Slots> slots = Slots::create(plan_with_control(1, size_t{65} << 20));
  slots->try_take_memory(0);
  struct stat status{};
  ASSERT_EQ(fstat(slots->file().fd(), &status), 0);
  EXPECT_EQ(static_cast<size_t>(status.st_blocks) * 512, slots->control().head().parts.nbytes);
}

TEST(Slots, MemoryThatCouldNotBeTakenAheadIsTakenAgain) {
  const Ref<Slots> slots = Slots::create(plan_with_control(1, kPage));
  const auto in_child = [&] {
    deny(SYS_fallocate, ENOSPC);
    slots->try_take_memory(0);
    try {
      slots->take_memory(0);
    } catch (const Error& e) {
      std::fputs(e.what(), stderr);
      _exit(1);
    }
    _exit(0);
  };
  EXPECT_EXIT(in_child(), testing::ExitedWithCode(1), "there is no memory for 1 slot of 4096 bytes");
}

// Oracle: a flag for each slot, set by exchange when it is taken and cleared before it is given, finds
// every slot that two threads have at a time.
TEST(Slots, NoTwoThreadsEverHaveOneSlot) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 100'000;
  const Ref<Slots> slots = Slots::create({3, kPage});
  std::atomic<bool> owned[3]{};
  std::atomic<int> clashes{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        const int32_t slot = (i + t) % 2 == 0 ? slots->take() : slots->try_take();
        if (slot < 0) continue;
        if (owned[slot].exchange(true, std::memory_order_relaxed)) ++clashes;
        slots->data(slot)[0] = std::byte(t);  // a race for ThreadSanitizer if the orders were wrong
        owned[slot].store(false, std::memory_order_relaxed);
        if (i % 3 == 0) {
          Slots::end_loan(slots->lend(slot));
        } else {
          slots->give(slot);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(clashes, 0);
  std::set<int32_t> all;
  for (int i = 0; i < 3; ++i) all.insert(slots->take());
  EXPECT_EQ(all.size(), 3u);
}

TEST(Slots, AForkedChildFreesNoSlotOfItsParent) {
  const Ref<Slots> slots = Slots::create(plan_with_control(1, kPage));
  const int32_t slot = slots->take();
  void* const loan = slots->lend(slot);
  const pid_t child = fork();
  if (child == 0) {
    Slots::end_loan(loan);
    _exit(slots->lent() == 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(slots->has_free());
  EXPECT_EQ(slots->lent(), 1);
  Slots::end_loan(loan);
  EXPECT_TRUE(slots->has_free());
}

}  // namespace
}  // namespace tenon::impl
