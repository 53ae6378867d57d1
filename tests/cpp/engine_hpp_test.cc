// SPDX-License-Identifier: Apache-2.0
//
// Leases and pushed work as a user of the C++ layer sees them. What holds for ops is checked with each
// executor: the oracle is the order of the pushes, which none of them may change for conflicting ops.
// Closures count themselves: each is destroyed once, whatever becomes of its op.
#include "tenon/engine.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace {

using std::chrono::milliseconds;
using tenon::Array;
using tenon::Completion;
using tenon::Lease;
using tenon::Op;
using tenon::OpError;
using tenon::overwrite;
using tenon::push;
using tenon::read;
using tenon::View;
using tenon::write;

// What the call threw; TENON_OK when nothing. text: its message.
template <class Body>
tenon_status status_of(Body&& body, std::string* text = nullptr) {
  try {
    body();
  } catch (const tenon::Error& error) {
    if (text != nullptr) *text = error.what();
    return error.code();
  }
  return TENON_OK;
}

template <class Body>
OpError op_error_of(Body&& body) {
  try {
    body();
  } catch (const OpError& error) {
    return error;
  }
  throw std::logic_error("no OpError was thrown");
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// "engine_hpp_test.cc:12", as messages name a line of this file.
std::string at_line(unsigned line) { return "engine_hpp_test.cc:" + std::to_string(line); }

Array numbers() { return Array::zeros<int64_t>({4}); }
int64_t first_of(const Array& array) { return array.as<const int64_t, 1>()(0); }

// A number in which the order of the steps can be seen.
int64_t after_step(int64_t value, int64_t i) { return (3 * value + i) % 1'000'003; }

void forget_failures() {
  while (tenon::take_failure()) continue;
}

static_assert(!std::is_move_constructible_v<Lease> && !std::is_copy_constructible_v<Lease>);
static_assert(std::is_nothrow_move_constructible_v<Completion> && !std::is_copy_constructible_v<Completion>);
static_assert(std::is_copy_constructible_v<Op> && std::is_nothrow_move_constructible_v<Op>);

// ------------------------------------------------------------------------------------- leases

TEST(LeaseHpp, EndsWithItsScope) {
  const Array a = numbers();
  {
    const auto lease = a.write();
    lease.view<int64_t, 1>()(0) = 5;
    EXPECT_EQ(tenon_array_holders(a.get(), 0, nullptr), 1);
  }
  EXPECT_EQ(tenon_array_holders(a.get(), 0, nullptr), 0);
  EXPECT_EQ(first_of(a), 5);
}

TEST(LeaseHpp, NamesTheLineThatTookIt) {
  const Array a = numbers();
  const auto lease = a.read();
  const unsigned line = __LINE__ - 1;
  tenon_holder holder;
  ASSERT_EQ(tenon_array_holders(a.get(), 1, &holder), 1);
  EXPECT_TRUE(contains(holder.site, at_line(line))) << holder.site;
  EXPECT_EQ(holder.kind, TENON_HOLDER_LEASE);
}

TEST(LeaseHpp, ReleaseIsIdempotent) {
  const Array a = numbers();
  auto lease = a.write();
  lease.release();
  lease.release();
  EXPECT_EQ(tenon_array_holders(a.get(), 0, nullptr), 0);
}

TEST(LeaseHpp, KeepsTheArray) {
  const auto lives = std::make_shared<int64_t>(3);
  {
    const auto lease = Array::adopt(lives.get(), {1}, std::shared_ptr(lives)).write();
    EXPECT_EQ(lives.use_count(), 2);
    EXPECT_EQ((lease.view<int64_t, 1>()(0)), 3);
  }
  EXPECT_EQ(lives.use_count(), 1);
}

TEST(LeaseHpp, NestsUnderTheOwnLease) {
  const Array a = numbers();
  const auto outer = a.write();
  {
    const auto nested = a.read();
    EXPECT_EQ((nested.view<const int64_t, 1>()(0)), 0);
    const auto again = a.write();
    again.view<int64_t, 1>()(0) = 1;
  }
  EXPECT_EQ(first_of(a), 1);
  EXPECT_EQ(tenon_array_holders(a.get(), 0, nullptr), 1);
}

TEST(LeaseHpp, ForReadingAllowsNoWriting) {
  const Array a = numbers();
  const auto lease = a.read();
  EXPECT_EQ(status_of([&] { (void)a.write(); }), TENON_ERR_LEASE_CONFLICT);
  EXPECT_EQ(status_of([&] { (void)lease.view<int64_t, 1>(); }), TENON_ERR_LEASE_CONFLICT);
  EXPECT_EQ(status_of([&] { (void)a.readonly().write(); }), TENON_ERR_BUFFER);
}

TEST(LeaseHpp, WaitsNoLongerThanItIsTold) {
  const Array a = numbers();
  auto lease = a.write();
  lease.detach();
  EXPECT_EQ(status_of([&] { (void)a.write(milliseconds(1)); }), TENON_ERR_TIMEOUT);
  EXPECT_EQ(status_of([&] { (void)a.read(milliseconds(0)); }), TENON_ERR_TIMEOUT);
  EXPECT_EQ(status_of([&] { (void)a.read(milliseconds(-5)); }), TENON_ERR_TIMEOUT);
  EXPECT_EQ(status_of([&] { a.wait_to_read(milliseconds(0)); }), TENON_ERR_TIMEOUT);
  lease.release();
  EXPECT_EQ(status_of([&] { (void)a.write(milliseconds(0)); }), TENON_OK);
}

TEST(LeaseHpp, DetachedIsReleasedByAnyThread) {
  const Array a = numbers();
  std::optional<Lease> lease;
  lease.emplace(a, tenon::Access::kWrite);
  lease->detach();
  std::thread([&] { lease.reset(); }).join();
  EXPECT_EQ(status_of([&] { (void)a.write(milliseconds(0)); }), TENON_OK);
}

TEST(LeaseHpp, AnExceptionLeavesNoValueBehindAWrite) {
  const Array a = numbers();
  const auto interrupted = [&] {
    const auto lease = a.write();
    throw std::runtime_error("the disk is full");
  };
  EXPECT_THROW(interrupted(), std::runtime_error);
  EXPECT_EQ(status_of([&] { (void)a.read(); }), TENON_ERR_OP);
  EXPECT_EQ(status_of([&] { (void)a.as<int64_t, 1>(); }), TENON_ERR_OP);
  ASSERT_TRUE(a.failure());
  EXPECT_TRUE(contains(a.failure().message(), "left by an exception")) << a.failure().message();
  EXPECT_FALSE(a.failure().cause());
  {
    const auto lease = a.overwrite();
  }
  EXPECT_FALSE(a.failure());
  EXPECT_EQ(first_of(a), 0);
}

TEST(LeaseHpp, AnExceptionDoesNoHarmToWhatIsRead) {
  const Array a = numbers();
  const auto interrupted = [&] {
    const auto lease = a.read();
    throw 7;
  };
  EXPECT_THROW(interrupted(), int);
  EXPECT_FALSE(a.failure());
}

// A lease in code that runs while an exception is on its way is none that the exception has left.
TEST(LeaseHpp, InADestructorThatAnExceptionRunsItEndsWell) {
  const Array a = numbers();
  struct Writer {
    const Array& array;
    ~Writer() { const auto lease = array.write(); }
  };
  const auto interrupted = [&] {
    const Writer writer{a};
    throw 7;
  };
  EXPECT_THROW(interrupted(), int);
  EXPECT_FALSE(a.failure());
}

TEST(LeaseHpp, FailSaysWhy) {
  const Array a = numbers();
  auto lease = a.write();
  const unsigned line = __LINE__ - 1;
  lease.fail("the sensor went away");
  std::string text;
  EXPECT_EQ(status_of([&] { (void)a.copy(); }, &text), TENON_ERR_OP);
  EXPECT_TRUE(contains(text, "the sensor went away") && contains(text, at_line(line))) << text;
  a.clear_error();
  EXPECT_EQ(first_of(a), 0);
}

TEST(LeaseHpp, AViewThatOutlivesItContinuesItAndTheReleaseSaysSo) {
  tenon::set_engine("inline");
  const Array a = numbers();
  auto lease = a.write();
  std::optional<View<int64_t, 1>> view(std::in_place, a);
  const Op op = push([](View<int64_t, 1> out) { out(0) = 9; }, overwrite(a));
  EXPECT_TRUE(lease.release());
  EXPECT_FALSE(op.is_done());
  view.reset();
  op.wait();
  EXPECT_EQ(first_of(a), 9);
}

// ---------------------------------------------------------------------------------------- ops

class OpHpp : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { tenon::set_engine(GetParam(), 2); }
  void TearDown() override {
    tenon::wait_all();
    forget_failures();
  }
};

