// SPDX-License-Identifier: Apache-2.0
//
// A feed of another process, whose batches this process receives from its table: no batch passes a thread of
// the feed's process. data/feed_serving.cc is the other side, docs/dev/slots.md has the stores.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "array/array.h"
#include "base/fork_mark.h"
#include "base/ref.h"
#include "base/timed_mutex.h"
#include "data/batch.h"
#include "data/feed_control.h"
#include "data/feed_serving.h"
#include "data/tickets.h"
#include "ipc/private_pages.h"
#include "ipc/schema.h"
#include "ipc/segment.h"
#include "ipc/served_ends.h"
#include "tenon/tenon.h"

namespace tenon::impl {

// The slots, mapped by this process, and its place as a consumer. Counted: the attached feed holds one
// reference, each batch another. They keep the name of the feed. Threads: any.
class AttachedSlots {
 public:
  // Fails as Segments::attach(), and with kValue: it is no feed, or its memory is damaged.
  static Ref<AttachedSlots> attach(const std::string& name);

  const ServedEnds& ends() const noexcept { return ends_; }
  const FeedControl& control() const noexcept { return control_; }
  const Ref<Schema>& schema() const noexcept { return schema_; }
  uint32_t place() const noexcept { return place_; }
  bool is_broadcast() const noexcept { return is_readonly_; }
  std::byte* data(int32_t slot) const noexcept {
    return memory_ + static_cast<size_t>(slot) * control_.head().layout.slot_nbytes;
  }
  // Of a slot that was received. It is given back at the end of the storage. Fails with std::bad_alloc; the
  // slot is given back then.
  Ref<Storage> lend_storage(int32_t slot, uint64_t number);
  void give_back(int32_t slot, uint64_t number) const noexcept;

  void retain() noexcept { refs_.increment(); }
  void release() noexcept {
    if (refs_.decrement()) delete this;
  }

 private:
  struct Loan {
    Ref<AttachedSlots> slots;
    int32_t slot;
    uint64_t number;
  };

  AttachedSlots(Ref<Array> shared, Segment& segment, const FeedHead& head);
  ~AttachedSlots();
  AttachedSlots(const AttachedSlots&) = delete;
  AttachedSlots& operator=(const AttachedSlots&) = delete;
  void map(Segment& segment);
  static void end_loan(void* loan) noexcept;

  // Constant after construction.
  const ForkMark process_;
  const Ref<Array> shared_;  // the control part, which keeps the segment
  const ServedEnds ends_;
  const FeedControl control_;
  const uint32_t place_;
  const bool is_readonly_;  // of a broadcast, also in the feed's own process
  const Ref<Schema> schema_;
  std::byte* memory_ = nullptr;  // of the slots
  const size_t nbytes_;
  std::optional<PrivatePages> private_pages_;  // of a broadcast: for lazy copies

  RefCount refs_;
};

// This process as a consumer of a feed, which is in one round after the other. A loop is what the program
// does between begin() and the end that next() says: it takes part in one round, or in the rest of it. A
// process has one at a time for a feed.
//
// Threads: any. In a forked child every call but close() fails with kClosed.
class AttachedFeed {
 public:
  // Fails as AttachedSlots::attach(), and with kValue: this process is attached to that feed already.
  explicit AttachedFeed(const std::string& name);
  ~AttachedFeed() { close(); }
  AttachedFeed(const AttachedFeed&) = delete;
  AttachedFeed& operator=(const AttachedFeed&) = delete;

  const AttachedSlots& slots() const noexcept { return *slots_; }

  // Begins a loop. It waits for nothing but, for a moment, the server that begins a round. Fails with kClosed
  // (the feed is not served any more, and nothing is left of what was; or close() was called), kOwnerDied
  // (the last loop has failed so), kValue (another thread waits in next()).
  void begin();
  // False: the time has passed, and nothing was taken. batch is null when the loop is over. Fails with kOp
  // (the generator has failed at this batch: failure(); the loop is over), kOwnerDied (nothing more is ready,
  // and the feed's process has died), kValue (the memory is damaged), std::bad_alloc, and as begin().
  bool next(int64_t timeout_ns, Ref<Batch>& batch);
  // What next() waits for, and what would help.
  std::string waiting_text() const;

  // The feed is to begin at this position, if it has not begun when this consumer's first loop does. Fails
  // with kValue (a loop has begun; states of another number of workers; as begin()).
  void resume(const FeedPosition& position, int32_t rank, int32_t world_size);
  // Behind the last batch that was delivered here. Fails with kNotFound: none was. is_gap: other consumers
  // have got batches between those that were delivered here.
  FeedPosition state(bool* is_gap) const;
  // Details of the last failure of next().
  tenon_feed_failure failure() const;

