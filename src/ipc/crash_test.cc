// SPDX-License-Identifier: Apache-2.0
//
// Processes are killed at each of their stores to shared memory in turn (TENON_CRASH_AT), and at random
// times. Oracle: a surviving process gets its leases. It is told of a writer's death if and only if the
// victim died with a write lease, as far as the victim's last letter shows this. No read is torn. Nothing is
// left: no grant, no place, no block, no file, no mapping.
//
// TENON_SOAK=1 kills 10,000 times at random. TENON_CRASH_STEP=n tries every n-th store.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ipc/segments.h"
#include "ipc/stand_in_testing.h"
#include "tenon/engine.hpp"
#include "tenon/share.hpp"

namespace tenon::impl {
namespace {

// ThreadSanitizer's forked children can have no threads.
#if defined(__SANITIZE_THREAD__)
constexpr bool kOnlyStrangers = true;
#else
constexpr bool kOnlyStrangers = false;
#endif

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr api::DType kDouble = api::dtype_of<double>(), kInt = api::dtype_of<int64_t>();
constexpr int64_t kCount = 32;

// Takes a lease and releases it.
tenon_status try_lease(const api::Array& x, api::Access access, uint32_t flags = 0,
                       std::chrono::nanoseconds patience = kPatience) {
  return code_of([&] { const api::Lease lease(x, access, flags, patience); });
}

// ------------------------------------------------------------------------------------------------ the victim

// Says where it is, by one letter.
void say(char where) { Lines(STDIN_FILENO, STDOUT_FILENO).say({where}); }

// A process that holds a write lease until it is killed.
int hold(const std::string& handle) {
  const api::Array x = api::open(bytes_of(handle));
  const api::Lease lease(part(x, 24, 32), api::Access::kWrite);
  say('X');
  while (true) pause();
}

// Uses all features a little.
// overwrites: it overwrites the bytes of a dead writer; else it reads them.
int victim(const std::string& handle, const std::string& name, bool overwrites) {
  say('.');
  {
    const api::Array x = api::open(bytes_of(handle));
    api::Array own = api::zeros_shared({100}, kDouble);
    (void)api::send(own);
    say('d');
    if (overwrites) {
      api::Lease lease(part(x, 24, 32), api::Access::kWrite, TENON_OVERWRITE, kPatience);
      say('o');
      lease.view<double, 1>()(3) = 3;
      say('p');
      lease.release();
    } else {
      (void)try_lease(part(x, 24, 32), api::Access::kRead);  // reaps a dead process, and is told
    }
    say('D');
    {
      say('w');
      api::Lease lease(part(x, 8, 16), api::Access::kWrite);
      say('W');
      lease.view<double, 1>()(3) = 3;
      say('v');
      lease.release();
      say('V');
    }
    if (try_lease(part(x, 16, 24), api::Access::kRead) != TENON_OK) return 2;
    if (try_lease(part(x, 0, 8), api::Access::kRead, 0, 2ms) != TENON_ERR_TIMEOUT) return 3;
    {
      say('g');
      api::Lease lease(part(x, 0, 8), api::Access::kWrite);
      say('G');
      lease.view<double, 1>()(3) = 3;
      say('h');
      lease.release();
      say('H');
    }
    {
      const api::Array named = api::attach(name, true);
      if (try_lease(named, api::Access::kRead) != TENON_OK) return 4;
    }
    {
      api::SharedOptions options;
      options.name = name + ".of_victim";
      const api::Array mine = api::zeros_shared({10}, kDouble, options);
      if (try_lease(mine, api::Access::kWrite, TENON_OVERWRITE) != TENON_OK) return 5;
      own = {};
      own = api::zeros_shared({50}, kDouble);
    }
    (void)api::send(x);
    const pid_t child = fork();  // and a place for it
    if (child == 0) {
      const bool is_good = try_lease(part(x, 16, 24), api::Access::kWrite) == TENON_OK;
      _exit(is_good ? 0 : 1);
    }
    int status = 0;
    (void)waitpid(child, &status, 0);
  }
  Segments::nudge();
  say('E');
  return 0;
}

// -------------------------------------------------------------------------------------------- the survivor

size_t count_files() {
  size_t n = 0;
  for (int fd = 0; fd < 1024; ++fd) n += fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return n;
}
size_t count_mappings() {
  size_t n = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    n += line.find("memfd:tenon") != std::string::npos ? 1 : 0;
  return n;
}

struct Left {
  uint32_t participants = 0, grants = 0, blocks = 0, users = 0, sent = 0;
};
// The contents of the segments that are open in this process.
Left what_is_left() {
  Left left;
  Segments::instance().visit([&](Segment& segment) {
    const Control& control = segment.control();
    reap_all(control);
    for (uint32_t p = 0; p < control.used_places(); ++p) {
      if (!control.has_place(p)) continue;
      const Place& place = control.place(p);
      left.participants += look(place.state) != PlaceState::kFree ? 1 : 0;
      for (const Grant& r : place.grants) left.grants += GrantState::is_lease(look(r.state)) ? 1 : 0;
    }
    for (uint32_t i = 0; i < control.used_blocks(); ++i) {
      const Block& block = control.block(i);
      left.blocks += look(block.state) == BlockState::kUsed ? 1 : 0;
      visit_bits(block.users, [&](uint32_t) { ++left.users; });
    }
    for (uint32_t i = 0; i < control.used_messages(); ++i) {
      const uint64_t word = look(control.message(i).word);
      left.sent += MessageWord::status(word) == MessageStatus::kLive ? 1 : 0;
    }
  });
  return left;
}

size_t count_segments() {
  size_t n = 0;
  Segments::instance().visit([&](Segment&) { ++n; });
  return n;
}

// For messages: the taken places and their processes.
std::string text_of_places() {
  std::string text;
  Segments::instance().visit([&](Segment& segment) {
    const Control& control = segment.control();
    for (uint32_t p = 0; p < control.used_places(); ++p) {
      std::string users;
      for (uint32_t i = 0; i < control.used_blocks(); ++i)
        users += has_bit(control.block(i).users, p) ? concat(" ", i) : "";
      if (!control.has_place(p) || (users.empty() && look(control.place(p).state) == PlaceState::kFree))
        continue;
      const Place& place = control.place(p);
      text += concat("; place ", p, ": state ", static_cast<int>(look(place.state)), ", process ",
                     place.pid.load(), ", word ", look(life_word(control.life(p))), ", blocks", users);
    }
  });
  return text;
}

// Whether the survivor must be told of a death, by the last letter of the victim.
enum class Told { kNo, kYes, kPerhaps };
Told told_of(const std::string& said, char asks, char has, char gives) {
  const char last = said.back();
  if (last == asks || last == gives) return Told::kPerhaps;
  if (last == has) return Told::kYes;
  return Told::kNo;
}

class Crashes : public testing::Test {
 protected:
  void SetUp() override {
    const char* const step = std::getenv("TENON_CRASH_STEP");
    step_ = step != nullptr ? std::atoi(step) : 1;
    name_ = concat("crash_test.", getpid());
    api::SharedOptions options;
    options.name = name_;
    named_ = api::zeros_shared({10}, kDouble, options);
    x_ = api::zeros_shared({kCount}, kDouble);
  }

