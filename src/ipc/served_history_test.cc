// SPDX-License-Identifier: Apache-2.0
//
// Rounds of a served feed: consumers in other processes come, leave, stop and are killed at random, while a
// server begins one round after the other. Laws: a batch of a queue is received by one consumer, each of a
// broadcast by each that was there, in order; its bytes do not change meanwhile; a round begins when each
// consumer that lives has ended the one before; each state is noted once, in order, before its slot is filled
// again; nobody sleeps for ever.
//
// TENON_HISTORIES=n plays n histories of each kind.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "ipc/served_peers_testing.h"

namespace tenon::impl {
namespace {

constexpr uint64_t kRounds = 60, kBatches = 25;
constexpr int64_t kHangNs = 60'000'000'000;

// As data/feed_control.h has it. Behind the parts of served_state.h.
struct Round {
  std::atomic<uint64_t> version, base, limit;
};
Round& round_of(const OpenFeed& feed) {
  return *reinterpret_cast<Round*>(reinterpret_cast<std::byte*>(&feed.state()) + ServedState::end_at(kSlots));
}
// The number that is written into the slot.
std::atomic<uint64_t>& content(const OpenFeed& feed, uint32_t slot) {
  std::byte* const slots = feed.segment().bytes_of(1).data();
  return *reinterpret_cast<std::atomic<uint64_t>*>(slots + slot * kSlotNbytes);
}

// ------------------------------------------------------------------------------------------------ consumers

class Consumer {
 public:
  Consumer(const std::string& name, uint32_t seed)
      : feed_(name), random_(seed), lines_(STDIN_FILENO, STDOUT_FILENO) {}

  void run() {
    std::string line;
    if (!lines_.hear(&line)) return;
    while (loop()) {
      if (is_one_of(8)) leave();
    }
    leave();
    lines_.say("closed");
  }

 private:
  struct Seen {
    uint64_t base, limit;
    ServedPhase phase;
  };
  const ServedEnds& ends() { return feed_.ends(); }
  ServedState& state() { return feed_.state(); }
  bool is_one_of(uint32_t n) { return random_() % n == 0; }

  template <class Condition>
  void sleep_until(Condition is_so) {
    drop_all();
    const bool is_in_time = ends().sleep(feed_.self(), state().pool().settled, Deadline(kHangNs), is_so,
                                         [&](const auto& add) { add(look(state().server)); });
    if (!is_in_time) {
      lines_.say("hangs");
      _exit(3);
    }
  }
  // Of an even version.
  Seen read_round() {
    Round& round = round_of(feed_);
    while (true) {
      const uint64_t version = observe(round.version);
      if (version % 2 != 0) {
        sleep_until([&] { return observe(round.version) != version; });
        continue;
      }
      const Seen seen{observe(round.base), observe(round.limit), look(state().phase)};
      if (observe(round.version) == version) return seen;
    }
  }
  bool is_over() { return look(state().phase) == ServedPhase::kOver; }

  void join() {
    ends().begin_join(feed_.self(), false);
    const Seen seen = read_round();
    const bool has_ended = seen.phase == ServedPhase::kGathering ||
                           (observe(state().told) == seen.base && feed_.table().passed() >= seen.limit);
    ends().end_join(feed_.self(), has_ended ? seen.base : 0);
    has_joined_ = true;
    lines_.say("joined");
  }
  void leave() {
    drop_all();
    if (std::exchange(has_joined_, false)) ends().leave(feed_.self());
    lines_.say("left");
  }

