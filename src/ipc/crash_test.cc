// SPDX-License-Identifier: Apache-2.0
//
// Processes that are killed: at each of their stores to shared memory in turn (TENON_CRASH_AT), and at random
// times. Oracle: a process that lives on gets its leases; it is told of a writer's death if, and only if, a
// lease for writing was lost, as far as the victim has said where it was; no read is torn; and nothing is
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

namespace api = tenon::api0;  // as users see it

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr api::DType kDouble = api::dtype_of<double>(), kInt = api::dtype_of<int64_t>();
constexpr int64_t kCount = 32;
constexpr auto kPatience = 600s;  // a watchdog: what takes so long hangs

std::string hex(const std::vector<std::byte>& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte b : bytes) {
    text += kDigits[static_cast<unsigned>(b) >> 4];
    text += kDigits[static_cast<unsigned>(b) & 15];
  }
  return text;
}
std::vector<std::byte> bytes_of(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(std::byte(std::stoul(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

api::Array part(const api::Array& x, int64_t begin, int64_t end) {
  const api::Index items[] = {api::slice(begin, end)};
  return x.index(items);
}

// 0: it was held and given back; else why it was not.
tenon_status try_lease(const api::Array& x, api::Access access, uint32_t flags = 0,
                       std::chrono::nanoseconds patience = kPatience) {
  try {
    const api::Lease lease(x, access, flags, patience);
    return TENON_OK;
  } catch (const api::Error& e) {
    return e.code();
  }
}

// ------------------------------------------------------------------------------------------------ the victim

// Says where it is, a letter at a time.
void say(char where) {
  if (::write(STDOUT_FILENO, &where, 1) != 1) _exit(9);
}

// A process that holds bytes for writing until it is killed.
int hold(const std::string& handle) {
  const api::Array x = api::open(bytes_of(handle));
  const api::Lease lease(part(x, 24, 32), api::Access::kWrite);
  say('X');
  while (true) pause();
}

// A bit of everything.
// overwrites: it writes the bytes anew that another one has left behind, else it reads them.
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
      (void)try_lease(part(x, 24, 32), api::Access::kRead);  // reaps one that has died, and is told
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

struct Child {
  pid_t pid = 0;
  int out = -1;
  std::string said;

  // False: it has ended.
  bool hear() {
    char letter = 0;
    if (::read(out, &letter, 1) != 1) return false;
    said += letter;
    return true;
  }
  int end() {
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    close(out);
    return status;
  }
};

Child start(const std::vector<std::string>& arguments, int crash_at = 0) {
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  std::vector<std::string> words{"crash_test"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::vector<std::string> variables;
  for (char** v = environ; *v != nullptr; ++v) variables.emplace_back(*v);
  if (crash_at != 0) variables.push_back(concat("TENON_CRASH_AT=", crash_at));
  std::vector<char*> envp;
  for (std::string& v : variables) envp.push_back(v.data());
  envp.push_back(nullptr);
  const pid_t pid = vfork();
  if (pid == 0) {
    (void)dup2(ends[1], STDOUT_FILENO);
    execve("/proc/self/exe", argv.data(), envp.data());
    _exit(8);
  }
  close(ends[1]);
  return {pid, ends[0], {}};
}

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
// What the segments that are open here show.
Left what_is_left() {
  Left left;
  Segments::instance().visit([&](Segment& segment) {
    const Control& control = segment.control();
    reap_all(control);
    for (uint32_t p = 0; p < kParticipants; ++p) {
      if (!control.has_place(p)) continue;
      const Place& place = control.place(p);
      left.participants += look(place.state) != PlaceState::kFree ? 1 : 0;
      for (const Grant& r : place.grants) left.grants += GrantState::is_lease(look(r.state)) ? 1 : 0;
    }
    for (uint32_t i = 0; i < std::min(look(control.blocks_used()), control.blocks); ++i) {
      const Block& block = control.block(i);
      left.blocks += look(block.state) == BlockState::kUsed ? 1 : 0;
      visit_bits(block.users, [&](uint32_t) { ++left.users; });
      for (const auto& number : block.sent) left.sent += look(number) != 0 ? 1 : 0;
      left.sent += count_of_sent_more(look(block.sent_more));
    }
  });
  return left;
}

size_t count_segments() {
  size_t n = 0;
  Segments::instance().visit([&](Segment&) { ++n; });
  return n;
}

// For messages: the places that are taken, and by which process.
std::string text_of_places() {
  std::string text;
  Segments::instance().visit([&](Segment& segment) {
    const Control& control = segment.control();
    for (uint32_t p = 0; p < kParticipants; ++p) {
      std::string users;
      for (uint32_t i = 0; i < control.blocks; ++i)
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

// Whether the survivor is to be told of a loss, by the last letter that was heard.
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

  // The victim that is killed at its store number n. True: it was; false: it came to its end.
  bool crash(int n, bool overwrites, std::string* said = nullptr) {
    const std::string handle = hex(api::send(x_));
    Child dead = start({"--hold", handle});
    EXPECT_TRUE(dead.hear());
    kill(dead.pid, SIGKILL);
    (void)dead.end();

    auto held = std::make_unique<api::Lease>(part(x_, 0, 8), api::Access::kWrite);
    held->detach();
    Child child = start({"--victim", handle, name_, overwrites ? "1" : "0"}, n);
    while (child.hear()) {
      if (child.said.back() != 'g') continue;
      std::this_thread::sleep_for(1ms);  // as a rule it sleeps by then
      held->release();
    }
    const int status = child.end();
    held->release();
    const bool is_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    EXPECT_TRUE(is_killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0))
        << "status " << status << " after '" << child.said << "'";
    EXPECT_FALSE(child.said.empty());

    const auto began = Clock::now();
    if (said != nullptr) *said = child.said;
    const bool has_looked = child.said.find('D') != std::string::npos;
    // Every reader is told until all is written anew.
    const bool is_unclear = overwrites && child.said.back() == 'p';
    expect_told(24,
                overwrites && has_looked ? Told::kNo
                : is_unclear             ? Told::kPerhaps
                                         : Told::kYes,
                child.said);
    expect_told(8, told_of(child.said, 'w', 'W', 'v'), child.said);
    expect_told(0, told_of(child.said, 'g', 'G', 'h'), child.said);
    EXPECT_EQ(try_lease(x_, api::Access::kWrite, TENON_OVERWRITE), TENON_OK);
    EXPECT_EQ(try_lease(x_, api::Access::kRead), TENON_OK) << "healed, after '" << child.said << "'";
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
  // Beside what this process has itself.
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
  // Without a kill: how it ought to be, and what is open then.
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

// Whole arrays of one value, written and read under leases. The first element says whether a writer is at it:
// after a death others may look before the one that was told of it has written all anew.
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

// Where so many are killed between their fork and their first step, there may be no place for one: those of
// the killed are kept for a while.
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
    if (kOnlyStrangers || random() % 4 == 0) {  // as a stranger
      Child child = start({"--work", handle, std::to_string(random())});
      close(child.out);
      *pid = child.pid;
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
  (void)api::open(bytes_of(handle));  // perhaps no process has
  expect_nothing_left(files, mappings);
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(worst).count();
  std::cout << kills << " kills, " << deaths << " told to this process, whose longest wait was " << ms
            << " ms\n";
}

}  // namespace

int child(const std::vector<std::string>& words) {
  if (words[1] == "--hold") return hold(words[2]);
  if (words[1] == "--victim") return victim(words[2], words[3], words[4] == "1");
  api::Array x;
  try {
    x = api::open(bytes_of(words[2]));
  } catch (const api::Error& e) {
    _exit(e.code() == TENON_ERR_SYSTEM ? kNoPlace : 4);
  }
  work(x, words[2], std::stoull(words[3]));
}

}  // namespace tenon::impl

int main(int count, char** words) {
  const std::vector<std::string> arguments(words, words + count);
  const bool is_child =
      count > 2 && (arguments[1] == "--hold" || arguments[1] == "--victim" || arguments[1] == "--work");
  if (is_child) return tenon::impl::child(arguments);
  testing::InitGoogleTest(&count, words);
  return RUN_ALL_TESTS();
}
