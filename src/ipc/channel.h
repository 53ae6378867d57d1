// SPDX-License-Identifier: Apache-2.0
//
// A channel passes slots of shared memory from producers to consumers (slot_table.h). If a process dies at
// any moment, its items are lost and its slots become free (channel_ends.h). There is no lock.
//
// The process that holds a slot possesses its memory (SlotGate): all of its threads may use the arrays of the
// item, and their leases and ops are ordered among themselves, as on memory that is not shared.
#pragma once

#include <algorithm>
#include <bitset>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "array/array.h"
#include "base/clock.h"
#include "base/fork_mark.h"
#include "base/ref.h"
#include "base/spin_budget.h"
#include "base/trace.h"
#include "ipc/channel_ends.h"
#include "ipc/channel_state.h"
#include "ipc/schema.h"
#include "ipc/segments.h"
#include "ipc/slot_memory.h"
#include "ipc/slot_table.h"

namespace tenon::impl {

enum class ChannelMode : uint32_t {
  kQueue = TENON_CHANNEL_QUEUE,          // each item to one consumer
  kBroadcast = TENON_CHANNEL_BROADCAST,  // each item to all consumers
  kLatest = TENON_CHANNEL_LATEST,        // the newest item to each receive
};

// What loan() does without a free slot.
enum class WhenFull : uint32_t {
  kWait = TENON_WHEN_FULL_WAIT,
  kDropOldest = TENON_WHEN_FULL_DROP_OLDEST,  // of the items that no process holds, also if it was received
  kRaise = TENON_WHEN_FULL_RAISE,
  kKeep = TENON_WHEN_FULL_KEEP,  // as kWait, and a broadcast waits for a consumer
};

struct ChannelPlan {
  uint32_t slots = 0;
  ChannelMode mode = ChannelMode::kQueue;
  WhenFull when_full = WhenFull::kWait;
  // Of a channel of bytes: its items have no fields, and each takes as much of the budget as it needs.
  uint64_t budget_nbytes = 0;   // of all items; 0: the items have fields
  uint64_t largest_nbytes = 0;  // of one item

  bool holds_bytes() const noexcept { return budget_nbytes != 0; }
};

// What an opening of a channel wants, as a consumer.
struct OpeningPlan {
  // After a crash of the last producer it waits for one that comes back, and it is not told of deaths.
  bool awaits_crashed = false;
  // Of a broadcast: it receives the newest item, and producers do not wait for it.
  bool receives_latest = false;
};

class Item;
class Openings;
class Watch;
struct Cursor;

struct ChannelStatistics {
  uint64_t sent = 0;
  uint64_t received = 0;
  uint64_t dropped = 0;  // because no slot was free
  uint64_t deaths = 0;   // of producers and members
  uint32_t ready = 0;    // slots with an item that a consumer may receive
  uint32_t in_use = 0;   // slots that a process holds
  uint32_t producers = 0;
  uint32_t consumers = 0;
  uint64_t refused = 0;  // loans that failed because there was no room
  uint64_t nbytes = 0;   // of all items together, at most
  uint64_t used_nbytes = 0;
  uint64_t committed_nbytes = 0;
  uint64_t largest_sent_nbytes = 0;
};

// Reference-counted. One opening of a channel in a process, with up to three roles: it becomes a producer
// with the first loan, a consumer with the first receive, and a member with join(). Threads: any.
class Channel {
 public:
  // Or opens the one that has the name, whatever its plan is (options.opens_existing). Fails with kValue,
  // kType, kNoMemory, kSystem.
  static Ref<Channel> create(std::span<const tenon_field> fields, const ChannelPlan& plan,
                             const SharedOptions& options);
  // A channel of bytes. Fails as create(), and with kValue (an item may be larger than the budget; an option
  // that its memory cannot have).
  static Ref<Channel> create_bytes(const ChannelPlan& plan, const SharedOptions& options);
  // Opens the channel in memory that was attached or opened. Fails with kValue (it contains no channel, or a
  // queue, which has no newest item for each opening).
  static Ref<Channel> of(Ref<Array> memory, const OpeningPlan& opening = {});

  const Schema& schema() const noexcept { return *schema_; }
  Array& memory() const noexcept { return *memory_; }  // to be sent
  const ChannelPlan& plan() const noexcept { return plan_; }
  const OpeningPlan& opening() const noexcept { return opening_; }

