// SPDX-License-Identifier: Apache-2.0
//
// Executors, and the futex that the pool sleeps on. Concurrent tests count: each task notes how often it has
// run, in memory of its own, so that a second run at the same time is a data race as well as a wrong number.
// What should happen is waited for without a limit; a hang is ended by the runner's.
#include "exec/executor.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/error_testing.h"
#include "base/foreign_call.h"
#include "base/futex.h"
#include "base/repeats_testing.h"
#include "base/spin_lock.h"
#include "exec/thread_pool.h"

namespace tenon::impl {
namespace {

using std::chrono::steady_clock;

template <class Condition>
void wait_until(Condition holds) {
  while (!holds()) sched_yield();
}

struct FunctionTask final : Task {
  FunctionTask() = default;
  explicit FunctionTask(std::function<void()> f, Task* then = nullptr) : body(std::move(f)), next(then) {}
  Task* run() noexcept override {
    body();
    return next;
  }
  std::function<void()> body;
  Task* next = nullptr;
};

// Counts its runs. Not touched after total has moved.
struct CountingTask final : Task {
  Task* run() noexcept override {
    ++runs;
    total->fetch_add(1, std::memory_order_release);
    return nullptr;
  }
  int runs = 0;
  std::atomic<int>* total = nullptr;
};

// Stops an executor where the test ends.
struct Running {
  explicit Running(const std::string& name, int workers = 2) : executor(make_executor(name, workers)) {}
  ~Running() { executor->stop(); }
  Executor* operator->() const { return executor.get(); }
  std::unique_ptr<Executor> executor;
};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

TEST(ThreadPool, EveryTaskRunsExactlyOnceWhoeverPostsAndWhoeverRuns) {
  const int count = repeats(2'000'000, 200'000);
  for (int pushers = 1; pushers <= 4; ++pushers) {
    for (int workers = 1; workers <= 4; ++workers) {
      const std::unique_ptr<Executor> executor = make_executor("pool", workers);
      std::atomic<int> total{0};
      std::vector<CountingTask> tasks(static_cast<size_t>(count));
      for (CountingTask& task : tasks) task.total = &total;
      std::vector<std::thread> threads;
      for (int pusher = 0; pusher < pushers; ++pusher) {
        threads.emplace_back([&, pusher] {
          for (int i = pusher; i < count; i += pushers) executor->post(&tasks[static_cast<size_t>(i)]);
        });
      }
      for (std::thread& thread : threads) thread.join();
      if (workers % 2 == 0) wait_until([&] { return total.load(std::memory_order_acquire) >= count; });
      executor->stop();
      const auto is_wrong = [](const CountingTask& task) { return task.runs != 1; };
      EXPECT_EQ(std::count_if(tasks.begin(), tasks.end(), is_wrong), 0)
          << pushers << " pushers, " << workers << " workers";
    }
  }
}

TEST(ThreadPool, AChainRunsInPlaceAndInOrder) {
  const std::unique_ptr<Executor> executor = make_executor("pool", 3);
  constexpr size_t kLength = 1000;
  std::vector<FunctionTask> chain(kLength);
  std::vector<pthread_t> ran_on;  // written by the chain only
  for (size_t i = 0; i < kLength; ++i) {
    chain[i].body = [&, i] {
      EXPECT_EQ(ran_on.size(), i);
      ran_on.push_back(pthread_self());
    };
    if (i + 1 < kLength) chain[i].next = &chain[i + 1];
  }
  executor->post(&chain[0]);
  executor->stop();
  ASSERT_EQ(ran_on.size(), kLength);
  for (pthread_t thread : ran_on) EXPECT_TRUE(pthread_equal(thread, ran_on[0]));
  EXPECT_FALSE(pthread_equal(ran_on[0], pthread_self()));
}

// Oracle: all tasks wait for each other, so none ends unless each has a thread.
TEST(ThreadPool, SoManyTasksRunAtATimeAsThereAreWorkers) {
  for (int workers : {1, 2, 4}) {
    const std::unique_ptr<Executor> executor = make_executor("pool", workers);
    EXPECT_TRUE(executor->has_own_threads());
    std::atomic<int> arrived{0};
    std::vector<FunctionTask> tasks(static_cast<size_t>(workers));
    for (FunctionTask& task : tasks) {
      task.body = [&] {
        ++arrived;
        wait_until([&] { return arrived == workers; });
      };
      executor->post(&task);
    }
    executor->stop();
    EXPECT_EQ(arrived, workers);
  }
}

// Oracle: the long task ends only when all others have run. They are posted while both workers are held, so
// that one worker takes them together with the long task, which comes first.
TEST(ThreadPool, ALongTaskDoesNotKeepTheOthersOfItsBatchWaiting) {
  constexpr int kOthers = 1000;
  for (int round = 0; round < 20; ++round) {
    const std::unique_ptr<Executor> executor = make_executor("pool", 2);
    std::atomic<int> held{0};
    std::atomic<bool> is_open{false};
    const auto hold = [&] {
      ++held;
      wait_until([&] { return is_open.load(); });
    };
    FunctionTask gates[2] = {FunctionTask(hold), FunctionTask(hold)};
    for (FunctionTask& gate : gates) executor->post(&gate);
    wait_until([&] { return held == 2; });
    std::atomic<int> total{0};
    FunctionTask long_task([&] { wait_until([&] { return total == kOthers; }); });
    std::vector<CountingTask> others(kOthers);
    executor->post(&long_task);
    for (CountingTask& task : others) {
      task.total = &total;
      executor->post(&task);
    }
    is_open = true;
    executor->stop();
    EXPECT_EQ(total, kOthers);
  }
}

// A tree: each task posts two more.
TEST(ThreadPool, TasksMayPostAndStopWaitsForWhatTheyPost) {
  constexpr size_t kCount = (1 << 14) - 1;
  for (int round = 0; round < 10; ++round) {
    const std::unique_ptr<Executor> executor = make_executor("pool", 1 + round % 4);
    std::vector<FunctionTask> tasks(kCount);
    std::vector<int> runs(kCount, 0);
    for (size_t i = 0; i < kCount; ++i) {
      tasks[i].body = [&, i] {
        ++runs[i];
        for (size_t child = 2 * i + 1; child <= 2 * i + 2 && child < kCount; ++child) {
          executor->post(&tasks[child]);
        }
      };
    }
    executor->post(&tasks[0]);
    executor->stop();
    EXPECT_EQ(runs, std::vector<int>(kCount, 1));
  }
}

// Oracle: a lost wake-up leaves the round without an end. Some pauses are long enough for all workers to
// sleep, others end about when they fall asleep.
TEST(ThreadPool, NoPostIsLostWhileWorkersFallAsleep) {
  const int rounds = repeats(200'000, 10'000);
  for (int workers : {1, 2, 3}) {
    const std::unique_ptr<Executor> executor = make_executor("pool", workers);
    std::atomic<int> total{0};
    CountingTask task;
    task.total = &total;
    for (int round = 0; round < rounds; ++round) {
      if (round % 100 == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      } else if (round % 4 == 0) {
        const auto end = steady_clock::now() + std::chrono::nanoseconds(37 * (round % 1000));
        while (steady_clock::now() < end) relax_processor();
      }
      executor->post(&task);
      wait_until([&] { return total.load(std::memory_order_acquire) > round; });
    }
    executor->stop();
    EXPECT_EQ(task.runs, rounds);
  }
}

// Oracle: two tasks that wait for each other need both workers. One worker has just had a short task and may
// take both at once, while the other sleeps: it must be woken for the second.
TEST(ThreadPool, TasksPostedTogetherRunTogether) {
  const int rounds = repeats(500'000, 5'000);
  std::atomic<int> shorts{0};
  std::atomic<int> met{0};
  std::atomic<int> round_of_other{0};
  CountingTask short_task;
  short_task.total = &shorts;
  FunctionTask pair[2];
  const std::unique_ptr<Executor> executor = make_executor("pool", 2);
  for (FunctionTask& task : pair) {
    task.body = [&met] {
      const int both = (met.fetch_add(1) / 2 + 1) * 2;
      wait_until([&] { return met.load() >= both; });
    };
  }
  std::thread other([&] {
    for (int round = 1; round <= rounds; ++round) {
      wait_until([&] { return round_of_other.load() == round; });
      executor->post(&pair[1]);
    }
  });
  for (int round = 1; round <= rounds; ++round) {
    executor->post(&short_task);
    round_of_other = round;
    executor->post(&pair[0]);
    wait_until([&] { return met.load() == 2 * round && shorts.load() == round; });
  }
  other.join();
  executor->stop();
  EXPECT_EQ(met, 2 * rounds);
}

TEST(ThreadPool, StopEndsWorkersThatSleep) {
  for (int workers : {1, 2, 4}) {
    const std::unique_ptr<Executor> executor = make_executor("pool", workers);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    executor->stop();
  }
}

TEST(ThreadPool, WorkersHaveNamesAndBlockSignalsButThoseOfFaults) {
  sigset_t before;  // the mask of the program that runs the tests
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  const std::unique_ptr<Executor> pool = make_executor("pool", 2);
  std::atomic<int> arrived{0};
  std::string names[2];
  sigset_t masks[2];
  FunctionTask tasks[2];
  for (int i = 0; i < 2; ++i) {
    tasks[i].body = [&, i] {
      char name[16] = "";
      pthread_getname_np(pthread_self(), name, sizeof name);
      names[i] = name;
      pthread_sigmask(SIG_SETMASK, nullptr, &masks[i]);
      ++arrived;
      wait_until([&] { return arrived == 2; });
    };
    pool->post(&tasks[i]);
  }
  pool->stop();
  EXPECT_EQ((std::set<std::string>{names[0], names[1]}), (std::set<std::string>{"tenon-0", "tenon-1"}));
  for (const sigset_t& mask : masks) {
    for (int blocked : {SIGINT, SIGTERM, SIGUSR1, SIGALRM}) EXPECT_TRUE(sigismember(&mask, blocked));
    for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT}) EXPECT_FALSE(sigismember(&mask, fault));
  }
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (int i = 1; i < SIGRTMIN; ++i) EXPECT_EQ(sigismember(&after, i), sigismember(&before, i)) << i;
}

// The only worker is held, so no other thread can run what is posted.
TEST(ThreadPool, OthersCanRunItsTasks) {
  const std::unique_ptr<Executor> pool = make_executor("pool", 1);
  EXPECT_FALSE(pool->try_run_one());
  std::atomic<bool> is_held{false};
  std::atomic<bool> is_open{false};
  FunctionTask gate([&] {
    is_held = true;
    wait_until([&] { return is_open.load(); });
  });
  pool->post(&gate);
  wait_until([&] { return is_held.load(); });
  std::vector<int> order;
  std::vector<FunctionTask> tasks(5);
  for (int i = 0; i < 5; ++i) {
    tasks[static_cast<size_t>(i)].body = [&order, i] { order.push_back(i); };
    pool->post(&tasks[static_cast<size_t>(i)]);
  }
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(pool->try_run_one());
  EXPECT_FALSE(pool->try_run_one());
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
  is_open = true;
  pool->stop();
}

// The task that comes first ends only when all others have run. Often a helper takes it, with others, while
// the workers sleep: these must wake for the rest.
TEST(ThreadPool, WhatAHelperTakesAndDoesNotRunStaysInSight) {
  constexpr int kOthers = 10;
  for (int round = 0; round < 200; ++round) {
    const std::unique_ptr<Executor> pool = make_executor("pool", 2);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::atomic<int> total{0};
    FunctionTask first([&] { wait_until([&] { return total == kOthers; }); });
    std::vector<CountingTask> others(kOthers);
    std::thread helper([&] {
      while (total < kOthers) pool->try_run_one();
    });
    pool->post(&first);
    for (CountingTask& task : others) {
      task.total = &total;
      pool->post(&task);
    }
    helper.join();
    pool->stop();
    EXPECT_EQ(total, kOthers);
  }
}

int threads_of_this_process() {
  const auto tasks = std::filesystem::directory_iterator("/proc/self/task");
  return static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

// In a process of its own, whose address space has no room for the stacks of so many threads.
TEST(ThreadPool, AThreadThatCannotBeStartedIsAnErrorAndLeavesNoThreadBehind) {
  if (kHasSanitizer) GTEST_SKIP() << "sanitizers need the address space";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto try_to_start = [] {
    const rlimit room{rlim_t{1} << 30, rlim_t{1} << 30};
    if (setrlimit(RLIMIT_AS, &room) != 0) std::_Exit(2);
    try {
      make_executor("pool", ThreadPool::kMostWorkers);
    } catch (const Error& e) {
      std::fprintf(stderr, "%s\n", e.what());
      std::_Exit(e.code() == Code::kSystem && threads_of_this_process() == 1 ? 0 : 3);
    }
    std::_Exit(4);
  };
  EXPECT_EXIT(try_to_start(), testing::ExitedWithCode(0), "cannot start worker [0-9]+ of 1024: ");
}

// Its first run ends its thread.
struct EndingTask final : Task {
  Task* run() noexcept override {
    threads.push_back(pthread_self());
    if (threads.size() == 1) {
      EXPECT_TRUE(ThreadPool::is_worker());
      ThreadPool::replace_worker(this);
      sleep_for_ever();
    }
    return next;
  }
  std::vector<pthread_t> threads;
  Task* next = nullptr;
};

// Oracle: more threads end than there are, so that the tasks behind need new ones; stop() waits for them.
TEST(ThreadPool, AnotherThreadContinuesForOneThatEnds) {
  EXPECT_FALSE(ThreadPool::is_worker());
  for (const int workers : {1, 3}) {
    constexpr int kTasks = 20;
    std::atomic<int> total{0};
    std::vector<EndingTask> ending(kTasks);
    std::vector<CountingTask> then(kTasks), beside(kTasks);
    const std::unique_ptr<Executor> executor = make_executor("pool", workers);
    for (size_t i = 0; i < kTasks; ++i) {
      then[i].total = beside[i].total = &total;
      ending[i].next = &then[i];
      executor->post(&ending[i]);
      executor->post(&beside[i]);
    }
    executor->stop();
    EXPECT_EQ(total, 2 * kTasks);
    for (const EndingTask& task : ending) {
      ASSERT_EQ(task.threads.size(), 2u);
      EXPECT_FALSE(pthread_equal(task.threads[0], task.threads[1]));
    }
  }
}

TEST(InlineExecutor, PostRunsTheChainInTheCallingThread) {
  const Running in("inline");
  EXPECT_TRUE(in->has_own_threads());
  std::atomic<int> total{0};
  CountingTask second;
  second.total = &total;
  FunctionTask first([] {}, &second);
  in->post(&first);
  EXPECT_EQ(second.runs, 1);
  EXPECT_FALSE(in->try_run_one());
}

TEST(InlineExecutor, APostFromATaskRunsAfterItsChainInOrder) {
  const Running in("inline");
  std::vector<int> order;
  const auto note = [&order](int number) {
    return FunctionTask([&order, number] { order.push_back(number); });
  };
  FunctionTask end_of_chain = note(1);
  FunctionTask late[2] = {note(2), note(3)};
  FunctionTask first(
      [&] {
        for (FunctionTask& task : late) in->post(&task);
        order.push_back(0);
      },
      &end_of_chain);
  in->post(&first);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3}));
}