  // False: the feed is not served any more.
  bool loop() {
    if (!has_joined_) join();
    const uint64_t ended = observe(state().records[feed_.self()].ended);
    Seen seen{};
    const auto is_later = [&] {
      const uint64_t version = observe(round_of(feed_).version);
      seen = {observe(round_of(feed_).base), observe(round_of(feed_).limit), {}};
      return version % 2 == 0 && seen.base > ended && observe(round_of(feed_).version) == version;
    };
    sleep_until([&] { return is_later() || is_over(); });
    if (!is_later()) return false;
    while (true) {
      if (observe(round_of(feed_).base) != seen.base) return true;  // it was left before
      if (!ends().is_broadcast()) ends().help();
      const uint64_t n = next(seen.base);
      if (n > seen.limit && observe(round_of(feed_).base) == seen.base) {
        drop_all();
        lines_.say(concat("end ", seen.base));
        ends().end_round(feed_.self(), seen.base);
        return true;
      }
      const uint64_t closing = observe(state().closing);
      if (closing != 0 && n >= closing) {
        drop_all();
        ends().end_loop(feed_.self(), seen.base);
        return true;
      }
      if (!receive(seen.base, n)) {
        const auto is_there = [&] {
          if (!ends().is_broadcast()) ends().help();
          const uint32_t slot = feed_.table().slot_of(n);
          return next(seen.base) != n ||
                 (slot != kNoSlot && feed_.table().word(slot) == SlotWord::ready(n)) ||
                 observe(state().closing) != 0 || observe(round_of(feed_).base) != seen.base;
        };
        sleep_until(is_there);
        continue;
      }
      if (is_one_of(60)) return true;  // the loop is left, and goes on in the next one
      if (is_one_of(4)) std::this_thread::sleep_for(std::chrono::microseconds(random_() % 200));
    }
  }
  uint64_t next(uint64_t base) {
    const uint64_t before =
        ends().is_broadcast() ? observe(state().records[feed_.self()].cursor) : feed_.table().passed();
    return std::max(before, base - 1) + 1;
  }
  // False: it is not there.
  bool receive(uint64_t base, uint64_t n) {
    const uint32_t slot = feed_.table().slot_of(n);
    if (slot == kNoSlot) return false;
    const bool is_received =
        ends().is_broadcast() ? ends().read(feed_.self(), slot, n) : ends().take(feed_.self(), slot, n);
    if (!is_received) return false;
    // The next number may be there, too, and somebody may sleep until this one is passed.
    state().pool().settled.signal_all();
    held_.push_back({slot, n});
    if (observe(round_of(feed_).base) > n) {
      drop_all();
      return true;
    }
    check(held_.back());
    lines_.say(concat("got ", base, " ", n));
    if (held_.size() > random_() % 2) drop_first();
    return true;
  }
  void check(const Received& batch) {
    if (content(feed_, batch.slot) == batch.number) return;
    lines_.say(concat("other bytes in ", batch.number));
    _exit(4);
  }
  void drop_first() {
    check(held_.front());
    let_go(ends(), feed_.self(), held_.front());
    held_.erase(held_.begin());
  }
  void drop_all() {
    while (!held_.empty()) drop_first();
  }

  OpenFeed feed_;
  std::mt19937 random_;
  Lines lines_;
  bool has_joined_ = false;
  std::vector<Received> held_;
};

// ---------------------------------------------------------------------------------------------- the server

struct Kind {
  ServedMode mode;
  bool has_states;
};

class History : public testing::TestWithParam<Kind> {
 protected:
  struct Talk {
    std::unique_ptr<Peer> peer;
    std::vector<std::string> said;
    std::thread listens;
    bool is_killed = false;
  };

  void play(uint32_t seed) {
    random_.seed(seed);
    name_ = new_name();
    feed_ = std::make_unique<OpenFeed>(
        OpenFeed::create(name_, GetParam().has_states ? 0 : ServedState::kNoStates));
    state().mode = GetParam().mode;
    state().phase = ServedPhase::kGathering;
    ends().serve(feed_->self());
    Segments::instance().take_name(*feed_->memory());
    talks_.clear();
    noted_.clear();
    is_at_end_ = false;
    for (size_t i = 0; i < kPeers; ++i) make_peer();
    started_ = 0;
    for (int i = 0; i < 3; ++i) start_peer();
    std::thread works([&] { work(); });
    std::thread disturbs([&] { disturb(); });
    serve();
    is_at_end_ = true;
    works.join();
    disturbs.join();
    for (size_t i = 0; i < talks_.size(); ++i) {
      Talk& talk = *talks_[i];
      if (i >= started_) (void)kill(talk.peer->pid(), SIGKILL);
      talk.listens.join();
      const int status = talk.peer->end();
      if (talk.is_killed || i >= started_) continue;
      EXPECT_EQ(status, 0);
      EXPECT_TRUE(!talk.said.empty() && talk.said.back() == "closed");
    }
    check_history();
    reap_all(feed_->segment().control());
    EXPECT_EQ(ends().count(), 0U);
    EXPECT_EQ(ends().held(), 0U);
  }
  const ServedEnds& ends() { return feed_->ends(); }
  ServedState& state() { return feed_->state(); }
  Round& round() { return round_of(*feed_); }