  // A free slot. Null: the deadline left no time from the beginning, and no slot is free. site: of the
  // caller, for the timeline. Fails with kTimeout, kInterrupted, kClosed, kLeaseConflict (no slot is free,
  // and when_full is kRaise; or this is a forked child, and has inherited views of the only free slots),
  // kNoMemory and kSystem (the slot was not lent before, and gets no memory). nbytes: of the item, in a
  // channel of bytes. Fails with kValue if it is larger than the largest one. will_retry: that there is
  // no room is not counted as refused, as the caller tries again.
  Ref<Item> loan(const Deadline& deadline, const char* site, uint64_t nbytes = 0, bool will_retry = false);
  // Sends a loan. The bytes of fields of which no array was made become 0. Fails with kLeaseEscaped (a view,
  // a lease or an op uses one of its arrays) and kOp (an op failed to write it): the item is dropped. Fails
  // with kValue (not a loan, or another thread sends it) and kClosed.
  void send(Item& item);
  // Ends a loan and its arrays, so that they do not keep the slot. If a view, a lease or an op uses one, the
  // slot becomes free with these. Fails with kValue (not a loan, or another thread sends it).
  void drop(Item& item);
  // The next item. Null: the deadline left no time from the beginning, and there is no item. Fails with
  // kTimeout, kInterrupted, kOwnerDied (a producer or member has died, and no item is left: once for each
  // death), kClosed (the last producer has closed, and no item is left: once, until there is a producer
  // again; OpeningPlan::awaits_crashed: only if it has not died, and no kOwnerDied), kLeaseConflict (this is
  // a forked child that has inherited a view of the item's slot).
  Ref<Item> receive(const Deadline& deadline, const char* site);
  // Waits until receive() would not wait. False: the deadline left no time from the beginning, and receive()
  // would wait. Fails with kTimeout, kInterrupted.
  bool wait_for_item(const Deadline& deadline);

  // A descriptor for poll(), which is readable while receive() (kRead) or loan() (kWrite) may have something
  // to do. It stays readable until a call of that function with a deadline of 0 finds nothing to do; after
  // close() always. The channel owns it. A forked child must call this again. Fails with kSystem.
  int descriptor(Access access);

  // Gives a received item back, of which there is no array: it is received again, by this opening or, in a
  // queue, by any. Fails with kValue (not such an item) and kNoMemory.
  void put_back(Item& item);

  // From now on, consumers are told of the death of this process also if it has not used the channel before.
  // Does nothing after close(). Fails with kSystem.
  void join();
  // Ends the roles of this opening. Its items stay valid.
  void close() noexcept;
  ChannelStatistics statistics() const;

  void retain() noexcept { refs_.increment(); }
  void release() noexcept {
    if (!refs_.decrement_unlisted()) return;
    close();
    delete this;
  }

 private:
  friend class Item;
  friend class Watch;
  friend class Watcher;

