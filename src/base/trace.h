// SPDX-License-Identifier: Apache-2.0
//
// Records of what happens in this process, for a timeline (src/trace writes the file). A span is opened where
// something begins, gets a time at each change of its state, and is closed. It has one record of fixed size
// in memory that was mapped when the trace began, so recording allocates nothing, takes no lock and never
// waits. When all records are used, later spans are only counted. While no trace runs, an instrumented place
// costs one relaxed load, or one comparison of a span.
#pragma once

#include <array>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/access.h"
#include "base/clock.h"

namespace tenon::impl::trace {

enum class SpanKind : uint8_t {
  kNone,     // discarded: not shown
  kOp,       // pushed, ready, running, returned, ended
  kLease,    // asked for, granted, -, -, released
  kWait,     // of a thread: begun, -, -, -, ended
  kFill,     // by a worker of a feed: begun, -, -, -, ended
  kBlocked,  // a worker without a slot: begun, -, -, -, ended
  kSlot,     // taken, filled, delivered, -, free again
  kStarved,  // the consumer without a batch: begun, -, -, -, ended
};

// The times of a record. SpanKind says what each one means. The last one is the end.
enum Mark : uint8_t { kBegun, kReady, kRunning, kReturned, kEnded, kMarks };

enum class SpanOutcome : uint8_t {
  kOpen,  // the trace ended first
  kDone,
  kFailed,     // note says why
  kSkipped,    // not run, because an input has failed
  kCancelled,  // taken back by the caller
};

struct Record {
  std::array<int64_t, kMarks> at_ns;  // of now_ns(); 0: not reached
  uint64_t key;                       // chosen by the opener; closing needs the same key
  uint64_t index, epoch;              // of a batch; index: also the number of an op
  uint64_t address;                   // of memory
  uint32_t thread;                    // that opened it
  uint32_t runner;                    // that runs the op's body
  uint32_t group;                     // the number of a feed
  int32_t worker, slot;
  int32_t pid;  // of a worker process; 0: a thread
  SpanKind kind;
  SpanOutcome outcome;
  Access access;
  char name[48];  // src/trace/chrome.cc shows what each text describes
  char site[64];  // its last part, if it is longer
  char text[112];
  char note[64];
  char stream[32];  // of a device, on which the op's work runs after the return of its body; empty: none
};

// Names a record; kNoSpan: none. Contains the number of the trace, so that a span of an earlier trace is not
// found.
using Span = uint32_t;
inline constexpr Span kNoSpan = 0;

namespace detail {
// Which trace runs; 0: none.
extern std::atomic<uint32_t> running;
// Out of line, so that the callers stay small.
[[gnu::cold]] void mark(Span span, uint64_t key, Mark at) noexcept;
[[gnu::cold]] void close(Span span, uint64_t key, SpanOutcome outcome, std::string_view note) noexcept;
}  // namespace detail

inline bool is_on() noexcept { return detail::running.load(std::memory_order_relaxed) != 0; }

// Access to the records for a moment. The end of the trace waits for all writers. Threads: any.
class RecordWriter {
 public:
  RecordWriter() noexcept;
  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;
  ~RecordWriter();

  // A new record, begun now in this thread. Null: no trace runs, or it is full. Requires key != 0.
  Record* add(SpanKind kind, uint64_t key, Span* span) noexcept;
  // Null: the span does not belong to the trace that runs.
  Record* find(Span span, uint64_t key) noexcept;

 private:
  const uint32_t trace_;  // 0: none runs
};

// Opens a span. fill(record) sets the fields of its record.
template <class Fill>
Span open(SpanKind kind, uint64_t key, Fill fill) noexcept {
  Span span = kNoSpan;
  if (!is_on()) [[likely]]
    return span;
  RecordWriter writer;
  if (Record* const record = writer.add(kind, key, &span)) fill(*record);
  return span;
}

template <class Change>
void change(Span span, uint64_t key, Change change_record) noexcept {
  if (span == kNoSpan) [[likely]]
    return;
  RecordWriter writer;
  if (Record* const record = writer.find(span, key)) change_record(*record);
}

// Sets a time of a span. kRunning: also its runner, to this thread.
inline void mark(Span span, uint64_t key, Mark at) noexcept {
  if (span != kNoSpan) [[unlikely]]
    detail::mark(span, key, at);
}

// The last line that is not empty: of a message with a traceback, the exception.
std::string_view last_line_of(std::string_view text) noexcept;

// Does nothing if the span is closed already. note: its last line is kept.
inline void close(Span span, uint64_t key, SpanOutcome outcome, std::string_view note = {}) noexcept {
  if (span != kNoSpan) [[unlikely]]
    detail::close(span, key, outcome, note);
}
// Discards a span.
void drop(Span span, uint64_t key) noexcept;

inline uint64_t key_of(const void* object) noexcept { return reinterpret_cast<uintptr_t>(object); }

// Writes a text of a record. It ends with NUL; a text that does not fit is cut and ends with "...".
class SpanText {
 public:
  template <size_t size>
  explicit SpanText(char (&to)[size]) noexcept : begin_(to), at_(to), end_(to + size - 1) {
    *at_ = '\0';
  }
  SpanText& operator<<(std::string_view text) noexcept;
  template <std::integral T>
  SpanText& operator<<(T value) noexcept {
    char digits[24];
    char* first = digits + sizeof digits;
    const bool is_negative = value < 0;
    auto left = static_cast<uint64_t>(value);
    if (is_negative) left = ~left + 1;
    do {
      *--first = static_cast<char>('0' + left % 10);
    } while ((left /= 10) != 0);
    if (is_negative) *--first = '-';
    return *this << std::string_view(first, static_cast<size_t>(digits + sizeof digits - first));
  }

 private:
  char* const begin_;
  char* at_;
  char* const end_;
};

// Copies the end of a text, for a path with a line: "...ain/train.py:12". from: may be null.
template <size_t size>
void copy_end(char (&to)[size], const char* from) noexcept {
  const size_t length = from != nullptr ? std::strlen(from) : 0;
  if (length < size) {
    std::memcpy(to, from != nullptr ? from : "", length + 1);
    return;
  }
  std::memcpy(to, "...", 3);
  std::memcpy(to + 3, from + length - (size - 4), size - 3);  // with the NUL
}

struct Unmap {
  size_t nbytes;
  void operator()(Record* records) const noexcept;
};

// The records of a trace. Owns them.
struct Recording {
  const Record* begin() const noexcept { return records.get(); }
  const Record* end() const noexcept { return records.get() + count; }

  std::unique_ptr<Record[], Unmap> records;
  size_t capacity, count;
  uint64_t lost;
  int64_t began_ns, ended_ns;
};

inline constexpr size_t kMostRecords = (size_t{1} << 22) - 1;

// A process has one trace at a time, and a forked child none. Threads: start() and stop() one at a time
// (src/trace holds a lock).
// Fails with std::bad_alloc. Requires: no trace runs; 1 <= capacity <= kMostRecords.
void start(size_t capacity);
// Requires: a trace runs.
Recording stop() noexcept;

}  // namespace tenon::impl::trace