  // By the main thread: the kernel kills a peer at the end of the thread that has made it.
  void make_peer() {
    auto talk = std::make_unique<Talk>();
    talk->peer =
        std::make_unique<Peer>(std::vector<std::string>{"consumer", name_, std::to_string(random_())});
    talk->listens = std::thread([t = talk.get()] {
      for (std::string line; t->peer->hear(&line);) t->said.push_back(line);
    });
    talks_.push_back(std::move(talk));
  }
  void start_peer() { talks_[started_++]->peer->say("go"); }

  // Fills slots, as the round says.
  void work() {
    while (!is_at_end_) {
      bool is_filled = false;
      {
        const std::scoped_lock locked(beginning_);
        const uint64_t base = observe(round().base);
        if (base != 0 && feed_->table().given() < observe(round().limit)) {
          const uint32_t slot = lend(ends(), base);
          if (slot != kNoSlot) {
            const SlotTable::Turn turn = feed_->table().next_number();
            content(*feed_, slot) = turn.number;
            is_filled = feed_->table().take_number(slot, turn) && feed_->table().settle(slot, turn.number);
          }
        }
      }
      if (is_filled) {
        state().pool().settled.signal_all();
      } else {
        // The threads of a feed reap when they wait for a slot.
        ends().reap_dead();
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
  }
  void note() {
    if (!GetParam().has_states) return;
    const std::scoped_lock locked(noting_);
    ends().note_up_to(feed_->table().passed(), [&](uint32_t slot, uint64_t n) {
      EXPECT_EQ(content(*feed_, slot), n);
      noted_.push_back(n);
    });
  }

  // Kills and stops consumers, and starts others.
  void disturb() {
    while (!is_at_end_) {
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % 8'000));
      Talk& talk = *talks_[random_() % started_];
      if (talk.is_killed) continue;
      if (random_() % 3 == 0) {
        (void)kill(talk.peer->pid(), SIGSTOP);
        std::this_thread::sleep_for(std::chrono::microseconds(random_() % 20'000));
        (void)kill(talk.peer->pid(), SIGCONT);
      } else if (started_ < kPeers) {
        talk.is_killed = true;
        (void)kill(talk.peer->pid(), SIGKILL);
        start_peer();
      }
    }
  }

  void serve() {
    const auto sleep_until = [&](auto is_so) {
      ASSERT_TRUE(ends().sleep(
          feed_->self(), state().ends, Deadline(kHangNs),
          [&] {
            note();
            return is_so();
          },
          [&](const auto& add) { ends().visit_consumers(add); }))
          << "round " << round().base << " to " << round().limit << ", passed " << feed_->table().passed();
    };
    sleep_until([&] { return ends().count() >= 2; });
    for (uint64_t i = 0; i < kRounds && !HasFatalFailure(); ++i) {
      const uint64_t base = observe(round().base);
      // Nobody is left, and nothing is unread; or some consumer was told.
      const auto is_over = [&] {
        return (i == 0 || observe(state().told) == base || feed_->table().passed() >= round().limit) &&
               ends().have_all_ended(base);
      };
      do {
        sleep_until(is_over);
      } while (!HasFatalFailure() && !begin(base));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    // In one step, so consumers of a broadcast may differ by one. served_closing_test.cc has the two steps.
    uint64_t closing = feed_->table().passed() + 1;
    const auto is_ready = [&](uint64_t n) {
      const uint32_t slot = feed_->table().slot_of(n);
      return slot != kNoSlot && feed_->table().word(slot) == SlotWord::ready(n);
    };
    while (is_ready(closing)) ++closing;
    announce(state().closing, closing);
    publish(state().phase, ServedPhase::kOver);
    state().pool().settled.signal_all();
    sleep_until([&] { return ends().count() == 0; });
  }
  // False: another consumer has come.
  bool begin(uint64_t base) {
    const std::scoped_lock locked(beginning_);
    announce(round().version, round().version + 1);
    const bool begins = ends().have_all_ended(base);
    if (begins) {
      note();
      announce(round().base, feed_->table().begin_anew());
      announce(round().limit, round().base + kBatches - 1);
      if (GetParam().has_states) announce(state().noted, round().base - 1);
      publish(state().phase, ServedPhase::kServing);
    }
    announce(round().version, round().version + 1);
    if (begins && !ends().is_broadcast()) {
      for (uint32_t i = 0; i < kSlots; ++i) {
        const uint64_t word = feed_->table().word(i);
        if (SlotWord::kind(word) == SlotWord::kReady && SlotWord::number(word) < round().base)
          (void)feed_->table().change(i, word, SlotWord::kFree);
      }
    }
    if (begins) limits_[round().base] = round().limit;
    state().pool().settled.signal_all();
    return begins;
  }

  void check_history() {
    std::map<uint64_t, uint32_t> times;  // that each number was received
    std::set<uint64_t> ended;
    uint64_t kills = 0;
    for (const auto& talk : talks_) {
      kills += talk->is_killed ? 1 : 0;
      uint64_t before = 0, base_before = 0;
      bool is_complete = false;  // it was there when the round began
      for (const std::string& line : talk->said) {
        std::istringstream words(line);
        std::string what;
        uint64_t base = 0, n = 0;
        words >> what >> base >> n;
        if (what == "joined" || what == "left") {
          is_complete = false;
          if (what == "joined") before = 0;
        } else if (what == "end") {
          ended.insert(base);
          if (ends().is_broadcast() && before != 0) {
            EXPECT_EQ(before, base_before == base ? limits_[base] : before) << line;
          }
          is_complete = true;
        } else if (what == "got") {
          ++times[n];
          EXPECT_GE(n, base);
          EXPECT_LE(n, limits_[base]);
          EXPECT_GT(n, before);
          if (ends().is_broadcast() && base == base_before && before != 0) {
            EXPECT_EQ(n, before + 1) << "a gap in a round";
          }
          if (ends().is_broadcast() && base != base_before && is_complete) {
            EXPECT_EQ(n, base) << "a gap at the begin of a round";
          }
          before = n;
          base_before = base;
        } else {
          EXPECT_EQ(line, "closed");
        }
      }
    }
    EXPECT_EQ(limits_.size(), kRounds);
    uint64_t missing = 0;
    for (const auto& [base, limit] : limits_) {
      if (base == limits_.rbegin()->first) continue;
      for (uint64_t n = base; n <= limit; ++n) {
        missing += times[n] == 0 ? 1 : 0;
        if (!ends().is_broadcast()) {
          EXPECT_LE(times[n], 1U) << n;
        }
      }
    }
    if (!ends().is_broadcast()) {
      EXPECT_LE(missing, kills) << "each that was killed has lost one at most";
    }
    EXPECT_TRUE(std::ranges::is_sorted(noted_));
    EXPECT_EQ(std::ranges::adjacent_find(noted_), noted_.end());
    if (GetParam().has_states) {
      const std::set<uint64_t> noted(noted_.begin(), noted_.end());
      for (const auto& [base, limit] : limits_) {
        for (uint64_t n = base; n <= limit && base != limits_.rbegin()->first; ++n)
          EXPECT_TRUE(noted.contains(n)) << n;
      }
      for (const auto& [n, received] : times) EXPECT_TRUE(received == 0 || noted.contains(n)) << n;
    }
    std::cout << limits_.size() << " rounds, " << times.size() << " batches, " << kills << " deaths, "
              << missing << " lost\n";
    limits_.clear();
  }

  std::string name_;
  std::unique_ptr<OpenFeed> feed_;
  std::mt19937 random_;
  std::mutex beginning_, noting_;
  std::vector<std::unique_ptr<Talk>> talks_;
  std::vector<uint64_t> noted_;
  std::map<uint64_t, uint64_t> limits_;  // of the rounds, by their bases
  std::atomic<bool> is_at_end_{false};
  static constexpr size_t kPeers = 20;
  size_t started_ = 0;
};

TEST_P(History, OfRoundsKeepsTheLaws) {
  const char* const given = std::getenv("TENON_HISTORIES");
  const int histories = given != nullptr ? std::atoi(given) : 2;
  for (int i = 0; i < histories && !HasFailure(); ++i) {
    SCOPED_TRACE(concat("history ", i));
    play(static_cast<uint32_t>(1000 + i));
  }
}

INSTANTIATE_TEST_SUITE_P(Feeds, History,
                         testing::Values(Kind{ServedMode::kQueue, false}, Kind{ServedMode::kQueue, true},
                                         Kind{ServedMode::kBroadcast, false},
                                         Kind{ServedMode::kBroadcast, true}),
                         [](const auto& tested) {
                           return concat(tested.param.mode == ServedMode::kQueue ? "Queue" : "Broadcast",
                                         tested.param.has_states ? "WithStates" : "");
                         });

}  // namespace

int be_consumer(const std::vector<std::string>& words) {
  Consumer(words[1], static_cast<uint32_t>(std::stoul(words[2]))).run();
  return 0;
}

}  // namespace tenon::impl