INSTANTIATE_TEST_SUITE_P(Engines, OpHpp, testing::Values("pool", "inline", "seeded:3"),
                         [](const auto& engine) { return std::string(engine.param).substr(0, 6); });

TEST_P(OpHpp, RunOnTheEngineThatWasSet) {
  EXPECT_EQ(tenon::engine_name(), GetParam());
  EXPECT_EQ(status_of([] { tenon::set_engine("nonesuch"); }), TENON_ERR_VALUE);
}

TEST_P(OpHpp, RunInTheOrderOfThePushesWhereTheyConflict) {
  const Array a = numbers(), b = numbers();
  for (int64_t i = 1; i <= 100; ++i) {
    push([i](View<int64_t, 1> out) { out(0) = after_step(out(0), i); }, write(a));
    push([](View<const int64_t, 1> in, View<int64_t, 1> out) { out(0) ^= in(0); }, read(a), write(b));
  }
  int64_t value = 0, mix = 0;
  for (int64_t i = 1; i <= 100; ++i) {
    value = after_step(value, i);
    mix ^= value;
  }
  b.wait_to_read();
  EXPECT_EQ(first_of(b), mix);
  EXPECT_EQ(first_of(a), value);
}

int64_t calls_of_function = 0;
void plain_function(View<int64_t, 1> out) noexcept { calls_of_function += 1 + out(0); }