  Channel() = default;
  ~Channel();
  void open_slots();
  uint32_t self() const noexcept;
  uint64_t taker() const noexcept;
  bool is_viewer() const noexcept {
    return opening_.receives_latest && plan_.mode == ChannelMode::kBroadcast;
  }
  ChannelRole receiving_role() const noexcept { return is_viewer() ? kViewer : kConsumer; }
  bool has_role(ChannelRole role) const noexcept;
  void ensure_role(ChannelRole role);
  void take_role(ChannelRole role);
  void give_up_roles() noexcept;
  void note_cursors() noexcept;
  void note_received(uint64_t n) noexcept;
  void forget(uint64_t sequence) noexcept;
  uint64_t ended(uint64_t closings_before) const noexcept;
  bool has_death() const noexcept;
  bool is_read(uint32_t slot) const noexcept;
  bool is_held(uint32_t slot) const noexcept;
  bool has_free_slot(const SharedEvent& event) const noexcept;
  // Calls visit(place) with each place that the words and the bits of the slots name.
  template <class Visit>
  void visit_users(Visit visit) const {
    for (uint32_t i = 0; i < plan_.slots; ++i) {
      const uint64_t word = table_.word(i);
      if (SlotWord::has_holder(word)) visit(std::min(SlotWord::holder(word), kParticipants - 1));
      visit_bits(table_.readers(i), visit);
    }
  }
  void prepare_slot(uint32_t slot) noexcept;
  void prepare_slot_locked(uint32_t slot) noexcept;
  void note_held(Item& item, uint32_t slot, bool is_readonly) noexcept;
  void give_back(Item& item) noexcept;
  void check_loan(const Item& item) const;
  bool end_uses(Item& item, Ref<Failure>* failure, bool* has_room) noexcept;
  std::atomic<bool>& use_of(uint32_t slot, size_t field) const noexcept;
  void clear_unused_fields(const Item& item) const noexcept;
  Storage& storage_of(uint32_t slot) const noexcept { return slots_[slot]->storage(); }
  void check_size(uint64_t nbytes) const;
  bool try_loan(Item& item);
  bool wait_for_loan(Item& item, const Deadline& deadline);
  uint64_t used_nbytes(uint32_t slot, uint64_t spare) const noexcept;
  void note_sent_nbytes(uint64_t nbytes) noexcept;
  bool lend(Item& item) { return plan_.holds_bytes() ? lend_bytes(item) : lend_spare(item); }
  bool is_spare(uint32_t slot, uint64_t word, uint64_t up_to) const noexcept;
  bool take_spare(uint32_t slot, uint64_t word) noexcept {
    return word == SlotWord::kFree ? take_free(slot) : take_over(slot, word, false);
  }
  // The slots that a loan of bytes has found in use.
  static constexpr uint32_t kMostSlots = 4095;
  using Refused = std::bitset<kMostSlots>;
  struct Choice {
    uint32_t slot = SlotTable::kNone;
    uint64_t word = 0;
    uint64_t nbytes = 0;  // it has so much memory
    bool is_any() const noexcept { return slot != SlotTable::kNone; }
  };
  uint64_t most_lent(uint64_t nbytes) const noexcept;
  Choice choose_slot(uint64_t nbytes, const Refused& refused) const noexcept;
  Choice largest_spare(const Refused& refused) const noexcept;
  bool make_room(uint32_t slot, uint64_t nbytes, Refused refused);
  bool lend_bytes(Item& item);
  bool drop_for_bytes(Item& item);
  bool return_excess(const Item& item) noexcept;
  std::string bytes_text() const;
  bool lend_spare(Item& item);
  bool drop_oldest(Item& item);
  bool grow(uint32_t slot, uint64_t nbytes) const;
  void take_memory(uint32_t slot) const;
  void note_loan(Item& item, uint32_t slot) noexcept;
  uint64_t spare_up_to() const noexcept;
  void check_spare_slots(const Item& item) const;
  bool may_drop() const noexcept;
  bool take_free(uint32_t slot) noexcept;
  bool take_over(uint32_t slot, uint64_t word, bool drops) noexcept;
  bool try_receive(Item& item, uint64_t closings_before);
  void prefetch_item() const noexcept;
  void note_empty(uint32_t signals) noexcept;
  bool is_still_empty() const noexcept;
  SlotTable::Found item_to_receive(uint64_t skipped = 0) noexcept;
  bool has_item() noexcept;
  bool take_item(Item& item, uint32_t* refused);
  bool join_item(Item& item, uint32_t* refused);
  [[noreturn]] void throw_death(uint64_t number) const;
  bool add_lives(const SharedEvent& event, os::Sleep* words, size_t* n) const noexcept;
  bool has_news(const SharedEvent& event) const noexcept;
  void begin_wait(SharedEvent& event) const noexcept { segment_->begin_wait(event); }
  void end_wait(SharedEvent& event) const noexcept { segment_->end_wait(event); }
  Watch* watch_of(const SharedEvent& event) const noexcept;
  template <class Try>
  bool try_once_more(const SharedEvent& event, Try attempt);
  // "4 of 4 slots in use, 0 items, 1 producer and 1 consumer", and which of them are stopped.
  std::string use_text() const;
  [[noreturn]] void throw_timeout(const char* doing, const Deadline& deadline) const;
  template <class Try>
  bool wait(SharedEvent& event, SpinBudget& budget, const Deadline& deadline, const char* doing, Try attempt);
  template <class Try>
  void sleep_until(SharedEvent& event, const Deadline& deadline, const char* doing, Try attempt);