  struct Info {
    ServedMode mode;
    ServedPhase phase;
    uint32_t pid = 0;     // of the feed's process
    uint32_t tokens = 0;  // slots that consumers may hold
    uint32_t held = 0;    // that they hold
    uint32_t consumers = 0;
    uint64_t first_number = 0, first_epoch = 0, first_place = 0;  // where the serving began; 0: not yet
    uint64_t last_number = 0;                                     // of the last batch that was delivered here
    bool is_first = false;  // no other consumer of a queue has got a batch of the serving before that one
  };
  Info describe() const noexcept;
  // What Feed::serve() has noted.
  std::string note() const;

  // Other consumers get the batches that this one has not received. Those that it has stay valid. Idempotent.
  void close() noexcept;

 private:
  enum class Step { kBatch, kOver, kWait, kWaitForRoom };

  void check_open() const;
  bool is_closed() const noexcept {
    // pairs with: close, "closed"
    return is_closed_.load(std::memory_order_seq_cst);
  }
  ServedPhase phase() const noexcept { return observe(ends_.state().phase); }
  CursorRecord& own_record() const noexcept { return ends_.state().records[slots_->place()]; }
  uint64_t next_number(const Tickets::Round& round) const noexcept;
  // Whether a consumer may receive a number.
  enum class Open { kYes, kNo, kNotKnown };
  Open is_open(uint64_t number) const noexcept;
  bool has_left() const noexcept;

  // Fails with kValue: another thread is in next(), and waits.
  std::unique_lock<TimedMutex> lock_taking();

  // The rest: of the thread that has taking_.
  void announce_join();
  bool end_join();
  Step look(Ref<Batch>& batch);
  Step look_at_front(Ref<Batch>& batch);
  Step end_loop(bool is_told);
  Step over();
  void pass(uint64_t number) noexcept;
  bool receive(uint32_t slot, uint64_t number) noexcept;
  Ref<Batch> batch_of(uint32_t slot, uint64_t number);
  void note_delivery(const Ticket& ticket, const Batch& batch);
  // Of generators with a state.
  bool learn_states();
  bool read_starts();
  void note_state(uint32_t slot, uint64_t number);
  Ref<Array> pack_wanted(CursorRecord& own);
  void note_position(uint64_t next, bool is_end);
  [[noreturn]] void throw_failure(uint64_t number, const TicketFailure& failure);
  [[noreturn]] void throw_damaged(const std::string& what) const;
  [[noreturn]] void throw_served_no_more() const;
  [[noreturn]] void throw_died();

  // Constant after construction.
  const ForkMark process_;
  const std::string name_;
  const Ref<AttachedSlots> slots_;
  const ServedEnds& ends_;
  const Tickets tickets_;
  const Order order_;
  const bool is_broadcast_;

  std::atomic<bool> is_closed_{false};
  std::atomic<int64_t> waiting_since_ns_{0};  // of next(); 0: it does not wait
  std::atomic<bool> is_in_round_{false};      // for waiting_text()
  std::atomic<uint64_t> last_number_{0};

  TimedMutex taking_;
  // Guarded by taking_.
  bool has_announced_ = false;  // it joins: has_joined_ follows
  bool has_joined_ = false;
  bool has_died_ = false;   // the feed's process, as a loop was told
  bool is_over_ = true;     // no loop goes on
  bool is_late_ = false;    // the loop began after the end of the serving
  bool has_batch_ = false;  // the loop has got one
  bool is_first_ = false;   // of all consumers that have got the last one
  Tickets::Round round_;    // of the loop, if is_in_round_
  uint64_t ended_ = 0;      // the base of the last round that it takes no more part in
  uint64_t cursor_ = 0;     // of a broadcast: the last number that it has received or passed
  // By worker, after the last batch of each that was received here.
  std::vector<WorkerState> states_;
  bool has_looked_for_states_ = false;  // in this round
  Ref<Array> wanted_states_;            // until a batch comes
  uint64_t next_own_ = 0;  // the number after the last one that it has received or passed in this round

  mutable std::mutex noting_;
  // Guarded by noting_.
  std::optional<FeedPosition> delivered_;
  bool has_gap_ = false;
  bool ignored_index_ = false;
  std::optional<std::pair<FeedPosition, std::pair<int32_t, int32_t>>> wanted_;  // and the ranks
  tenon_feed_failure failure_{};
};

}  // namespace tenon::impl
