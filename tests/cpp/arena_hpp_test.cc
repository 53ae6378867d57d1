// SPDX-License-Identifier: Apache-2.0
//
// Arenas as a user of the C++ layer sees them.
#include "tenon/arena.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace std::chrono_literals;
using tenon::Access;
using tenon::Arena;
using tenon::ArenaLayout;
using tenon::ArenaUse;
using tenon::Array;

const std::vector<ArenaLayout> kLayouts = {
    {"features", {tenon::field<float>("A", {1000}), tenon::field<float>("B", {10, 3})}},
    {"counts", {tenon::field<int32_t>("D", {500}), tenon::field<int64_t>("E", {})}},
};
constexpr uint64_t kFeatures = 4032 + 120, kCounts = 2048 + 8;

struct Failed {
  tenon_status status = TENON_OK;
  std::string message;
};
template <class Body>
Failed failure_of(Body&& body) {
  try {
    body();
  } catch (const tenon::Error& error) {
    return {error.code(), error.what()};
  }
  return {};
}
bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// In memory of its own, in shared memory, over an array.
class EachArena : public testing::TestWithParam<int> {
 protected:
  Arena arena = GetParam() == 0   ? Arena::create(kLayouts)
                : GetParam() == 1 ? Arena::create_shared(kLayouts)
                                  : Arena::over(kLayouts, Array::zeros<double>({1000}));
};
INSTANTIATE_TEST_SUITE_P(ArenaHpp, EachArena, testing::Range(0, 3));

TEST_P(EachArena, HoldsOneLayoutAtATime) {
  EXPECT_EQ(arena.nbytes(), kFeatures);
  EXPECT_EQ(arena.total_nbytes(), kFeatures + kCounts);
  EXPECT_EQ(arena.active(), "");
  const void* first = nullptr;
  {
    const ArenaUse use = arena.use("features");
    const Array a = use.array("A"), b = use.array("B");
    a.as<float, 1>()(999) = 2.5F;
    b.as<float, 2>()(9, 2) = 3.5F;
    first = a.data();
    EXPECT_EQ(static_cast<const std::byte*>(b.data()) - static_cast<const std::byte*>(a.data()), 4032);
  }
  EXPECT_EQ(arena.active(), "features");
  {
    const ArenaUse use = arena.use("features", Access::kRead);
    EXPECT_EQ((use.array("A").as<const float, 1>()(999)), 2.5F);
    EXPECT_EQ((use.array("B").as<const float, 2>()(9, 2)), 3.5F);
  }
  const ArenaUse use = arena.use("counts");
  EXPECT_EQ(use.array("D").data(), first);
  EXPECT_EQ(arena.active(), "counts");
}

TEST_P(EachArena, RefusesWhatItDoesNotHold) {
  EXPECT_EQ(failure_of([&] { (void)arena.use("sums"); }).status, TENON_ERR_NOT_FOUND);
  Failed failed = failure_of([&] { (void)arena.use("counts", Access::kRead); });
  EXPECT_EQ(failed.status, TENON_ERR_LEASE_CONFLICT);
  EXPECT_TRUE(contains(failed.message, "the arena holds nothing yet")) << failed.message;
  const ArenaUse use = arena.use("features");
  EXPECT_EQ(failure_of([&] { (void)use.array("D"); }).status, TENON_ERR_NOT_FOUND);
  failed = failure_of([&] { (void)arena.use("counts"); });
  EXPECT_EQ(failed.status, TENON_ERR_LEASE_CONFLICT);
  EXPECT_TRUE(contains(failed.message, "cannot change to layout 'counts': it holds 'features'"))
      << failed.message;
  EXPECT_TRUE(contains(failed.message, "arena_hpp_test.cc:")) << failed.message;
  {
    const ArenaUse again = arena.use("features", Access::kRead);
  }
  EXPECT_EQ(arena.active(), "features");
}

TEST_P(EachArena, AViewThatLivesOnKeepsItsLayout) {
  std::unique_ptr<tenon::View<float, 1>> view;
  {
    const ArenaUse use = arena.use("features");
    view.reset(new tenon::View<float, 1>(use.array("A").as<float, 1>()));
    (*view)(0) = 7;
  }
  const Failed failed = failure_of([&] { (void)arena.use("counts"); });
  EXPECT_EQ(failed.status, TENON_ERR_LEASE_CONFLICT) << failed.message;
  EXPECT_EQ((*view)(0), 7);
  view.reset();
  EXPECT_EQ(failure_of([&] { (void)arena.use("counts"); }).status, TENON_OK);
}

