// SPDX-License-Identifier: Apache-2.0
//
// A producer and a consumer of a channel are killed at each of their stores to shared memory in turn
// (TENON_CRASH_AT), in every mode. Oracle, by what the victim has said before each of its steps:
//   - items that it has sent arrive complete and in order; items that it has received are lost with it, and
//     at most the one item that it was sending or receiving;
//   - a waiting consumer is told of a producer's death once, and of the end; no process is told of a
//     consumer's death, and a producer that waits for its slots continues;
//   - afterwards all slots can be used.
//
// TENON_CRASH_STEP=n tries every n-th store, TENON_SOAK=1 every one.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ipc/channel_testing.h"
#include "ipc/peer_testing.h"

namespace tenon::impl {
namespace {

constexpr int kSlots = 4;
constexpr int64_t kItems = 3;
constexpr int64_t kMarker = 1'000'000'000;

using Said = std::vector<std::string>;

bool has_said(const Said& said, const std::string& what) {
  return std::ranges::find(said, what) != said.end();
}

// ----------------------------------------------------------------------------------------------- the victims

void produce(Lines& lines, const std::string& name, int64_t first) {
  const api::Channel channel = join(name);
  lines.say("joined");
  for (int64_t i = 0; i < kItems; ++i) {
    lines.say("lends");
    api::Item item = channel.loan(kPatience);
    lines.say("has lent");
    fill(item, first + i);
    lines.say(concat("sends ", first + i));
    item.send();
    lines.say(concat("has sent ", first + i));
  }
  {
    const api::Item item = channel.loan(kPatience);
    fill(item, kTorn);
  }
  lines.say("closes");
  channel.close();
  lines.say("has closed");
}

void consume(Lines& lines, const std::string& name, int64_t last) {
  const api::Channel channel = join(name);
  lines.say("joined");
  std::vector<api::Item> kept;
  for (int64_t value = 0; value != last;) {
    lines.say("receives");
    kept.push_back(std::move(*channel.receive(kPatience)));
    value = value_of(kept.back());
    lines.say(concat("has received ", value));
    if (kept.size() == 2) kept.erase(kept.begin());
  }
  kept.clear();
  lines.say("closes");
  channel.close();
  lines.say("has closed");
}

// Receives all items, until it is told of a death.
void witness(Lines& lines, const std::string& name) {
  const api::Channel channel = join(name);
  lines.say("joined");
  try {
    while (channel.receive(0s)) {
    }
    lines.say("has closed");  // the death was counted before it joined
  } catch (const api::Error&) {
    lines.say("has heard");
  }
}

// Holds a slot until it is killed.
void lend(Lines& lines, const std::string& name) {
  const api::Channel channel = join(name);
  const api::Item item = channel.loan(kPatience);
  lines.say("has lent");
  std::string line;
  (void)lines.hear(&line);
}

// As witness, of a death after it has joined.
void reap(Lines& lines, const std::string& name) {
  const api::Channel channel = join(name);
  (void)try_receive(channel);
  lines.say("joined");
  std::string line;
  (void)lines.hear(&line);
  while (try_receive(channel) != TENON_ERR_OWNER_DIED) {
  }
  lines.say("has heard");
}

// -------------------------------------------------------------------------------------------- the survivors

// What a thread is told that receives until the end after the marker.
struct Heard {
  void listen(const api::Channel& channel) {
    bool is_last = false;
    while (true) {
      try {
        const std::optional<api::Item> item = channel.receive(kPatience);
        const std::scoped_lock locked(lock);
        if (item) {
          const int64_t value = value_of(*item);
          is_last |= value == kMarker;
          if (!is_last) values.push_back(value);
        } else {
          if (is_last) return;
          ++ends;
        }
      } catch (const api::Error& e) {
        const std::scoped_lock locked(lock);
        if (e.code() != TENON_ERR_OWNER_DIED) {
          failure = e.what();
          return;
        }
        dead.push_back(e.op_code());
      }
    }
  }