TEST(InlineExecutor, ATaskCanRunWhatWaitsOnItsThread) {
  const Running in("inline");
  std::atomic<int> total{0};
  CountingTask waiting;
  waiting.total = &total;
  FunctionTask first([&] {
    in->post(&waiting);
    EXPECT_EQ(total, 0);
    EXPECT_TRUE(in->try_run_one());
    EXPECT_EQ(total, 1);
    EXPECT_FALSE(in->try_run_one());
  });
  in->post(&first);
  EXPECT_EQ(waiting.runs, 1);
}

// Each of the posts as a call within the one before would need some hundred megabytes of stack.
TEST(InlineExecutor, PostingFromTaskToTaskTakesNoStack) {
  const Running in("inline");
  int left = 1'000'000;
  FunctionTask task;
  task.body = [&] {
    if (--left > 0) in->post(&task);
  };
  in->post(&task);
  EXPECT_EQ(left, 0);
}

// The order in which 50 tasks run, each of which posts one more.
std::vector<int> seeded_order(const std::string& name) {
  const std::unique_ptr<Executor> executor = make_executor(name, 1);
  std::vector<int> order;
  std::vector<FunctionTask> tasks(100);
  for (size_t i = 0; i < 100; ++i) {
    tasks[i].body = [&, i] {
      order.push_back(static_cast<int>(i));
      if (i < 50) executor->post(&tasks[i + 50]);
    };
  }
  for (size_t i = 0; i < 50; ++i) executor->post(&tasks[i]);
  EXPECT_TRUE(order.empty());
  for (int i = 0; i < 60; ++i) EXPECT_TRUE(executor->try_run_one());
  executor->stop();
  EXPECT_FALSE(executor->try_run_one());
  return order;
}

