// SPDX-License-Identifier: Apache-2.0
//
// A process counts as dead after the end of the last of its threads, not before, and always then. The victims
// are other processes of this program, which say what they have done. Each says "held" when it holds a write
// lease.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/denied_testing.h"
#include "base/error.h"
#include "ipc/collect.h"
#include "ipc/peer_testing.h"
#include "ipc/segments.h"
#include "sync/wait.h"
#include "tenon/engine.hpp"
#include "tenon/share.hpp"

namespace tenon::impl {
namespace {

using namespace std::chrono_literals;

constexpr api::DType kByte = api::dtype_of<uint8_t>();
constexpr size_t kLargeNbytes = size_t{512} << 20;
constexpr int kManySegments = 2200;  // the kernel walks 2,048 robust locks of a thread

api::Array make(const std::string& name, int64_t nbytes = 64) {
  api::SharedOptions options;
  options.name = name;
  return api::zeros_shared({nbytes}, kByte, options);
}

struct Outcome {
  tenon_status code = TENON_OK;
  std::string text;
};
// Takes a write lease and releases it. Returns why it failed.
Outcome try_write(const api::Array& x, std::chrono::nanoseconds patience, uint32_t flags = 0) {
  try {
    const api::Lease lease(x, api::Access::kWrite, flags, patience);
    return {};
  } catch (const api::Error& e) {
    return {e.code(), e.what()};
  }
}

// ----------------------------------------------------------------------------------------------- the victims

[[noreturn]] void sleep_for_ever() {
  while (true) pause();
}

// Fills the array with zeros in one system call, which does not end for a signal.
void fill_in_one_call(Lines& lines, const std::string& name) {
  const api::Array x = api::attach(name);
  const api::Lease lease(x, api::Access::kWrite);
  const int zeros = memfd_create("zeros", MFD_CLOEXEC);
  if (ftruncate(zeros, kLargeNbytes) != 0) return;
  lines.say("held");
  (void)!pread(zeros, x.data(), kLargeNbytes, 0);
  lines.say("has filled");
  sleep_for_ever();
}

// Another process shares its address space: this has the effect of a thread that does not end.
void share_address_space(Lines& lines, const std::string& name) {
  const api::Array x = api::attach(name);
  const api::Lease lease(x, api::Access::kWrite);
  static char stack[64 << 10];
  const auto run = [](void*) -> int { sleep_for_ever(); };
  const int other = clone(run, stack + sizeof stack, CLONE_VM, nullptr);
  lines.say(concat("held ", other));
  sleep_for_ever();
}

void* hold_in_thread(void* name) {
  const api::Array x = api::attach(*static_cast<const std::string*>(name));  // the same one as in the parent
  const api::Lease lease(x, api::Access::kWrite);
  Lines(STDIN_FILENO, STDOUT_FILENO).say(concat("held ", getpid()));
  sleep_for_ever();
}

// A forked child whose only thread starts another one, which takes the lease, and then ends.
void fork_and_end_thread(Lines& lines, const std::string& given) {
  static const std::string name = given;  // the stack ends with its thread
  static const api::Array x = api::attach(name);
  const pid_t child = fork();
  if (child == 0) {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    pthread_t thread;
    pthread_create(&thread, nullptr, hold_in_thread, const_cast<std::string*>(&name));
    pthread_exit(nullptr);
  }
  std::string line;
  (void)lines.hear(&line);
}

void run_another_program(Lines& lines, const std::string& name) {
  const api::Array x = api::attach(name);
  const api::Lease lease(x, api::Access::kWrite);
  lines.say("held");
  std::string line;
  (void)lines.hear(&line);
  execl("/bin/sleep", "sleep", "1000", nullptr);
}

// A forked child holds the lease when its parent has ended.
void leave_a_child(Lines& lines, const std::string& name) {
  const api::Array x = api::attach(name);
  const api::Lease lease(x, api::Access::kWrite);
  const pid_t child = fork();
  if (child == 0) {
    (void)prctl(PR_SET_PDEATHSIG, 0);
    lines.say(concat("held ", getpid()));
    sleep_for_ever();
  }
  sleep_for_ever();
}

void take_part_in_many(Lines& lines, const std::string& name, int count) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  const api::Array first = api::attach(name + ".first");
  std::vector<std::unique_ptr<Segment>> segments;
  for (int i = 0; i < count; ++i) {
    SegmentPlan plan;
    plan.data_nbytes = 64;
    segments.push_back(Segment::create(plan, MutexOwner::instance()));
  }
  const api::Array last = api::attach(name + ".last");
  const api::Lease a(first, api::Access::kWrite), b(last, api::Access::kWrite);
  lines.say("held");
  sleep_for_ever();
}

void read_until_told(Lines& lines, const std::string& handle) {
  const api::Array x = api::open(bytes_of(handle));
  const api::Lease lease(x, api::Access::kRead, 0, kPatience);
  lines.say("held");
  std::string line;
  (void)lines.hear(&line);
}

// Says "held", or why it cannot use the array.
void use_with_denied_call(Lines& lines, const std::string& name, long number, int error) {
  deny(number, error);
  try {
    const api::Array own = api::zeros_shared({64}, kByte);
    const api::Array x = api::attach(name);
    const api::Lease lease(x, api::Access::kWrite, 0, kPatience);
    lines.say("held");
    sleep_for_ever();
  } catch (const api::Error& e) {
    lines.say(concat(int{e.code()}, " ", e.what()));
  }
}

int be_victim(const std::vector<std::string>& words) {
  Lines lines(STDIN_FILENO, STDOUT_FILENO);
  if (words[0] == "fill") fill_in_one_call(lines, words[1]);
  if (words[0] == "address space") share_address_space(lines, words[1]);
  if (words[0] == "thread") fork_and_end_thread(lines, words[1]);
  if (words[0] == "exec") run_another_program(lines, words[1]);
  if (words[0] == "child") leave_a_child(lines, words[1]);
  if (words[0] == "many") take_part_in_many(lines, words[1], std::stoi(words[2]));
  if (words[0] == "reader") read_until_told(lines, words[1]);
  if (words[0] == "denied") use_with_denied_call(lines, words[1], std::stol(words[2]), std::stoi(words[3]));
  return 0;
}

std::string heard(Peer& peer) {
  std::string line;
  EXPECT_TRUE(peer.hear(&line)) << "it has ended";
  return line;
}
pid_t pid_in(const std::string& line) { return std::stoi(line.substr(line.rfind(' ') + 1)); }

// ------------------------------------------------------------------------------------------------- the laws

size_t count_zeros(const api::Array& x) {
  const auto* const bytes = static_cast<const volatile uint8_t*>(x.data());
  size_t n = 0;
  for (size_t i = 0; i < kLargeNbytes; i += 4096) n += bytes[i] == 0 ? 1 : 0;
  return n;
}

TEST(Deaths, NoByteChangesUnderTheNextWriterWhenAWriterIsKilledInsideOfASystemCall) {
  const std::string name = new_name();
  const api::Array x = make(name, kLargeNbytes);
  const auto* const first = static_cast<const volatile uint8_t*>(x.data());
  size_t killed = kLargeNbytes / 4096;
  // On a loaded machine the call may have ended before the kill.
  while (killed == kLargeNbytes / 4096) {
    {
      const api::Lease whole(x, api::Access::kWrite, TENON_OVERWRITE, kPatience);
      std::memset(x.data(), 1, kLargeNbytes);
    }
    Peer victim({"fill", name});
    EXPECT_EQ(heard(victim), "held");
    while (first[0] != 0) std::this_thread::yield();
    kill(victim.pid(), SIGKILL);
    killed = count_zeros(x);
    const api::Lease lease(x, api::Access::kWrite, TENON_IGNORE_OWNER_DIED, kPatience);
    const size_t granted = count_zeros(x);
    (void)victim.end();
    EXPECT_EQ(count_zeros(x), granted);
  }
}

TEST(Deaths, WhileAProcessIsEndingAWaitHasItsTimeLimitAndNamesTheProcess) {
  const std::string name = new_name();
  const api::Array x = make(name);
  Peer victim({"address space", name});
  const pid_t other = pid_in(heard(victim));
  kill(victim.pid(), SIGKILL);
  const Outcome outcome = try_write(x, 200ms);
  EXPECT_EQ(outcome.code, TENON_ERR_TIMEOUT) << outcome.text;
  for (const std::string& part :
       {concat(": process ", victim.pid(), " ("),
        std::string(", which is ending) that holds it for writing since "), concat(" (process ", other, " ("),
        std::string(") has the lock of its place)")}) {
    EXPECT_NE(outcome.text.find(part), std::string::npos) << part << " is not in " << outcome.text;
  }
  kill(other, SIGKILL);
  EXPECT_EQ(try_write(x, kPatience).code, TENON_ERR_OWNER_DIED);
  EXPECT_EQ(try_write(x, kPatience, TENON_OVERWRITE).code, TENON_OK);
}

TEST(Deaths, WhileAProcessIsEndingAWaitCanBeInterrupted) {
  const std::string name = new_name();
  const api::Array x = make(name);
  Peer victim({"address space", name});
  const pid_t other = pid_in(heard(victim));
  kill(victim.pid(), SIGKILL);
  WaitHooks hooks;
  hooks.poll = [](void*) -> int32_t { return 1; };
  set_wait_hooks(hooks);
  EXPECT_EQ(try_write(x, kPatience).code, TENON_ERR_INTERRUPTED);
  set_wait_hooks({});
  kill(other, SIGKILL);
}

TEST(Deaths, AForkedChildLivesOnWhenTheThreadThatItBeganWithEnds) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not support new threads in a forked child";
#endif
  const std::string name = new_name();
  const api::Array x = make(name);
  Peer victim({"thread", name});
  const pid_t child = pid_in(heard(victim));
  EXPECT_EQ(try_write(x, 300ms).code, TENON_ERR_TIMEOUT);
  kill(child, SIGKILL);
  EXPECT_EQ(try_write(x, kPatience).code, TENON_ERR_OWNER_DIED);
}