  std::mutex lock;
  std::vector<int64_t> values;
  std::vector<int32_t> dead;
  int ends = 0;  // before the marker
  std::string failure;
};

class Sweep : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    name_ = concat("channel_crash_test.", getpid());
    api::SharedOptions shared;
    shared.name = name_;
    const auto [mode, when_full] = GetParam();
    channel_ = std::make_unique<api::Channel>(api::Channel::create(kFields, kSlots, mode, when_full, shared));
    (void)try_receive(*channel_);  // a consumer
  }

  // All slots can be loaned at the same time.
  void expect_all_slots() {
    const api::Channel lender = api::Channel::open(channel_->memory());
    std::vector<api::Item> items;
    const int wanted = GetParam().mode == ChannelMode::kLatest ? kSlots - 1 : kSlots;
    EXPECT_EQ(code_of([&] {
                for (int i = 0; i < wanted; ++i) items.push_back(lender.loan(0s));
              }),
              TENON_OK)
        << items.size() << " slots are left";
    EXPECT_EQ(channel_->statistics().in_use, wanted);
    items.clear();
    EXPECT_EQ(channel_->statistics().in_use, 0);
    lender.close();
    (void)try_receive(*channel_);  // is told of the end
  }

  // Runs a victim. Returns whether it was killed.
  bool run(const Said& words, int crash_at, Said* said, pid_t* pid = nullptr) {
    Peer victim(words, crash_at);
    if (pid != nullptr) *pid = victim.pid();
    *said = victim.listen();
    const int status = victim.end();
    const bool is_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    EXPECT_TRUE(is_killed || status == 0) << "status " << status;
    return is_killed;
  }

  // is_late: no process receives until the victim has ended.
  bool crash_producer(int crash_at, bool is_late, Said* said) {
    const int64_t first = 1 + 10 * ++rounds_;
    Heard heard;
    std::thread listener;
    const auto listen = [&] { listener = std::thread([&] { heard.listen(*channel_); }); };
    if (!is_late) listen();
    pid_t pid = 0;
    const bool is_killed = run({"produce", name_, std::to_string(first)}, crash_at, said, &pid);
    if (is_late) listen();
    const bool was_producer = has_said(*said, "has lent"), has_closed = has_said(*said, "has closed");
    const bool must_die = is_killed && was_producer && !has_said(*said, "closes");
    // Before another item is sent: the death alone must wake the waiting process.
    EXPECT_TRUE(comes_true([&] {
      const std::scoped_lock locked(heard.lock);
      if (must_die && heard.dead.empty()) return false;
      return heard.ends > 0 || !was_producer || !heard.failure.empty();
    })) << "no process was told";
    {
      const api::Channel sender = api::Channel::open(channel_->memory());
      put(sender, kMarker);
    }
    listener.join();
    EXPECT_EQ(heard.failure, "");
    EXPECT_LE(heard.dead.size(), 1U) << "once";
    EXPECT_LE(heard.ends, 1) << "once";
    if (!heard.dead.empty()) {
      EXPECT_EQ(heard.dead[0], pid);
    }
    if (!is_killed || has_closed || !has_said(*said, "lends")) {
      EXPECT_TRUE(heard.dead.empty());
    }
    check_values(first, *said, heard.values);
    expect_all_slots();
    return is_killed;
  }
  void check_values(int64_t first, const Said& said, const std::vector<int64_t>& values) {
    int64_t least = 0, most = 0;
    for (int64_t i = 0; i < kItems; ++i) {
      least += has_said(said, concat("has sent ", first + i)) ? 1 : 0;
      most += has_said(said, concat("sends ", first + i)) ? 1 : 0;
    }
    const std::string text = testing::PrintToString(values);
    const auto n = static_cast<int64_t>(values.size());
    for (int64_t i = 0; i < n; ++i) {
      EXPECT_TRUE(values[static_cast<size_t>(i)] >= first && values[static_cast<size_t>(i)] < first + most)
          << text;
    }
    EXPECT_TRUE(std::ranges::is_sorted(values)) << text;
    const int64_t last = n == 0 ? 0 : values.back() - first + 1;
    EXPECT_GE(last, least) << text;
    if (GetParam().mode != ChannelMode::kLatest) {
      EXPECT_EQ(n, last) << text;
    }
  }