  // Runs a victim that is killed at its n-th store. False: it ended before that.
  bool crash(int n, bool overwrites, std::string* said = nullptr) {
    const std::string handle = hex(api::send(x_));
    std::string line, letters;
    {
      Peer dead({"hold", handle});
      EXPECT_TRUE(dead.hear(&line));
    }

    auto held = std::make_unique<api::Lease>(part(x_, 0, 8), api::Access::kWrite);
    held->detach();
    Peer child({"victim", handle, name_, overwrites ? "1" : "0"}, n);
    while (child.hear(&line)) {
      letters += line;
      if (line != "g") continue;
      std::this_thread::sleep_for(1ms);  // usually the victim sleeps then
      held->release();
    }
    const int status = child.end();
    held->release();
    const bool is_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    EXPECT_TRUE(is_killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0))
        << "status " << status << " after '" << letters << "'";
    EXPECT_FALSE(letters.empty());

    const auto began = Clock::now();
    if (said != nullptr) *said = letters;
    const bool has_looked = letters.find('D') != std::string::npos;
    // Every reader is told until all bytes are overwritten.
    const bool is_unclear = overwrites && letters.back() == 'p';
    expect_told(24, overwrites && has_looked ? Told::kNo : is_unclear ? Told::kPerhaps : Told::kYes, letters);
    expect_told(8, told_of(letters, 'w', 'W', 'v'), letters);
    expect_told(0, told_of(letters, 'g', 'G', 'h'), letters);
    EXPECT_EQ(try_lease(x_, api::Access::kWrite, TENON_OVERWRITE), TENON_OK);
    EXPECT_EQ(try_lease(x_, api::Access::kRead), TENON_OK) << "healed, after '" << letters << "'";
    worst_ = std::max(worst_, Clock::now() - began);
    EXPECT_EQ(try_lease(named_, api::Access::kWrite, TENON_OVERWRITE), TENON_OK);
    {
      api::SharedOptions options;
      options.name = name_ + ".of_victim";
      EXPECT_NO_THROW((void)api::zeros_shared({10}, kDouble, options)) << "the name is free again";
    }
    return is_killed;
  }
  void expect_told(int64_t begin, Told wanted, const std::string& said) {
    const tenon_status status = try_lease(part(x_, begin, begin + 8), api::Access::kRead);
    EXPECT_TRUE(status == TENON_OK || status == TENON_ERR_OWNER_DIED) << status << " after '" << said << "'";
    if (wanted == Told::kPerhaps) return;
    EXPECT_EQ(status == TENON_ERR_OWNER_DIED, wanted == Told::kYes)
        << "elements from " << begin << ", after '" << said << "'";
  }
  // Except what this process uses itself.
  void expect_nothing_left(size_t files, size_t mappings) {
    Left left;
    EXPECT_TRUE(comes_true([&] {
      left = what_is_left();
      return left.grants == 0 && left.sent == 0 && left.users == left.blocks;
    })) << left.grants
        << " grants, " << left.sent << " handles, " << left.users << " users of " << left.blocks << " blocks"
        << text_of_places();
    EXPECT_TRUE(comes_true([&] {
      left = what_is_left();
      return left.participants == count_segments();
    })) << left.participants
        << " participants";
    EXPECT_TRUE(comes_true([&] { return count_files() == files && count_mappings() == mappings; }))
        << count_files() << " files of " << files << ", " << count_mappings() << " mappings of " << mappings;
  }