TEST_P(EachArena, AnExceptionLeavesNoValues) {
  const auto fail = [&](uint32_t flags) {
    const ArenaUse use = arena.use("features", Access::kWrite, flags);
    throw std::runtime_error("no more");
  };
  EXPECT_THROW(fail(0), std::runtime_error);
  EXPECT_EQ(failure_of([&] { (void)arena.use("features"); }).status, TENON_ERR_OP);
  EXPECT_EQ(failure_of([&] { (void)arena.use("features", Access::kRead); }).status, TENON_ERR_OP);
  {
    const ArenaUse use = arena.use("features", Access::kWrite, TENON_OVERWRITE);
  }
  {
    const ArenaUse use = arena.use("features", Access::kRead);
  }
  EXPECT_THROW(fail(TENON_OVERWRITE), std::runtime_error);
  {
    const ArenaUse use = arena.use("counts");
  }
  {
    const ArenaUse use = arena.use("counts", Access::kRead);
  }
}

TEST_P(EachArena, AUseCanBeMovedAndReturned) {
  const auto features = [&] { return arena.use("features"); };
  ArenaUse use = features();
  ArenaUse moved = std::move(use);
  moved.array("A").as<float, 1>()(0) = 1;
  std::optional<ArenaUse> last(std::move(moved));
  EXPECT_EQ(failure_of([&] { (void)arena.use("counts"); }).status, TENON_ERR_LEASE_CONFLICT);
  last.reset();
  EXPECT_EQ(failure_of([&] { (void)arena.use("counts"); }).status, TENON_OK);
}

TEST_P(EachArena, AnotherThreadWaitsForItsTurn) {
  std::optional<ArenaUse> use(arena.use("features"));
  Failed late;
  std::thread([&] { late = failure_of([&] { (void)arena.use("counts", Access::kWrite, 0, 20ms); }); }).join();
  EXPECT_EQ(late.status, TENON_ERR_TIMEOUT);
  std::thread patient([&] { late = failure_of([&] { (void)arena.use("counts"); }); });
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(arena.active(), "features");
  use.reset();
  patient.join();
  EXPECT_EQ(late.status, TENON_OK) << late.message;
  EXPECT_EQ(arena.active(), "counts");
}

TEST(ArenaHpp, IsFoundByItsNameAndByItsHandle) {
  const Arena arena = Arena::create_shared(kLayouts, {.name = "tenon.test.arena_hpp"});
  {
    arena.use("counts").array("E").as<int64_t, 0>()() = 11;
  }
  const Arena attached = Arena::open(tenon::attach("tenon.test.arena_hpp"));
  const Arena opened = Arena::open(tenon::open(tenon::send(arena.memory())));
  for (const Arena& other : {attached, opened}) {
    EXPECT_EQ(other.active(), "counts");
    EXPECT_EQ(other.nbytes(), kFeatures);
    EXPECT_EQ((other.use("counts", Access::kRead).array("E").as<const int64_t, 0>()()), 11);
  }
  EXPECT_EQ(failure_of([] { (void)Arena::create_shared(kLayouts, {.name = "tenon.test.arena_hpp"}); }).status,
            TENON_ERR_VALUE);
  const Arena reader = Arena::open(tenon::attach("tenon.test.arena_hpp", true));
  EXPECT_EQ(failure_of([&] { (void)reader.use("counts"); }).status, TENON_ERR_BUFFER);
  EXPECT_EQ((reader.use("counts", Access::kRead).array("E").as<const int64_t, 0>()()), 11);
}

TEST(ArenaHpp, RefusesLayoutsThatCannotBe) {
  using Layouts = std::vector<ArenaLayout>;
  const auto status_of = [](const Layouts& layouts) {
    return failure_of([&] { (void)Arena::create(layouts); }).status;
  };
  const tenon::Field a = tenon::field<float>("a", {2});
  EXPECT_EQ(status_of({}), TENON_ERR_VALUE);
  EXPECT_EQ(status_of({{"x", {}}}), TENON_ERR_VALUE);
  EXPECT_EQ(status_of({{"", {a}}}), TENON_ERR_VALUE);
  EXPECT_EQ(status_of({{"x", {a}}, {"x", {a}}}), TENON_ERR_VALUE);
  EXPECT_EQ(status_of({{"x", {a, a}}}), TENON_ERR_VALUE);
  EXPECT_EQ(status_of({{"x", {tenon::field<float>("a", {-2})}}}), TENON_ERR_VALUE);
  EXPECT_EQ(status_of({{"x", {tenon::field<float>("a b", {2})}}}), TENON_ERR_VALUE);
  EXPECT_EQ(status_of({{"x", {{"a", tenon_dtype{99, 32, 1}, {2}}}}}), TENON_ERR_TYPE);
  EXPECT_EQ(status_of({{"x", {tenon::field<float>("a", {0}), tenon::field<float>("b", {})}}}), TENON_OK);
}

