// SPDX-License-Identifier: Apache-2.0
//
// A dead process in a channel, as the others see it while it is reaped: by another thread, or by a process
// that is stopped there.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/repeats_testing.h"
#include "exec/cells_testing.h"
#include "ipc/channel.h"
#include "ipc/peer_testing.h"
#include "ipc/segments.h"
#include "tenon/channel.hpp"  // last: inside, some of its names are others

namespace tenon::impl {
namespace {

Ref<Channel> make(uint32_t slots, WhenFull when_full = WhenFull::kWait, const std::string& name = {}) {
  const tenon_field field{"k", {TENON_INT, 64, 1}, 0, nullptr};
  SharedOptions shared;
  shared.name = name;
  return Channel::create({&field, 1}, {slots, ChannelMode::kQueue, when_full}, shared);
}

const Control& control_of(Channel& channel) {
  return Segments::instance().writable_segment_of(channel.memory()).control();
}

void send(Channel& channel) { channel.send(*channel.loan(Deadline(0), nullptr)); }

// kTimeout: there was nothing. None: an item.
std::optional<Code> receive(Channel& channel, int64_t patience_ns = 0, std::string* message = nullptr) {
  try {
    return channel.receive(Deadline(patience_ns), nullptr) ? std::nullopt : std::optional(Code::kTimeout);
  } catch (const Error& e) {
    if (message != nullptr) *message = e.what();
    return e.code();
  }
}

// A forked process that has a loan of the channel until it is killed.
class Lender {
 public:
  explicit Lender(Channel& channel) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("no pipe");
    pid_ = fork();
    if (pid_ == 0) {
      alarm(600);
      const Ref<Item> item = channel.loan(Deadline(0), nullptr);
      (void)!::write(ends[1], "x", 1);
      while (true) pause();
    }
    char byte = 0;
    EXPECT_EQ(::read(ends[0], &byte, 1), 1);
    for (const int end : ends) close(end);
  }
  ~Lender() {
    kill(pid_, SIGKILL);
    EXPECT_EQ(waitpid(pid_, nullptr, 0), pid_);
  }
  pid_t pid() const noexcept { return pid_; }
  Lender(const Lender&) = delete;
  Lender& operator=(const Lender&) = delete;

 private:
  pid_t pid_ = 0;
};

// The slot of the dead process is about to be free.
TEST(ChannelDeaths, ALoanDropsNoItemWhileAnotherThreadReaps) {
  const Ref<Channel> channel = make(4, WhenFull::kDropOldest);
  const int rounds = repeats(1000, 60, 10);
  for (int round = 0; round < rounds; ++round) {
    {
      const Lender lender(*channel);
      for (int i = 0; i < 3; ++i) send(*channel);
    }
    std::atomic<int> here{0};
    const auto begin = [&] {
      ++here;
      while (here < 2) {
      }
    };
    const Control& control = control_of(*channel);
    std::thread reaper([&] {
      uint32_t dead = 0;
      while (!(is_dead(look(life_word(control.life(dead)))) && control.places->try_lock(dead))) ++dead;
      begin();
      for (const int64_t until = now_ns() + 20'000; now_ns() < until;) {
      }
      control.places->unlock(dead);
      (void)reap(control, dead);
    });
    begin();
    (void)channel->loan(Deadline(0), nullptr);
    reaper.join();
    while (receive(*channel) != Code::kTimeout) {
    }
  }
  // The wait for a reaper is short: on a busy machine, it may be off its processor for longer.
  EXPECT_LE(channel->statistics().dropped, static_cast<uint64_t>(rounds / 2));
}

// This process has attached the memory before, without a use of the channel.
TEST(ChannelDeaths, FromBeforeAnOpeningAreNotTold) {
  const std::string name = new_name();
  int to[2], from[2];
  ASSERT_TRUE(pipe(to) == 0 && pipe(from) == 0);
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(600);
    char byte = 0;
    if (::read(to[0], &byte, 1) != 1) _exit(100);
    const api::Array memory = api::attach(name, false);
    if (::write(from[1], "x", 1) != 1 || ::read(to[0], &byte, 1) != 1) _exit(101);
    const api::Channel channel = api::Channel::open(memory);
    _exit(code_of([&] { (void)channel.receive(std::chrono::nanoseconds(0)); }));
  }
  const Ref<Channel> channel = make(4, WhenFull::kWait, name);
  {
    const Lender first(*channel);
  }
  EXPECT_EQ(receive(*channel), Code::kOwnerDied);
  send(*channel);  // so that there is a producer
  EXPECT_EQ(receive(*channel), std::nullopt);
  char byte = 0;
  ASSERT_TRUE(::write(to[1], "x", 1) == 1 && ::read(from[0], &byte, 1) == 1);
  for (int i = 0; i < 3; ++i) {
    {
      const Lender lender(*channel);
    }
    EXPECT_EQ(receive(*channel), Code::kOwnerDied);
  }
  ASSERT_EQ(::write(to[1], "x", 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), TENON_ERR_TIMEOUT);
  for (const int end : {to[0], to[1], from[0], from[1]}) close(end);
}

