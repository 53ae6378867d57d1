// SPDX-License-Identifier: Apache-2.0
//
// Bodies of ops that end their thread (pthread_exit) instead of returning. Law: the op fails and says so,
// what the body had to destroy is destroyed, and another thread of the engine takes the place of the ended
// one. In a thread of the caller the process ends with a message.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tenon/engine.hpp"

namespace {

using tenon::Array;
using tenon::Completion;
using tenon::Op;
using tenon::OpError;
using tenon::View;
using tenon::write;

Array numbers() { return Array::zeros<int64_t>({4}); }

// What the op's failure says; "": it has none. Such a wait does not run the op in this thread.
std::string failure_of(const Op& op) {
  try {
    op.wait(std::chrono::hours(1));
  } catch (const OpError& error) {
    return error.what();
  }
  return "";
}
bool names_the_end(const std::string& text) { return text.find("it ended its thread") != std::string::npos; }

class EndedThreads : public testing::Test {
 protected:
  void SetUp() override { tenon::set_engine("pool", 1); }
  void TearDown() override {
    while (tenon::take_failure()) continue;
    tenon::set_engine("default");  // waits for the threads of the pool
  }
  static void expect_that_ops_run() {
    const Array a = numbers();
    EXPECT_EQ(failure_of(tenon::push([](View<int64_t, 1> x) { x(0) = 7; }, write(a))), "");
    EXPECT_EQ((a.as<const int64_t, 1>()(0)), 7);
  }
};

struct Count {
  int& deaths;
  ~Count() { ++deaths; }
};

TEST_F(EndedThreads, ABodyInCppFailsItsOp) {
  int deaths = 0;
  const Array a = numbers();
  const Op op = tenon::push(
      [&deaths](View<int64_t, 1>) {
        const Count count{deaths};
        pthread_exit(nullptr);
      },
      write(a));
  EXPECT_TRUE(names_the_end(failure_of(op))) << failure_of(op);
  EXPECT_EQ(deaths, 1);
  EXPECT_THROW((void)(a.as<const int64_t, 1>()), OpError) << "the values of the array are invalid";
  expect_that_ops_run();
}

TEST_F(EndedThreads, ABodyWithACompletionFailsItsOp) {
  const Op op = tenon::push([](Completion) { pthread_exit(nullptr); });
  EXPECT_TRUE(names_the_end(failure_of(op))) << failure_of(op);
  expect_that_ops_run();
}

TEST_F(EndedThreads, WhatComesAfterTheEndOfABodyDoesNothing) {
  std::optional<Completion> kept;
  const Op op = tenon::push([&kept](Completion completion) {
    kept = std::move(completion);
    pthread_exit(nullptr);
  });
  EXPECT_TRUE(names_the_end(failure_of(op))) << failure_of(op);
  kept->complete();
  EXPECT_TRUE(names_the_end(failure_of(op)));
  expect_that_ops_run();
}

TEST_F(EndedThreads, AlsoWhereTheBodyHandlesAnException) {
  const Op op = tenon::push([] {
    try {
      throw std::string("of the body");
    } catch (const std::string&) {
      pthread_exit(nullptr);
    }
  });
  EXPECT_TRUE(names_the_end(failure_of(op))) << failure_of(op);
  expect_that_ops_run();
}

TEST_F(EndedThreads, OpsThatWaitForTheOneFailOrRunAfterIt) {
  const Array a = numbers(), b = numbers();
  const Op op = tenon::push([](View<int64_t, 1>) { pthread_exit(nullptr); }, write(a));
  const Op reader = tenon::push([](View<const int64_t, 1>, View<int64_t, 1>) {}, tenon::read(a), write(b));
  const Op later = tenon::push([](View<int64_t, 1> x) { x(0) = 7; }, tenon::overwrite(a));
  EXPECT_TRUE(names_the_end(failure_of(op)));
  EXPECT_TRUE(names_the_end(failure_of(reader)));
  EXPECT_EQ(failure_of(later), "");
}

// Oracle: the bodies wait for each other, so each has a thread.
TEST_F(EndedThreads, EachEndedThreadIsReplaced) {
  constexpr int kWorkers = 4;
  tenon::set_engine("pool", kWorkers);
  for (int round = 0; round < 10; ++round) {
    std::vector<Op> ops;
    std::atomic<int> arrived{0};
    for (int i = 0; i < kWorkers; ++i) {
      ops.push_back(tenon::push([&arrived] {
        ++arrived;
        while (arrived < kWorkers) std::this_thread::yield();
        pthread_exit(nullptr);
      }));
    }
    for (const Op& op : ops) EXPECT_TRUE(names_the_end(failure_of(op)));
  }
}

#if !defined(__SANITIZE_THREAD__)  // under which a child cannot start threads
TEST_F(EndedThreads, AChildOfAForkHasAnEngine) {
  EXPECT_TRUE(names_the_end(failure_of(tenon::push([] { pthread_exit(nullptr); }))));
  const pid_t child = fork();
  if (child == 0) {
    const bool has_failed = names_the_end(failure_of(tenon::push([] { pthread_exit(nullptr); })));
    _exit(has_failed && failure_of(tenon::push([] {})).empty() ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}
#endif

TEST_F(EndedThreads, OneThatIsCancelledFailsItsOp) {
  const Op op = tenon::push([] {
    pthread_cancel(pthread_self());
    pthread_testcancel();
  });
  EXPECT_TRUE(names_the_end(failure_of(op))) << failure_of(op);
  expect_that_ops_run();
}

class CallersThread : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  static constexpr const char* kMessage =
      "the body of op 'lambda' did not return, because it ended its thread";
};

TEST_F(CallersThread, EndsTheProcessIfItRunsTheBody) {
  for (const char* const engine : {"inline", "seeded:3"}) {
    const auto run = [&] {
      tenon::set_engine(engine);
      tenon::push([] { pthread_exit(nullptr); }).wait();
    };
    EXPECT_DEATH(run(), kMessage) << engine;
  }
}

TEST_F(CallersThread, EndsTheProcessIfItRunsTheBodyInAWait) {
  const auto run = [] {
    tenon::set_engine("pool", 1);
    std::atomic<bool> is_busy{false};
    const Op op = tenon::push([&is_busy] {
      is_busy = true;
      while (true) std::this_thread::yield();
    });
    while (!is_busy) std::this_thread::yield();
    tenon::push([] { pthread_exit(nullptr); }).wait();
  };
  EXPECT_DEATH(run(), kMessage);
}

// ------------------------------------------------------------------------------------------- bodies in C

struct Held {
  std::atomic<tenon_op*> op{nullptr};
  std::atomic<int> drops{0};
};

Op push_in_c(Held* held, void (*body)(void*, tenon_op*)) {
  tenon_work work{};
  work.struct_size = sizeof work;
  work.context = held;
  work.run = body;
  work.drop = [](void* context) { ++static_cast<Held*>(context)->drops; };
  work.name = "body";
  tenon_op* op = nullptr;
  tenon::call(tenon_push, static_cast<const tenon_work*>(&work), 0, static_cast<const tenon_use*>(nullptr),
              &op);
  return Op::steal(op);
}

TEST_F(EndedThreads, ABodyInCFailsItsOp) {
  Held held;
  const Op op = push_in_c(&held, [](void*, tenon_op*) { pthread_exit(nullptr); });
  EXPECT_TRUE(names_the_end(failure_of(op))) << failure_of(op);
  EXPECT_EQ(held.drops, 1);
  expect_that_ops_run();
}

TEST_F(EndedThreads, ABodyInCThatHasEndedItsOpHasSucceeded) {
  Held held;
  const Op op = push_in_c(&held, [](void*, tenon_op* self) {
    tenon_op_complete(self);
    pthread_exit(nullptr);
  });
  EXPECT_EQ(failure_of(op), "");
  EXPECT_EQ(held.drops, 1);
  expect_that_ops_run();
}

// Another thread may have the op, and does not know that it has failed.
TEST_F(EndedThreads, AnOpThatIsEndedLaterInCHasFailedAlready) {
  for (const bool fails : {false, true}) {
    Held held;
    std::string text;
    {
      const Op op = push_in_c(&held, [](void* context, tenon_op* self) {
        static_cast<Held*>(context)->op = self;
        pthread_exit(nullptr);
      });
      text = failure_of(op);
    }
    EXPECT_TRUE(names_the_end(text)) << text;
    if (fails) {
      tenon_op_fail(held.op, 3, "too late", nullptr, nullptr);
    } else {
      tenon_op_complete(held.op);
    }
    EXPECT_EQ(held.drops, 1);
  }
  expect_that_ops_run();
}

// The end of the body and the end that another thread makes meet: one of both counts, and the op is done
// once.
TEST_F(EndedThreads, OfTwoEndsAtATimeOneCounts) {
  for (int round = 0; round < 100; ++round) {
    Held held;
    std::thread other([&held, round] {
      while (held.op.load() == nullptr) std::this_thread::yield();
      if (round % 2 == 0) {
        tenon_op_complete(held.op);
      } else {
        tenon_op_fail(held.op, 3, "elsewhere", nullptr, nullptr);
      }
    });
    const Op op = push_in_c(&held, [](void* context, tenon_op* self) {
      static_cast<Held*>(context)->op = self;
      pthread_exit(nullptr);
    });
    const std::string text = failure_of(op);
    other.join();
    const bool is_elsewhere = round % 2 == 0 ? text.empty() : text.find("elsewhere") != std::string::npos;
    EXPECT_TRUE(names_the_end(text) || is_elsewhere) << text;
    EXPECT_EQ(held.drops, 1);
  }
  expect_that_ops_run();
}

}  // namespace
