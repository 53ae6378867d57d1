// SPDX-License-Identifier: Apache-2.0
//
// Walks and forks work on the queues in use, however many others there are. The tests count queues, not time.
#include "sync/queue_lock.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <random>
#include <thread>
#include <vector>

#include "exec/cells_testing.h"
#include "memory/known_memory.h"

namespace tenon::impl {
namespace {

size_t visited() {
  size_t n = 0;
  ListedQueues::visit([&n](const Queue&) { ++n; });
  return n;
}

void use(Cell& cell) {
  Conflict conflict;
  CellLease lease(write(cell));
  ASSERT_TRUE(lease.acquire(&conflict));
}

class QueueLocks : public OnPool {
 protected:
  // Other tests may have left the queue of ops without memory in the list.
  void SetUp() override {
    OnPool::SetUp();
    (void)KnownMemory::instance();  // it registers the handlers of forks
    ASSERT_EQ(visited(), 0U);
    ASSERT_EQ(ListedQueues::count(), 0U);
  }
};

TEST_F(QueueLocks, AQueueIsListedFromItsFirstLockUntilAWalkFindsItUnused) {
  Cell other;
  EXPECT_EQ(ListedQueues::count(), 0U);
  for (int i = 0; i < 3; ++i) {
    use(cell);
    EXPECT_EQ(ListedQueues::count(), 1U);
  }
  use(other);
  EXPECT_EQ(ListedQueues::count(), 2U);
  CellLease lease(write(other));
  ASSERT_TRUE(lease.acquire(&conflict));
  EXPECT_EQ(visited(), 1U);
  EXPECT_EQ(ListedQueues::count(), 1U);
  use(cell);
  EXPECT_EQ(ListedQueues::count(), 2U);
}

TEST_F(QueueLocks, ADestroyedQueueIsNotListed) {
  {
    Cell first, second, third;
    use(first);
    use(second);
    use(third);
    use(cell);
    EXPECT_EQ(ListedQueues::count(), 4U);
  }
  EXPECT_EQ(ListedQueues::count(), 1U);
  Cell last;
  use(last);
  EXPECT_EQ(ListedQueues::count(), 2U);
}

TEST_F(QueueLocks, WalksFindLeasesWaitingOpsAndViewsThatOutliveTheirLease) {
  Cell leased, waiting, viewed, seen;
  CellLease lease(write(leased));
  ASSERT_TRUE(lease.acquire(&conflict));
  const Ref<Op> op = push({read(leased), write(waiting)}, [] {});
  Sight bound(write(viewed)), ordinary(read(seen));
  {
    CellLease short_lease(write(viewed));
    ASSERT_TRUE(short_lease.acquire(&conflict) && bound.open(&conflict));
  }
  ASSERT_TRUE(ordinary.open(&conflict));  // nothing in a fork or a wait depends on it
  EXPECT_EQ(visited(), 3U);
  bound.close();
  EXPECT_EQ(visited(), 2U);
  lease.release();
  wait(op);
  wait_all();
  EXPECT_EQ(visited(), 0U);
}

// A walk over all arrays would visit each of them, and a fork would lock each.
TEST_F(QueueLocks, WalksAndForksPassOverTheQueuesThatAreNotInUse) {
  std::vector<Cell> cells(20'000);
  for (Cell& each : cells) use(each);
  CellLease lease(write(cells[9])), another(write(cells[5]));
  ASSERT_TRUE(lease.acquire(&conflict) && another.acquire(&conflict));
  EXPECT_EQ(visited(), 2U);
  EXPECT_EQ(ListedQueues::count(), 2U);
  for (Cell& each : cells) {
    const std::scoped_lock lock(each.queue.lock);
  }
  ListedQueues::lock_for_fork();
  std::vector<const Queue*> locked;
  ListedQueues::visit_locked([&locked](const Queue& queue) { locked.push_back(&queue); });
  ListedQueues::unlock_after_fork();
  EXPECT_EQ(locked, (std::vector<const Queue*>{&cells[5].queue, &cells[9].queue}));
  EXPECT_EQ(ListedQueues::count(), 2U);
}

TEST_F(QueueLocks, TheListStaysShortHoweverManyQueuesWereUsed) {
  std::vector<Cell> cells(2 * ListedQueues::kMany);
  CellLease lease(write(cells[0]));
  ASSERT_TRUE(lease.acquire(&conflict));
  for (size_t i = 1; i < cells.size(); ++i) {
    use(cells[i]);
    ASSERT_LE(ListedQueues::count(), ListedQueues::kMany + 1);
  }
  constexpr size_t kAtOnce = 8;
  for (size_t i = 1; i + kAtOnce <= cells.size(); i += kAtOnce) {
    const auto lock_at = [&](size_t k) { return &cells[i + k].queue.lock; };
    lock_together(kAtOnce, lock_at);
    for (size_t k = 0; k < kAtOnce; ++k) lock_at(k)->unlock();
    ASSERT_LE(ListedQueues::count(), ListedQueues::kMany + kAtOnce);
  }
  EXPECT_EQ(visited(), 1U) << "the lease is still found";
}

// Oracle: the two halves of a value are equal outside of sections. Other threads walk over the list, and so
// unlist queues between the sections; forks find each value whole, and their children can lock each queue.
TEST_F(QueueLocks, ForksFindEachQueueOutsideOfItsSections) {
  constexpr size_t kQueues = 12;
  struct Halves {
    Cell cell;
    uint64_t one = 0, two = 0;
  };
  std::vector<Halves> all(kQueues);
  std::atomic<bool> is_over{false};
  std::atomic<uint64_t> sections{0};
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 3; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      while (!is_over) {
        std::vector<size_t> chosen(1 + random() % 3);
        for (size_t& i : chosen) i = random() % kQueues;
        std::sort(chosen.begin(), chosen.end());
        const auto lock_at = [&](size_t k) -> QueueLock* {
          return k == 0 || chosen[k] != chosen[k - 1] ? &all[chosen[k]].cell.queue.lock : nullptr;
        };
        lock_together(chosen.size(), lock_at);
        for (const size_t i : chosen) ++all[i].one;
        for (const size_t i : chosen) ++all[i].two;
        for (size_t k = 0; k < chosen.size(); ++k) {
          if (lock_at(k) != nullptr) lock_at(k)->unlock();
        }
        ++sections;
      }
    });
  }
  threads.emplace_back([&] {
    while (!is_over) {
      EXPECT_EQ(visited(), 0U);
      std::this_thread::yield();
    }
  });
  for (int round = 0; round < 40; ++round) {
    while (sections < static_cast<uint64_t>(round) * 20) std::this_thread::yield();
    const pid_t pid = fork();
    if (pid == 0) {
      alarm(600);
      bool is_whole = true;
      for (Halves& each : all) {
        const std::scoped_lock lock(each.cell.queue.lock);
        is_whole &= each.one == each.two;
      }
      _exit(is_whole && visited() == 0 ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
  is_over = true;
  for (std::thread& thread : threads) thread.join();
  for (const Halves& each : all) EXPECT_EQ(each.one, each.two);
}

}  // namespace
}  // namespace tenon::impl
