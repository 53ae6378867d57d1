// SPDX-License-Identifier: Apache-2.0
//
// The observer sees the leases that stand-ins for processes hold and wait for, changes nothing, and survives
// any bytes of a memory file.
#include "ipc/inspect.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <span>

#include "base/json.h"
#include "ipc/collect.h"
#include "ipc/stand_in_testing.h"

namespace tenon::impl {
namespace {

// The report of a segment; none: it does not exist.
std::optional<SegmentReport> seen(const SegmentId& id) {
  for (SegmentReport& report : inspect()) {
    if (report.id == text_of(id)) return std::move(report);
  }
  return std::nullopt;
}

std::vector<std::byte> bytes_of(const os::File& file, size_t nbytes) {
  std::vector<std::byte> bytes(nbytes);
  EXPECT_TRUE(os::read_at(file, 0, bytes.data(), nbytes));
  return bytes;
}

TEST(Inspect, WhatIsHeldAndAwaitedIsSeen) {
  StandIn a(2);
  const uint32_t block = a.take(1000);
  StandIn b(a);
  ASSERT_TRUE(b.use(block));
  TestLease writes(a.place(block), Access::kWrite, 100, 200);
  ASSERT_TRUE(writes.acquire());
  writes.detach();
  TestLease reads(b.place(block), Access::kRead, 0, 150);
  PendingRequest pending;
  std::atomic<int> told{0};
  ASSERT_EQ(reads.submit(&pending, &told), Appended::kWaiting);
  const auto report = seen(a.segment().header().id);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->damage, "");
  EXPECT_STREQ(report->kind, "pool");
  EXPECT_EQ(report->places.size(), 2U);
  EXPECT_EQ(report->creator.pid, static_cast<uint32_t>(getpid()));
  EXPECT_TRUE(report->creator.is_alive);
  ASSERT_EQ(report->arrays.size(), 1U);
  EXPECT_EQ(report->arrays[0].nbytes, 1000U);
  EXPECT_EQ(report->arrays[0].users.size(), 2U);
  ASSERT_EQ(report->leases.size(), 2U);
  const auto granted = std::ranges::find(report->leases, true, &LeaseReport::is_granted);
  ASSERT_NE(granted, report->leases.end());
  EXPECT_EQ(granted->access, Access::kWrite);
  EXPECT_EQ(granted->begin, 100U);
  EXPECT_EQ(granted->end, 200U);
  EXPECT_GE(granted->age_ns, 0);
  const auto awaited = std::ranges::find(report->leases, false, &LeaseReport::is_granted);
  ASSERT_NE(awaited, report->leases.end());
  EXPECT_EQ(awaited->access, Access::kRead);
  EXPECT_EQ(awaited->end, 150U);
  writes.release();
  ASSERT_TRUE(comes_true([&] { return told.load() == 1; }));
  reads.arrived(pending);
  reads.release();
}

TEST(Inspect, TheDeadAreSeenAsDeadAndTheyStaySo) {
  StandIn a(1);
  const uint32_t block = a.take(64);
  const uint32_t lent = [&] {
    StandIn b(a);
    EXPECT_TRUE(b.use(block));
    auto turn = std::make_unique<TestLease>(b.place(block), Access::kWrite);
    EXPECT_TRUE(turn->acquire());
    b.keep(std::move(turn));
    b.detach_all();
    (void)b.segment().send(block);
    const uint32_t index = b.index();
    b.die();
    return index;
  }();
  for (int times = 0; times < 2; ++times) {  // looking has not tidied it up
    const auto report = seen(a.segment().header().id);
    ASSERT_TRUE(report);
    const auto dead = std::ranges::find(report->places, lent, &PlaceReport::index);
    ASSERT_NE(dead, report->places.end());
    EXPECT_TRUE(dead->is_dead());
    EXPECT_EQ(report->leases.size(), 1U);
    ASSERT_EQ(report->arrays[0].sent.size(), 1U);
    EXPECT_EQ(report->arrays[0].sent[0].place, lent);
    EXPECT_TRUE(report->arrays[0].deaths.empty());
  }
  EXPECT_TRUE(reap(a.segment().control(), lent));
  const auto after = seen(a.segment().header().id);
  ASSERT_TRUE(after);
  EXPECT_EQ(after->places.size(), 1U);
  EXPECT_TRUE(after->leases.empty());
  EXPECT_EQ(after->arrays[0].deaths.size(), 1U);
}

TEST(Inspect, LookingChangesNoByteAndTakesNoMemory) {
  StandIn a(64);
  (void)a.take(5000);
  os::FileFacts before, after;
  ASSERT_TRUE(os::facts_of(a.segment().file(), &before));
  const size_t nbytes = control_end(64);
  const std::vector<std::byte> bytes = bytes_of(a.segment().file(), nbytes);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(seen(a.segment().header().id));
  EXPECT_EQ(bytes_of(a.segment().file(), nbytes), bytes);
  ASSERT_TRUE(os::facts_of(a.segment().file(), &after));
  EXPECT_EQ(after.committed_nbytes, before.committed_nbytes);
}

TEST(Collect, WhatTheDeadHeldIsGivenBackOnce) {
  StandIn a(1);
  const uint32_t block = a.take(64);
  uint32_t lent = 0;
  {
    StandIn b(a);
    ASSERT_TRUE(b.use(block));
    ASSERT_TRUE(b.keep(std::make_unique<TestLease>(b.place(block), Access::kWrite)).acquire());
    b.detach_all();
    (void)b.segment().send(block);
    lent = b.index();
    b.die();
  }
  const auto result = [&] {
    std::vector<Collected> all = collect();
    const auto is_this = [&](const Collected& c) { return c.before.id == text_of(a.segment().header().id); };
    return *std::ranges::find_if(all, is_this);
  };
  const Collected first = result();
  EXPECT_EQ(first.failure, "");
  ASSERT_EQ(first.places.size(), 1U);
  EXPECT_EQ(first.places[0].index, lent);
  EXPECT_EQ(first.leases, 1U);
  EXPECT_EQ(first.handles, 1U);
  EXPECT_EQ(granted(a.segment(), block), 0U);
  EXPECT_FALSE(has_bit(a.segment().block(block).users, lent));
  const Collected second = result();
  EXPECT_TRUE(second.places.empty());
  EXPECT_EQ(second.leases, 0U);
}

// A sealed file with these bytes and its own id.
class Planted {
 public:
  Planted(const std::string& name, std::span<const std::byte> bytes, size_t nbytes, bool is_sealed = true)
      : file_(os::create_memory(name, nbytes, false)) {
    EXPECT_EQ(pwrite(file_.fd(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    if (is_sealed) os::seal(file_);
  }
  int fd() const { return file_.fd(); }

 private:
  os::File file_;
};

std::optional<SegmentReport> seen_file(const std::string& name) {
  for (SegmentReport& report : inspect()) {
    if (report.file == name) return std::move(report);
  }
  return std::nullopt;
}

TEST(Inspect, ADamagedFileIsShownWithWhatIsWrong) {
  StandIn a(1);
  (void)a.take(100);
  const size_t nbytes = os::size_of(a.segment().file());
  std::vector<std::byte> bytes = bytes_of(a.segment().file(), kLivesAt);
  {
    const Planted unsealed("tenon:inspect_unsealed", bytes, nbytes, false);
    EXPECT_NE(seen_file("tenon:inspect_unsealed").value().damage.find("sealed"), std::string::npos);
  }
  {
    const Planted tiny("tenon:inspect_tiny", {}, 0);
    EXPECT_NE(seen_file("tenon:inspect_tiny").value().damage.find("0 bytes"), std::string::npos);
  }
  bytes[100] ^= std::byte{1};
  const Planted damaged("tenon:inspect_damaged", bytes, nbytes);
  const SegmentReport report = seen_file("tenon:inspect_damaged").value();
  EXPECT_NE(report.damage.find("sum"), std::string::npos) << report.damage;
  ASSERT_EQ(report.processes.size(), 1U);
  EXPECT_EQ(report.processes[0].pid, static_cast<uint32_t>(getpid()));
}

// Oracle: it returns, without a report of a sanitizer. The header is valid, so that all parts are read.
TEST(Inspect, AnyBytesBehindAGoodHeaderAreSurvived) {
  const unsigned seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  NamedArray array{};
  array.code = TENON_UINT;
  array.bits = 8;
  array.lanes = 1;
  array.ndim = 1;
  array.shape[0] = 4096;
  SegmentPlan plan;
  plan.name = "inspect_any";
  plan.data_nbytes = 1 << 16;
  plan.blocks = 9;
  plan.array = &array;
  MutexOwner mutex_owner;
  const std::unique_ptr<Segment> whole = Segment::create(plan, mutex_owner);
  const size_t nbytes = os::size_of(whole->file());
  const std::vector<std::byte> header = bytes_of(whole->file(), kBlocksUsedAt);
  for (int times = 0; times < 60; ++times) {
    std::vector<std::byte> bytes(whole->header().data_at + (1 << 15));
    const int kind = times % 3;  // of the bytes: all any; few bits; small numbers
    for (size_t at = 0; at + 8 <= bytes.size(); at += 8) {
      uint64_t word = random();
      if (kind == 1) word &= random() & random() & random() & random();
      if (kind == 2) word = random() % 9 == 0 ? random() % 140 : 0;
      std::memcpy(bytes.data() + at, &word, sizeof word);
    }
    std::copy(header.begin(), header.end(), bytes.begin());
    const uint32_t used = random() % 3 == 0 ? static_cast<uint32_t>(random()) : 9;
    std::memcpy(bytes.data() + kBlocksUsedAt, &used, sizeof used);
    // Block 0 is in use, and its bytes begin like those of a channel or an arena.
    auto& block = *reinterpret_cast<Block*>(bytes.data() + kBlocksAt);
    block.state.store(BlockState::kUsed, std::memory_order_relaxed);
    if (times % 2 == 0) {
      block.begin.store(0, std::memory_order_relaxed);
      block.nbytes.store(random() % 2 == 0 ? 1 << 16 : random(), std::memory_order_relaxed);
      const uint64_t mark = times % 4 == 0 ? 0x324E4E4148434E54 : 0x31414E4552414E54;
      std::memcpy(bytes.data() + whole->header().data_at, &mark, sizeof mark);
      const uint32_t slots = random() % 4 == 0 ? static_cast<uint32_t>(random()) : 1 + random() % 12;
      std::memcpy(bytes.data() + whole->header().data_at + 8, &slots, sizeof slots);
    }
    const Planted planted("tenon:inspect_any", bytes, nbytes);
    const auto report = seen_file("tenon:inspect_any");
    ASSERT_TRUE(report);
    EXPECT_EQ(report->damage, "");
    Json json;
    json.value(*report);
    EXPECT_TRUE(is_json_object(json.take()));
  }
}

}  // namespace
}  // namespace tenon::impl
