// SPDX-License-Identifier: Apache-2.0
//
// Native functions, schemas and feeds as a user of the C++ layer sees them.
#include "tenon/feed.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using tenon::Batch;
using tenon::Feed;
using tenon::Function;
using tenon::Generator;
using tenon::Schema;

int fill(float* data, int64_t* label, size_t n, uint64_t index, float gain) {
  for (size_t i = 0; i < 2 * n; ++i) data[i] = gain * static_cast<float>(index);
  for (size_t i = 0; i < n; ++i) label[i] = static_cast<int64_t>(index + i);
  return index == 7 ? -7 : 0;
}
constexpr char kFill[] = "int fill(float *data, int64_t *label, size_t n, uint64_t index, float gain)";

double mean(const double* values, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += values[i];
  return sum / static_cast<double>(n);
}

Function fill_function() { return Function::from_address(reinterpret_cast<void*>(fill), kFill); }

Schema schema() { return {tenon::field<float>("data", {4, 2}), tenon::field<int64_t>("label", {4})}; }

template <class Body>
tenon_status status_of(Body&& body) {
  try {
    body();
  } catch (const tenon::Error& error) {
    return error.code();
  }
  return TENON_OK;
}

TEST(FunctionHpp, ArgumentsBecomeWhatTheParametersAre) {
  const Function function =
      Function::from_address(reinterpret_cast<void*>(mean), "double mean(const double *values, size_t n)");
  const std::vector<double> values{1, 2, 6};
  EXPECT_EQ(function(values.data(), 3).f, 3.0);
  EXPECT_STREQ(function.name(), "mean");
  EXPECT_EQ(function.parameter_count(), 2);
  EXPECT_STREQ(function.parameter(1).name, "n");
  EXPECT_EQ(status_of([&] { function(3, 3); }), TENON_ERR_TYPE);
  EXPECT_EQ(status_of([&] { function(values.data(), nullptr); }), TENON_ERR_TYPE);
  EXPECT_EQ(status_of([&] { function(values.data()); }), TENON_ERR_VALUE);
  EXPECT_EQ(Function::load("libm.so.6", "double ldexp(double x, int e)")(1, 3).f, 8.0);
  EXPECT_EQ(status_of([] { Function::load("libm.so.6", "int no_such_thing(void)"); }), TENON_ERR_NOT_FOUND);
}

TEST(FunctionHpp, AStatusIsAnErrorWithTheCode) {
  float data[2];
  int64_t label[1];
  EXPECT_NO_THROW(fill_function()(data, label, 1, 6, 1));
  try {
    fill_function()(data, label, 1, 7, 1);
    ADD_FAILURE() << "no error";
  } catch (const tenon::Error& error) {
    EXPECT_EQ(error.code(), TENON_ERR_OP);
    EXPECT_EQ(error.op_code(), -7);
  }
}

TEST(FeedHpp, BatchesOfANativeFunctionComeInOrderUntilItFails) {
  Feed feed(fill_function().bind(schema(), {{"gain", 3}}), schema(), {.batches = 20});
  uint64_t index = 0;
  const auto consume = [&] {
    for (const Batch batch : feed.epoch()) {
      EXPECT_EQ(batch.index(), index);
      const auto data = batch["data"].as<float, 2>();
      const auto label = batch["label"].as<int64_t, 1>();
      EXPECT_EQ(data(3, 1), 3 * static_cast<float>(index));
      EXPECT_EQ(label(3), static_cast<int64_t>(index) + 3);
      ++index;
    }
  };
  EXPECT_EQ(status_of(consume), TENON_ERR_OP);
  EXPECT_EQ(index, 7u);
  EXPECT_EQ(feed.statistics().slots_held, 0);
  EXPECT_EQ(status_of([&] { schema().find("no"); }), TENON_ERR_NOT_FOUND);
}

TEST(FeedHpp, SharedSlotsLieInAFileThatIsTheFeeds) {
  Feed feed(fill_function().bind(schema(), {{"gain", 3}}), schema(),
            {.batches = 3, .has_shared_slots = true});
  const tenon_feed_statistics now = feed.statistics();
  ASSERT_GE(now.memory_file, 0);
  feed.begin();
  for (int i = 0; i < 3; ++i) {
    const Batch batch = *feed.next();
    const auto* const data = static_cast<const std::byte*>(batch["data"].data());
    float seen[2];
    const auto at = static_cast<off_t>(now.memory_at) + (data - static_cast<const std::byte*>(now.memory));
    ASSERT_EQ(pread(now.memory_file, seen, sizeof seen, at), static_cast<ssize_t>(sizeof seen));
    EXPECT_EQ(seen[1], 3 * static_cast<float>(i));
  }
  Feed plain(fill_function().bind(schema(), {{"gain", 3}}), schema(), {.batches = 3});
  EXPECT_EQ(plain.statistics().memory_file, -1);
}