// A forked producer sends an item and closes the channel, or ends without that.
void produce_and_end(Channel& channel, bool has_died) {
  const pid_t child = fork();
  if (child == 0) {
    const Ref<Channel> own = Channel::of(Ref<Array>::share(&channel.memory()));
    send(*own);
    if (!has_died) own->close();
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
}

TEST(ChannelDeaths, AConsumerThatAwaitsCrashedProducersIsToldOfAnEndByACloseAlone) {
  const Ref<Channel> usual = make(4);
  const Ref<Channel> patient = Channel::of(Ref<Array>::share(&usual->memory()), {.awaits_crashed = true});
  std::optional<Code> none;
  for (int round = 0; round < 3; ++round) {
    produce_and_end(*usual, true);
    EXPECT_EQ(receive(*patient), none) << "the item of a producer that has died";
    EXPECT_EQ(receive(*patient), Code::kTimeout) << "another one may come";
    EXPECT_FALSE(patient->wait_for_item(Deadline(0)));
    produce_and_end(*usual, false);
    EXPECT_EQ(receive(*patient), none);
    EXPECT_EQ(receive(*patient), Code::kClosed);
    EXPECT_EQ(receive(*patient), Code::kTimeout) << "it is told once";
    produce_and_end(*usual, false);
    produce_and_end(*usual, true);
    EXPECT_EQ(receive(*patient), none);
    EXPECT_EQ(receive(*patient), none);
    EXPECT_EQ(receive(*patient), Code::kTimeout) << "the last one has died";
    produce_and_end(*usual, true);
    produce_and_end(*usual, false);  // nobody has looked at the dead one before
    EXPECT_EQ(receive(*patient), none);
    EXPECT_EQ(receive(*patient), none);
    EXPECT_EQ(receive(*patient), Code::kClosed);
  }
  EXPECT_EQ(receive(*usual), Code::kOwnerDied) << "others are told";
  EXPECT_EQ(usual->statistics().deaths, 9U);
}

TEST(ChannelDeaths, NoNewsMakesTheDescriptorOfAPatientConsumerReadableButAClose) {
  const Ref<Channel> usual = make(4);
  const Ref<Channel> patient = Channel::of(Ref<Array>::share(&usual->memory()), {.awaits_crashed = true});
  pollfd poller{patient->descriptor(Access::kRead), POLLIN, 0};
  const auto settle = [&] {
    for (int quiet = 0; quiet < 5;) {
      quiet = poll(&poller, 1, 20) == 1 ? 0 : quiet + 1;
      std::optional<Code> found = receive(*patient);
      while (!found) found = receive(*patient);
      EXPECT_EQ(found, Code::kTimeout);
    }
  };
  produce_and_end(*usual, true);
  settle();
  produce_and_end(*usual, false);
  EXPECT_EQ(poll(&poller, 1, 60'000), 1);
  EXPECT_EQ(receive(*patient), std::optional<Code>());
  EXPECT_EQ(receive(*patient), Code::kClosed);
}

// As if a reaper or a process that closes were stopped before it signals the event.
TEST(ChannelDeaths, AreToldByADescriptorThatNoSignalHasReached) {
  const Ref<Channel> channel = make(2);
  ChannelState& state = *control_of(*channel).channel();
  const auto is_readable = [fd = channel->descriptor(Access::kRead)](int timeout_ms) {
    pollfd poller{fd, POLLIN, 0};
    return poll(&poller, 1, timeout_ms) == 1;
  };
  struct News {
    std::atomic<uint64_t>* word;
    uint64_t one;
    Code code;
  };
  const News news[] = {{&state.deaths, 1, Code::kOwnerDied},
                       {&state.closings, ClosingsWord::make(1, false), Code::kClosed}};
  for (const auto& [word, one, code] : news) {
    for (int quiet = 0; quiet < 3;) {
      quiet = is_readable(20) ? 0 : quiet + 1;
      EXPECT_EQ(receive(*channel), Code::kTimeout);
    }
    *word += one;
    EXPECT_TRUE(is_readable(60'000));
    EXPECT_EQ(receive(*channel), code);
  }
}

// Damaged memory names a place that no process has. A thread that does spin is the measure: both have a share
// of a busy machine.
TEST(ChannelDeaths, OfNoProcessLetNoThreadSpin) {
  const Ref<Channel> channel = make(2);
  ChannelState& state = *control_of(*channel).channel();
  const uint32_t nobody = kParticipants - 1;
  set_bit(state.users, nobody);
  state.ends[nobody].word = kConsumer;
  const auto cpu_ns = [] {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1'000'000'000 + now.tv_nsec;
  };
  std::atomic<bool> has_begun{false}, has_ended{false};
  int64_t spinner_ns = 0;
  std::thread spinner([&] {
    const int64_t before = cpu_ns();
    has_begun = true;
    while (!has_ended) {
    }
    spinner_ns = cpu_ns() - before;
  });
  while (!has_begun) {
  }
  const int64_t before = cpu_ns();
  EXPECT_EQ(receive(*channel, 1'000'000'000), Code::kTimeout);
  const int64_t waiter_ns = cpu_ns() - before;
  has_ended = true;
  spinner.join();
  EXPECT_LT(waiter_ns, spinner_ns / 20);
  state.ends[nobody].word = 0;
  clear_bit(state.users, nobody);
}

// It takes the place of a dead process, whose death it counts. Others die before it opens the channel.
TEST(ChannelDeaths, AnOpeningNamesTheProcessThatItHasReaped) {
  const std::string name = new_name();
  int to[2], from[2];
  ASSERT_TRUE(pipe(to) == 0 && pipe(from) == 0);
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(600);
    Lines lines(to[0], from[1]);
    std::string line, message;
    if (!lines.hear(&line)) _exit(100);
    const api::Array memory = api::attach(name, false);
    lines.say("attached");
    if (!lines.hear(&line)) _exit(101);
    const api::Channel channel = api::Channel::open(memory);
    const auto receive = [&] { (void)channel.receive(std::chrono::nanoseconds(0)); };
    if (code_of(receive, &message) != TENON_ERR_OWNER_DIED) _exit(102);
    lines.say(message);
    _exit(code_of(receive));
  }
  Lines lines(from[0], to[1]);
  std::string line;
  const Ref<Channel> channel = make(4, WhenFull::kWait, name);
  send(*channel);  // so that there is a producer
  EXPECT_EQ(receive(*channel), std::nullopt);
  std::string reaped;
  {
    const Lender first(*channel);
    reaped = concat("(process ", first.pid(), ")");
  }
  lines.say("attach");
  ASSERT_TRUE(lines.hear(&line));
  EXPECT_EQ(receive(*channel), Code::kOwnerDied);
  for (int i = 0; i < 3; ++i) {
    {
      const Lender lender(*channel);
    }
    EXPECT_EQ(receive(*channel), Code::kOwnerDied);
  }
  lines.say("open");
  ASSERT_TRUE(lines.hear(&line));
  EXPECT_NE(line.find(reaped), std::string::npos) << line;
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), TENON_ERR_TIMEOUT);
  for (const int fd : {to[0], to[1], from[0], from[1]}) close(fd);
}

// As if a reaper were stopped after it has counted the death.
TEST(ChannelDeaths, AreToldWithoutTheDeadAmongTheProducers) {
  const Ref<Channel> channel = make(2);
  const Control& control = control_of(*channel);
  ChannelState& state = *control.channel();
  {
    const Lender lender(*channel);
  }
  uint32_t dead = 0;
  while (!(is_dead(look(life_word(control.life(dead)))) && control.places->try_lock(dead))) ++dead;
  state.ends[dead].word = EndWord::make(kProducer, EndWord::kCounted, 1);
  state.entries_of_deaths[1] = DeathEntry::make(1, dead, look(control.place(dead).pid));
  state.deaths = 1;
  std::string message;
  EXPECT_EQ(receive(*channel, 0, &message), Code::kOwnerDied);
  EXPECT_NE(message.find("no producer is left"), std::string::npos) << message;
  control.places->unlock(dead);
  EXPECT_EQ(receive(*channel), Code::kClosed);
}

#if !defined(__SANITIZE_THREAD__)  // under which a forked child cannot start threads
// The kernel marks its life at the end of that thread.
TEST(ChannelDeaths, AProcessWhoseFirstThreadHasEndedIsNotDead) {
  const Ref<Channel> channel = make(2);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(600);
    std::thread([&] {
      const Ref<Item> item = channel->loan(Deadline(0), nullptr);
      Lines(ends[0], ends[1]).say("has a loan");
      while (true) pause();
    }).detach();
    (void)syscall(SYS_exit, 0);  // no unwinding through the test
  }
  std::string line;
  EXPECT_TRUE(Lines(ends[0], ends[1]).hear(&line));
  const Control& control = control_of(*channel);
  EXPECT_TRUE(comes_true([&] { return is_dead(look(life_word(control.life(1)))); }));
  EXPECT_TRUE(comes_true([&] {
    std::ifstream file(concat("/proc/", pid, "/stat"));
    std::getline(file, line);
    return line.find(") Z ") != std::string::npos;
  }));
  const os::Process process{static_cast<uint32_t>(pid), look(control.place(1).start)};
  EXPECT_FALSE(os::has_ended(process));
  EXPECT_EQ(receive(*channel, 1'000'000), Code::kTimeout);
  EXPECT_EQ(channel->statistics().producers, 1U);
  kill(pid, SIGKILL);
  siginfo_t info{};
  EXPECT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(os::has_ended(process));
  EXPECT_EQ(receive(*channel, kWatchdogNs), Code::kOwnerDied);
  EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
  for (const int fd : ends) close(fd);
}
#endif

}  // namespace
}  // namespace tenon::impl
