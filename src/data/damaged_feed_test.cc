// SPDX-License-Identifier: Apache-2.0
//
// Another process overwrites words of a feed while it is served and received: its calls fail or are late, but
// none crashes, and none that has a time limit goes on for ever. Each trial is a process of its own, with a
// consumer in another one.
//
// TENON_DAMAGES=FIRST,COUNT makes other trials than the usual ones. A trial that fails is made again by its
// number.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "data/attached_feed.h"
#include "data/feed_peers_testing.h"
#include "data/inspect_feeds.h"
#include "data/served_feed_testing.h"
#include "ipc/inspect.h"
#include "ipc/segments.h"

namespace tenon::impl {
namespace {

using serving::Peer;
using serving::Served;
using serving::unique_name;

constexpr uint32_t kEpochs = 3;
constexpr int64_t kBatches = 12, kTrialNs = 150'000'000;
constexpr int kMostSeconds = 20;  // of a trial whose calls return

// The words of a feed that other processes can write, as its process has mapped them.
class Words {
 public:
  Words(const std::string& name, uint32_t trial)
      : number_(trial), array_(Segments::instance().attach(name, true)), base_(array_->data()) {
    Segment& segment = Segments::feed_segment_of(*array_);
    auto& state = *reinterpret_cast<ServedState*>(base_);
    const uint32_t n = segment.control().feed_slots;
    FeedHead head{};
    std::memcpy(&head, base_ + ServedState::end_at(n), sizeof head);
    const FeedControl control(base_, head);
    control_ = control;
    const auto slots = static_cast<uint32_t>(head.most);
    add("state", &state, reinterpret_cast<std::byte*>(state.records) - base_);
    add("consumers", state.records, 3 * sizeof state.records[0]);
    add("shared", &control.shared(), sizeof(FeedShared));
    add("slots", base_ + head.parts.states_at, slots * sizeof(SlotState));
    add("records", &control.record(0), slots * sizeof(SlotRecord));
    hot_ = words_.size();
    add("entries", base_ + head.parts.entries_at, head.entries() * sizeof(SlotEntry));
    add("head", base_ + head.parts.head_at, sizeof(FeedHead));
    for (int32_t i = 0; i <= head.loops; ++i) {
      LoopRecord& loop = control.loop(i);
      add("loop", &loop, sizeof loop, 64);
      add("failure", &loop.failed_number, 64);
      add("start", &loop.start, sizeof loop.start);
      add("noted", &loop.noted, sizeof loop.noted);
    }
    add("states", base_ + head.parts.starts_at, 64);
    add("noted states", base_ + head.parts.noted_at, 64);
    add("schema", base_ + head.parts.schema_at, head.parts.schema_nbytes);
    for (uint32_t i = 0; i < slots; ++i) {
      std::byte* const slot = segment.bytes_of(1).data() + i * head.layout.slot_nbytes;
      add("slot", slot + head.layout.shapes_at, head.layout.attachment_at - head.layout.shapes_at);
    }
  }

  FeedControl control() const { return control_; }
  // Half of them of the few words on which all others depend.
  size_t choose(uint64_t n) const noexcept { return n % 2 == 0 ? n / 2 % words_.size() : n / 2 % hot_; }
  // Overwrites word i, or a half of it.
  void damage(size_t i, std::minstd_rand& random) const {
    const auto& [part, word] = words_[i];
    const std::atomic_ref<uint64_t> whole(*word);
    uint64_t value = value_for(whole.load(), random);
    const uint64_t half = UINT32_MAX;
    if (random() % 3 == 0) value = (whole.load() & ~half) | (value & half);
    if (random() % 3 == 0) value = (whole.load() & half) | (value << 32);
    if (is_told_)
      (void)std::fprintf(stderr, "trial %u: %s, byte %td: %lx -> %lx\n", number_, part,
                         reinterpret_cast<std::byte*>(word) - base_, whole.load(), value);
    whole.store(value);
  }

 private:
  void add(const char* part, void* begin, ptrdiff_t nbytes, size_t step = 8) {
    for (auto at = reinterpret_cast<uintptr_t>(begin) / 8 * 8;
         at + 8 <= reinterpret_cast<uintptr_t>(begin) + static_cast<size_t>(nbytes); at += step) {
      words_.emplace_back(part, reinterpret_cast<uint64_t*>(at));
    }
  }
  static uint64_t value_for(uint64_t now, std::minstd_rand& random) {
    const uint64_t n = SlotWord::number(now);
    const uint64_t values[] = {0,
                               1,
                               UINT64_MAX,
                               uint64_t{1} << 63,
                               uint64_t{1} << 31,
                               INT64_MAX,
                               now + 1,
                               now - 1,
                               now ^ uint64_t{1} << random() % 64,
                               uint64_t{random()} << 32 ^ random(),
                               random() % 4096,
                               SlotWord::make(static_cast<SlotWord::Kind>(random() % 8), random() % 4096, n),
                               SlotWord::make(static_cast<SlotWord::Kind>(random() % 8), random() % 3, n + 1),
                               ((now >> 15) + 2) << 15 | random() % 8};
    return values[random() % std::size(values)];
  }