TEST(SeededExecutor, TheSameSeedGivesTheSameOrderAndAnotherAnother) {
  const std::vector<int> order = seeded_order("seeded:7");
  EXPECT_EQ(seeded_order("seeded:7"), order);
  EXPECT_NE(seeded_order("seeded:8"), order);
  EXPECT_NE(seeded_order("seeded:18446744073709551615"), order);
  std::vector<int> all(100);
  std::iota(all.begin(), all.end(), 0);
  std::vector<int> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, all);
}

TEST(SeededExecutor, AnyOfThePostedTasksMayComeFirst) {
  std::set<int> first;
  for (int seed = 0; seed < 1000; ++seed) first.insert(seeded_order(concat("seeded:", seed))[0]);
  EXPECT_EQ(first.size(), 50u);
}

// Oracle: each task holds a flag while it runs, and gives its core away with it.
TEST(SeededExecutor, OneThreadRunsAtATimeAndNoneIsSentAwayFromATask) {
  const Running seeded("seeded:3");
  EXPECT_FALSE(seeded->has_own_threads());
  constexpr int kTasks = 4000;
  std::atomic<int> total{0};
  std::atomic<bool> is_running{false};
  std::atomic<int> overlaps{0};
  std::vector<FunctionTask> tasks(kTasks);
  for (FunctionTask& task : tasks) {
    task.body = [&] {
      if (is_running.exchange(true)) ++overlaps;
      sched_yield();
      is_running = false;
      ++total;
    };
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = t; i < kTasks; i += 3) seeded->post(&tasks[static_cast<size_t>(i)]);
      while (seeded->try_run_one()) continue;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(total, kTasks);
  EXPECT_EQ(overlaps, 0);
}

