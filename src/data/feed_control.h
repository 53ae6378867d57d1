// SPDX-License-Identifier: Apache-2.0
//
// The words with which a feed passes slots: its control part. Threads of the feed, its worker processes and
// its consumers change them by the same functions. It is the head of the feed's memory file, before the
// slots, or memory of this process where the workers are threads.
//
//   head      FeedHead: constant after creation
//   shared    FeedShared: the order of tickets, what all sleep on, and counters
//   states    SlotState of each slot: ipc/slot_table.h
//   entries   SlotEntry of each number
//   records   SlotRecord of each slot
//   loops     LoopRecord of each fill loop
//   starts    for each worker the bytes of a state of the generator
//   schema    as Schema::encode() writes it
//
// Zeros are the initial values of all of them but the head, so the pages of a part are not touched before it
// is used. `tenon ls` of any version reads the head and the loops from other processes (inspect_feeds.h), so
// a change of the layout needs another kFeedVersion.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>

#include "base/event.h"
#include "data/fill_times.h"
#include "data/order.h"
#include "data/slot_layout.h"
#include "data/ticket_failure.h"
#include "ipc/schema.h"
#include "ipc/served_state.h"

namespace tenon::impl {

inline constexpr uint32_t kFeedMagic = 0x6465656e, kFeedVersion = 11;

// What became of the ticket in a slot. kElsewhere: it was taken from a thread that hangs, and has another
// slot.
enum class Outcome : uint32_t { kNone, kBatch, kFailure, kSkip, kEnd, kElsewhere };

// Where the parts lie, in bytes from the control part. In the segment of a feed that may be served, it begins
// with what served_state.h describes: then the shared words, the states and the entries lie where that says.
struct FeedLayout {
  uint64_t head_at = 0;
  uint64_t shared_at = 0;
  uint64_t states_at = 0;
  uint64_t entries_at = 0;
  uint64_t records_at = 0;
  uint64_t loops_at = 0;
  uint64_t starts_at = 0;
  uint64_t schema_at = 0;
  uint64_t schema_nbytes = 0;
  uint64_t noted_at = 0;  // in a segment, as the next two
  uint64_t again_at = 0;
  uint64_t note_at = 0;  // of kNoteNbytes
  uint64_t nbytes = 0;   // of all; a multiple of the page size

  // Of a feed whose slots are at most so many. Fails with kValue (overflow).
  static FeedLayout of(int32_t most, int32_t loops, int32_t workers, uint64_t state_nbytes,
                       uint64_t schema_nbytes, bool is_served = false);
  bool is_served() const noexcept { return head_at != 0; }
  static constexpr uint64_t kNoteNbytes = 8 << 10;
  friend bool operator==(const FeedLayout&, const FeedLayout&) = default;
};

enum FeedFlags : uint32_t {
  kHasSparseSlots = 1,
  kHasStates = 2,  // the generator has a state
  kGoesRound = 4,  // ticket t is of worker t % workers
  kIsShuffled = 8,
  kPrepares = 16,      // the feed's process prepares each batch
  kHasProcesses = 32,  // its workers are processes
};

struct FeedHead {
  uint32_t magic, version;
  uint32_t pid;     // of the feed's process
  uint32_t flags;   // FeedFlags
  uint64_t start;   // when that process began
  uint64_t nbytes;  // from the control part to the end of the slots
  int32_t loops, workers;
  int32_t slots, most;  // at first, and at most with the spare ones
  int32_t fields;
  int32_t on_error, retries;  // of tenon_feed_options, as the next ones
  int64_t fill_timeout_ns;
  uint64_t seed, batches, rank, ranks;
  int64_t rows;
  uint64_t file_at;   // of the control part, in its file
  uint64_t slots_at;  // from the control part
  SlotLayout layout;
  FeedLayout parts;
  char generator[128];  // its name, cut; ends with NUL

  bool has(FeedFlags flag) const noexcept { return (flags & flag) != 0; }
  uint64_t entries() const noexcept;
  Order order() const noexcept {
    const Order in_order(batches, rank, ranks);
    return has(kIsShuffled) ? in_order.shuffled(seed) : in_order;
  }
};

// The version is odd while a consumer writes the round. A worker reads the round between two looks at the
// version, and the last number before the second one.
struct alignas(64) SharedRound {
  std::atomic<uint64_t> version;
  std::atomic<uint64_t> base, limit, epoch, begin, first_worker, flags;
  // The last ticket that has ended its round: no further ones of that round are given. It only grows, so
  // what a worker of a former round writes does not concern a later one.
  std::atomic<uint64_t> closed;
  std::atomic<uint64_t>
      given_up;  // a ticket that has failed without a worker: FeedControl::loop_of_consumers()
};

struct FeedShared : SlotPoolState {
  SharedRound round;
  alignas(64) std::atomic<uint64_t> asked;  // at least as many as there are slots whose tickets are asked
  std::atomic<uint64_t> skipped, retried, unwritten;
  std::atomic<uint64_t> blocked_ns, blocked_by_consumer_ns;
  std::atomic<uint64_t> failed_in_a_row, failed_skips;  // skips.h
};

// Of a slot: its ticket, and what became of it. Written by the process that has the slot for itself, before
// the slot's word changes. What others read meanwhile belongs together if the word is the same before and
// after.
struct alignas(64) SlotRecord {
  std::atomic<uint64_t> number, round, epoch, index, place, flags;
  std::atomic<int64_t> since_ns;  // when the ticket was taken; once delivered: when it was
  std::atomic<Outcome> outcome;
  std::atomic<uint32_t> notes;
  std::atomic<int32_t> loop;     // that has filled it
  std::atomic<int32_t> attempt;  // how often it was begun before
  std::atomic<uint32_t> has_memory;
  // Of the fill; pid 0: by a thread of the feed's process.
  std::atomic<int64_t> pid, began_ns;
  std::atomic<uint64_t> fill_ns;
};

// Of a fill loop: a thread of the feed, one that the generator has started, or a worker process. Written by
// it, and after its death by its reaper.
struct alignas(64) LoopRecord {
  // Since when it is busy: FillLoop::since_ns.
  std::atomic<int64_t> since_ns;
  std::atomic<uint64_t> number, epoch, index;  // of the ticket that it fills; number 0: none
  std::atomic<uint32_t> begun, ended;          // fills, so far
  std::atomic<uint32_t> is_asleep;
  std::atomic<uint64_t> last_fill_ns;
  FillTimes times;
  // Of ticket failed_number, which it has failed, or in which it has ended. Complete before the ticket is
  // settled. It takes no ticket behind that in the same round, so this stays until the consumer is told.
  std::atomic<uint64_t> failed_number;
  TicketFailure failure;

