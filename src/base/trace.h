// SPDX-License-Identifier: Apache-2.0
//
// What goes on in this process, noted for a timeline (src/trace writes it). A span is opened where something
// begins, gets a time where it comes to its next state, and is closed. Each has one record of fixed size in
// memory that was mapped when the trace began: to note something allocates nothing, takes no lock and never
// waits. When the records are used up, what comes later is counted and lost. While no trace runs a place
// that notes costs one relaxed load, or a look at a span that it does not have.
#pragma once

#include <array>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/access.h"
#include "base/clock.h"

namespace tenon::impl::trace {

enum class SpanKind : uint8_t {
  kNone,     // nothing has come of it: not to be shown
  kOp,       // pushed, ready, running, returned, ended
  kLease,    // asked for, granted, -, -, released
  kWait,     // of a thread: begun, -, -, -, ended
  kFill,     // by a worker of a feed: begun, -, -, -, ended
  kBlocked,  // a worker without a slot: begun, -, -, -, ended
  kSlot,     // taken, filled, delivered, -, free again
  kStarved,  // the consumer without a batch: begun, -, -, -, ended
};

// The times of a record: what each means to a kind stands above. The last one is when it was closed.
enum Mark : uint8_t { kBegun, kReady, kRunning, kReturned, kEnded, kMarks };

enum class SpanOutcome : uint8_t {
  kOpen,  // the trace ended first
  kDone,
  kFailed,     // note says why
  kSkipped,    // it was not run: what it reads has failed
  kCancelled,  // no caller waits for it any more
};

struct Record {
  std::array<int64_t, kMarks> at_ns;  // of now_ns(); 0: not reached
  uint64_t key;                       // of its opener; closing needs the same key
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
  char name[48];  // src/trace/chrome.cc tells what each text is of
  char site[64];  // the end of it, if it is longer
  char text[112];
  char note[64];
};

// Of a record; kNone: there is none. Names the trace, too, so that a span of an earlier one is none.
using Span = uint32_t;
inline constexpr Span kNoSpan = 0;

namespace detail {
// Which trace runs; 0: none.
extern std::atomic<uint32_t> running;
// Apart from the code that does without: it is to stay small.
[[gnu::cold]] void mark(Span span, uint64_t key, Mark at) noexcept;
[[gnu::cold]] void close(Span span, uint64_t key, SpanOutcome outcome, std::string_view note) noexcept;
}  // namespace detail

inline bool is_on() noexcept { return detail::running.load(std::memory_order_relaxed) != 0; }

// A way to the records for a moment: the trace's end waits for those that are open. Threads: any.
class RecordWriter {
 public:
  RecordWriter() noexcept;
  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;
  ~RecordWriter();

  // A new record, begun now in this thread. Null: no trace runs, or it is full. Requires key != 0.
  Record* add(SpanKind kind, uint64_t key, Span* span) noexcept;
  // Null: the span is not one of the trace that runs.
  Record* find(Span span, uint64_t key) noexcept;

 private:
  const uint32_t trace_;  // 0: none runs
};

// fill(record) says what it is.
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

// kRunning: in this thread.
inline void mark(Span span, uint64_t key, Mark at) noexcept {
  if (span != kNoSpan) [[unlikely]]
    detail::mark(span, key, at);
}

// Of a message with a traceback: what was raised.
std::string_view last_line_of(std::string_view text) noexcept;

// Nothing happens to a span that is closed already. note: its last line is kept.
inline void close(Span span, uint64_t key, SpanOutcome outcome, std::string_view note = {}) noexcept {
  if (span != kNoSpan) [[unlikely]]
    detail::close(span, key, outcome, note);
}
// It is not to be shown.
void drop(Span span, uint64_t key) noexcept;

inline uint64_t key_of(const void* object) noexcept { return reinterpret_cast<uintptr_t>(object); }

// Texts of records: they end with NUL, and what does not fit is cut at the end; with "..." in place of it.
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

// The last part of a path with a line is what tells: "...ain/train.py:12". from: may be null.
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

// What was recorded. Owns the records.
class Recording {
 public:
  Recording() noexcept = default;
  Recording(Record* records, size_t capacity) noexcept : records_(records), capacity_(capacity) {}
  Recording(Recording&& other) noexcept;
  Recording& operator=(Recording&& other) noexcept;
  ~Recording();

  const Record* begin() const noexcept { return records_; }
  const Record* end() const noexcept { return records_ + count; }
  size_t capacity() const noexcept { return capacity_; }

  size_t count = 0;
  uint64_t lost = 0;
  int64_t began_ns = 0, ended_ns = 0;

 private:
  Record* records_ = nullptr;
  size_t capacity_ = 0;
};

inline constexpr size_t kMostRecords = (size_t{1} << 22) - 1;

// One trace at a time. Threads: start() and stop() one at a time (src/trace holds a lock). A forked child has
// none.
// Fails with std::bad_alloc. Requires: none runs; 1 <= capacity <= kMostRecords.
void start(size_t capacity);
// Requires: one runs.
Recording stop() noexcept;

}  // namespace tenon::impl::trace