TEST(SeededExecutor, ATaskCanRunAnother) {
  const Running seeded("seeded:1");
  std::atomic<int> total{0};
  CountingTask other;
  other.total = &total;
  FunctionTask first([&] {
    seeded->post(&other);
    EXPECT_TRUE(seeded->try_run_one());
    EXPECT_EQ(total, 1);
  });
  seeded->post(&first);
  EXPECT_TRUE(seeded->try_run_one());
  EXPECT_FALSE(seeded->try_run_one());
}

TEST(MakeExecutor, OtherNamesAndNumbersAreErrors) {
  for (const char* name : {"", "Pool", "pool ", "seeded", "tbb", "threads"}) {
    std::string message;
    EXPECT_EQ(code_of([&] { make_executor(name, 1); }, &message), Code::kValue);
    EXPECT_TRUE(contains(message, concat("no executor '", name, "'"))) << message;
    for (const char* known : {"'pool'", "'inline'", "'seeded:N'"}) EXPECT_TRUE(contains(message, known));
  }
  for (const char* seed : {"", "x", "-1", "1x", " 1", "0x1", "18446744073709551616"}) {
    std::string message;
    EXPECT_EQ(code_of([&] { make_executor(concat("seeded:", seed), 1); }, &message), Code::kValue);
    EXPECT_TRUE(contains(message, concat("'", seed, "' is no seed"))) << message;
  }
  for (int workers : {-1, ThreadPool::kMostWorkers + 1}) {
    std::string message;
    EXPECT_EQ(code_of([&] { make_executor("pool", workers); }, &message), Code::kValue);
    EXPECT_TRUE(contains(message, concat("workers is ", workers))) << message;
  }
}

