// SPDX-License-Identifier: Apache-2.0
#include "base/trace.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

namespace tenon::impl::trace {

constinit std::atomic<uint32_t> detail::running{0};

namespace {

// A span: the number of the trace in the upper bits, the index of the record in the lower bits.
constexpr uint32_t kPlaceBits = 22;
constexpr uint32_t kPlaces = uint32_t{1} << kPlaceBits;
constexpr uint32_t kTraces = (uint32_t{1} << (32 - kPlaceBits)) - 1;  // numbered from 1

// Shared. Counts the calls that have access to the records.
alignas(64) constinit std::atomic<uint32_t> writers{0};
// Shared: plain counters.
alignas(64) constinit std::atomic<uint64_t> next_place{0};
constinit std::atomic<uint64_t> lost{0};

// Written while no trace runs and there are no writers.
constinit Record* records = nullptr;
constinit size_t capacity = 0;
constinit int64_t began_ns = 0;
constinit uint32_t last_trace = 0;

constinit thread_local uint32_t thread_id = 0;

uint32_t this_thread() noexcept {
  if (thread_id == 0) thread_id = static_cast<uint32_t>(syscall(SYS_gettid));
  return thread_id;
}

size_t nbytes_of(size_t count) noexcept { return count * sizeof(Record); }

// The child's copy of the records may be incomplete: the threads that wrote to them do not exist in the
// child.
void forget_in_child() noexcept {
  detail::running.store(0, std::memory_order_relaxed);
  writers.store(0, std::memory_order_relaxed);
  thread_id = 0;
  if (records != nullptr) munmap(records, nbytes_of(capacity));
  records = nullptr;
}

}  // namespace

// A writer first counts itself and then reads `running`; stop() first clears `running` and then reads the
// count. So at least one of the two sees the other.
RecordWriter::RecordWriter() noexcept
    // pairs with: trace::stop, "a way to the records"
    : trace_((writers.fetch_add(1, std::memory_order_seq_cst),
              // pairs with: trace::start and trace::stop, "a way to the records"
              detail::running.load(std::memory_order_seq_cst))) {}

// pairs with: trace::stop, "a way to the records"
RecordWriter::~RecordWriter() { writers.fetch_sub(1, std::memory_order_release); }

Record* RecordWriter::add(SpanKind kind, uint64_t key, Span* span) noexcept {
  if (trace_ == 0) return nullptr;
  const uint64_t place = next_place.fetch_add(1, std::memory_order_relaxed);
  if (place >= capacity) {
    lost.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  Record& record = records[place];
  record.kind = kind;
  record.key = key;
  record.thread = this_thread();
  record.at_ns[kBegun] = now_ns();
  *span = trace_ << kPlaceBits | static_cast<uint32_t>(place);
  return &record;
}

Record* RecordWriter::find(Span span, uint64_t key) noexcept {
  if (trace_ == 0 || span >> kPlaceBits != trace_) return nullptr;
  Record& record = records[span & (kPlaces - 1)];
  return record.key == key ? &record : nullptr;
}

void detail::mark(Span span, uint64_t key, Mark at) noexcept {
  change(span, key, [at](Record& record) {
    if (at == kRunning) record.runner = this_thread();
    record.at_ns[at] = now_ns();
  });
}

std::string_view last_line_of(std::string_view text) noexcept {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  return text.substr(text.rfind('\n') + 1);  // npos + 1 is 0
}

void detail::close(Span span, uint64_t key, SpanOutcome outcome, std::string_view note) noexcept {
  change(span, key, [&](Record& record) {
    if (record.outcome != SpanOutcome::kOpen) return;
    record.at_ns[kEnded] = now_ns();
    record.outcome = outcome;
    if (record.runner == 0) record.runner = this_thread();
    SpanText(record.note) << last_line_of(note);
  });
}

void drop(Span span, uint64_t key) noexcept {
  change(span, key, [](Record& record) { record.kind = SpanKind::kNone; });
}

SpanText& SpanText::operator<<(std::string_view text) noexcept {
  const size_t n = std::min(text.size(), static_cast<size_t>(end_ - at_));
  at_ = std::copy_n(text.data(), n, at_);  // reads nothing of an empty text, whose address may be null
  *at_ = '\0';
  if (n < text.size() && end_ - begin_ >= 3) std::memcpy(end_ - 3, "...", 3);
  return *this;
}

void Unmap::operator()(Record* unmapped) const noexcept { munmap(unmapped, nbytes); }

void start(size_t wanted) {
  [[maybe_unused]] static const int handler = pthread_atfork(nullptr, nullptr, forget_in_child);
  // The kernel allocates each page at its first record.
  void* const memory = mmap(nullptr, nbytes_of(wanted), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  records = static_cast<Record*>(memory);
  capacity = wanted;
  began_ns = now_ns();
  next_place.store(0, std::memory_order_relaxed);
  lost.store(0, std::memory_order_relaxed);
  last_trace = last_trace % kTraces + 1;
  // pairs with: RecordWriter::RecordWriter, "a way to the records"
  detail::running.store(last_trace, std::memory_order_seq_cst);
}

Recording stop() noexcept {
  // pairs with: RecordWriter::RecordWriter, "a way to the records"
  detail::running.store(0, std::memory_order_seq_cst);
  // pairs with: RecordWriter::RecordWriter and RecordWriter::~RecordWriter, "a way to the records"
  while (writers.load(std::memory_order_seq_cst) != 0) sched_yield();
  const auto count = std::min<uint64_t>(next_place.load(std::memory_order_relaxed), capacity);
  return {{std::exchange(records, nullptr), {nbytes_of(capacity)}},
          capacity,
          count,
          lost.load(std::memory_order_relaxed),
          began_ns,
          now_ns()};
}

}  // namespace tenon::impl::trace
