// SPDX-License-Identifier: Apache-2.0
#include "base/foreign_call.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
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

void end_thread() { pthread_exit(nullptr); }

// The end of a thread, which sleeps from then on.
class End {
 public:
  void operator()() {
    has_come_ = true;
    has_come_.notify_one();
    sleep_for_ever();
  }
  // In a thread of its own.
  template <class Body>
  void await(Body body) {
    std::thread(body).detach();
    has_come_.wait(false);
  }

 private:
  std::atomic<bool> has_come_{false};
};

TEST(CallForeign, AFunctionThatReturnsDoesNotEndItsThread) {
  int calls = 0, ends = 0;
  call_foreign([&] { ++calls; }, [&] { ++ends; });
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(ends, 0);
}

TEST(CallForeign, TheUnwindingContinuesIfAtEndReturns) {
  int inner = 0, outer = 0, seen = 0, ends = 0;
  std::thread([&] {
    const Count count(outer);
    call_foreign(
        [&] {
          const Count count_inside(inner);
          end_thread();
        },
        [&] {
          ++ends;
          seen = inner - outer;
        });
    ADD_FAILURE() << "it returned";
  }).join();
  EXPECT_EQ(ends, 1);
  EXPECT_EQ(seen, 1) << "what the function had is destroyed first";
  EXPECT_EQ(outer, 1);
}

TEST(CallForeign, AnExceptionIsNoEnd) {
  int deaths = 0, ends = 0;
  const auto function = [&] {
    const Count count(deaths);
    throw std::runtime_error("out");
  };
  EXPECT_THROW(call_foreign(function, [&] { ++ends; }), std::runtime_error);
  EXPECT_EQ(deaths, 1);
  EXPECT_EQ(ends, 0);
}

TEST(CallForeign, AThreadCanStayBelowANoexceptFunction) {
  End end;
  end.await([&]() noexcept { call_foreign(end_thread, end); });
}

TEST(CallForeign, AlsoWhileAnExceptionUnwinds) {
  struct AtEnd {
    End& end;
    ~AtEnd() { call_foreign(end_thread, end); }
  };
  End end;
  end.await([&] {
    try {
      const AtEnd at_end{end};
      throw std::runtime_error("out");
    } catch (const std::runtime_error&) {
      ADD_FAILURE() << "it returned";
    }
  });
}

TEST(CallForeign, ACancelledThreadEnds) {
  End end;
  end.await([&] {
    call_foreign(
        [] {
          pthread_cancel(pthread_self());
          pthread_testcancel();
        },
        end);
  });
}

TEST(CallForeign, AThreadThatCannotBeReplacedEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(call_foreign(end_thread, [] { end_process("native function", "f"); }),
               "native function 'f' did not return, because it ended its thread");
}

TEST(StartThreadSurely, ItIsTriedAgain) {
  int attempts = 0;
  start_thread_surely([&] {
    if (++attempts < 3) throw std::runtime_error("no room");
  });
  EXPECT_EQ(attempts, 3);
}

}  // namespace
}  // namespace tenon::impl