TEST(MakeExecutor, APoolHasAWorkerForEachProcessorAndAtLeastTwo) {
  cpu_set_t usable;
  ASSERT_EQ(sched_getaffinity(0, sizeof usable, &usable), 0);
  const int before = threads_of_this_process();
  {
    const Running pool("pool", 0);
    EXPECT_EQ(threads_of_this_process() - before, std::max(CPU_COUNT(&usable), 2));
  }
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &usable)) CPU_SET(cpu, &one);
  }
  std::thread([&] {
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    const int with_this = threads_of_this_process();
    const Running pool("pool", 0);
    EXPECT_EQ(threads_of_this_process() - with_this, 2);
  }).join();
}

using Futex = std::atomic<uint32_t>;

TEST(FutexWord, AnotherValueEndsTheWaitAtOnce) {
  const Futex word{1};
  EXPECT_EQ(futex_wait(word, 0), FutexWait::kWoken);
  EXPECT_EQ(futex_wait_for(word, 0, 0), FutexWait::kWoken);
}

TEST(FutexWord, ATimeoutEndsTheWait) {
  const Futex word{0};
  const auto start = steady_clock::now();
  EXPECT_EQ(futex_wait_for(word, 0, 20'000'000), FutexWait::kTimedOut);
  EXPECT_GE(steady_clock::now() - start, std::chrono::milliseconds(20));
}