  bool crash_consumer(int crash_at, Said* said) {
    const ChannelMode mode = GetParam().mode;
    const int64_t first = 1 + 10 * ++rounds_, last = first + kSlots - 1;
    const api::Channel sender = api::Channel::open(channel_->memory());
    for (int64_t value = first; value <= last; ++value) put(sender, value);
    std::thread lender([&] {  // waits for a slot, where there is none
      EXPECT_EQ(code_of([&] { (void)sender.loan(kPatience); }), TENON_OK);
    });
    const uint64_t deaths = channel_->statistics().deaths;
    const bool is_killed = run({"consume", name_, std::to_string(last)}, crash_at, said);
    std::vector<int64_t> wanted, rest, taken;
    for (const std::string& line : *said) {
      if (line.starts_with("has received ")) taken.push_back(std::stoll(line.substr(13)));
    }
    tenon_status status = TENON_OK;
    const Deadline watchdog(kWatchdogNs);
    // With a timeout of 0, a receive fails while another thread frees what the victim held.
    const auto may_have_more = [&] {
      return mode == ChannelMode::kQueue && channel_->statistics().ready != 0 && !watchdog.has_passed();
    };
    while (status == TENON_OK || (status == TENON_ERR_TIMEOUT && may_have_more())) {
      status = code_of([&] { rest.push_back(value_of(*channel_->receive(0s))); });
    }
    EXPECT_EQ(status, TENON_ERR_TIMEOUT) << "no process is told";
    lender.join();
    const std::string text = testing::PrintToString(rest);
    if (mode == ChannelMode::kLatest) {
      EXPECT_EQ(rest, std::vector<int64_t>{last});
    } else {
      // The items that the victim has not received. The one that it was receiving may be among them, or not.
      for (int64_t value = first; value <= last; ++value) {
        if (mode == ChannelMode::kBroadcast || std::ranges::find(taken, value) == taken.end())
          wanted.push_back(value);
      }
      const bool was_receiving =
          is_killed && !said->empty() && said->back() == "receives" && mode == ChannelMode::kQueue;
      if (was_receiving && rest != wanted) wanted.erase(wanted.begin());
      EXPECT_EQ(rest, wanted);
    }
    sender.close();
    EXPECT_EQ(try_receive(*channel_), TENON_ERR_CLOSED);
    EXPECT_EQ(channel_->statistics().deaths, deaths);
    expect_all_slots();
    return is_killed;
  }

  // The number of a store at which the producer has its role.
  int deadly_store() {
    Said said;
    int at = 0;
    do {
      EXPECT_TRUE(run({"produce", name_, "1"}, at += 16, &said)) << "it has come to its end";
    } while (!has_said(said, "has lent") && !HasFailure());
    (void)deaths_heard();
    return at;
  }
  std::vector<pid_t> deaths_heard() {
    std::vector<pid_t> dead;
    while (true) {
      try {
        (void)channel_->receive(0s);
      } catch (const api::Error& e) {
        if (e.code() != TENON_ERR_OWNER_DIED) return dead;
        dead.push_back(e.op_code());
      }
    }
  }
  bool crash_witness(int crash_at, int deadly_store, Said* said) {
    const uint64_t deaths = channel_->statistics().deaths;
    Said last_words;
    pid_t producer = 0;
    EXPECT_TRUE(run({"produce", name_, "1"}, deadly_store, &last_words, &producer));
    const bool is_killed = run({"witness", name_}, crash_at, said);
    EXPECT_EQ(deaths_heard(), std::vector<pid_t>{producer});
    EXPECT_EQ(channel_->statistics().deaths, deaths + 1);
    expect_all_slots();
    return is_killed;
  }

  bool crash_reaper(int crash_at, Said* said) {
    const uint64_t deaths = channel_->statistics().deaths;
    Peer victim({"reap", name_}, crash_at);
    std::string line;
    said->clear();
    if (victim.hear(&line)) said->push_back(line);
    Peer doomed({"lend", name_});
    EXPECT_TRUE(doomed.hear(&line));
    const pid_t producer = doomed.pid();
    doomed.kill();
    if (!said->empty()) victim.say("go");
    for (const std::string& more : victim.listen()) said->push_back(more);
    const int status = victim.end();
    EXPECT_EQ(deaths_heard(), std::vector<pid_t>{producer});
    EXPECT_EQ(channel_->statistics().deaths, deaths + 1);
    expect_all_slots();
    return WIFSIGNALED(status);
  }

