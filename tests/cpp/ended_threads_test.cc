// SPDX-License-Identifier: Apache-2.0
//
// Bodies of ops that end their thread (pthread_exit) instead of returning. Law: the op fails and says so,
// what the body had to destroy is destroyed, and the thread goes on: the only worker of a pool, or the caller
// that runs the op itself.
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>

#include "tenon/engine.hpp"

namespace {

using tenon::Array;
using tenon::Completion;
using tenon::Op;
using tenon::OpError;
using tenon::View;
using tenon::write;

Array numbers() { return Array::zeros<int64_t>({4}); }

// What the op's failure says; "": it has none.
std::string failure_of(const Op& op) {
  try {
    op.wait();
  } catch (const OpError& error) {
    return error.what();
  }
  return "";
}
bool names_the_end(const std::string& text) { return text.find("it ended its thread") != std::string::npos; }

// Each test has a thread of its own: the end of the main thread would be that of the process.
class EndedThreads : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { tenon::set_engine(GetParam(), 1); }
  void TearDown() override {
    while (tenon::take_failure()) continue;
    tenon::set_engine("default");
  }
  template <class Test>
  static void run(Test test) {
    std::thread(test).join();
  }
  static void expect_that_ops_run() {
    const Array a = numbers();
    EXPECT_EQ(failure_of(tenon::push([](View<int64_t, 1> x) { x(0) = 7; }, write(a))), "");
    EXPECT_EQ((a.as<const int64_t, 1>()(0)), 7);
  }
};
INSTANTIATE_TEST_SUITE_P(Executors, EndedThreads, testing::Values("pool", "inline", "seeded:3"),
                         [](const auto& given) { return std::string(given.param, 4); });

struct Count {
  int& deaths;
  ~Count() { ++deaths; }
};

TEST_P(EndedThreads, ABodyInCppFailsItsOp) {
  run([] {
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
    EXPECT_THROW((void)(a.as<const int64_t, 1>()), OpError) << "the array holds no value";
    expect_that_ops_run();
  });
}

TEST_P(EndedThreads, ABodyWithACompletionFailsItsOp) {
  run([] {
    const Op op = tenon::push([](Completion) { pthread_exit(nullptr); });
    EXPECT_TRUE(names_the_end(failure_of(op))) << failure_of(op);
    expect_that_ops_run();
  });
}

TEST_P(EndedThreads, WhatComesAfterTheEndOfABodyDoesNothing) {
  run([] {
    std::optional<Completion> kept;
    const Op op = tenon::push([&kept](Completion completion) {
      kept = std::move(completion);
      pthread_exit(nullptr);
    });
    EXPECT_TRUE(names_the_end(failure_of(op))) << failure_of(op);
    kept->complete();
    EXPECT_TRUE(names_the_end(failure_of(op)));
    expect_that_ops_run();
  });
}

TEST_P(EndedThreads, AlsoWhereTheCallerHandlesAnException) {
  run([] {
    try {
      throw std::string("of the caller");
    } catch (const std::string& text) {
      const Op op = tenon::push([] { pthread_exit(nullptr); });
      EXPECT_TRUE(names_the_end(failure_of(op)));
      EXPECT_EQ(text, "of the caller");
    }
    expect_that_ops_run();
  });
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

TEST_P(EndedThreads, ABodyInCFailsItsOp) {
  run([] {
    Held held;
    const Op op = push_in_c(&held, [](void*, tenon_op*) { pthread_exit(nullptr); });
    EXPECT_TRUE(names_the_end(failure_of(op))) << failure_of(op);
    EXPECT_EQ(held.drops, 1);
    expect_that_ops_run();
  });
}

TEST_P(EndedThreads, ABodyInCThatHasEndedItsOpHasSucceeded) {
  run([] {
    Held held;
    const Op op = push_in_c(&held, [](void*, tenon_op* self) {
      tenon_op_complete(self);
      pthread_exit(nullptr);
    });
    EXPECT_EQ(failure_of(op), "");
    EXPECT_EQ(held.drops, 1);
    expect_that_ops_run();
  });
}

// Another thread may have the op, and does not know that it has failed.
TEST_P(EndedThreads, AnOpThatIsEndedLaterInCHasFailedAlready) {
  run([] {
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
  });
}

// The end of the body and the end that another thread makes meet: one of both counts, and the op is done
// once.
TEST_P(EndedThreads, OfTwoEndsAtATimeOneCounts) {
  run([] {
    for (int round = 0; round < 300; ++round) {
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
  });
}

}  // namespace