  struct Report {
    enum State : uint32_t { kFree, kWritten, kComplete };
    std::atomic<uint32_t> state;
    char text[2048];  // ends with NUL
  };
  Report reports[2];  // for the consumer: reports.h

  // The state of the generator with which the worker begins: the number of the ticket after which the
  // generator had it, and its bytes, which are FeedControl::start_words(). The version is odd while they are
  // written.
  struct Start {
    std::atomic<uint64_t> version, number, nbytes;
  };
  Start start;
  // The last state of the worker that the server of a feed has noted. ServedState::noting is odd while they
  // are written.
  Start noted;
  // Of a feed that may be served: with which a new process of the worker begins in the round with this base.
  // The start of the round stays: a consumer may come to its first batch later.
  Start again;
  std::atomic<uint64_t> again_in;
};

// Copies the head once: a process that writes elsewhere than it should does not change where this one reads.
// Refers to the control part, which outlives it. Threads: any.
class FeedControl {
 public:
  FeedControl() = default;
  // head: of this control part, written here or checked.
  FeedControl(std::byte* base, const FeedHead& head)
      : base_(base), head_(std::make_shared<const FeedHead>(head)) {}

  // Makes a control part of zeros. head.parts is set.
  static FeedControl make(std::byte* zeros, const FeedHead& head, std::string_view schema);

  std::byte* base() const noexcept { return base_; }
  const FeedHead& head() const noexcept { return *head_; }
  // Between two looks of a thread that sleeps on one of its events.
  int64_t look_ns() const noexcept {
    const bool is_shared = head_->has(kHasProcesses) || head_->parts.is_served();
    return is_shared ? Event::kLookNs : Event::kNoLookNs;
  }
  FeedShared& shared() const noexcept { return *at<FeedShared>(head_->parts.shared_at); }
  // Null: the feed cannot be served.
  ServedState* served() const noexcept {
    return head_->parts.is_served() ? reinterpret_cast<ServedState*>(base_) : nullptr;
  }
  bool is_broadcast() const noexcept {
    const ServedState* const state = served();
    return state != nullptr && look(state->mode) == ServedMode::kBroadcast;
  }
  // Of failures that no worker has told.
  LoopRecord& loop_of_consumers() const noexcept { return loop(head_->loops); }
  SlotTable table() const noexcept;
  // Requires that the slot and the loop exist.
  SlotRecord& record(uint32_t slot) const noexcept { return at<SlotRecord>(head_->parts.records_at)[slot]; }
  LoopRecord& loop(int32_t number) const noexcept { return at<LoopRecord>(head_->parts.loops_at)[number]; }
  // The bytes of LoopRecord::start, noted and again.
  std::span<std::atomic<uint64_t>> start_words(int32_t worker) const noexcept {
    return state_words(head_->parts.starts_at, worker);
  }
  std::span<std::atomic<uint64_t>> noted_words(int32_t worker) const noexcept {
    return state_words(head_->parts.noted_at, worker);
  }
  std::span<std::atomic<uint64_t>> again_words(int32_t worker) const noexcept {
    return state_words(head_->parts.again_at, worker);
  }
  std::span<const std::byte> schema() const noexcept {
    return {base_ + head_->parts.schema_at, head_->parts.schema_nbytes};
  }

 private:
  template <class T>
  T* at(uint64_t offset) const noexcept {
    return reinterpret_cast<T*>(base_ + offset);
  }
  std::span<std::atomic<uint64_t>> state_words(uint64_t states_at, int32_t worker) const noexcept {
    const uint64_t nbytes = head_->layout.state_nbytes;
    return {at<std::atomic<uint64_t>>(states_at + static_cast<uint64_t>(worker) * nbytes),
            nbytes / sizeof(uint64_t)};
  }

  std::byte* base_ = nullptr;
  std::shared_ptr<const FeedHead> head_;
};

// Of a copy of a head that another process has written: whether its parts lie where they should, within
// the file. Fails with kValue. The slots and their layout are not checked.
void check_head(const FeedHead& head, uint64_t file_nbytes);

// Of a control part whose head was checked. Fails with kValue and kType, if it is damaged.
Ref<Schema> read_schema(const FeedControl& control);
// Whether the slots are those of the schema, and lie in the memory. Fails with kValue.
void check_slots(const FeedHead& head, const Schema& schema);

static_assert(std::is_trivially_copyable_v<FeedHead>);
static_assert(sizeof(SlotRecord) == 128);
static_assert(sizeof(FeedShared) <= ServedState::kPoolNbytes && std::is_standard_layout_v<LoopRecord>);

}  // namespace tenon::impl
