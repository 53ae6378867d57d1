// SPDX-License-Identifier: Apache-2.0
//
// A process that uses an arena is killed at each of its stores to shared memory in turn (TENON_CRASH_AT).
// Oracle: afterwards the arena has the old layout or the one to which the victim changed it. The next process
// is told of the death if and only if the victim held its lease. As long as no process was told, elements
// that are read under a layout were written under that layout.
#include "ipc/arena.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "tenon/arena.hpp"

namespace tenon::impl {
namespace {

namespace api = tenon::api0;  // as users see it
using namespace std::chrono_literals;

constexpr char kName[] = "tenon.test.arena_sweep";
constexpr char kVictimFilter[] = "--gtest_filter=ArenaSweep.DISABLED_Victim";
constexpr auto kPatience = 600s;  // a watchdog: a process that takes longer hangs

const std::vector<api::ArenaLayout> kLayouts = {
    {"floats", {api::field<double>("a", {8})}},
    {"ints", {api::field<int32_t>("b", {16})}},
};

void say(char where) {
  if (::write(STDERR_FILENO, &where, 1) != 1) _exit(9);
}

// Changes the arena from floats to ints and back, and says its layout.
TEST(ArenaSweep, DISABLED_Victim) {
  const api::Arena arena = api::Arena::open(api::attach(kName));
  say('o');
  {
    const api::ArenaUse use = arena.use("ints");
    say('i');
    const auto b = use.array("b").as<int32_t, 1>();
    for (int64_t i = 0; i < 16; ++i) b(i) = 2;
    say('I');
  }
  say('-');
  {
    const api::ArenaUse use = arena.use("floats");
    say('f');
    const auto a = use.array("a").as<double, 1>();
    for (int64_t i = 0; i < 8; ++i) a(i) = 3;
    say('F');
  }
  say('+');
}

// Runs a victim that is killed at a store. Returns what it said. has_ended: it ended before that store.
std::string run_victim(int crash_at, bool* has_ended) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  const std::string number = "TENON_CRASH_AT=" + std::to_string(crash_at);
  std::vector<char*> environment;
  for (char** word = environ; *word != nullptr; ++word) environment.push_back(*word);
  environment.push_back(const_cast<char*>(number.c_str()));
  environment.push_back(nullptr);
  char program[] = "/proc/self/exe", filter[sizeof kVictimFilter],
       disabled[] = "--gtest_also_run_disabled_tests";
  std::memcpy(filter, kVictimFilter, sizeof filter);
  std::array<char*, 4> arguments{program, filter, disabled, nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t pid = 0;
  const int failed = posix_spawn(&pid, program, &actions, nullptr, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (failed != 0) throw std::runtime_error("no victim");
  std::string said;
  char letter = 0;
  while (::read(ends[0], &letter, 1) == 1) said += letter;
  close(ends[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  *has_ended = WIFEXITED(status);
  EXPECT_TRUE(*has_ended ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL) << status << ' ' << said;
  return said;
}

bool is_whole(const api::Arena& arena, const std::string& layout, bool* was_told) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      const uint32_t flags = *was_told ? uint32_t{TENON_IGNORE_OWNER_DIED} : 0;
      const api::ArenaUse use = arena.use(layout, api::Access::kRead, flags, kPatience);
      if (layout == "floats") {
        const auto a = use.array("a").as<const double, 1>();
        for (int64_t i = 0; i < 8; ++i) {
          if (a(i) != a(0) || (a(i) != 1 && a(i) != 3)) return false;
        }
      } else {
        const auto b = use.array("b").as<const int32_t, 1>();
        for (int64_t i = 0; i < 16; ++i) {
          if (b(i) != 2) return false;
        }
      }
      return true;
    } catch (const api::Error& error) {
      EXPECT_EQ(error.code(), TENON_ERR_OWNER_DIED) << error.what();
      EXPECT_FALSE(*was_told) << "it ignores that";
      *was_told = true;
    }
  }
  return false;
}

TEST(ArenaSweep, AKillAtAnyStoreLeavesOneLayoutOrIsTold) {
  const api::Arena arena = api::Arena::create_shared(kLayouts, {.name = kName});
  bool has_ended = false;
  int kills = 0, tellings = 0;
  for (int at = 1; !has_ended; ++at) {
    {
      const api::ArenaUse use = arena.use("floats", api::Access::kWrite, TENON_OVERWRITE, kPatience);
      const auto a = use.array("a").as<double, 1>();
      for (int64_t i = 0; i < 8; ++i) a(i) = 1;
    }
    uint64_t before = 0, after = 0;
    (void)tenon_arena_active(arena.get(), &before);
    const std::string said = run_victim(at, &has_ended);
    (void)tenon_arena_active(arena.get(), &after);
    ASSERT_LT(at, 10000) << "it never ends";
    ASSERT_LE(after - before, 2U) << said;
    const std::string layout = arena.active();
    ASSERT_TRUE(layout == "floats" || layout == "ints") << said;
    const char last = said.empty() ? ' ' : said.back();
    if (last == 'i' || last == 'I') {
      EXPECT_EQ(layout, "ints") << said;
    }
    if (last == 'f' || last == 'F' || last == '+' || last == ' ') {
      EXPECT_EQ(layout, "floats") << said;
    }
    bool was_told = false;
    const bool whole = is_whole(arena, layout, &was_told);
    EXPECT_TRUE(whole || was_told) << "torn, without an error: store " << at << ", " << said;
    // Between the letters of one block it held the lease in any case.
    if (!has_ended && (last == 'i' || last == 'f')) {
      EXPECT_TRUE(was_told) << at << ' ' << said;
    }
    if (has_ended || last == ' ') {
      EXPECT_FALSE(was_told) << at << ' ' << said;
    }
    kills += has_ended ? 0 : 1;
    tellings += was_told ? 1 : 0;
  }
  EXPECT_GT(kills, 20);
  EXPECT_GT(tellings, 2);
  RecordProperty("kills", kills);
}

}  // namespace
}  // namespace tenon::impl
