// SPDX-License-Identifier: Apache-2.0
#include "sync/waiter.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace tenon::impl {
namespace {

std::vector<std::string> calls;
bool is_interrupt_due = false;

class WaiterWithHooks : public ::testing::Test {
 protected:
  void SetUp() override {
    calls.clear();
    is_interrupt_due = false;
    WaitHooks hooks;
    hooks.begin = []() -> void* {
      calls.emplace_back("begin");
      return &calls;
    };
    hooks.poll = [](void* token) -> int32_t {
      EXPECT_EQ(token, &calls);
      calls.emplace_back("poll");
      return is_interrupt_due ? 1 : 0;
    };
    hooks.end = [](void* token) {
      EXPECT_EQ(token, &calls);
      calls.emplace_back("end");
    };
    set_wait_hooks(hooks);
  }
  void TearDown() override { set_wait_hooks({}); }

  // One slice, in which nothing is slept.
  static WaitEnd slice(Waiter& waiter, int64_t most_ns = INT64_MAX, int64_t* given_ns = nullptr,
                       bool is_woken = false) {
    return waiter.sleep(
        most_ns,
        [&](int64_t ns) {
          calls.emplace_back("sleep");
          if (given_ns != nullptr) *given_ns = ns;
          return is_woken;
        },
        [] { return std::string("a test"); });
  }
};

using Calls = std::vector<std::string>;

TEST_F(WaiterWithHooks, AsksTheLanguageBetweenTwoSlicesAndNotBeforeTheFirst) {
  {
    Waiter waiter;
    EXPECT_EQ(slice(waiter), WaitEnd::kOver);
    EXPECT_EQ(slice(waiter), WaitEnd::kOver);
  }
  EXPECT_EQ(calls, (Calls{"begin", "sleep", "poll", "sleep", "end"}));
}

TEST_F(WaiterWithHooks, DoesNotAskAfterAWake) {
  {
    Waiter waiter;
    EXPECT_EQ(slice(waiter, INT64_MAX, nullptr, true), WaitEnd::kOver);
    EXPECT_EQ(slice(waiter), WaitEnd::kOver);
  }
  EXPECT_EQ(calls, (Calls{"begin", "sleep", "sleep", "end"}));
}

TEST_F(WaiterWithHooks, AnInterruptEndsTheWaitBeforeItSleepsAgain) {
  {
    Waiter waiter;
    is_interrupt_due = true;
    EXPECT_EQ(slice(waiter), WaitEnd::kOver);
    EXPECT_EQ(slice(waiter), WaitEnd::kInterrupted);
  }
  EXPECT_EQ(calls, (Calls{"begin", "sleep", "poll", "end"}));
}

TEST_F(WaiterWithHooks, SleepsNoLongerThanTheSliceAndTheDeadline) {
  int64_t given_ns = 0;
  Waiter forever;
  EXPECT_EQ(slice(forever, INT64_MAX, &given_ns), WaitEnd::kOver);
  EXPECT_EQ(given_ns, Waiter::kSliceNs);
  EXPECT_EQ(slice(forever, 7, &given_ns), WaitEnd::kOver);
  EXPECT_EQ(given_ns, 7);
  const Deadline soon(Waiter::kSliceNs / 2);
  Waiter limited(soon);
  if (slice(limited, INT64_MAX, &given_ns) == WaitEnd::kOver) {
    EXPECT_LE(given_ns, Waiter::kSliceNs / 2);
  }
  const Deadline past(0);
  Waiter late(past);
  calls.clear();
  EXPECT_EQ(slice(late), WaitEnd::kTimeout);
  EXPECT_EQ(calls, Calls());
}

TEST(Reports, AreDueAtMultiplesOfFiveSecondsUnlessThePeriodIsSet) {
  constexpr int64_t kSecond = 1'000'000'000;
  EXPECT_EQ(set_report_period_ns(0), 5 * kSecond);
  EXPECT_EQ(next_report_ns(0), 5 * kSecond);
  EXPECT_EQ(next_report_ns(5 * kSecond - 1), 5 * kSecond);
  EXPECT_EQ(next_report_ns(5 * kSecond), 10 * kSecond);
  EXPECT_EQ(set_report_period_ns(INT64_MAX), 5 * kSecond);
  EXPECT_GT(next_report_ns(3'000'000 * kSecond), 3'000'000 * kSecond);
  (void)set_report_period_ns(5 * kSecond);
}

TEST_F(WaiterWithHooks, ReportsInEachPeriodHowLongItHasWaitedAndForWhat) {
  WaitHooks hooks;
  hooks.report = [](const char* text) { calls.emplace_back(text); };
  set_wait_hooks(hooks);
  const int64_t before = set_report_period_ns(20'000'000);
  Waiter waiter;
  const auto sleep = [](int64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return false;
  };
  while (calls.size() < 3) (void)waiter.sleep(INT64_MAX, sleep, [] { return std::string("for a test"); });
  EXPECT_GE(waiter.waited_ns(), 60'000'000);
  (void)set_report_period_ns(before);
  for (const std::string& text : calls)
    EXPECT_TRUE(text.starts_with("waiting for ") && text.ends_with("s for a test")) << text;
}

}  // namespace
}  // namespace tenon::impl
