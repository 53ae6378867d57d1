// SPDX-License-Identifier: Apache-2.0
//
// The observer of feeds reports what a memory file says, and survives any content of such a file.
#include "data/inspect_feeds.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "array/dtype.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/os.h"
#include "data/feed_control.h"
#include "data/slots.h"
#include "ipc/schema.h"

namespace tenon::impl {
namespace {

constexpr int32_t kWorkers = 2, kSlots = 5;

// A memory file with the name of a feed's and this content.
class Planted {
 public:
  explicit Planted(const std::vector<std::byte>& bytes)
      : file_(os::create_memory("tenon-feed-test", bytes.size(), false)) {
    EXPECT_EQ(pwrite(file_.fd(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    os::FileFacts facts;
    EXPECT_TRUE(os::facts_of(file_, &facts));
    inode_ = facts.inode;
  }
  FeedReport seen() const {
    for (FeedReport& feed : inspect_feeds()) {
      if (feed.inode == inode_) return std::move(feed);
    }
    ADD_FAILURE() << "the file is not reported";
    return {};
  }

 private:
  os::File file_;
  uint64_t inode_ = 0;
};

// The control part of a feed of this process, then a page in place of the slots.
class Content {
 public:
  explicit Content(int32_t workers = kWorkers) {
    const os::Process self = os::this_process();
    FeedHead h{};
    h.magic = kFeedMagic;
    h.version = kFeedVersion;
    h.pid = self.pid;
    h.start = self.start;
    h.workers = workers;
    h.loops = workers + 1;
    h.slots = h.most = kSlots;
    h.fields = 3;
    h.ranks = 1;
    h.rows = 8;
    h.layout.slot_nbytes = kPage;
    h.parts = FeedLayout::of(h.most, h.loops, h.workers, 0, 0);
    h.slots_at = h.parts.nbytes;
    h.nbytes = h.slots_at + kPage;
    bytes.resize(h.nbytes);
    control = FeedControl::make(bytes.data(), h, {});
  }
  FeedHead& head() { return *reinterpret_cast<FeedHead*>(bytes.data()); }
  LoopRecord& loop(int32_t worker) { return control.loop(worker); }
  void end() { control.shared().is_over.store(1); }

  std::vector<std::byte> bytes;
  FeedControl control;
};

void expect_state(const std::function<void(LoopRecord&)>& change, const char* state) {
  Content content;
  change(content.loop(1));
  const FeedReport feed = Planted(content.bytes).seen();
  ASSERT_EQ(feed.damage, "");
  ASSERT_EQ(feed.workers.size(), 2U);
  EXPECT_STREQ(feed.workers[0].state, "awake");
  EXPECT_STREQ(feed.workers[1].state, state);
}

TEST(InspectFeeds, AFeedIsReportedAsItsFileSays) {
  Content content;
  LoopRecord& loop = content.loop(1);
  loop.begun.store(5);
  loop.ended.store(4);
  loop.number.store(18);
  loop.epoch.store(3);
  loop.index.store(17);
  loop.last_fill_ns.store(1234);
  const FeedReport feed = Planted(content.bytes).seen();
  EXPECT_EQ(feed.damage, "");
  EXPECT_EQ(feed.process.pid, static_cast<uint32_t>(getpid()));
  EXPECT_TRUE(feed.process.is_alive);
  EXPECT_EQ(feed.rows, 8);
  EXPECT_EQ(feed.slots, 5);
  EXPECT_EQ(feed.slot_nbytes, kPage);
  EXPECT_FALSE(feed.is_over);
  EXPECT_TRUE(feed.processes.empty());
  ASSERT_EQ(feed.workers.size(), 2U) << "loops that are no worker's are not reported";
  EXPECT_EQ(feed.workers[0].index, std::nullopt);
  EXPECT_EQ(feed.workers[0].last_fill_ns, std::nullopt);
  EXPECT_STREQ(feed.workers[1].state, "busy");
  EXPECT_EQ(feed.workers[1].asked, 5U);
  EXPECT_EQ(feed.workers[1].answered, 4U);
  EXPECT_EQ(feed.workers[1].index, 17U);
  EXPECT_EQ(feed.workers[1].epoch, 3U);
  EXPECT_EQ(feed.workers[1].last_fill_ns, 1234U);
}

// Its channel is what inspect() reports.
TEST(InspectFeeds, AFeedThatMayBeServedIsReportedIfItsWorkersAreProcesses) {
  for (const bool has_processes : {false, true}) {
    const std::string name = concat("inspected-", getpid());
    SlotsPlan plan{kSlots, kPage};
    plan.is_shared = true;
    plan.has_processes = has_processes;
    plan.shared_name = name;
    FeedHead head{};
    head.loops = head.workers = kWorkers;
    head.fields = 1;
    head.ranks = 1;
    head.rows = 8;
    head.layout.slot_nbytes = kPage;
    const tenon_field field{"x", DType(TENON_UINT, 64), 1, &head.rows};
    std::string encoded;
    Schema::make({&field, 1})->encode(&encoded);
    const Ref<Slots> slots = Slots::create(plan, head, encoded);
    slots->control().loop(1).number.store(1);
    os::FileFacts facts;
    ASSERT_TRUE(os::facts_of(slots->file(), &facts));
    std::vector<FeedReport> seen = inspect_feeds();
    std::erase_if(seen, [&](const FeedReport& feed) { return feed.inode != facts.inode; });
    ASSERT_EQ(seen.size(), has_processes ? 1U : 0U);
    if (has_processes) {
      EXPECT_EQ(seen[0].damage, "");
      EXPECT_EQ(seen[0].process.pid, static_cast<uint32_t>(getpid()));
      EXPECT_EQ(seen[0].slots, kSlots);
      ASSERT_EQ(seen[0].workers.size(), 2U);
      EXPECT_STREQ(seen[0].workers[1].state, "busy");
    }
    for (const SegmentReport& segment : inspect()) {
      if (segment.name != name) continue;
      ASSERT_TRUE(segment.channel);
      EXPECT_EQ(segment.channel->damage, "") << "nobody has served it yet";
      EXPECT_EQ(segment.channel->fields, std::vector<std::string>{"x"});
      EXPECT_EQ(segment.channel->sent, 0U);
    }
  }
}

TEST(InspectFeeds, AWorkerIsAwakeAsleepBusyOrOver) {
  expect_state([](LoopRecord&) {}, "awake");
  expect_state([](LoopRecord& loop) { loop.is_asleep.store(1); }, "asleep");
  expect_state([](LoopRecord& loop) { loop.number.store(1); }, "busy");
  Content content;
  content.loop(0).number.store(1);
  content.end();
  const FeedReport feed = Planted(content.bytes).seen();
  EXPECT_TRUE(feed.is_over);
  ASSERT_EQ(feed.workers.size(), 2U);
  for (const FeedReport::WorkerReport& worker : feed.workers) EXPECT_STREQ(worker.state, "over");
}

TEST(InspectFeeds, AnotherProcessWithTheNumberOfTheFeedsIsNotTheFeed) {
  for (const uint64_t start : {uint64_t{0}, os::this_process().start + 1}) {
    Content content;
    content.head().start = start;
    EXPECT_FALSE(Planted(content.bytes).seen().process.is_alive);
  }
  Content content;
  content.head().pid = 0;
  content.head().start = 0;
  EXPECT_FALSE(Planted(content.bytes).seen().process.is_alive);
}

TEST(InspectFeeds, ADamagedFileIsReportedAsSuch) {
  const struct {
    std::function<void(FeedHead&)> damage;
    const char* says;
  } cases[] = {
      {[](FeedHead& h) { h.magic = 0; }, "it is being made"},
      {[](FeedHead& h) { h.magic = 7; }, "it begins with 7 and not with"},
      {[](FeedHead& h) { ++h.version; }, "its layout has version"},
      {[](FeedHead& h) { h.workers = -1; }, "-1 workers"},
      {[](FeedHead& h) { h.workers = 0; }, "0 workers"},
      {[](FeedHead& h) { h.loops = INT32_MAX; }, "2147483647 loops"},
      {[](FeedHead& h) { h.loops = 4000; }, "4000 loops"},
      {[](FeedHead& h) { h.parts = FeedLayout::of(kSlots, h.loops = 4000, kWorkers, 0, 0); },
       "4000 loops do not fit"},
      {[](FeedHead& h) { h.slots = 0; }, "0 slots"},
      {[](FeedHead& h) { h.fields = 0; }, "0 fields"},
      {[](FeedHead& h) { h.parts.loops_at = 0; }, "do not lie where"},
      {[](FeedHead& h) { h.parts.schema_nbytes = UINT64_MAX; }, "63 bits"},
      {[](FeedHead& h) { h.slots_at = 0; }, "slots at 0"},
  };
  for (const auto& [damage, says] : cases) {
    Content content;
    damage(content.head());
    const FeedReport feed = Planted(content.bytes).seen();
    EXPECT_NE(feed.damage.find(says), std::string::npos) << feed.damage << "; expected: " << says;
    EXPECT_TRUE(feed.workers.empty());
    Json json;
    json.value(feed);
    EXPECT_TRUE(is_json_object(json.take()));
  }
}

TEST(InspectFeeds, TheNumberOfWorkersIsLimitedAlsoIfTheFileHasTheirBytes) {
  EXPECT_NE(Planted(Content(5000).bytes).seen().damage.find("5000 workers"), std::string::npos);
}

TEST(InspectFeeds, AFileThatIsCutAnywhereIsDamaged) {
  const Content content;
  const FeedLayout& parts = content.control.head().parts;
  for (const size_t nbytes : {size_t{0}, size_t{4}, size_t{8}, sizeof(FeedHead) - 1, sizeof(FeedHead),
                              parts.loops_at + sizeof(LoopRecord), parts.nbytes - 1}) {
    const std::vector<std::byte> cut(content.bytes.begin(),
                                     content.bytes.begin() + static_cast<std::ptrdiff_t>(nbytes));
    EXPECT_NE(Planted(cut).seen().damage, "") << nbytes;
  }
}

TEST(InspectFeeds, AnyBytesAreSurvived) {
  const auto seed = std::random_device()();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  int undamaged = 0;
  for (int times = 0; times < 200; ++times) {
    Content content;
    const size_t from = times % 2 == 0 ? offsetof(FeedHead, pid) : sizeof(FeedHead);
    for (int n = 0; n < 1 << times % 12; ++n) {
      content.bytes[from + random() % (content.bytes.size() - from)] = static_cast<std::byte>(random());
    }
    const FeedReport feed = Planted(content.bytes).seen();
    undamaged += feed.damage.empty() ? 1 : 0;
    Json json;
    json.value(feed);
    EXPECT_TRUE(is_json_object(json.take()));
  }
  EXPECT_GE(undamaged, 100) << "noise behind the head is read as a state of the workers";
}

}  // namespace
}  // namespace tenon::impl