  template <class Crash>
  void sweep(bool is_whole, Crash crash) {
    Said said;
    ASSERT_FALSE(crash(0, &said)) << "without a kill";
    int first = 1;
    if (!is_whole) {  // joining is the same in all modes
      for (int step = 512; step > 0; step /= 2) {
        if (crash(first + step, &said) && !has_said(said, "joined")) first += step;
      }
    }
    int kills = 0;
    for (int at = first; !HasFailure(); at += step_) {
      SCOPED_TRACE(concat("TENON_CRASH_AT=", at));
      if (!crash(at, &said)) break;
      ++kills;
      EXPECT_FALSE(HasFailure()) << testing::PrintToString(said);
    }
    EXPECT_GT(kills * step_, 10);
    EXPECT_TRUE(has_said(said, "has closed") || has_said(said, "has heard"))
        << "the last one has come to its end";
    std::cout << kills << " kills, from store " << first << " on\n";
  }

  static int step() {
    const char* const given = std::getenv("TENON_CRASH_STEP");
    if (given != nullptr) return std::max(std::atoi(given), 1);
    return is_soak() ? 1 : kHasSanitizer ? 7 : 1;
  }

  const int step_ = step();
  int64_t rounds_ = 0;
  std::string name_;
  std::unique_ptr<api::Channel> channel_;
};

class Producers : public Sweep {};
class Consumers : public Sweep {};
class Witnesses : public Sweep {};

TEST_P(Producers, KilledAtAnyStoreLoseNothingThatTheyHadSent) {
  const bool is_whole = GetParam().mode == ChannelMode::kQueue && GetParam().when_full == WhenFull::kWait;
  sweep(is_whole, [this](int at, Said* said) { return crash_producer(at, false, said); });
}
TEST_P(Producers, KilledAtAnyStoreLoseNothingThatNobodyHasReceivedYet) {
  sweep(false, [this](int at, Said* said) { return crash_producer(at, true, said); });
}
TEST_P(Consumers, KilledAtAnyStoreLoseWhatTheyHadInHandAlone) {
  sweep(false, [this](int at, Said* said) { return crash_consumer(at, said); });
}

TEST_P(Witnesses, KilledAtAnyStoreLeaveTheDeathOfAProducerCountedOnce) {
  const int deadly = deadly_store();
  sweep(true, [&](int at, Said* said) { return crash_witness(at, deadly, said); });
}

TEST_P(Witnesses, KilledAtAnyStoreOfAReapLeaveItToTheNext) {
  sweep(false, [&](int at, Said* said) { return crash_reaper(at, said); });
}

INSTANTIATE_TEST_SUITE_P(ChannelCrashes, Producers,
                         testing::Values(Case{ChannelMode::kQueue, WhenFull::kWait},
                                         Case{ChannelMode::kQueue, WhenFull::kDropOldest},
                                         Case{ChannelMode::kBroadcast, WhenFull::kWait},
                                         Case{ChannelMode::kLatest, WhenFull::kWait}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(ChannelCrashes, Consumers,
                         testing::Values(Case{ChannelMode::kQueue, WhenFull::kWait},
                                         Case{ChannelMode::kBroadcast, WhenFull::kWait},
                                         Case{ChannelMode::kLatest, WhenFull::kWait}),
                         name_of);

INSTANTIATE_TEST_SUITE_P(ChannelCrashes, Witnesses,
                         testing::Values(Case{ChannelMode::kQueue, WhenFull::kWait}), name_of);

int be_victim(const std::vector<std::string>& words) {
  Lines lines(STDIN_FILENO, STDOUT_FILENO);
  if (words[0] == "produce") produce(lines, words[1], std::stoll(words[2]));
  if (words[0] == "consume") consume(lines, words[1], std::stoll(words[2]));
  if (words[0] == "witness") witness(lines, words[1]);
  if (words[0] == "reap") reap(lines, words[1]);
  if (words[0] == "lend") lend(lines, words[1]);
  return 0;
}

}  // namespace
}  // namespace tenon::impl

int main(int count, char** words) {
  return tenon::impl::run_tests_or_peer(count, words, tenon::impl::be_victim);
}