  Ref<Schema> schema_;
  ChannelPlan plan_;
  OpeningPlan opening_;
  Ref<Array> memory_;
  std::vector<Ref<Array>> slots_;
  Segment* segment_ = nullptr;
  ChannelState* state_ = nullptr;
  Gate* gate_ = nullptr;                              // of the slots
  Openings* openings_ = nullptr;                      // of this channel in this process
  Cursor* cursor_ = nullptr;                          // of a consumer; guarded by Openings::lock()
  std::unique_ptr<std::atomic<bool>[]> used_fields_;  // by slot and field: an array was made, for a loan
  ChannelEnds ends_;
  SlotTable table_;
  SlotMemories memories_;
  // Constant. The first news, up to this number, are the deaths while the process took its place. So many
  // came between them and the opening.
  uint64_t deaths_at_opening_ = 0, deaths_between_ = 0;
  std::atomic<uint64_t> seen_deaths_{0};
  std::atomic<uint64_t> seen_closings_{0};
  SpinBudget loan_budget_{true};
  SpinBudget receive_budget_{true};
  std::atomic<uint32_t> roles_{0};        // of this opening; changed under Openings::lock()
  std::atomic<uint64_t> roles_taker_{0};  // the participant that has added them, and its generation
  std::atomic<bool> is_closed_{false};
  std::atomic<uint64_t> waited_for_{0};  // see ChannelEnds::reap_dead()
  // The last attempt to receive that found nothing, for is_still_empty(); stored under Openings::lock().
  std::atomic<uint64_t> empty_at_{0};  // the signals of the event before it, plus kIsEmpty; 0: none
  std::atomic<int64_t> empty_at_ms_{0};
  Mask peers_{};  // the other participants that had a role
  // Created at the first use; owned.
  std::atomic<Watch*> item_watch_{nullptr};
  std::atomic<Watch*> room_watch_{nullptr};
  RefCount refs_;
};

// A loaned or received slot. Reference-counted: its arrays keep it. The slot becomes free with the last one
// of them. Threads: any.
class Item {
 public:
  // An array over the slot; in a channel of bytes, array 0 is all of them. Read-only if other consumers can
  // read the item, too. Fails with kIndex, and with kLeaseConflict (the item was sent, or this is a forked
  // child).
  Ref<Array> array(int32_t index);
  // Of a loan of a channel of bytes: the size of the item from now on. Its arrays stay valid. Does not wait.
  // Fails with kNoMemory (the budget has no room, or the system has no memory), kValue (too large; not such a
  // loan; another thread sends it or changes its size), kSystem.
  void set_nbytes(uint64_t nbytes);
  uint64_t nbytes() const noexcept { return nbytes_.load(std::memory_order_relaxed); }
  // Of a received or sent item; 0: a loan.
  uint64_t sequence() const noexcept { return sequence_.load(std::memory_order_relaxed); }
  Channel& channel() const noexcept { return *channel_; }

  void retain() noexcept { refs_.increment(); }
  void release() noexcept {
    if (refs_.decrement_unlisted()) delete this;
  }

 private:
  friend class Channel;
  struct Sending;
  struct Making;
  explicit Item(Ref<Channel> channel) noexcept : channel_(std::move(channel)) {}
  void begin(const char* site) noexcept;
  [[gnu::cold]] void begin_span(const char* site) noexcept;
  void end_span() noexcept {
    trace::close(std::exchange(span_, trace::kNoSpan), trace::key_of(this), trace::SpanOutcome::kDone);
  }

  ~Item();
  static void release_array(void* self) { static_cast<Item*>(self)->release(); }

  Ref<Channel> channel_;
  const ForkMark process_;  // that has loaned or received it
  trace::Span span_ = trace::kNoSpan;
  uint32_t slot_ = 0;
  std::atomic<uint64_t> sequence_{0};
  uint64_t taker_ = 0;  // the process that holds the slot for it: see Channel::taker(); 0: none
  bool is_readonly_ = false;
  std::atomic<uint64_t> nbytes_{0};     // in a channel of bytes
  std::atomic<bool> has_ended_{false};  // it was sent, dropped, or put back
  std::atomic<bool> is_sending_{false};
  std::atomic<uint32_t> n_making_{0};  // threads that make an array of a loan
  RefCount refs_;
};

}  // namespace tenon::impl
