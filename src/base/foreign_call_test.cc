// SPDX-License-Identifier: Apache-2.0
#include "base/foreign_call.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <stdexcept>
#include <string>
#include <thread>

namespace tenon::impl {
namespace {

struct Count {
  int& deaths;
  explicit Count(int& count) : deaths(count) {}
  Count(const Count&) = delete;
  Count& operator=(const Count&) = delete;
  ~Count() { ++deaths; }
};

TEST(HasReturned, OfAFunctionThatReturns) {
  int calls = 0;
  const auto function = [&] { ++calls; };
  EXPECT_TRUE(has_returned(function));
  EXPECT_EQ(calls, 1);
}

TEST(HasReturned, NotOfOneThatEndsItsThreadWhichGoesOn) {
  int deaths = 0;
  int rounds = 0;
  std::thread([&] {
    const auto function = [&] {
      const Count count(deaths);
      pthread_exit(nullptr);
    };
    for (int i = 0; i < 3; ++i) {
      if (!has_returned(function)) ++rounds;
      // Exceptions work as before.
      try {
        throw std::runtime_error("after");
      } catch (const std::exception&) {
        ++rounds;
      }
    }
  }).join();
  EXPECT_EQ(rounds, 6);
  EXPECT_EQ(deaths, 3);
}

TEST(HasReturned, LetsExceptionsThrough) {
  int deaths = 0;
  const auto function = [&] {
    const Count count(deaths);
    throw std::runtime_error("out");
  };
  EXPECT_THROW((void)has_returned(function), std::runtime_error);
  EXPECT_EQ(deaths, 1);
}

TEST(HasReturned, AlsoWhileAnExceptionUnwinds) {
  bool has_ended = false;
  std::thread([&] {
    struct AtEnd {
      bool& has_ended;
      ~AtEnd() {
        const auto function = [] { pthread_exit(nullptr); };
        has_ended = !has_returned(function);
      }
    };
    try {
      const AtEnd at_end{has_ended};
      throw std::runtime_error("out");
    } catch (const std::runtime_error&) {
    }
  }).join();
  EXPECT_TRUE(has_ended);
}

TEST(HasReturned, AlsoWhereAnExceptionIsHandled) {
  bool has_ended = false;
  std::string caught;
  std::thread([&] {
    const auto function = [] { pthread_exit(nullptr); };
    const auto throwing = [] { throw std::runtime_error("of the function"); };
    try {
      throw std::runtime_error("out");
    } catch (const std::runtime_error&) {
      has_ended = !has_returned(function);
      EXPECT_THROW((void)has_returned(throwing), std::runtime_error);
      try {
        throw;
      } catch (const std::runtime_error& error) {
        caught = error.what();
      }
    }
  }).join();
  EXPECT_TRUE(has_ended);
  EXPECT_EQ(caught, "out");
}

TEST(HasReturned, NotOfOneWhoseThreadIsCancelled) {
  bool has_ended = false;
  std::thread([&] {
    const auto function = [] {
      pthread_cancel(pthread_self());
      pthread_testcancel();
    };
    has_ended = !has_returned(function);
  }).join();
  EXPECT_TRUE(has_ended);
}

}  // namespace
}  // namespace tenon::impl