TEST(FutexWord, WakeOneEndsOneWaitAndWakeAllTheOthers) {
  Futex word{0};
  std::atomic<int> woken{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (word.load(std::memory_order_relaxed) == 0) futex_wait(word, 0);
      ++woken;
    });
  }
  word = 1;
  futex_wake_one(word);
  wait_until([&] { return woken >= 1; });
  futex_wake_all(word);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(woken, 3);
}

TEST(FutexWord, AHandledSignalInterruptsTheWait) {
  struct sigaction quiet{};
  quiet.sa_handler = [](int) {};
  struct sigaction before{};
  ASSERT_EQ(sigaction(SIGALRM, &quiet, &before), 0);
  const itimerval every_ms{{0, 1000}, {0, 1000}};
  ASSERT_EQ(setitimer(ITIMER_REAL, &every_ms, nullptr), 0);
  const Futex word{0};
  constexpr int64_t kHour = 3'600'000'000'000;
  EXPECT_EQ(futex_wait(word, 0), FutexWait::kInterrupted);
  EXPECT_EQ(futex_wait_for(word, 0, kHour), FutexWait::kInterrupted);
  const itimerval off{};
  setitimer(ITIMER_REAL, &off, nullptr);
  sigaction(SIGALRM, &before, nullptr);
}

}  // namespace
}  // namespace tenon::impl