  const uint32_t number_;  // of the trial
  const Ref<Array> array_;
  std::byte* const base_;
  FeedControl control_;
  size_t hot_ = 0;
  const bool is_told_ = std::getenv("TENON_DAMAGES") != nullptr;
  std::vector<std::pair<const char*, uint64_t*>> words_;
};

// What these calls may fail with, they fail with as an Error.
template <class Attempt>
bool is_allowed(Attempt attempt) {
  try {
    attempt();
  } catch (const Error& e) {
    if (e.code() != Code::kInternal) return true;
    (void)std::fprintf(stderr, "%s\n", e.what());
    return false;
  }
  return true;
}

// So that each byte of a batch is read.
uint64_t sum_of(const Batch& batch) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < batch.array(0)->shape()[0]; ++i)
    sum += reinterpret_cast<const volatile uint64_t*>(batch.array(0)->data())[i];
  for (const std::byte b : batch.attachment()) sum += static_cast<uint64_t>(b);
  return sum;
}

int consume(const std::string& name) {
  (void)alarm(kMostSeconds);
  const bool is_ok = is_allowed([&] {
    AttachedFeed feed(name);
    FeedPosition wanted;
    feed.resume(wanted, 0, 1);
    const int64_t end = now_ns() + kTrialNs;
    uint64_t sum = 0;
    while (now_ns() < end) {
      const bool goes_on = is_allowed([&] {
        feed.begin();
        while (now_ns() < end) {
          Ref<Batch> batch;
          if (!feed.next(10'000'000, batch)) continue;
          if (!batch) break;
          sum += sum_of(*batch);
          bool is_gap = false;
          (void)is_allowed([&] { (void)feed.state(&is_gap); });
          (void)usleep(200);
        }
      });
      if (!goes_on) throw_error(Code::kInternal, "a loop has failed so");
      (void)feed.waiting_text();
      (void)feed.describe();
      (void)feed.note();
    }
  });
  return is_ok ? 0 : 110;
}

// A worker process has ended by itself.
bool has_crashed(const tenon_feed_failure& failure) {
  return failure.kind == TENON_DIED && failure.pid != 0 && failure.exit_signal != SIGKILL &&
         (failure.exit_signal > 0 ? failure.exit_signal <= SIGXCPU : failure.exit_code == 1);
}

struct Trial {
  ServedMode mode = ServedMode::kQueue;
  bool has_state = false, has_processes = false;
  int64_t fails_at = -1;
  bool is_killed = false;  // the consumer
  bool is_before = false;  // the first damage is done before the consumer attaches
  uint32_t damages = 1;
  std::function<void(const Words& words, uint32_t i)> damage;
  std::function<void(const Words& words)> damage_at_end = {};  // before the serving ends
};