  int step_ = 1;
  std::string name_;
  api::Array x_, named_;
  Clock::duration worst_{};
};

TEST_F(Crashes, AtEveryStoreLeaveTheOthersUnharmedAndNothingBehind) {
  // Without a kill: the expected state.
  ASSERT_FALSE(crash(0, false));
  ASSERT_TRUE(comes_true([] { return what_is_left().grants == 0 && count_segments() == 2; }));
  const size_t files = count_files(), mappings = count_mappings();
  int kills = 0;
  for (int n = 1; !HasFailure(); n += step_) {
    SCOPED_TRACE(concat("TENON_CRASH_AT=", n));
    if (!crash(n, false)) break;
    ++kills;
  }
  const int first_kills = kills;
  std::string said;
  for (int n = 1; !HasFailure() && said.find('D') == std::string::npos; n += step_) {
    SCOPED_TRACE(concat("TENON_CRASH_AT=", n, ", overwriting"));
    if (!crash(n, true, &said)) break;
    ++kills;
  }
  EXPECT_GT(first_kills * step_, 100);
  EXPECT_GT(kills, first_kills);
  expect_nothing_left(files, mappings);
  named_ = {};
  x_ = {};
  Segments::nudge();
  EXPECT_TRUE(comes_true([] { return what_is_left().blocks == 0; }))
      << what_is_left().blocks << " blocks" << text_of_places();
  const auto worst = std::chrono::duration_cast<std::chrono::milliseconds>(worst_).count();
  std::cout << kills << " kills; the survivor had all its leases after " << worst << " ms at worst\n";
}

// --------------------------------------------------------------------------------------------- random times

// Whole arrays of one value, written and read under leases. The first element shows whether a write has
// ended: after a death, processes may read before the array is overwritten.
void fill(const api::Lease& lease, int64_t value) {
  auto view = lease.view<int64_t, 1>();
  const auto flag = std::atomic_ref<int64_t>(view(0));
  flag.store(1);
  for (int64_t i = 1; i < view.size(); ++i) view(i) = value;
  flag.store(0);
}
bool is_torn(const api::Lease& lease) {
  const auto view = lease.view<const int64_t, 1>();
  bool is_equal = true;
  for (int64_t i = 2; i < view.size(); ++i) is_equal &= view(i) == view(1);
  return view(0) == 0 && !is_equal;
}

// Exit status: there was no place. Many processes are killed between their fork and their first step, and
// their places are reserved for a while.
constexpr int kNoPlace = 6;
bool has_place() {
  bool has = true;
  Segments::instance().visit([&](Segment& s) { has &= s.participant().index() != Participant::kNone; });
  return has;
}

[[noreturn]] void work(const api::Array& x, const std::string& handle, uint64_t seed) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::mt19937_64 random(seed);
  while (true) {
    try {
      if (random() % 2 == 0) {
        fill(api::Lease(x, api::Access::kWrite, 0, kPatience), static_cast<int64_t>(random()));
      } else {
        const api::Lease lease(x, api::Access::kRead, 0, kPatience);
        if (is_torn(lease)) _exit(3);
      }
      if (random() % 8 == 0) {
        const api::Array again = api::open(bytes_of(handle));
        (void)api::send(again);
      }
      if (random() % 16 == 0) (void)api::zeros_shared({1000}, kInt);
    } catch (const api::Error& e) {
      if (!has_place()) _exit(kNoPlace);
      if (e.code() != TENON_ERR_OWNER_DIED) {
        (void)!::write(STDERR_FILENO, e.what(), std::string(e.what()).size());
        _exit(4);
      }
      try {
        fill(api::Lease(x, api::Access::kWrite, TENON_OVERWRITE, kPatience), 7);
      } catch (const api::Error&) {
        _exit(5);
      }
    }
  }
}