TEST(ArenaHpp, RefusesBuffersThatDoNotDo) {
  const auto status_over = [](const Array& buffer) {
    return failure_of([&] { (void)Arena::over(kLayouts, buffer); }).status;
  };
  EXPECT_EQ(status_over(Array::zeros<uint8_t>({static_cast<int64_t>(kFeatures)})), TENON_OK);
  EXPECT_EQ(status_over(Array::zeros<uint8_t>({static_cast<int64_t>(kFeatures) - 1})), TENON_ERR_VALUE);
  EXPECT_EQ(status_over(Array::zeros<uint8_t>({8192}).readonly()), TENON_ERR_BUFFER);
  const std::array<tenon::Index, 1> from_2{tenon::slice(2, 8192)};
  const Failed failed =
      failure_of([&] { (void)Arena::over(kLayouts, Array::zeros<uint8_t>({8192}).index(from_2)); });
  EXPECT_EQ(failed.status, TENON_ERR_VALUE);
  EXPECT_TRUE(contains(failed.message, "field 'A' of layout 'features'")) << failed.message;
  const std::array<tenon::Index, 1> from_4{tenon::slice(4, 8192)};
  const Failed wide =
      failure_of([&] { (void)Arena::over(kLayouts, Array::zeros<uint8_t>({8192}).index(from_4)); });
  EXPECT_TRUE(contains(wide.message, "field 'E' of layout 'counts'")) << wide.message;
  EXPECT_FALSE(Arena::over(kLayouts, Array::zeros<uint8_t>({8192})).memory());
}

// A process that holds the array for writing while this object lives.
class Writer {
 public:
  explicit Writer(const tenon::Array& array) {
    int is_held[2];
    EXPECT_EQ(pipe(is_held), 0);
    EXPECT_EQ(pipe(end_), 0);
    child_ = fork();
    if (child_ == 0) {
      (void)close(end_[1]);
      hold(array, is_held[1]);
      _exit(0);
    }
    char byte = 0;
    EXPECT_EQ(read(is_held[0], &byte, 1), 1);
    for (const int descriptor : {is_held[0], is_held[1], end_[0]}) (void)close(descriptor);
  }
  ~Writer() {
    (void)close(end_[1]);
    EXPECT_EQ(waitpid(child_, nullptr, 0), child_);
  }

 private:
  void hold(const tenon::Array& array, int is_held) {
    const auto lease = array.write();
    const char byte = 0;
    (void)!write(is_held, &byte, 1);
    pollfd end{end_[0], POLLIN, 0};
    (void)poll(&end, 1, 60'000);  // so that a wait without a limit ends, too
  }

  int end_[2];
  pid_t child_ = -1;
};

TEST(SharedHpp, LeasesWithoutATimeoutEndAsTheLockTimeoutSays) {
  const Array array = tenon::zeros_shared({3});
  const auto before = tenon::set_lock_timeout(100ms);
  {
    const Writer writer(array);
    const auto expect_timeout = [](const char* time, const auto& take) {
      const Failed failed = failure_of(take);
      EXPECT_EQ(failed.status, TENON_ERR_TIMEOUT);
      EXPECT_NE(failed.message.find(time), std::string::npos) << failed.message;
      EXPECT_NE(failed.message.find("process"), std::string::npos) << failed.message;
    };
    expect_timeout("(0.1 s)", [&] { (void)array.read(); });
    expect_timeout("(0.1 s)", [&] { (void)array.write(); });
    expect_timeout("(0.1 s)", [&] { (void)array.overwrite(tenon::default_timeout); });
    expect_timeout("(0.05 s)", [&] { (void)array.write(50ms); });
    expect_timeout("(0 s)", [&] { (void)array.write(-5ms); });
  }
  (void)tenon::set_lock_timeout(before);
  (void)array.write(tenon::forever);
}

}  // namespace