TEST_P(OpHpp, BodiesTakeViewsOrArraysOrNothing) {
  const Array a = numbers();
  int64_t sum = 0;
  calls_of_function = 0;
  push([](View<int64_t, 1>&& out) { out(0) = 1; }, write(a)).wait();
  push([](const View<const int64_t, 1, true>& in) { EXPECT_EQ(in(0), 1); }, write(a)).wait();
  push([&](const Array& array) { sum += first_of(array); }, read(a)).wait();
  push([&](Array array) noexcept { sum += first_of(array); }, read(a)).wait();
  push([&sum]() mutable { sum += 10; }, write(a)).wait();
  push([&] { sum += 100; }).wait();
  push(plain_function, write(a)).wait();
  push(std::function<void()>([&] { sum += 1000; }), read(a)).wait();
  push([p = std::make_unique<int>(10'000), &sum] { sum += *p; }, read(a)).wait();
  EXPECT_EQ(sum, 11'112);
  EXPECT_EQ(calls_of_function, 2);
  static_assert(!tenon::detail::HasSignature<decltype([](auto) {})>);
}

TEST_P(OpHpp, UseANumberOfArraysThatIsKnownAtRunTimeOnly) {
  for (const size_t n : {size_t{0}, size_t{1}, size_t{7}, size_t{40}}) {
    std::vector<Array> parts;
    std::vector<tenon::AnyUse> uses;
    const Array sum = numbers();
    for (size_t i = 0; i < n; ++i) {
      parts.push_back(numbers());
      push([i](View<int64_t, 1> out) { out(0) = static_cast<int64_t>(i) + 1; }, overwrite(parts.back()));
      uses.push_back(read(parts.back()));
    }
    uses.push_back(write(sum));
    push(
        [](std::span<const Array> arrays) {
          const auto out = arrays.back().as<int64_t, 1>();
          for (const Array& part : arrays.first(arrays.size() - 1)) out(0) += first_of(part);
        },
        uses)
        .wait();
    EXPECT_EQ(first_of(sum), static_cast<int64_t>(n * (n + 1) / 2));
  }
}

TEST_P(OpHpp, OfArraysKnownAtRunTimeKeepThemAndTheirOrderAndTellTheirFailures) {
  const Array a = numbers(), b = numbers();
  const std::vector<tenon::AnyUse> uses{write(a), tenon::AnyUse(read(b))};
  int calls = 0;
  for (int64_t i = 1; i <= 50; ++i) {
    push([i](View<int64_t, 1> out) { out(0) = i; }, write(b));
    push(
        [&calls, i](std::span<const Array> arrays) {
          calls += first_of(arrays[1]) == i && arrays.size() == 2 ? 1 : 0;
          arrays[0].as<int64_t, 1>()(0) = i;
        },
        uses);
  }
  a.wait_to_read();
  EXPECT_EQ(calls, 50);
  EXPECT_EQ(first_of(a), 50);
  // Bodies that take nothing, or a Completion; a result that is a failure.
  push([&calls] { ++calls; }, std::span<const tenon::AnyUse>()).wait();
  push([](std::span<const Array>, Completion done) { done.complete(); }, uses).wait();
  push([](Completion done) { done.complete(); }, uses).wait();
  EXPECT_EQ(calls, 51);
  EXPECT_EQ(status_of([&] { push([](std::span<const Array>) { return 3; }, uses).wait(); }), TENON_ERR_OP);
  EXPECT_EQ(status_of([&] { (void)first_of(a); }), TENON_ERR_OP) << "what it was to write";
  a.clear_error();
}

TEST_P(OpHpp, OfArraysKnownAtRunTimeAreCheckedAndNamedByTheLineOfTheFirstUse) {
  const Array a = numbers();
  const auto lives = std::make_shared<int>(0);
  EXPECT_EQ(
      status_of([&] { push([lives] { ADD_FAILURE(); }, std::vector<tenon::AnyUse>{write(a.readonly())}); }),
      TENON_ERR_BUFFER);
  EXPECT_EQ(lives.use_count(), 1);
  const unsigned line = __LINE__ + 1;
  const std::vector<tenon::AnyUse> uses{read(a)};
  std::string text;
  EXPECT_EQ(status_of([&] { push([] { throw std::runtime_error("no data"); }, uses).wait(); }, &text),
            TENON_ERR_OP);
  EXPECT_TRUE(contains(text, at_line(line))) << text;
}

TEST_P(OpHpp, AnArrayThatTheBodyCannotViewIsAnErrorOfThePush) {
  const Array a = numbers();
  const auto lives = std::make_shared<int>(0);
  const auto floats = [lives](View<float, 1>) { ADD_FAILURE(); };
  const auto planes = [lives](View<const int64_t, 2>) { ADD_FAILURE(); };
  EXPECT_EQ(status_of([&] { push(floats, write(a)); }), TENON_ERR_TYPE);
  EXPECT_EQ(status_of([&] { push(planes, read(a)); }), TENON_ERR_VALUE);
  EXPECT_EQ(status_of([&] { push([lives] { ADD_FAILURE(); }, write(a.readonly())); }), TENON_ERR_BUFFER);
  EXPECT_EQ(lives.use_count(), 3);
}

TEST_P(OpHpp, KeepTheArraysThatTheyUse) {
  const auto lives = std::make_shared<int64_t>(3);
  int64_t seen = 0;
  const Op op = push([&](View<const int64_t, 1> in) { seen = in(0); },
                     read(Array::adopt(lives.get(), {1}, std::shared_ptr(lives))));
  op.wait();
  EXPECT_EQ(seen, 3);
}

TEST_P(OpHpp, AnExceptionOfTheBodyIsTheFailureWithItsTextAndTheLine) {
  const Array a = numbers();
  struct NoData : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  const tenon::PushOptions options{.name = "fill"};
  const unsigned line = __LINE__ - 1;
  const Op op = push(options, [](View<int64_t, 1>) { throw NoData("no data today"); }, overwrite(a));
  const OpError error = op_error_of([&] { op.wait(); });
  EXPECT_EQ(error.code(), TENON_ERR_OP);
  EXPECT_TRUE(contains(error.what(), "'fill'") && contains(error.what(), at_line(line)) &&
              contains(error.what(), "no data today"))
      << error.what();
  EXPECT_STREQ(error.failure().message(), "no data today");
  EXPECT_STREQ(error.failure().op(), "fill");
  EXPECT_THROW(error.rethrow_cause(), NoData);
  ASSERT_TRUE(op.failure());
  EXPECT_THROW(std::rethrow_exception(op.failure().cause()), NoData);
}

TEST_P(OpHpp, AnythingThrownIsAFailure) {
  const Array a = numbers();
  const Op op = push([] { throw 7; }, write(a));
  const OpError error = op_error_of([&] { op.wait(); });
  EXPECT_STREQ(error.failure().message(), "an exception that is no std::exception");
  try {
    error.rethrow_cause();
  } catch (int thrown) {
    EXPECT_EQ(thrown, 7);
  }
}

TEST_P(OpHpp, AResultThatIsNotZeroIsAFailureWithTheCode) {
  const Array a = numbers();
  push([] { return 0; }, write(a)).wait();
  const OpError error = op_error_of([&] { push([](View<int64_t, 1>) { return -4; }, write(a)).wait(); });
  EXPECT_EQ(error.op_code(), -4);
}

TEST_P(OpHpp, FailuresPassOnToReadersUntilAnOverwrite) {
  const Array a = numbers(), b = numbers();
  const auto lives = std::make_shared<int>(0);
  push([lives] { throw std::runtime_error("no data"); }, overwrite(a));
  const Op skipped =
      push([lives](View<const int64_t, 1>, View<int64_t, 1>) { ADD_FAILURE(); }, read(a), write(b));
  EXPECT_EQ(status_of([&] { skipped.wait(); }), TENON_ERR_OP);
  EXPECT_EQ(lives.use_count(), 1) << "the body that was never called is destroyed, too";
  EXPECT_THROW((void)b.read(), OpError);
  EXPECT_EQ(status_of([&] { (void)b.as<int64_t, 1>(); }), TENON_ERR_OP);
  const OpError error = op_error_of([&] { (void)b.copy(); });
  EXPECT_THROW(error.rethrow_cause(), std::runtime_error);
  push([](View<int64_t, 1> out) { out(0) = 1; }, overwrite(b)).wait();
  EXPECT_EQ(first_of(b), 1);
  EXPECT_TRUE(a.failure());
}

TEST_P(OpHpp, FailuresThatNobodyWaitedForAreTakenOnce) {
  tenon::wait_all();
  forget_failures();
  const Array a = numbers(), b = numbers();
  push([] { throw std::runtime_error("first"); }, write(a));
  push([] {}, read(a), write(b));
  tenon::wait_all();
  const tenon::Failure failure = tenon::take_failure();
  ASSERT_TRUE(failure);
  EXPECT_STREQ(failure.message(), "first");
  EXPECT_FALSE(tenon::take_failure()) << "the op that was skipped failed for the same reason";
}

// The exception lives as long as anybody can ask for it, and is destroyed once.
TEST_P(OpHpp, TheCauseLivesAsLongAsItsFailure) {
  const auto lives = std::make_shared<int>(0);
  struct Held {
    std::shared_ptr<int> held;
  };
  std::exception_ptr cause;
  {
    const Array a = numbers();
    Op op = push([lives] { throw Held{lives}; }, write(a));
    EXPECT_THROW(op.wait(), OpError);
    cause = op.failure().cause();
    a.clear_error();
  }
  forget_failures();
  tenon::set_engine(GetParam(), 2);  // the one before may keep the op for a while
  EXPECT_EQ(lives.use_count(), 2);
  EXPECT_THROW(std::rethrow_exception(cause), Held);
  cause = nullptr;
  EXPECT_EQ(lives.use_count(), 1);
}

TEST_P(OpHpp, ClosuresAreDestroyedOnceBeforeTheOpIsDone) {
  const Array a = numbers();
  const auto lives = std::make_shared<int>(0);
  long alive_at_the_end = -1;
  {
    const auto lease = a.write();
    const Op op = push([lives] {}, write(a));
    EXPECT_EQ(lives.use_count(), 2);
    op.on_done([&] { alive_at_the_end = lives.use_count(); });
  }
  tenon::wait_all();
  EXPECT_EQ(alive_at_the_end, 1);
}

TEST_P(OpHpp, AConflictWithAViewNamesItsLineAndDestroysTheClosure) {
  const Array a = numbers();
  const auto lives = std::make_shared<int>(0);
  std::optional<tenon::HostView> view(std::in_place, a, tenon::Access::kWrite, "viewer.cc:5");
  std::string text;
  EXPECT_EQ(status_of([&] { push([lives] { ADD_FAILURE(); }, write(a)); }, &text), TENON_ERR_LEASE_CONFLICT);
  EXPECT_TRUE(contains(text, "viewer.cc:5")) << text;
  EXPECT_EQ(lives.use_count(), 1);
  bool has_run = false;
  push({.on_conflict = tenon::OnConflict::kIgnore}, [&] { has_run = true; }, write(a)).wait();
  EXPECT_TRUE(has_run);
  const Op op = push({.on_conflict = tenon::OnConflict::kWait}, [lives] {}, write(a));
  EXPECT_EQ(status_of([&] { op.wait(milliseconds(1)); }), TENON_ERR_TIMEOUT);
  view.reset();
  op.wait();
  EXPECT_EQ(lives.use_count(), 1);
}

TEST_P(OpHpp, AWaitBehindTheOwnLeaseIsADeadlockThatNamesItsLine) {
  const Array a = numbers();
  auto lease = a.write();
  const unsigned line = __LINE__ - 1;
  const Op op = push([](View<int64_t, 1> out) { out(0) = 1; }, write(a));
  std::string text;
  EXPECT_EQ(status_of([&] { op.wait(); }, &text), TENON_ERR_DEADLOCK);
  EXPECT_TRUE(contains(text, at_line(line))) << text;
  EXPECT_EQ(status_of([] { tenon::wait_all(); }), TENON_ERR_DEADLOCK);
  lease.release();
  op.wait();
  EXPECT_EQ(first_of(a), 1);
}

TEST_P(OpHpp, PushedByDefaultFromTheLineOfTheFirstUse) {
  const Array a = numbers();
  const auto lease = a.write();
  const auto refused = [] { throw 7; };
  const Op op = push(refused, write(a));
  const unsigned line = __LINE__ - 1;
  std::vector<tenon_holder> holders(2);
  ASSERT_EQ(tenon_array_holders(a.get(), 2, holders.data()), 2);
  EXPECT_TRUE(contains(holders[1].site, at_line(line))) << holders[1].site;
  EXPECT_STREQ(holders[1].name, "lambda");
}

TEST_P(OpHpp, BodiesMayNotWait) {
  const Array a = numbers(), b = numbers();
  const auto lease = a.write();
  const Op behind = push([] {}, write(a));
  const Op op = push([&] { behind.wait(); }, write(b));
  EXPECT_THROW(op.wait(), OpError);
  try {
    std::rethrow_exception(op.failure().cause());
  } catch (const tenon::Error& error) {
    EXPECT_EQ(error.code(), TENON_ERR_LEASE_CONFLICT);
  }
}

TEST_P(OpHpp, AViewThatTheBodyKeepsIsAFailure) {
  const Array a = numbers();
  std::optional<View<int64_t, 1>> kept;
  const Op op = push([&](const Array& array) { kept.emplace(array); }, write(a));
  EXPECT_THROW(op.wait(), OpError);
  try {
    std::rethrow_exception(op.failure().cause());
  } catch (const tenon::Error& error) {
    EXPECT_EQ(error.code(), TENON_ERR_LEASE_ESCAPED);
  }
  kept.reset();
}

TEST_P(OpHpp, CallsWhenDoneComeOnceAlsoWhenItIsTooLate) {
  const Array a = numbers();
  std::atomic<int> calls{0};
  const auto lives = std::make_shared<int>(0);
  {
    const auto lease = a.write();
    const Op op = push([] {}, write(a));
    op.on_done([&calls, lives] { ++calls; });
    op.on_done([&calls, lives, only = std::make_unique<int>(1)] { calls += *only; });
    EXPECT_EQ(calls, 0);
  }
  tenon::wait_all();
  EXPECT_EQ(calls, 2);
  const Op late = push([] {}, write(a));
  late.wait();
  late.on_done([&calls, lives] { ++calls; });
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(lives.use_count(), 1);
}

// -------------------------------------------------------------------------------- completions

TEST_P(OpHpp, AreCompletedLaterFromAnotherThread) {
  const Array a = numbers();
  std::thread worker;
  std::atomic<bool> may_go{false};
  const Op op = push(
      [&](const Array& array, Completion completion) {
        worker = std::thread(
            [&, data = static_cast<int64_t*>(array.data()), done = std::move(completion)]() mutable {
              may_go.wait(false);
              data[0] = 11;
              done.complete();
              done.complete();
              done.fail("too late");
            });
      },
      overwrite(a));
  const Op after = push([](View<int64_t, 1> out) { out(0) += 1; }, write(a));
  EXPECT_EQ(status_of([&] { after.wait(milliseconds(1)); }), TENON_ERR_TIMEOUT);
  EXPECT_FALSE(op.is_done());
  may_go = true;
  may_go.notify_all();
  after.wait();
  op.wait();
  worker.join();
  EXPECT_EQ(first_of(a), 12);
}

TEST_P(OpHpp, AreCompletedOrFailedByTheBodyItself) {
  const Array a = numbers();
  push(
      [](View<int64_t, 1> out, Completion done) {
        out(0) = 3;
        done.complete();
      },
      write(a))
      .wait();
  EXPECT_EQ(first_of(a), 3);
  const OpError error = op_error_of(
      [&] { push([](Completion&& done) { done.fail("the camera is off", 5); }, write(a)).wait(); });
  EXPECT_STREQ(error.failure().message(), "the camera is off");
  EXPECT_EQ(error.op_code(), 5);
  EXPECT_THROW(error.rethrow_cause(), OpError);
  const Op op = push([](Completion done) { done.fail(std::make_exception_ptr(7)); }, overwrite(a));
  EXPECT_THROW(op.wait(), OpError);
  EXPECT_THROW(std::rethrow_exception(op.failure().cause()), int);
}

TEST_P(OpHpp, ADroppedCompletionIsAFailure) {
  const Array a = numbers();
  for (const bool is_dropped_in_body : {true, false}) {
    std::optional<Completion> kept;
    std::atomic<bool> is_kept{false};
    const Op op = push(
        [&](Completion done) {
          if (is_dropped_in_body) return;
          kept.emplace(std::move(done));
          is_kept = true;
        },
        overwrite(a));
    if (!is_dropped_in_body) {
      do {
        EXPECT_EQ(status_of([&] { op.wait(milliseconds(5)); }), TENON_ERR_TIMEOUT);
      } while (!is_kept);
      std::thread([&] { kept.reset(); }).join();
    }
    EXPECT_THROW(op.wait(), OpError);
    ASSERT_TRUE(op.failure());
    EXPECT_TRUE(contains(op.failure().message(), "dropped")) << op.failure().message();
  }
}

TEST_P(OpHpp, AnExceptionCountsBeforeTheDropOfTheCompletion) {
  const Array a = numbers();
  const Op op = push([](Completion) { throw std::runtime_error("no camera"); }, overwrite(a));
  EXPECT_THROW(op.wait(), OpError);
  EXPECT_STREQ(op.failure().message(), "no camera");
}

TEST_P(OpHpp, TheFirstEndCounts) {
  const Array a = numbers();
  std::optional<Completion> kept;
  const Op failed = push(
      [&](Completion done) {
        kept.emplace(std::move(done));
        throw std::runtime_error("after all");
      },
      overwrite(a));
  EXPECT_THROW(failed.wait(), OpError);
  kept->complete();
  EXPECT_STREQ(failed.failure().message(), "after all");
  const Op done = push(
      [](Completion completion) {
        completion.complete();
        throw std::runtime_error("too late");
      },
      overwrite(a));
  EXPECT_NO_THROW(done.wait());
}

// The oracle: each op adds its number to the memory that it alone may touch then, on a thread of its own.
TEST_P(OpHpp, CompletionsOfOtherThreadsKeepTheOrder) {
  const Array a = numbers();
  constexpr int64_t kOps = 50;
  std::atomic<int64_t> closures{0};
  for (int64_t i = 1; i <= kOps; ++i) {
    push(
        [i, &closures](const Array& array, Completion completion) {
          std::thread([i, &closures, data = static_cast<int64_t*>(array.data()),
                       done = std::move(completion)]() mutable {
            data[0] = after_step(data[0], i);
            closures.fetch_add(1, std::memory_order_relaxed);
            done.complete();
          }).detach();
        },
        write(a));
  }
  tenon::wait_all();
  int64_t expected = 0;
  for (int64_t i = 1; i <= kOps; ++i) expected = after_step(expected, i);
  EXPECT_EQ(closures, kOps);
  EXPECT_EQ(first_of(a), expected);
}

}  // namespace