TEST_F(Crashes, AtRandomTimesNeverTearAReadAndLeaveNothingBehind) {
  const int kills = repeats(10'000, 300, 60);
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  const api::Array x = api::zeros_shared({4096}, kInt);
  ASSERT_EQ(try_lease(x, api::Access::kWrite), TENON_OK);
  const size_t files = count_files(), mappings = count_mappings();
  std::vector<pid_t> workers(3);
  const std::string handle = hex(api::send(x));
  const auto hire = [&](pid_t* pid) {
    if (kOnlyStrangers || random() % 4 == 0) {  // not by a fork
      *pid = Peer({"work", handle, std::to_string(random())}).release();
      return;
    }
    const uint64_t its_seed = random();
    *pid = fork();
    if (*pid == 0) work(x, handle, its_seed);
  };
  for (pid_t& pid : workers) hire(&pid);
  int deaths = 0, without_place = 0;
  Clock::duration worst{};
  for (int i = 0; i < kills && !HasFailure(); ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
    pid_t& pid = workers[random() % workers.size()];
    kill(pid, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    const bool has_no_place = WIFEXITED(status) && WEXITSTATUS(status) == kNoPlace;
    without_place += has_no_place ? 1 : 0;
    EXPECT_TRUE(WIFSIGNALED(status) || has_no_place) << "a worker has ended with " << WEXITSTATUS(status);
    hire(&pid);
    if (random() % 4 != 0) continue;
    const auto began = Clock::now();
    const tenon_status status_of_read = try_lease(x, api::Access::kRead);
    worst = std::max(worst, Clock::now() - began);
    if (status_of_read == TENON_ERR_OWNER_DIED) {
      ++deaths;
      const api::Lease lease(x, api::Access::kWrite, TENON_OVERWRITE, kPatience);
      fill(lease, i);
    } else {
      EXPECT_EQ(status_of_read, TENON_OK);
    }
  }
  EXPECT_LT(without_place, kills / 20 + 1);
  for (const pid_t pid : workers) {
    kill(pid, SIGKILL);
    (void)waitpid(pid, nullptr, 0);
  }
  (void)try_lease(x, api::Access::kWrite, TENON_OVERWRITE);
  (void)what_is_left();
  (void)api::open(bytes_of(handle));  // perhaps no process has opened it
  expect_nothing_left(files, mappings);
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(worst).count();
  std::cout << kills << " kills, " << deaths << " told to this process, whose longest wait was " << ms
            << " ms\n";
}

}  // namespace

int be_peer(const std::vector<std::string>& words) {
  if (words[0] == "hold") return hold(words[1]);
  if (words[0] == "victim") return victim(words[1], words[2], words[3] == "1");
  api::Array x;
  try {
    x = api::open(bytes_of(words[1]));
  } catch (const api::Error& e) {
    _exit(e.code() == TENON_ERR_SYSTEM ? kNoPlace : 4);
  }
  work(x, words[1], std::stoull(words[2]));
}

}  // namespace tenon::impl

int main(int count, char** words) {
  return tenon::impl::run_tests_or_peer(count, words, tenon::impl::be_peer);
}