TEST(Deaths, AProcessThatBecomesAnotherProgramHasGivenUpWhatItHeld) {
  const std::string name = new_name();
  const api::Array x = make(name);
  Peer victim({"exec", name});
  EXPECT_EQ(heard(victim), "held");
  victim.say("go");
  EXPECT_EQ(try_write(x, kPatience).code, TENON_ERR_OWNER_DIED);
  EXPECT_EQ(kill(victim.pid(), 0), 0);
}

TEST(Deaths, AForkedChildDoesNotKeepWhatItsParentHeld) {
  const std::string name = new_name();
  const api::Array x = make(name);
  Peer victim({"child", name});
  const pid_t child = pid_in(heard(victim));
  kill(victim.pid(), SIGKILL);
  EXPECT_EQ(try_write(x, kPatience).code, TENON_ERR_OWNER_DIED);
  EXPECT_EQ(kill(child, SIGKILL), 0);
}

// A process that uses more segments than the kernel walks robust mutexes, and that was killed.
class ManySegments : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP()
        << "ThreadSanitizer supports 64 locks in one thread, and the mutex owner has one for each segment";
#endif
    const std::string name = new_name();
    first_ = make(name + ".first");
    last_ = make(name + ".last");
    Peer victim({"many", name, concat(kManySegments)});
    pid_ = static_cast<uint32_t>(victim.pid());
    EXPECT_EQ(heard(victim), "held");
  }
  api::Array first_, last_;
  uint32_t pid_ = 0;
};

