// SPDX-License-Identifier: Apache-2.0
//
// The observer of feeds reports what a memory file says, and survives any content of such a file.
#include "data/inspect_feeds.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "base/error.h"
#include "base/os.h"
#include "data/request_ring.h"

namespace tenon::impl {
namespace {

constexpr size_t kFields = 3;
constexpr int32_t kWorkers = 2;

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
  Content() : bytes(control_nbytes(kFields, kWorkers) + kControlPage) {
    const os::Process self = os::this_process();
    RingsHead& h = head();
    h.magic = kFeedMagic;
    h.version = kFeedVersion;
    h.pid = self.pid;
    h.start = self.start;
    h.nbytes = bytes.size();
    h.rings = kWorkers;
    h.slots = 5;
    h.fields = kFields;
    h.rows = 8;
    h.slots_at = control_nbytes(kFields, kWorkers);
    h.layout.slot_nbytes = kControlPage;
  }
  RingsHead& head() { return *reinterpret_cast<RingsHead*>(bytes.data()); }
  RequestRing& ring(size_t worker) { return ring_of(bytes.data(), kFields, worker); }

  std::vector<std::byte> bytes;
};

void expect_state(const std::function<void(RequestRing&)>& change, const char* state) {
  Content content;
  change(content.ring(1));
  const FeedReport feed = Planted(content.bytes).seen();
  ASSERT_EQ(feed.damage, "");
  ASSERT_EQ(feed.workers.size(), 2U);
  EXPECT_STREQ(feed.workers[0].state, "awake");
  EXPECT_STREQ(feed.workers[1].state, state);
}

TEST(InspectFeeds, AFeedIsReportedAsItsFileSays) {
  Content content;
  RequestRing& ring = content.ring(1);
  ring.asked.store(5);
  ring.answered.store(4);
  ring.requests[4 % kRingEntries] = {.epoch = 3, .index = 17, .place = 17, .round = 1};
  ring.answers[3 % kRingEntries].fill_ns = 1234;
  const FeedReport feed = Planted(content.bytes).seen();
  EXPECT_EQ(feed.damage, "");
  EXPECT_EQ(feed.process.pid, static_cast<uint32_t>(getpid()));
  EXPECT_TRUE(feed.process.is_alive);
  EXPECT_EQ(feed.rows, 8);
  EXPECT_EQ(feed.slots, 5);
  EXPECT_EQ(feed.slot_nbytes, kControlPage);
  EXPECT_FALSE(feed.is_over);
  EXPECT_TRUE(feed.processes.empty());
  ASSERT_EQ(feed.workers.size(), 2U);
  EXPECT_EQ(feed.workers[0].index, std::nullopt);
  EXPECT_EQ(feed.workers[0].last_fill_ns, std::nullopt);
  EXPECT_STREQ(feed.workers[1].state, "busy");
  EXPECT_EQ(feed.workers[1].asked, 5U);
  EXPECT_EQ(feed.workers[1].answered, 4U);
  EXPECT_EQ(feed.workers[1].index, 17U);
  EXPECT_EQ(feed.workers[1].epoch, 3U);
  EXPECT_EQ(feed.workers[1].last_fill_ns, 1234U);
}

TEST(InspectFeeds, AWorkerIsAwakeAsleepBusyOrOver) {
  expect_state([](RequestRing&) {}, "awake");
  expect_state([](RequestRing& ring) { ring.is_worker_asleep.store(1); }, "asleep");
  expect_state([](RequestRing& ring) { ring.asked.store(1); }, "busy");
  const auto ends = [](RequestRing& ring) {
    ring.asked.store(1);
    ring.is_over.store(1);
  };
  expect_state(ends, "over");
  Content content;
  ends(content.ring(0));
  EXPECT_FALSE(Planted(content.bytes).seen().is_over) << "one worker goes on";
  ends(content.ring(1));
  EXPECT_TRUE(Planted(content.bytes).seen().is_over);
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
    std::function<void(RingsHead&)> damage;
    const char* says;
  } cases[] = {
      {[](RingsHead& h) { h.magic = 0; }, "it is being made"},
      {[](RingsHead& h) { h.magic = 7; }, "it begins with 7 and not with"},
      {[](RingsHead& h) { ++h.version; }, "its layout has version"},
      {[](RingsHead& h) { h.rings = -1; }, "-1 workers"},
      {[](RingsHead& h) { h.rings = 0; }, "0 workers"},
      {[](RingsHead& h) { h.rings = INT32_MAX; }, "2147483647 workers"},
      {[](RingsHead& h) { h.rings = 4000; }, "4000 workers do not fit"},
      {[](RingsHead& h) { h.rings = 3; }, "3 workers do not fit"},
      {[](RingsHead& h) { h.slots = 0; }, "0 slots"},
      {[](RingsHead& h) { h.fields = 0; }, "0 fields"},
      {[](RingsHead& h) { h.fields = INT32_MAX; }, "do not fit"},
      {[](RingsHead& h) { h.slots_at = 0; }, "slots at 0"},
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
  Content content;
  content.head().rings = 5000;
  content.bytes.resize(control_nbytes(kFields, 5000));
  content.head().slots_at = content.bytes.size();
  EXPECT_NE(Planted(content.bytes).seen().damage.find("5000 workers"), std::string::npos);
}

TEST(InspectFeeds, AFileThatIsCutAnywhereIsDamaged) {
  const Content content;
  for (const size_t nbytes :
       {size_t{0}, size_t{4}, size_t{8}, sizeof(RingsHead) - 1, sizeof(RingsHead),
        rings_at(kFields) + sizeof(RequestRing), control_nbytes(kFields, kWorkers) - 1}) {
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
    const size_t from = times % 2 == 0 ? offsetof(RingsHead, pid) : rings_at(kFields);
    for (int n = 0; n < 1 << times % 12; ++n) {
      content.bytes[from + random() % (content.bytes.size() - from)] = static_cast<std::byte>(random());
    }
    const FeedReport feed = Planted(content.bytes).seen();
    undamaged += feed.damage.empty() ? 1 : 0;
    Json json;
    json.value(feed);
    EXPECT_TRUE(is_json_object(json.take()));
  }
  EXPECT_GE(undamaged, 100) << "noise in the rings is read as a state of the workers";
}

}  // namespace
}  // namespace tenon::impl