int run_trial(uint32_t number, const Trial& trial) {
  (void)alarm(kMostSeconds);
  const std::string name = unique_name();
  Peer consumer([&] { return consume(name); });
  Served served(kBatches, trial.fails_at, trial.has_processes ? TENON_PROCESSES : 0, name, trial.has_state);
  Feed& feed = *served.feed;
  feed.serve({.mode = trial.mode, .consumers = 1, .note = "a note"});
  const Words words(name, number);
  std::thread liar([&] {
    std::minstd_rand random(~number);
    if (!trial.is_before) consumer.go();
    for (uint32_t i = 0; i < trial.damages; ++i) {
      if (!trial.is_before || i != 0) (void)usleep(random() % 15'000);
      trial.damage(words, i);
      if (trial.is_before && i == 0) consumer.go();
    }
    (void)usleep(random() % 10'000);
    if (trial.is_killed) consumer.kill();
  });
  const int64_t end = now_ns() + kTrialNs;
  bool is_ok = true, has_worker_crashed = false;
  uint32_t epochs = 0;
  while (is_ok && now_ns() < end) {
    is_ok = is_allowed([&] {
      const ServeReport report = feed.serve_wait(10'000'000);
      has_worker_crashed = has_worker_crashed || (report.has_failure && has_crashed(feed.failure()));
      (void)feed.statistics();
      (void)feed.serve_counts();
      const bool is_next = report.what == ServeWhat::kGathered || report.what == ServeWhat::kEpochEnded;
      if (is_next && epochs++ < kEpochs) feed.serve_next();
    });
  }
  liar.join();
  is_ok = is_ok && is_allowed([&] { (void)inspect(); });
  is_ok = is_ok && is_allowed([&] { (void)inspect_feeds(); });
  if (trial.damage_at_end) trial.damage_at_end(words);
  feed.serve_end();
  if (trial.damage_at_end) trial.damage_at_end(words);
  is_ok = is_ok && is_allowed([&] { (void)feed.serve_wait(0); });
  is_ok = is_ok && is_allowed([&] { (void)feed.state(); });
  is_ok = is_ok && is_allowed([&] { (void)feed.waiting_text(); });
  is_ok = is_ok && is_allowed([&] { feed.close(kSecond); });
  served.feed.reset();
  if (has_worker_crashed) return 112;
  if (!is_ok) return 111;
  return trial.is_killed ? 0 : consumer.join();
}

int run_random_trial(uint32_t number) {
  std::minstd_rand random(number);
  for (int i = 0; i < 8; ++i) (void)random();
  Trial trial;
  trial.mode = random() % 2 == 0 ? ServedMode::kQueue : ServedMode::kBroadcast;
  trial.has_state = random() % 2 == 0;
  trial.has_processes = random() % 4 == 0;
  trial.fails_at = random() % 4 == 0 ? kBatches - 2 : -1;
  trial.is_killed = random() % 4 == 0;
  trial.is_before = random() % 4 == 0;
  trial.damages = 1 + random() % 3;
  trial.damage = [&random](const Words& words, uint32_t) { words.damage(words.choose(random()), random); };
  return run_trial(number, trial);
}

TEST(DamagedFeed, AWordThatIsOverwrittenMakesCallsFailOrWaitButNotCrash) {
  TENON_SKIP_UNDER_TSAN();
  unsigned first = 1, count = 120;
  if (const char* const text = std::getenv("TENON_DAMAGES")) {
    ASSERT_EQ(std::sscanf(text, "%u,%u", &first, &count), 2) << text;
  }
  // They mostly sleep.
  constexpr unsigned kAtOnce = 8;
  std::string failed;
  std::deque<std::pair<unsigned, std::unique_ptr<Peer>>> trials;
  for (unsigned i = 0; i < count || !trials.empty(); ++i) {
    if (i < count) {
      const unsigned number = first + i;
      trials.emplace_back(number, std::make_unique<Peer>([number] { return run_random_trial(number); }));
      trials.back().second->go();
    }
    if (i < count && trials.size() < kAtOnce) continue;
    if (const int code = trials.front().second->join(); code != 0)
      failed += concat(" ", trials.front().first, " (", code, ")");
    trials.pop_front();
  }
  EXPECT_EQ(failed, "") << "numbers of trials, and how they have ended";
}

// One value of one word, in all ways in which the feed may be used.
void expect_no_crash(const char* what, const std::function<void(const FeedControl&)>& damage,
                     bool is_at_end = false) {
  SCOPED_TRACE(what);
  std::vector<std::unique_ptr<Peer>> trials;
  for (uint32_t i = 0; i < 8; ++i) {
    Trial trial;
    trial.mode = i % 2 == 0 ? ServedMode::kQueue : ServedMode::kBroadcast;
    trial.has_state = i / 2 % 2 == 0;
    trial.has_processes = i / 4 % 2 == 0;
    trial.is_before = i % 3 == 0;
    trial.damages = 3;
    trial.damage = [&](const Words& words, uint32_t) { is_at_end ? (void)0 : damage(words.control()); };
    if (is_at_end) trial.damage_at_end = [&](const Words& words) { damage(words.control()); };
    trials.push_back(std::make_unique<Peer>([i, trial] { return run_trial(i, trial); }));
    trials.back()->go();
  }
  for (size_t i = 0; i < trials.size(); ++i) EXPECT_EQ(trials[i]->join(), 0) << "trial " << i;
}

TEST(DamagedFeed, NumbersThatNoFeedReaches) {
  TENON_SKIP_UNDER_TSAN();
  for (const uint64_t n : {uint64_t{1} << 62, UINT64_MAX}) {
    SCOPED_TRACE(n);
    expect_no_crash("given", [n](const FeedControl& control) { store(control.shared().counters.given, n); });
    expect_no_crash("passed",
                    [n](const FeedControl& control) { store(control.shared().counters.passed, n); });
    // A consumer would look for the states between both.
    expect_no_crash("passed behind noted", [n](const FeedControl& control) {
      store(control.shared().counters.passed, n);
      store(control.served()->noted, uint64_t{0});
    });
    expect_no_crash("closing", [n](const FeedControl& control) { store(control.served()->closing, n); });
    expect_no_crash(
        "closing at the end", [n](const FeedControl& control) { store(control.served()->closing, n); }, true);
  }
}

TEST(DamagedFeed, MoreSlotsThanThereAre) {
  TENON_SKIP_UNDER_TSAN();
  for (const uint32_t n : {1U << 20, 1U << 31}) {
    SCOPED_TRACE(n);
    expect_no_crash("made", [n](const FeedControl& control) {
      store(control.shared().recent, n);
      store(control.shared().made, n);
      store(control.shared().asked, uint64_t{1});
    });
  }
}

TEST(DamagedFeed, AGeneratorsNameWithoutAnEnd) {
  TENON_SKIP_UNDER_TSAN();
  expect_no_crash("head", [](const FeedControl& control) {
    auto* const head = reinterpret_cast<FeedHead*>(control.base() + control.head().parts.head_at);
    std::memset(head->generator, 'x', sizeof head->generator);
  });
}

}  // namespace
}  // namespace tenon::impl