TEST(FeedHpp, AConstantOfTheWrongKindIsATypeError) {
  const Function function = fill_function();
  EXPECT_EQ(status_of([&] { function.bind(schema(), {{"gain", 0.5}}); }), TENON_OK);
  EXPECT_EQ(status_of([&] { function.bind(schema(), {{"gain", 0.5}, {"index", 0.5}}); }), TENON_ERR_TYPE);
  EXPECT_EQ(status_of([&] { function.bind(schema(), {{"gain", tenon::Array::zeros({3})}}); }),
            TENON_ERR_TYPE);
  EXPECT_EQ(status_of([&] { function.bind(schema()); }), TENON_ERR_VALUE);
}

TEST(FeedHpp, ACallableIsAGeneratorAndItsExceptionTheFailure) {
  const auto lives = std::make_shared<int>(0);
  {
    Generator generator(
        [lives](const tenon::FillRequest& request) {
          if (request.index() == 5) throw std::runtime_error("no more films");
          const auto data = request.field<float>("data");
          EXPECT_EQ(data.size(), 8u);
          EXPECT_EQ(request.rows(), 4);
          data[0] = static_cast<float>(request.epoch());
          request.field<int64_t>("label")[0] = static_cast<int64_t>(request.index());
        },
        schema(), true, "films");
    Feed feed(std::move(generator), schema(), {.workers = 2, .slots = 4});
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      int64_t count = 0;
      try {
        for (const Batch batch : feed.epoch()) {
          EXPECT_EQ(*static_cast<const float*>(batch[0].data()), static_cast<float>(epoch));
          EXPECT_EQ(*static_cast<const int64_t*>(batch[1].data()), count++);
        }
        ADD_FAILURE() << "no error";
      } catch (const tenon::Error& error) {
        EXPECT_EQ(count, 5);
        EXPECT_EQ(error.what(), "generator 'films' failed at batch 5 of epoch " + std::to_string(epoch) +
                                    ": no more films");
      }
    }
  }
  EXPECT_EQ(lives.use_count(), 1);
}

TEST(FeedHpp, AGeneratorThatNoFeedTookIsDropped) {
  const auto lives = std::make_shared<int>(0);
  const auto idle = [lives](const tenon::FillRequest&) {};
  {
    const Generator unused(idle, schema());
  }
  EXPECT_EQ(lives.use_count(), 2);
  EXPECT_EQ(status_of([&] { Feed(Generator(idle, schema()), schema(), {.workers = -1}); }), TENON_ERR_VALUE);
  EXPECT_EQ(lives.use_count(), 2);
}

TEST(FeedHpp, NextWaitsNoLongerThanItIsTold) {
  std::atomic<bool> may_go{false};
  Feed feed(Generator(
                [&](const tenon::FillRequest&) {
                  may_go.wait(false);
                  return 0;
                },
                schema()),
            schema());
  feed.begin();
  EXPECT_EQ(status_of([&] { feed.next(std::chrono::milliseconds(1)); }), TENON_ERR_TIMEOUT);
  EXPECT_EQ(status_of([&] { feed.next(std::chrono::nanoseconds(0)); }), TENON_ERR_TIMEOUT);
  may_go = true;
  may_go.notify_all();
  const std::optional<Batch> batch = feed.next();
  ASSERT_TRUE(batch);
  feed.close();
  EXPECT_EQ(status_of([&] { feed.next(); }), TENON_ERR_CLOSED);
  EXPECT_EQ((*batch)["label"].shape()[0], 4);
  EXPECT_EQ(status_of([&] { (*batch)["no"]; }), TENON_ERR_NOT_FOUND);
}

TEST(FeedHpp, APlugInGivesGeneratorAndSchema) {
  const std::string ramp = TENON_TEST_PLUGINS "/libramp.so";
  auto [generator, described] = tenon::Plugin::open(ramp.c_str(), R"({"rows": 3, "gain": 2})", 9);
  EXPECT_EQ(described.rows(), 3);
  EXPECT_STREQ(described[2].name, "flag");
  Feed feed(std::move(generator), described, {.workers = 2, .batches = 4, .seed = 9});
  float first = 0;
  for (const Batch& batch : feed.epoch()) {
    EXPECT_EQ((batch["data"].as<float, 3>()(1, 0, 1)), 2 * (first + 10) + 1);
    EXPECT_TRUE((batch["flag"].as<bool, 1>()(2)));
    first += 100;
  }
  EXPECT_EQ(first, 400);
  EXPECT_EQ(status_of([&] { tenon::Plugin::open(ramp.c_str(), "{}", 0, &described); }), TENON_ERR_VALUE);
  EXPECT_EQ(status_of([&] { tenon::Plugin::open(ramp.c_str(), R"({"rows": "x"})"); }), TENON_ERR_OP);
  EXPECT_EQ(status_of([] { tenon::Plugin::open("./no_such_plugin.so"); }), TENON_ERR_NOT_FOUND);
}

}  // namespace
