// SPDX-License-Identifier: Apache-2.0
//
// How a fill loop takes batches and settles them: the same for threads of a feed, threads that a generator
// has started, and worker processes. Who runs the loop calls the generator between the two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ref.h"
#include "base/spin_budget.h"
#include "base/timed_mutex.h"
#include "base/trace.h"
#include "data/feed_control.h"
#include "data/free_slots.h"
#include "data/skips.h"
#include "data/slot_layout.h"
#include "data/tickets.h"
#include "ipc/schema.h"
#include "tenon/tenon.h"

namespace tenon::impl {

// How the fill of a batch went.
struct FillResult {
  int32_t code = 0;
  int32_t kind = TENON_FAILED;  // with a code other than 0
  int64_t pid = 0;
  int32_t exit_signal = 0;
  int32_t exit_code = -1;
  uint64_t fill_ns = 0;
  int64_t began_ns = 0;  // of now_ns()
  std::string message;
  uint32_t notes = 0;  // FillNotes
};

inline bool is_failure(const FillResult& result) noexcept {
  return result.code != 0 && result.code != TENON_NO_BATCH && result.code != TENON_END_OF_EPOCH;
}

// A batch that is being filled.
struct Job : Ticket {
  int32_t retries = 0;
  std::vector<std::byte> attachment;  // from before the fill

  bool is_restored() const noexcept { return (flags & (TENON_RESTORE_STATE | TENON_RESTORE_START)) != 0; }
};

// What a generator gets for a request: fields and shapes are the addresses in the slot, by field.
inline tenon_fill_request fill_request_of(const Ticket& ticket, const SlotLayout& layout, std::byte* slot,
                                          void* const* fields, int64_t* const* shapes) noexcept {
  tenon_fill_request request{};
  request.struct_size = sizeof request;
  request.fields = fields;
  request.shapes = shapes;
  request.index = ticket.index;
  request.epoch = ticket.epoch;
  request.seed = ticket.seed;
  request.epoch_seed = ticket.epoch_seed;
  request.flags = ticket.flags;
  request.restore_nbytes = ticket.restore_nbytes;
  request.attachment = layout.attachment(slot);
  request.attachment_size = layout.attachment_nbytes;
  request.attachment_nbytes = &layout.attached(slot);
  request.notes = &layout.notes(slot);
  request.state = layout.state(slot);
  request.state_size = layout.state_nbytes;
  request.state_nbytes = &layout.stated(slot);
  return request;
}

// Of one loop. Threads: that of the loop.
class Filling {
 public:
  // What is done besides in the feed's process. All may be null but take_memory and self.
  struct Hooks {
    // False: there is none, for this reason.
    bool (*take_memory)(void* self, int32_t slot, std::string& reason) = nullptr;
    // False: the batch is settled already. Called with preparing, so that batches come in order.
    bool (*prepare)(void* self, Job& job) = nullptr;
    TimedMutex* preparing = nullptr;
    void (*begin_span)(void* self, const Job& job) = nullptr;
    trace::Span (*begin_blocked)(void* self) = nullptr;  // with trace::key_of(self)
    // Null: texts for the consumer go to the LoopRecord.
    void (*report)(void* self, std::string text) = nullptr;
    void* self = nullptr;
    bool is_inline = false;  // the loop is run by consumers
  };

  // memory: of the first slot. worker: that runs in the loop at first.
  Filling(const FreeSlots& slots, std::byte* memory, Ref<Schema> schema, int32_t loop, const Hooks& hooks);
  Filling(Filling&&) = default;

  // The loop is run for another worker; Tickets::kPreparer: it prepares the batches of all.
  void set_worker(int32_t worker) noexcept { worker_ = worker; }

  enum class JobTake { kJob, kNone, kOver };
  // The next batch, in a slot as it is before a fill. kNone: there was none in this time. kOver: the feed is
  // closed.
  JobTake take_job(const Deadline& deadline, Job& job);
  // Before each fill, also of a batch that is filled again.
  void put_state(Job& job) noexcept;
  // The generator has another state than it should: its process is new.
  void lose_state() noexcept { known_.is_lost = true; }
  // Gives the slot the content from before the fill.
  void put_back(const Job& job) noexcept;
  // After a fill. May change the result.
  void check_fill(const Job& job, FillResult& result);
  // Reads what the generator says of itself, in a fill that was not called, too.
  void read_notes(const Job& job, FillResult& result) const;
  // Whether a failure of the batch is to be tried again: the one place that decides it.
  bool has_attempts_left(const Job& job) const noexcept;
  // Then notes the state after the fill. True: the batch is to be filled again.
  bool note_result(const Job& job, const FillResult& result);
  void retry(Job& job) noexcept;
  // was_begun: else it has not come to a fill.
  void settle(const Job& job, const FillResult& result, bool was_begun = true) noexcept;

 private:
  const FeedHead& head() const noexcept { return control_.head(); }
  FeedShared& shared() const noexcept { return control_.shared(); }
  bool has_state() const noexcept { return head().has(kHasStates); }
  std::byte* data(int32_t slot) const noexcept {
    return memory_ + static_cast<size_t>(slot) * head().layout.slot_nbytes;
  }
  int32_t take_slot(const Deadline& deadline) noexcept;
  void report(std::string text) noexcept;
  void note_unwritten(FillResult& result) noexcept;
  void check_shapes(const Job& job, FillResult& result) const;
  void note_state(const Job& job, const FillResult& result, bool is_again);
  bool skip(const Job& job, const FillResult& result) noexcept;

  FreeSlots slots_;
  Tickets tickets_;
  FeedControl control_;
  std::byte* memory_;
  Ref<Schema> schema_;
  int32_t loop_, worker_;
  Hooks hooks_;
  Skips skips_;
  KnownState known_;
  SpinBudget short_wait_;
};

}  // namespace tenon::impl
