// SPDX-License-Identifier: Apache-2.0
#include "base/event.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

namespace tenon::impl {
namespace {

constexpr int64_t kLong = 600 * kSecond;

// Two words for the conditions of sleepers, and an event beside them.
struct Board {
  Event event;
  std::atomic<uint32_t> word, other;
};

// Mapped by this process and its forked children.
class SharedBoard {
 public:
  SharedBoard()
      : board_(static_cast<Board*>(
            mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~SharedBoard() { munmap(board_, sizeof(Board)); }
  SharedBoard(const SharedBoard&) = delete;
  SharedBoard& operator=(const SharedBoard&) = delete;

  Board* operator->() const noexcept { return board_; }

 private:
  Board* const board_;
};

pid_t fork_and(const std::function<void()>& work) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  work();
  _exit(0);
}

uint32_t count_of(const Event& event) { return static_cast<uint32_t>(event.sleepers.load()); }

void await_sleepers(const Event& event, uint32_t count) {
  while (count_of(event) != count) std::this_thread::yield();
}

TEST(Event, ASignalWakesAThreadThatSleeps) {
  Board board{};
  std::thread sleeper([&] { board.event.sleep(Deadline(-1), [&] { return board.word.load() != 0; }); });
  await_sleepers(board.event, 1);
  board.word.store(1);
  board.event.signal_one();
  sleeper.join();
  EXPECT_FALSE(board.event.has_sleepers());
}

TEST(Event, ASleepEndsWithItsTime) {
  Board board{};
  EXPECT_FALSE(board.event.sleep(Deadline(1'000'000), [] { return false; }));
  EXPECT_FALSE(board.event.has_sleepers());
}

TEST(Event, WithoutSleepersASignalStoresNothing) {
  Board board{};
  board.event.signal_all();
  board.event.signal_one();
  EXPECT_EQ(board.event.signals.load(), 0U);
}

TEST(Event, AProcessWakesAnother) {
  const SharedBoard board;
  const pid_t child = fork_and([&] {
    await_sleepers(board->event, 1);
    board->word.store(1);
    board->event.signal_all();
  });
  const int64_t start = now_ns();
  EXPECT_TRUE(board->event.sleep(Deadline(kLong), [&] { return board->word.load() != 0; }));
  EXPECT_LT(now_ns() - start, kLong);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_GE(board->event.signals.load(), 1U) << "it has seen no sleeper";
  EXPECT_FALSE(board->event.has_sleepers());
}

// A process that is stopped between its change and its signal delays others, and does not stop them.
TEST(Event, WithoutASignalAThreadOfASharedEventLooksFromTimeToTime) {
  const SharedBoard board;
  std::thread sleeper([&] { board->event.sleep(Deadline(-1), [&] { return board->word.load() != 0; }); });
  await_sleepers(board->event, 1);
  board->word.store(1);
  sleeper.join();
  EXPECT_EQ(board->event.signals.load(), 0U);
}

TEST(Event, ADeadSleeperThatIsForgottenCostsNoSignal) {
  const SharedBoard board;
  const pid_t child =
      fork_and([&] { board->event.sleep(Deadline(-1), [&] { return board->word.load() != 0; }); });
  await_sleepers(board->event, 1);
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(board->event.has_sleepers()) << "nobody has told of its end";
  board->event.forget();
  EXPECT_FALSE(board->event.has_sleepers());
  const uint32_t before = board->event.signals.load();
  board->event.signal_all();
  EXPECT_EQ(board->event.signals.load(), before) << "a signal that moves makes a system call";
}

TEST(Event, ALivingSleeperThatIsForgottenAnnouncesItselfAgain) {
  Board board{};
  std::thread sleeper([&] { board.event.sleep(Deadline(-1), [&] { return board.word.load() != 0; }); });
  for (int times = 0; times < 100; ++times) {
    await_sleepers(board.event, 1);
    board.event.forget();
  }
  await_sleepers(board.event, 1);
  board.word.store(1);
  board.event.signal_all();
  sleeper.join();
  EXPECT_EQ(count_of(board.event), 0U) << "it counts in the last generation only";
}

// Between its last look and its count, the generation changes: it takes off nobody else's count.
TEST(Event, ASleeperThatWakesTakesOffNoCountOfALaterGeneration) {
  Board board{};
  std::thread stays;
  board.event.sleep(Deadline(-1), [&] {
    board.event.forget();
    stays = std::thread([&] { board.event.sleep(Deadline(-1), [&] { return board.word.load() != 0; }); });
    await_sleepers(board.event, 1);
    return true;
  });
  EXPECT_EQ(count_of(board.event), 1U);
  board.word.store(1);
  board.event.signal_all();
  stays.join();
  EXPECT_EQ(count_of(board.event), 0U);
}

TEST(Event, NoChangeIsLostWhileSleepersAreForgotten) {
  Board board{};
  std::atomic<bool> is_over{false};
  std::thread forgets([&] {
    while (!is_over.load()) board.event.forget();
  });
  constexpr uint32_t kTimes = 2'000;
  const auto play = [&](std::atomic<uint32_t>& own, std::atomic<uint32_t>& theirs, uint32_t ahead) {
    for (uint32_t n = 1; n <= kTimes; ++n) {
      board.event.sleep(Deadline(-1), [&] { return theirs.load() + ahead >= n; });
      own.store(n);
      board.event.signal_all();
    }
  };
  std::thread second([&] { play(board.other, board.word, 0); });
  play(board.word, board.other, 1);
  second.join();
  is_over.store(true);
  forgets.join();
  EXPECT_EQ(board.other.load(), kTimes);
  EXPECT_EQ(count_of(board.event), 0U);
}

}  // namespace
}  // namespace tenon::impl
