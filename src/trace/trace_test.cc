// SPDX-License-Identifier: Apache-2.0
//
// The records of a trace and the file that is made of them.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error_testing.h"
#include "base/trace.h"
#include "trace/chrome.h"
#include "trace/session.h"

namespace tenon::impl::trace {
namespace {

// A span whose every field follows from its number, so that a record that is put together of two shows.
Span open_telling(uint64_t number) {
  return open(SpanKind::kFill, number, [number](Record& record) {
    record.index = number;
    record.epoch = ~number;
    record.worker = static_cast<int32_t>(number % 1000);
    SpanText(record.name) << number;
    SpanText(record.text) << "the text of " << number;
  });
}

void expect_telling(const Record& record) {
  EXPECT_EQ(record.kind, SpanKind::kFill);
  EXPECT_EQ(record.index, record.key);
  EXPECT_EQ(record.epoch, ~record.key);
  EXPECT_EQ(record.name, std::to_string(record.key));
  EXPECT_EQ(record.text, "the text of " + std::to_string(record.key));
  EXPECT_NE(record.at_ns[kBegun], 0);
  if (record.outcome == SpanOutcome::kOpen) return;
  EXPECT_EQ(record.note, "the end of " + std::to_string(record.key));
  EXPECT_GE(record.at_ns[kEnded], record.at_ns[kBegun]);
}

std::string file_text(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string json_of(const Recording& recording) {
  std::string text;
  write_chrome(recording, [&](std::string_view part) {
    text += part;
    return true;
  });
  return text;
}

size_t count_of(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

class TempFile {
 public:
  TempFile() : path_(testing::TempDir() + "tenon-trace-" + std::to_string(getpid()) + ".json") {}
  ~TempFile() { (void)std::remove(path_.c_str()); }
  const char* path() const { return path_.c_str(); }

 private:
  std::string path_;
};

TEST(Trace, NothingIsNotedWhileNoneRuns) {
  EXPECT_FALSE(is_on());
  EXPECT_EQ(open_telling(1), kNoSpan);
  start(10);
  EXPECT_TRUE(is_on());
  const Recording recording = stop();
  EXPECT_FALSE(is_on());
  EXPECT_EQ(recording.count, 0u);
  EXPECT_EQ(recording.lost, 0u);
}

TEST(Trace, ASpanHasItsTimesInOrderAndEndsOnce) {
  start(10);
  const Span span = open_telling(7);
  mark(span, 7, kReady);
  mark(span, 7, kRunning);
  close(span, 7, SpanOutcome::kFailed, "the end of 7");
  close(span, 7, SpanOutcome::kDone, "another end");
  const Recording recording = stop();
  ASSERT_EQ(recording.count, 1u);
  const Record& record = *recording.begin();
  expect_telling(record);
  EXPECT_EQ(record.outcome, SpanOutcome::kFailed);
  EXPECT_LE(recording.began_ns, record.at_ns[kBegun]);
  EXPECT_LE(record.at_ns[kBegun], record.at_ns[kReady]);
  EXPECT_LE(record.at_ns[kReady], record.at_ns[kRunning]);
  EXPECT_LE(record.at_ns[kRunning], record.at_ns[kEnded]);
  EXPECT_LE(record.at_ns[kEnded], recording.ended_ns);
  EXPECT_EQ(record.at_ns[kReturned], 0);
}

TEST(Trace, WhenItIsFullTheFirstAreKeptAndTheOthersCounted) {
  start(10);
  for (uint64_t n = 1; n <= 100; ++n) close(open_telling(n), n, SpanOutcome::kDone, concat("the end of ", n));
  const Recording recording = stop();
  EXPECT_EQ(recording.count, 10u);
  EXPECT_EQ(recording.lost, 90u);
  uint64_t number = 0;
  for (const Record& record : recording) {
    EXPECT_EQ(record.key, ++number);
    expect_telling(record);
  }
  EXPECT_NE(json_of(recording).find("\"lost\": 90"), std::string::npos);
}

TEST(Trace, ASpanOfAnEarlierOneChangesNothing) {
  start(4);
  const Span old = open_telling(1);
  (void)stop();
  close(old, 1, SpanOutcome::kDone);  // while none runs
  start(4);
  const Span span = open_telling(2);
  close(old, 1, SpanOutcome::kFailed);
  close(old, 2, SpanOutcome::kFailed);
  close(span, 3, SpanOutcome::kFailed);  // of another key
  const Recording recording = stop();
  ASSERT_EQ(recording.count, 1u);
  EXPECT_EQ(recording.begin()->outcome, SpanOutcome::kOpen);
}

// Every thread notes spans without a pause while traces begin and end: no record is half of one and half of
// another, and each kept one is whole.
TEST(Trace, ThreadsMayNoteWhileItEnds) {
  constexpr int kThreads = 4;
  constexpr int kTraces = 60;
  std::atomic<bool> is_over{false};
  std::atomic<uint64_t> noted{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t, &is_over, &noted] {
      for (uint64_t n = static_cast<uint64_t>(t) + 1; !is_over.load(std::memory_order_relaxed);
           n += kThreads) {
        const Span span = open_telling(n);
        mark(span, n, kReady);
        close(span, n, SpanOutcome::kDone, concat("the end of ", n));
        noted.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  uint64_t kept = 0, lost = 0;
  for (int i = 0; i < kTraces; ++i) {
    start(i % 2 == 0 ? 300 : 20'000);
    const uint64_t until = noted.load(std::memory_order_relaxed) + (i % 3 == 0 ? 1000 : 100);
    while (noted.load(std::memory_order_relaxed) < until) std::this_thread::yield();
    const Recording recording = stop();
    for (const Record& record : recording) {
      expect_telling(record);
      ++kept;
    }
    lost += recording.lost;
  }
  is_over = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(kept, 0u);
  EXPECT_GT(lost, 0u);
  RecordProperty("kept", std::to_string(kept));
  RecordProperty("lost", std::to_string(lost));
}

TEST(Trace, OfATracebackTheLastLineIsKept) {
  EXPECT_EQ(last_line_of("Traceback:\n  line 3\nKeyError: 3\n"), "KeyError: 3");
  EXPECT_EQ(last_line_of("no"), "no");
  EXPECT_EQ(last_line_of("\n"), "");
}

TEST(Trace, TextsAreCutWithAMark) {
  char head[8];
  SpanText(head) << "abcdefg";
  EXPECT_STREQ(head, "abcdefg");
  SpanText(head) << "abcd" << 12345;
  EXPECT_STREQ(head, "abcd...");
  SpanText(head) << -42;
  EXPECT_STREQ(head, "-42");
  char tail[12];
  copy_end(tail, "train.py:12");
  EXPECT_STREQ(tail, "train.py:12");
  copy_end(tail, "/home/train.py:12");
  EXPECT_STREQ(tail, "...in.py:12");
  copy_end(tail, nullptr);
  EXPECT_STREQ(tail, "");
}

TEST(Trace, AForkedChildHasNone) {
  const TempFile file;
  begin(file.path(), 100);
  const Span span = open_telling(1);
  const pid_t child = fork();
  if (child == 0) {
    bool is_right = !is_on() && open_telling(2) == kNoSpan;
    close(span, 1, SpanOutcome::kFailed, "in the child");
    is_right = is_right && code_of([] { (void)end(); }) == Code::kValue;
    begin("/dev/null", 10);  // one of its own
    is_right = is_right && open_telling(3) != kNoSpan && end().events == 1;
    _exit(is_right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  close(span, 1, SpanOutcome::kDone, "the end of 1");
  EXPECT_EQ(end().events, 1u);
  const std::string text = file_text(file.path());
  EXPECT_EQ(text.find("in the child"), std::string::npos);
  EXPECT_NE(text.find("the end of 1"), std::string::npos);
}

TEST(Trace, FailuresAreToldAtTheCallAndLeaveNoneRunning) {
  EXPECT_EQ(code_of([] { begin("/no/such/folder/run.json", 10); }), Code::kNotFound);
  EXPECT_EQ(code_of([] { begin("/proc", 10); }), Code::kSystem);  // a folder
  EXPECT_EQ(code_of([] { begin("/dev/null", 0); }), Code::kValue);
  EXPECT_EQ(code_of([] { begin("/dev/null", kMostRecords + 1); }), Code::kValue);
  EXPECT_FALSE(is_on());
  EXPECT_EQ(code_of([] { (void)end(); }), Code::kValue);
  begin("/dev/null", 10);
  EXPECT_EQ(code_of([] { begin("/dev/null", 10); }), Code::kValue);
  EXPECT_TRUE(is_on()) << "the one that runs goes on";
  (void)end();
  begin("/dev/full", 10);
  EXPECT_EQ(code_of([] { (void)end(); }), Code::kSystem);
  EXPECT_FALSE(is_on());
}

TEST(Trace, LeasesThatOverlapGetLanesOfTheirOwn) {
  const auto lease = [](uint64_t key, const char* text) {
    return open(SpanKind::kLease, key, [&](Record& record) {
      record.address = 4096;
      SpanText(record.text) << text;
    });
  };
  start(10);
  const Span first = lease(1, "array a"), second = lease(2, "array a");
  mark(first, 1, kReady);
  close(second, 2, SpanOutcome::kCancelled);
  close(first, 1, SpanOutcome::kDone);
  close(lease(3, "array a"), 3, SpanOutcome::kDone);  // in the first lane again
  close(lease(4, "array b"), 4, SpanOutcome::kDone);
  const std::string text = json_of(stop());
  EXPECT_EQ(count_of(text, "\"thread_name\""), 3u) << text;
  EXPECT_EQ(count_of(text, "{\"name\": \"array a\"}"), 1u) << text;
  EXPECT_EQ(count_of(text, "{\"name\": \"array a (2)\"}"), 1u) << text;
  EXPECT_EQ(count_of(text, "{\"name\": \"array b\"}"), 1u) << text;
}

TEST(Trace, WhatIsOpenAtTheEndLastsUntilThen) {
  start(10);
  const Span op = open(SpanKind::kOp, 5, [](Record& record) {
    record.index = 5;
    SpanText(record.name) << "quote \" and \xff";
  });
  change(op, 5, [](Record& record) {
    record.runner = record.thread;
    record.at_ns[kRunning] = record.at_ns[kBegun];
  });
  (void)open(SpanKind::kOp, 6, [](Record& record) { SpanText(record.name) << "waits"; });
  drop(open_telling(9), 9);
  const std::string text = json_of(stop());
  EXPECT_EQ(count_of(text, "\"ph\": \"X\""), 1u) << text;
  EXPECT_EQ(count_of(text, "\"ph\": \"b\""), 2u) << text;
  EXPECT_EQ(count_of(text, "\"ph\": \"e\""), 2u) << text;
  EXPECT_EQ(count_of(text, "unfinished"), 2u) << text;
  EXPECT_NE(text.find("quote \\\" and \\ufffd"), std::string::npos) << text;
}

}  // namespace
}  // namespace tenon::impl::trace