TEST_F(ManySegments, ADeathIsSeenInEach) {
  EXPECT_EQ(try_write(last_, kPatience).code, TENON_ERR_OWNER_DIED);
  EXPECT_EQ(try_write(first_, kPatience).code, TENON_ERR_OWNER_DIED);
}

// Another process may collect at the same time, so the result of collect() may lack a place.
TEST_F(ManySegments, ADeathIsCollectedInEach) {
  const auto places = [this] {
    size_t n = 0;
    for (const SegmentReport& segment : inspect()) {
      n += static_cast<size_t>(std::ranges::count(
          segment.places, pid_, [](const PlaceReport& place) { return place.process.pid; }));
    }
    return n;
  };
  (void)collect();
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (places() != 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(10ms);
  EXPECT_EQ(places(), 0U);
}

// More readers than the system can wait for at once. Two thirds of them are killed.
TEST(ManyProcesses, TakeTurnsAndDieInPlacesThatAreUsedAgain) {
  constexpr size_t kProcesses = 300;
  const api::Array x = api::zeros_shared({64}, kByte);
  const std::string handle = hex(api::send(x));
  Segment* segment = nullptr;
  Segments::instance().visit([&](Segment& s) { segment = &s; });
  ASSERT_NE(segment, nullptr);
  for (int round = 0; round < 2; ++round) {
    std::vector<std::unique_ptr<Peer>> readers;
    for (size_t i = 0; i < kProcesses; ++i)
      readers.push_back(std::make_unique<Peer>(std::vector<std::string>{"reader", handle}));
    for (const auto& reader : readers) ASSERT_EQ(heard(*reader), "held");
    EXPECT_EQ(try_write(x, 20ms).code, TENON_ERR_TIMEOUT);
    for (size_t i = 0; i < kProcesses; ++i) {
      if (i % 3 != 0) {
        readers[i]->kill();
      } else {
        readers[i]->say("go");
      }
    }
    EXPECT_EQ(try_write(x, kPatience).code, TENON_OK);
  }
  const uint32_t places = segment->control().used_places();
  EXPECT_GT(places, kProcesses);
  EXPECT_LT(places, kParticipants) << "the places of the first ones are used again";
  os::FileFacts facts;
  ASSERT_TRUE(os::facts_of(segment->file(), &facts));
  EXPECT_LE(facts.committed_nbytes, places * kPlaceStride + (256 << 10));
}

// --------------------------------------------------------------------------------------------- denied calls

struct Denied {
  long number;
  const char* name;
};
class DeniedCalls : public testing::TestWithParam<Denied> {
 protected:
  std::string use_without(int error) {
    const std::string name = new_name();
    x_ = make(name);
    victim_ = std::make_unique<Peer>(
        std::vector<std::string>{"denied", name, concat(GetParam().number), concat(error)});
    return heard(*victim_);
  }
  api::Array x_;
  std::unique_ptr<Peer> victim_;
};

class NeededCalls : public DeniedCalls {};
TEST_P(NeededCalls, AreNamedByTheErrorOfTheFirstUse) {
  for (const int error : {EPERM, ENOSYS}) {
    const std::string said = use_without(error);
    EXPECT_EQ(said.rfind(concat(int{TENON_ERR_SYSTEM}, " "), 0), 0U) << said;
    EXPECT_NE(said.find(GetParam().name), std::string::npos) << said;
  }
}
INSTANTIATE_TEST_SUITE_P(Deaths, NeededCalls,
                         testing::Values(Denied{SYS_set_robust_list, "set_robust_list"},
                                         Denied{SYS_memfd_create, "memfd_create"},
                                         Denied{SYS_fallocate, "fallocate"}, Denied{SYS_fcntl, "fcntl"}),
                         [](const auto& tested) { return tested.param.name; });

class OtherCalls : public DeniedCalls {};
TEST_P(OtherCalls, AreNotNeededForADeathToBeSeen) {
  for (const int error : {EPERM, ENOSYS}) {
    EXPECT_EQ(use_without(error), "held");
    victim_->kill();
    EXPECT_EQ(try_write(x_, kPatience).code, TENON_ERR_OWNER_DIED);
  }
}
INSTANTIATE_TEST_SUITE_P(Deaths, OtherCalls,
                         testing::Values(Denied{SYS_pidfd_open, "pidfd_open"},
                                         Denied{SYS_futex_waitv, "futex_waitv"},
                                         Denied{SYS_get_robust_list, "get_robust_list"}),
                         [](const auto& tested) { return tested.param.name; });

TEST(Processes, AreNotTakenForEndedBecauseTheirStartIsNotKnown) {
  const os::Process self = os::this_process();
  EXPECT_FALSE(os::has_ended(self));
  EXPECT_FALSE(os::has_ended({self.pid, 0}));
  EXPECT_TRUE(os::has_ended({self.pid, self.start + 1}));
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(os::has_ended({static_cast<uint32_t>(child), 0}));
}

}  // namespace
}  // namespace tenon::impl

int main(int count, char** words) {
  return tenon::impl::run_tests_or_peer(count, words, tenon::impl::be_victim);
}
