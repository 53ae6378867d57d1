// SPDX-License-Identifier: Apache-2.0
//
// The segment of a feed: its slots have no memory until they are used; its name is taken last, by one
// process, and is free when nobody uses the feed any more, though its memory may live.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "ipc/collect.h"
#include "ipc/inspect.h"
#include "ipc/served_peers_testing.h"

namespace tenon::impl {

// Makes a feed, and says what becomes of each order.
int be_maker(const std::vector<std::string>& words) {
  Lines lines(STDIN_FILENO, STDOUT_FILENO);
  std::vector<Ref<Array>> kept;
  for (std::string line; lines.hear(&line);) {
    const auto failure = failure_of([&] {
      if (line == "make") kept.push_back(OpenFeed::create(words[1]));
      if (line == "attach") kept.push_back(Segments::instance().attach(words[1], true));
      if (line == "take") Segments::instance().take_name(*kept.back());
      if (line == "use") Segments::instance().begin_name_use(*kept.back());
      if (line == "end") Segments::instance().end_name_use(*kept.back());
      if (line == "serve") {
        const OpenFeed feed(kept.back());
        feed.ends().serve(feed.self());
      }
      if (line == "write") OpenFeed(kept.back()).segment().bytes_of(1)[0] = std::byte{7};
    });
    lines.say(concat(failure.first, " ", failure.second));
  }
  return 0;
}

namespace {

const std::string kDone = "0 ";
bool is_of(const std::string& line, Code code, const char* part) {
  return line.rfind(concat(static_cast<int>(code), " "), 0) == 0 && line.find(part) != std::string::npos;
}
uint64_t committed(const Segment& segment) {
  os::FileFacts facts;
  EXPECT_TRUE(os::facts_of(segment.file(), &facts));
  return facts.committed_nbytes;
}

TEST(FeedSegment, OnlyItsControlPartHasMemory) {
  const OpenFeed feed(OpenFeed::create(new_name()));
  const Header& header = feed.segment().header();
  EXPECT_EQ(header.feed_slots, kSlots);
  EXPECT_NO_THROW(check(header, os::size_of(feed.segment().file())));
  const uint64_t control = feed.memory()->desc().nbytes, before = committed(feed.segment());
  EXPECT_EQ(header.feed_pages, (control + kPage - 1) / kPage);
  EXPECT_LT(before, round_up(control, kPage) + (uint64_t{64} << 10));
  const std::span<std::byte> slots = feed.segment().bytes_of(1);
  ASSERT_EQ(slots.size(), kSlots * kSlotNbytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(slots.data()) % (2 << 20), 0U) << "they may be huge pages";
  (void)inspect();
  (void)collect();
  std::vector<Ref<Array>> others;
  for (int i = 0; i < 20; ++i) {
    const int64_t n = 100'000;
    others.push_back(Segments::instance().create(DType(TENON_UINT, 8), {&n, 1}, TENON_ZEROED, {}));
  }
  others.clear();
  (void)inspect();
  (void)collect();
  EXPECT_EQ(committed(feed.segment()), before) << "the slots have no memory";
  slots[0] = std::byte{1};
  EXPECT_GT(committed(feed.segment()), before);
  const auto punched = static_cast<uint64_t>(slots.data() - feed.segment().data());
  EXPECT_TRUE(os::punch(feed.segment().file(), header.data_at + punched, slots.size()));
  EXPECT_EQ(committed(feed.segment()), before);
}

TEST(FeedSegment, IsShownByItsName) {
  const std::string name = new_name();
  const OpenFeed feed(OpenFeed::create(name));
  bool is_shown = false;
  for (const SegmentReport& report : inspect()) is_shown = is_shown || report.name == name;
  EXPECT_TRUE(is_shown);
}

TEST(FeedSegment, WhatDoesNotFitIsRefused) {
  FeedMemoryPlan good;
  good.name = new_name();
  good.slots = kSlots;
  good.control_nbytes = ServedState::end_at(kSlots);
  EXPECT_NO_THROW((void)Segments::instance().create_feed(good));
  const auto is_refused = [&](auto change) {
    FeedMemoryPlan plan = good;
    change(plan);
    return failure_of([&] { (void)Segments::instance().create_feed(plan); }).first ==
           static_cast<int>(Code::kValue);
  };
  EXPECT_TRUE(is_refused([](FeedMemoryPlan& plan) { plan.name = "a/b"; }));
  EXPECT_TRUE(is_refused([](FeedMemoryPlan& plan) { plan.name = ""; }));
  EXPECT_TRUE(is_refused([](FeedMemoryPlan& plan) { plan.slots = 0; }));
  EXPECT_TRUE(is_refused([](FeedMemoryPlan& plan) { plan.slots = SlotTable::kMostSlots + 1; }));
  EXPECT_TRUE(is_refused([](FeedMemoryPlan& plan) { --plan.control_nbytes; }));
  EXPECT_TRUE(is_refused([](FeedMemoryPlan& plan) { plan.control_nbytes = UINT64_MAX; }));
  EXPECT_TRUE(is_refused([](FeedMemoryPlan& plan) { plan.slots_nbytes = UINT64_MAX; }));
}

TEST(FeedSegment, OfAnotherArrayThereIsNone) {
  const int64_t n = 100'000;
  const Ref<Array> shared = Segments::instance().create(DType(TENON_UINT, 8), {&n, 1}, 0, {});
  EXPECT_EQ(failure_of([&] { (void)Segments::feed_segment_of(*shared); }).first,
            static_cast<int>(Code::kValue));
}

TEST(FeedSegment, ItsNameIsTakenLast) {
  const std::string name = new_name();
  Peer other({"maker", name});
  const OpenFeed feed(OpenFeed::create(name));
  EXPECT_TRUE(is_of(other.ask("attach"), Code::kNotFound, "no process"));
  Segments::instance().take_name(*feed.memory());
  EXPECT_EQ(other.ask("attach"), kDone);
  EXPECT_EQ(other.ask("serve"), kDone);
  EXPECT_TRUE(feed.ends().is_server_alive()) << "it writes to the control part, which it sees read-only";
  EXPECT_NE(feed.state().server, feed.self());
  other.kill();
  EXPECT_TRUE(comes_true([&] { return !feed.ends().is_server_alive(); }));
}

TEST(FeedSegment, ASecondTakerOfItsNameIsRefused) {
  const std::string name = new_name();
  Peer other({"maker", name});
  auto feed = std::make_unique<OpenFeed>(OpenFeed::create(name));
  ASSERT_EQ(other.ask("make"), kDone) << "the name is not taken yet";
  Segments::instance().take_name(*feed->memory());
  EXPECT_TRUE(is_of(other.ask("take"), Code::kValue, "exists already: attach to it"));
  const auto again = failure_of([&] { Segments::instance().take_name(*feed->memory()); });
  EXPECT_EQ(again.first, static_cast<int>(Code::kValue));
  EXPECT_NE(again.second.find("this process uses it"), std::string::npos) << again.second;
  feed.reset();
  (void)collect();
  EXPECT_EQ(other.ask("take"), kDone);
  EXPECT_NO_THROW(OpenFeed attached(name));
}

TEST(FeedSegment, AKilledMakerLeavesNothing) {
  const std::string name = new_name();
  for (const bool takes : {false, true}) {
    Peer maker({"maker", name});
    ASSERT_EQ(maker.ask("make"), kDone);
    if (takes) {
      ASSERT_EQ(maker.ask("take"), kDone);
    }
    maker.kill();
    EXPECT_EQ(failure_of([&] { OpenFeed attached(name); }).first, static_cast<int>(Code::kNotFound));
    const OpenFeed feed(OpenFeed::create(name));
    EXPECT_NO_THROW(Segments::instance().take_name(*feed.memory()));
    for (const SegmentReport& report : inspect())
      EXPECT_TRUE(report.name != name || report.creator.pid == static_cast<uint32_t>(getpid()));
  }
}

TEST(FeedSegment, ItsNameGoesWithTheLastUseThoughItsMemoryLives) {
  const std::string name = new_name();
  const OpenFeed feed(OpenFeed::create(name));
  Segments& segments = Segments::instance();
  Peer other({"maker", name});
  segments.begin_name_use(*feed.memory());
  segments.begin_name_use(*feed.memory());
  segments.take_name(*feed.memory());
  segments.end_name_use(*feed.memory());
  ASSERT_EQ(other.ask("attach"), kDone);
  ASSERT_EQ(other.ask("use"), kDone);
  segments.end_name_use(*feed.memory());
  EXPECT_NO_THROW(OpenFeed again(name)) << "the other process uses it";
  segments.begin_name_use(*feed.memory());  // as the one that has attached again
  segments.end_name_use(*feed.memory());
  ASSERT_EQ(other.ask("end"), kDone);
  EXPECT_EQ(failure_of([&] { OpenFeed again(name); }).first, static_cast<int>(Code::kNotFound));
  EXPECT_TRUE(is_of(other.ask("attach"), Code::kNotFound, "no process"));
  ASSERT_EQ(other.ask("make"), kDone);
  EXPECT_EQ(other.ask("take"), kDone);
  EXPECT_NE(OpenFeed(name).memory()->data(), feed.memory()->data());
}

TEST(FeedSegment, ItsSlotsAreThoseOfTheOtherProcess) {
  const std::string name = new_name();
  Peer maker({"maker", name});
  ASSERT_EQ(maker.ask("make"), kDone);
  ASSERT_EQ(maker.ask("take"), kDone);
  const OpenFeed feed(name);
  ASSERT_EQ(maker.ask("write"), kDone);
  EXPECT_EQ(feed.segment().bytes_of(1)[0], std::byte{7});
}

TEST(FeedSegment, AForkedChildHasAPlaceWithoutARecord) {
  const OpenFeed feed(OpenFeed::create(new_name()));
  feed.ends().serve(feed.self());
  feed.join();
  const uint32_t parent = feed.self();
  const pid_t child = fork();
  if (child == 0) {
    const bool is_good = feed.self() != parent && feed.self() != Participant::kNone &&
                         feed.segment().control().served() == &feed.state() &&
                         !has_bit(feed.state().users, feed.self()) && feed.ends().is_server_alive() &&
                         feed.ends().count() == 1;
    feed.join();
    _exit(is_good && feed.ends().count() == 2 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  reap_all(feed.segment().control());
  EXPECT_EQ(feed.ends().count(), 1U) << "the child's record is gone";
  EXPECT_TRUE(has_bit(feed.state().users, parent));
}

}  // namespace
}  // namespace tenon::impl
